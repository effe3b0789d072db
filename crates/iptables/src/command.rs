//! Errors of external programs, which the caller runs.

use crate::SaveError;

/// Failure of a [`Command`](crate::Command).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// The program could not be started, written to, read or waited for.
    #[error("{0}")]
    Io(String),
    /// The program ran and failed.
    #[error("exit code {}: {}", code.map_or_else(|| "none".to_owned(), |code| code.to_string()), stderr.trim())]
    Exit {
        /// The exit code; `None` if a signal ended it.
        code: Option<i32>,
        /// Standard error, and standard output if that is not a listing.
        stderr: String,
    },
    /// The program ran, but its output is not a listing of the table.
    #[error(transparent)]
    Save(#[from] SaveError),
}
