//! Plans of the reconciler, and their results.

use std::time::Duration;

use thiserror::Error;
use tortie_net::{IpSetId, IpSetName};
use tortie_netfilter::Command;

use crate::list::ListError;

/// The next operation. All variants but [`Plan::Sleep`] and [`Plan::Done`] are commands. The caller
/// reports their result to [`IpSets::on_exit`](crate::IpSets::on_exit) before it requests the next
/// plan.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a plan does nothing until it is carried out"]
#[non_exhaustive]
pub enum Plan {
    /// Run `ipset list` and pass its output to [`IpSets::on_output`](crate::IpSets::on_output):
    /// names, headers and members of all sets, including those of other programs and of the other
    /// family.
    ListAll,
    /// Run `ipset list -name` and pass its output to
    /// [`IpSets::on_output`](crate::IpSets::on_output).
    ListNames,
    /// Run `ipset list NAME` and pass its output to
    /// [`IpSets::on_output`](crate::IpSets::on_output).
    List(IpSetName),
    /// Run `ipset restore` with this text as its input.
    Restore(String),
    /// Wait for that long, then request the next plan.
    Sleep(Duration),
    /// Nothing is left to do for now.
    Done(Report),
}

impl Plan {
    /// Returns the `ipset` command; `None` for a plan without one.
    #[must_use]
    pub fn command(&self) -> Option<Command> {
        let (args, input) = match self {
            Self::ListAll => (vec!["list"], ""),
            Self::ListNames => (vec!["list", "-name"], ""),
            Self::List(name) => (vec!["list", name.as_str()], ""),
            Self::Restore(text) => (vec!["restore"], text.as_str()),
            Self::Sleep(_) | Self::Done(_) => return None,
        };
        let args = args.into_iter().map(str::to_owned).collect();
        Some(Command { program: "ipset".to_owned(), args, input: input.to_owned() })
    }

    /// Reports whether one run of the command can serve both families, if both plan it at the same
    /// time; both then get the output.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        matches!(self, Self::ListAll | Self::ListNames)
    }
}

/// Failure of a command: a status other than 0, no start, or an abort.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{stderr}")]
#[non_exhaustive]
pub struct CommandFailure {
    stderr: String,
    source: Option<ListError>,
}

/// The command printed an unreliable listing.
impl From<ListError> for CommandFailure {
    fn from(error: ListError) -> Self {
        Self { stderr: error.to_string(), source: Some(error) }
    }
}

impl CommandFailure {
    /// Makes a failure from the standard error of the command, or the reason why it did not run.
    #[must_use]
    pub fn new(stderr: impl Into<String>) -> Self {
        Self { stderr: stderr.into(), source: None }
    }

    /// Returns the standard error of the command.
    #[must_use]
    pub fn stderr(&self) -> &str {
        &self.stderr
    }

    pub(crate) fn is_no_such_set(&self) -> bool {
        self.stderr.contains("The set with the given name does not exist")
    }

    pub(crate) fn is_in_use(&self) -> bool {
        self.stderr.contains("it is in use by a kernel component")
    }

    pub(crate) fn is_type_mismatch(&self) -> bool {
        self.stderr.contains("cannot be swapped")
    }

    /// Returns the line of the restore text that ipset refuses.
    pub(crate) fn line(&self) -> Option<usize> {
        let (_, rest) = self.stderr.split_once("Error in line ")?;
        let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse().ok()
    }
}

/// Result of a round of plans.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub struct Report {
    /// Sets that are not in sync, in the order of their names.
    pub failures: Vec<SetFailure>,
    /// Failure to list the names of the sets, after several attempts.
    pub listing: Option<CommandFailure>,
    /// True if sets are still to be destroyed or re-read; request the next plan soon (Felix: within
    /// 100 ms).
    pub more: bool,
    /// Number of destroyed sets.
    pub destroyed: usize,
    /// Time until the next attempt for the failed sets.
    pub retry_after: Option<Duration>,
}

impl Report {
    /// Reports whether every desired set is in sync.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.failures.is_empty() && self.listing.is_none()
    }
}

/// A set that is not in sync.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("IP set {name} ({id})")]
#[non_exhaustive]
pub struct SetFailure {
    /// The set's name in the kernel.
    pub name: IpSetName,
    /// The set's id.
    pub id: IpSetId,
    /// True if a set of that name is known to be in the kernel; without one, rules
    /// that refer to it cannot be written.
    pub exists: bool,
    /// True if it may lack desired members.
    pub lacks: bool,
    /// True if it may hold members that are not desired.
    pub exceeds: bool,
    /// The error.
    #[source]
    pub error: SetError,
}

/// Reason why a set is not in sync.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SetError {
    /// ipset refuses the write.
    #[error("{attempts} failed attempts")]
    Refused {
        /// The number of attempts since it last succeeded.
        attempts: u32,
        /// The last failure.
        #[source]
        failure: CommandFailure,
    },
    /// There are more members than the maximum; the kernel holds that maximum. Raise
    /// `MaxIpsetSize`.
    #[error("{members} members, but no more than {max_elements} fit in (MaxIpsetSize)")]
    TooManyMembers {
        /// The number of members.
        members: usize,
        /// Maximum number of members.
        max_elements: usize,
    },
    /// Too many other writes failed in this round; this set is written in the next.
    #[error("not written yet, since writing other sets failed")]
    Deferred,
}
