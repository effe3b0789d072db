//! Problems of the datastore, as they travel.

use tortie_datastore::{Cover, InputProblem};
use tortie_resources::{Position, Problem, Severity};

use super::{Upstream, WireCover, WireProblem};
use crate::cache;

/// How many problems are listed at the most, those first that leave something unprotected.
const LISTED: usize = 1000;
/// How long a text of a problem is at the most.
const TEXT: usize = 1000;

impl From<&cache::Upstream> for Upstream {
    fn from(upstream: &cache::Upstream) -> Self {
        let (bare, covered): (Vec<_>, Vec<_>) =
            upstream.refused.iter().chain(&upstream.problems).partition(|problem| problem.cover == Cover::Nothing);
        let problems = bare.into_iter().chain(covered).take(LISTED).map(WireProblem::from).collect();
        Self {
            problems,
            more: u32::try_from((upstream.problems.len() + upstream.refused.len()).saturating_sub(LISTED))
                .unwrap_or(u32::MAX),
            unavailable: upstream.unavailable.as_deref().map(short).unwrap_or_default(),
        }
    }
}

impl From<&InputProblem> for WireProblem {
    fn from(InputProblem { file, subject, problem, cover }: &InputProblem) -> Self {
        Self {
            subject: short(subject),
            file: file.as_ref().map(|file| short(&file.to_string_lossy())).unwrap_or_default(),
            line: problem.position.line,
            column: problem.position.column,
            field: short(&problem.field),
            what: short(&problem.what),
            warning: problem.severity == Severity::Warning,
            cover: i32::from(match cover {
                Cover::NotNeeded => WireCover::NotNeeded,
                Cover::LastGood => WireCover::LastGood,
                Cover::Denied => WireCover::Denied,
                // No source that a server has closes anything by itself.
                Cover::Nothing | Cover::Closed | Cover::Tolerated => WireCover::Nothing,
            }),
        }
    }
}

impl From<WireProblem> for InputProblem {
    fn from(problem: WireProblem) -> Self {
        let cover = match WireCover::try_from(problem.cover) {
            Ok(WireCover::NotNeeded) => Cover::NotNeeded,
            Ok(WireCover::LastGood) => Cover::LastGood,
            Ok(WireCover::Denied) => Cover::Denied,
            Ok(WireCover::Nothing) | Err(_) => Cover::Nothing,
        };
        Self {
            file: (!problem.file.is_empty()).then(|| problem.file.into()),
            subject: problem.subject,
            problem: Problem {
                severity: if problem.warning { Severity::Warning } else { Severity::Error },
                position: Position { line: problem.line, column: problem.column },
                field: problem.field,
                what: problem.what,
            },
            cover,
        }
    }
}

fn short(text: &str) -> String {
    text.chars().take(TEXT).collect()
}
