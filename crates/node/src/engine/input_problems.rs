//! Problems of the input that have been logged.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tortie_datastore::{Fallback, InputProblem};
use tortie_resources::Severity;

/// Maximum number of problems of one report that are logged one by one.
const SAID: usize = 50;

/// Identity of a problem of a field. It does not depend on the field's position in the file or on
/// numbers in the text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Identity {
    /// Only for a problem without a subject. If an object is in two files, only the content of the
    /// effective one is reported.
    file: Option<PathBuf>,
    subject: String,
    field: String,
    what: String,
}

impl Identity {
    fn new(problem: &InputProblem) -> Self {
        let InputProblem { file, subject, problem, .. } = problem;
        Self {
            file: file.clone().filter(|_| subject.is_empty()),
            subject: subject.clone(),
            field: problem.field.clone(),
            what: problem.what.chars().filter(|c| !c.is_ascii_digit()).collect(),
        }
    }
}

/// The current problems of the input, with their texts of the last report.
#[derive(Debug, Default)]
pub(super) struct InputProblems {
    known: BTreeMap<Identity, String>,
}

impl InputProblems {
    /// Takes all current problems; logs those that are new and those that are resolved.
    pub(super) fn replace(&mut self, problems: &[InputProblem]) {
        let mut now = BTreeMap::new();
        let mut new = 0;
        for problem in problems {
            let identity = Identity::new(problem);
            if !self.known.contains_key(&identity) && !now.contains_key(&identity) {
                new += 1;
                if new <= SAID {
                    log(problem);
                }
            }
            now.entry(identity).or_insert_with(|| problem.to_string());
        }
        if new > SAID {
            tracing::warn!(more = new - SAID, "more of the input has problems; `tortie check` names those of files");
        }
        let resolved: Vec<&String> =
            self.known.iter().filter(|(identity, _)| !now.contains_key(*identity)).map(|(_, text)| text).collect();
        for text in resolved.iter().take(SAID) {
            tracing::info!("resolved: {text}");
        }
        if resolved.len() > SAID {
            tracing::info!(more = resolved.len() - SAID, "more of the input's problems are resolved");
        }
        self.known = now;
    }

    /// Returns the text of one of them.
    pub(super) fn first(&self) -> Option<&String> {
        self.known.values().next()
    }

    /// Returns the texts of all of them.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        self.known.values().map(String::as_str)
    }

    pub(super) fn len(&self) -> usize {
        self.known.len()
    }
}

fn log(problem: &InputProblem) {
    let fallback = match problem.fallback {
        Fallback::NotNeeded => "it has no effect",
        Fallback::LastGood => "the last valid version stays in force",
        Fallback::Denied => "the endpoints that it selects are denied",
        Fallback::Nothing => "it has no replacement",
        Fallback::Closed => "all endpoints that it may apply to are kept closed",
        Fallback::Tolerated => "the state from before it appeared stays in force",
    };
    match problem.problem.severity {
        Severity::Warning => tracing::warn!("{problem}"),
        Severity::Error => tracing::error!(fallback, "{problem}"),
    }
}

#[cfg(test)]
mod tests;
