//! `tortie check`.

use std::path::PathBuf;

use tortie_datastore::{DirSource, InputProblem};
use tortie_resources::Severity;
use tortie_resources::manifest::{BlockSource, Options};

use super::Failure;
use crate::config::Config;
use crate::settings;

/// Validate manifests.
///
/// Reads every .yaml, .yml and .json file below the given paths as `run` would, and prints each problem on standard
/// error as `file:line:column: kind/name: field.path: what`. Ends with exit code 1 if there are errors; warnings, such as
/// kinds that have no effect, leave it at 0.
///
/// Example: tortie check examples/demo
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// Directories and files.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Treat warnings as errors.
    #[arg(long)]
    strict: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let mut errors = 0;
    for problem in &find(&args.paths)? {
        let warning = problem.problem.severity == Severity::Warning && !args.strict;
        errors += usize::from(!warning);
        eprintln!("{}", line(problem, warning));
    }
    if errors == 0 { Ok(()) } else { Err(Failure::Reported(1)) }
}

/// All that is to be said of the manifests below these paths, as `run` says it.
fn find(paths: &[PathBuf]) -> Result<Vec<InputProblem>, Failure> {
    let mut problems = Vec::new();
    for path in paths {
        // As agents that calculate routes read them.
        let options = Options { block_source: BlockSource::IpamBlocks, ..settings::manifests(&Config::default()) };
        let mut source = DirSource::new(path, options);
        source.read().map_err(|error| Failure::Failed(error.to_string()))?;
        problems.extend(source.problems());
    }
    Ok(problems)
}

fn line(problem: &InputProblem, warning: bool) -> String {
    if warning { format!("{problem} (warning)") } else { problem.to_string() }
}

#[cfg(test)]
mod tests;
