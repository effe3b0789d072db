//! Programs to run, as data: this crate never runs one.

use std::fmt;

use crate::SaveError;

/// A program with its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The program's name, to be found in the search path.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.program)?;
        self.args.iter().try_for_each(|arg| write!(f, " {arg}"))
    }
}

/// Why a [`Command`] did not do its job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// It could not be started, fed, read or waited for.
    #[error("{0}")]
    Io(String),
    /// It ran and reported failure.
    #[error("exit code {}: {}", code.map_or_else(|| "none".to_owned(), |code| code.to_string()), stderr.trim())]
    Exit {
        /// The exit code; `None` if a signal ended it.
        code: Option<i32>,
        /// What it wrote to its standard error, and to its standard output if that is not a listing.
        stderr: String,
    },
    /// It ran, but what it printed is not a listing of the table.
    #[error(transparent)]
    Save(#[from] SaveError),
}
