//! What is wrong with the input, as far as it has been logged.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tortie_datastore::{Fallback, InputProblem};
use tortie_resources::Severity;

/// How many problems of one report get a line each.
const SAID: usize = 50;

/// The same for the same problem of the same field, wherever the field stands by now and whatever is counted there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Identity {
    /// Of an object in two files, only the one that counts is reported for what is in it.
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

/// The problems of the input that there are, in the words of the last report.
#[derive(Debug, Default)]
pub(super) struct InputProblems {
    known: BTreeMap<Identity, String>,
}

impl InputProblems {
    /// Takes all problems that there are now; logs those that are new and those that are gone.
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

    /// One of them, in words.
    pub(super) fn first(&self) -> Option<&String> {
        self.known.values().next()
    }

    /// All of them, in words.
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
        Fallback::LastGood => "the last good version stays in force",
        Fallback::Denied => "what it selects is denied",
        Fallback::Nothing => "nothing can stand in for it",
        Fallback::Closed => "all endpoints that it may be meant for are kept closed",
        Fallback::Tolerated => "what was in force without it stays in force",
    };
    match problem.problem.severity {
        Severity::Warning => tracing::warn!("{problem}"),
        Severity::Error => tracing::error!(fallback, "{problem}"),
    }
}

#[cfg(test)]
mod tests;
