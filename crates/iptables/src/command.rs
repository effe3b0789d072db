//! Errors of programs: this crate never runs one.

use crate::SaveError;

/// Why a [`Command`](crate::Command) did not do its job.
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
