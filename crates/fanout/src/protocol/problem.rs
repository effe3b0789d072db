//! Problems of the datastore in messages.

use std::fmt;

use tortie_datastore::{Fallback, InputProblem};
use tortie_resources::{FieldProblem, Position, Severity};

use super::{Upstream, WireFallback, WireProblem};
use crate::cache;

/// Maximum number of listed problems. Problems without a fallback come first.
const LISTED: usize = 1000;
/// Maximum length of a text of a problem in characters.
const TEXT: usize = 1000;

impl From<&cache::Upstream> for Upstream {
    fn from(upstream: &cache::Upstream) -> Self {
        let (bare, covered): (Vec<_>, Vec<_>) = upstream
            .refused
            .iter()
            .chain(&upstream.problems)
            .partition(|problem| problem.fallback == Fallback::Nothing);
        let problems = bare.into_iter().chain(covered).take(LISTED).map(WireProblem::from).collect();
        Self {
            problems,
            // For display only.
            more: u32::try_from((upstream.problems.len() + upstream.refused.len()).saturating_sub(LISTED))
                .unwrap_or(u32::MAX),
            unavailable: upstream.unavailable.as_deref().map(short).unwrap_or_default(),
        }
    }
}

impl From<&InputProblem> for WireProblem {
    fn from(InputProblem { file, subject, problem, fallback, .. }: &InputProblem) -> Self {
        Self {
            subject: short(subject),
            file: file.as_ref().map(|file| short(&file.to_string_lossy())).unwrap_or_default(),
            line: problem.position.line,
            column: problem.position.column,
            field: short(&problem.field),
            what: short(&problem.message),
            warning: problem.severity == Severity::Warning,
            fallback: i32::from(match fallback {
                Fallback::NotNeeded => WireFallback::NotNeeded,
                Fallback::LastGood => WireFallback::LastGood,
                Fallback::Denied => WireFallback::Denied,
                // No source of a server uses `Closed` or `Tolerated`.
                Fallback::Nothing | Fallback::Closed | Fallback::Tolerated => WireFallback::Nothing,
            }),
        }
    }
}

impl fmt::Display for WireProblem {
    /// Writes the same text as the [`InputProblem`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        InputProblem::from(self.clone()).fmt(f)
    }
}

impl From<WireProblem> for InputProblem {
    fn from(problem: WireProblem) -> Self {
        let fallback = match WireFallback::try_from(problem.fallback) {
            Ok(WireFallback::NotNeeded) => Fallback::NotNeeded,
            Ok(WireFallback::LastGood) => Fallback::LastGood,
            Ok(WireFallback::Denied) => Fallback::Denied,
            Ok(WireFallback::Nothing) | Err(_) => Fallback::Nothing,
        };
        let severity = if problem.warning { Severity::Warning } else { Severity::Error };
        let position = Position { line: problem.line, column: problem.column };
        let of_field = FieldProblem::new(severity, position, problem.field, problem.what);
        let of_input = Self::new(problem.subject, of_field, fallback);
        if problem.file.is_empty() { of_input } else { of_input.in_file(problem.file) }
    }
}

fn short(text: &str) -> String {
    text.chars().take(TEXT).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wire_problem_is_shown_like_its_original() {
        let field = FieldProblem::new(Severity::Error, Position { line: 3, column: 5 }, "spec.order", "is no number");
        let problem = InputProblem::new("NetworkPolicy/shop/web", field, Fallback::LastGood).in_file("web.yaml");
        assert_eq!(WireProblem::from(&problem).to_string(), problem.to_string());
        assert_eq!(problem.to_string(), "web.yaml:3:5: NetworkPolicy/shop/web: spec.order: is no number");
    }
}
