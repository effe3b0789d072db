//! External commands and their outcomes.

use std::fmt;

/// A program to run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "drivers make them and kernels run them")]
pub struct Command {
    /// The program's name, to be found in the search path.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its standard input.
    pub input: String,
}

impl fmt::Display for Command {
    /// The program and its arguments.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.program)?;
        self.args.iter().try_for_each(|arg| write!(f, " {arg}"))
    }
}

/// The outcome of a [`Command`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "kernels make them")]
pub struct Outcome {
    /// Exit status.
    pub status: CommandStatus,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: String,
}

/// Exit status of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "a program ends in one of these ways")]
pub enum CommandStatus {
    /// Ended with this exit code.
    Code(i32),
    /// Ended by a signal.
    Signal,
    /// Not run: it could not be started, written to, read or waited for, for this reason.
    NotRun(String),
}

impl Outcome {
    /// Returns the outcome of a successful program.
    #[must_use]
    pub fn success(stdout: impl Into<Vec<u8>>) -> Self {
        Self { status: CommandStatus::Code(0), stdout: stdout.into(), stderr: String::new() }
    }

    /// Returns the outcome of a program that could not be run.
    #[must_use]
    pub fn not_run(why: impl Into<String>) -> Self {
        Self { status: CommandStatus::NotRun(why.into()), stdout: Vec::new(), stderr: String::new() }
    }

    /// Reports whether the exit code is 0.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.status == CommandStatus::Code(0)
    }
}
