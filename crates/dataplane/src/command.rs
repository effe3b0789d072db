//! External commands and their outcomes.

use std::fmt;

/// A program to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelCommand {
    /// Its name, to be found in the search path.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// What it reads from its standard input.
    pub input: String,
}

impl fmt::Display for KernelCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.program)?;
        self.args.iter().try_for_each(|arg| write!(f, " {arg}"))
    }
}

/// How a program ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandOutcome {
    /// Whether and how it ended.
    pub status: CommandStatus,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: String,
}

/// Whether and how a program ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandStatus {
    /// With this exit code.
    Code(i32),
    /// By a signal.
    Signal,
    /// It could not be started, fed, read or waited for, for this reason.
    NotRun(String),
}

impl CommandOutcome {
    /// A program that ended well.
    #[must_use]
    pub fn success(stdout: impl Into<Vec<u8>>) -> Self {
        Self { status: CommandStatus::Code(0), stdout: stdout.into(), stderr: String::new() }
    }

    /// A program that could not be run.
    #[must_use]
    pub fn not_run(why: impl Into<String>) -> Self {
        Self { status: CommandStatus::NotRun(why.into()), stdout: Vec::new(), stderr: String::new() }
    }

    /// Whether it ended with exit code 0.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.status == CommandStatus::Code(0)
    }
}
