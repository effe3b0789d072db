//! Problems of the input that have been logged.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tortie_datastore::{Fallback, InputProblem};
use tortie_resources::Severity;

/// Maximum number of problems of one report that are logged one by one.
const MAX_LOGGED: usize = 50;

/// Identity of a problem of a field. It does not depend on the field's position in the file or on
/// numbers in the text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Identity {
    /// Only without a subject: of an object in two files, only the effective one is reported.
    file: Option<PathBuf>,
    subject: String,
    field: String,
    text: String,
}

impl Identity {
    fn new(problem: &InputProblem) -> Self {
        let InputProblem { file, subject, problem, .. } = problem;
        Self {
            file: file.clone().filter(|_| subject.is_empty()),
            subject: subject.clone(),
            field: problem.field.clone(),
            text: problem.message.chars().filter(|c| !c.is_ascii_digit()).collect(),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct InputProblems {
    current: BTreeMap<Identity, String>,
}

impl InputProblems {
    pub(super) fn replace(&mut self, problems: &[InputProblem]) {
        let mut now = BTreeMap::new();
        let mut new = 0;
        for problem in problems {
            let identity = Identity::new(problem);
            if !self.current.contains_key(&identity) && !now.contains_key(&identity) {
                new += 1;
                if new <= MAX_LOGGED {
                    log(problem);
                }
            }
            now.entry(identity).or_insert_with(|| problem.to_string());
        }
        if new > MAX_LOGGED {
            tracing::warn!(
                more = new - MAX_LOGGED,
                "more of the input has problems; `tortie check` names those of files"
            );
        }
        let resolved: Vec<&String> =
            self.current.iter().filter(|(identity, _)| !now.contains_key(*identity)).map(|(_, text)| text).collect();
        for text in resolved.iter().take(MAX_LOGGED) {
            tracing::info!(problem = %text, "problem in the input resolved");
        }
        if resolved.len() > MAX_LOGGED {
            tracing::info!(more = resolved.len() - MAX_LOGGED, "more of the input's problems are resolved");
        }
        self.current = now;
    }

    pub(super) fn first(&self) -> Option<&String> {
        self.current.values().next()
    }

    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        self.current.values().map(String::as_str)
    }

    pub(super) fn len(&self) -> usize {
        self.current.len()
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
        Severity::Warning => tracing::warn!(%problem, "warning about the input"),
        Severity::Error => tracing::error!(%problem, fallback, "invalid input"),
    }
}

#[cfg(test)]
mod tests;
