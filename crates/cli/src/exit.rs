//! How commands fail.

use std::io;
use std::process::ExitCode;

use tortie_telemetry::logging;

/// Why a command ends with another exit code than 0.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Everything has been said already; end with this code.
    #[error("")]
    Reported(u8),
    /// Wrong usage that the argument parser cannot see.
    #[error("{0}")]
    Usage(String),
    /// Something that the command needs does not work.
    #[error("{0}")]
    Failed(String),
    /// Reading or writing failed.
    #[error("{what}: {error}")]
    Io {
        /// What was being read or written.
        what: String,
        /// What went wrong.
        error: io::Error,
    },
}

impl Failure {
    /// An I/O error, with what it happened to.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        |error| Self::Io { what, error }
    }

    /// Prints the failure and gives the exit code for it.
    #[must_use]
    pub fn report(&self) -> ExitCode {
        let say = || {
            if logging::is_json() {
                tracing::error!("{self}");
            } else {
                eprintln!("tortie: {self}");
            }
        };
        match self {
            Self::Reported(code) => ExitCode::from(*code),
            // The reader of our output has seen enough, as with `tortie replay … | head`.
            Self::Io { error, .. } if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            Self::Usage(_) => {
                say();
                ExitCode::from(2)
            }
            Self::Failed(_) | Self::Io { .. } => {
                say();
                ExitCode::FAILURE
            }
        }
    }
}
