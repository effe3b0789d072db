//! Failures of commands, and their exit codes.

use std::error::Error;
use std::io;
use std::process::ExitCode;

pub use tortie_model::with_causes;
use tortie_telemetry::logging;

/// Any error that a command may end with.
pub type Cause = Box<dyn Error + Send + Sync>;

/// The reason why a command ends with another exit code than 0. It has no source: its text includes
/// all causes.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// All messages have been printed; end with this code.
    #[error("")]
    Reported(u8),
    /// Wrong usage that the argument parser cannot see.
    #[error("{}", with_causes(&**.0))]
    Usage(Cause),
    /// Something that the command needs does not work.
    #[error("{}", with_causes(&**.0))]
    Failed(Cause),
    /// Reading or writing failed.
    #[error("{subject}: {}", with_causes(error))]
    Io {
        /// The file or stream.
        subject: String,
        /// The error.
        error: io::Error,
    },
}

#[derive(Debug, thiserror::Error)]
#[error("{subject}")]
struct Located {
    subject: String,
    #[source]
    error: Cause,
}

impl Failure {
    /// Returns a constructor for an I/O failure of this file or stream.
    pub fn io(subject: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let subject = subject.into();
        |error| Self::Io { subject, error }
    }

    /// Returns a failure with this error.
    pub fn failed(error: impl Into<Cause>) -> Self {
        Self::Failed(error.into())
    }

    /// Returns a failure with an error, and the object that it happened to.
    pub fn failed_at<E: Into<Cause>>(subject: impl Into<String>) -> impl FnOnce(E) -> Self {
        let subject = subject.into();
        |error| Self::failed(Located { subject, error: error.into() })
    }

    /// Returns a failure for wrong usage with this error.
    pub fn usage(error: impl Into<Cause>) -> Self {
        Self::Usage(error.into())
    }

    /// Returns a failure for wrong usage, with an error and the object that it happened to.
    pub fn usage_at<E: Into<Cause>>(subject: impl Into<String>) -> impl FnOnce(E) -> Self {
        let subject = subject.into();
        |error| Self::usage(Located { subject, error: error.into() })
    }

    /// Prints the failure and gives the exit code for it.
    #[must_use]
    pub fn report(&self) -> ExitCode {
        let say = || {
            if logging::is_json() {
                tracing::error!(error = %self, "the program ends with an error");
            } else {
                eprintln!("tortie: {self}");
            }
        };
        match self {
            Self::Reported(code) => ExitCode::from(*code),
            // The reader has closed the output, as with `tortie replay … | head`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_printed_once() {
        let error = || io::Error::other("no room");
        let failure = Failure::usage_at("--labels")(error());
        assert_eq!(failure.to_string(), "--labels: no room");
        assert_eq!(with_causes(&failure), "--labels: no room");
        assert!(failure.source().is_none());
        let nested = Failure::failed_at("node a")(Failure::io("file b")(error()));
        assert_eq!(nested.to_string(), "node a: file b: no room");
        assert_eq!(Failure::failed("nothing there").to_string(), "nothing there");
    }
}
