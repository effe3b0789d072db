//! What the reconciler asks for, and what it is told.

use std::time::Duration;

use thiserror::Error;
use tortie_net::{IpSetId, IpSetName};
use tortie_netfilter::Command;

use crate::list::ListError;

/// The next thing to do. All but [`Plan::Sleep`] and [`Plan::Done`] are commands, whose result goes
/// to [`IpSets::on_exit`](crate::IpSets::on_exit) before the next plan is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a plan does nothing until it is carried out"]
#[non_exhaustive]
pub enum Plan {
    /// Run `ipset list`, handing its output to [`IpSets::on_output`](crate::IpSets::on_output): names, headers and
    /// members of all sets, those of others and of the other family included.
    ListAll,
    /// Run `ipset list -name`, handing its output to
    /// [`IpSets::on_output`](crate::IpSets::on_output).
    ListNames,
    /// Run `ipset list NAME`, handing its output to
    /// [`IpSets::on_output`](crate::IpSets::on_output).
    List(IpSetName),
    /// Run `ipset restore` with this text as its input.
    Restore(String),
    /// Nothing can be done for that long; then ask again.
    Sleep(Duration),
    /// Nothing is left to do for now.
    Done(Report),
}

impl Plan {
    /// The command of ipset; `None` for a plan without one.
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

    /// Whether the same command, asked for by both families at the same time, is worth running once only: the output goes
    /// to both.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        matches!(self, Self::ListAll | Self::ListNames)
    }
}

/// A command did not end with status 0, could not be started, or was cut off.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{stderr}")]
#[non_exhaustive]
pub struct CommandFailure {
    stderr: String,
    source: Option<ListError>,
}

/// The command printed a listing that cannot be relied upon.
impl From<ListError> for CommandFailure {
    fn from(error: ListError) -> Self {
        Self { stderr: error.to_string(), source: Some(error) }
    }
}

impl CommandFailure {
    /// With what the command printed on its standard error, or what kept it from running.
    #[must_use]
    pub fn new(stderr: impl Into<String>) -> Self {
        Self { stderr: stderr.into(), source: None }
    }

    /// What was printed.
    #[must_use]
    pub fn stderr(&self) -> &str {
        &self.stderr
    }

    pub(crate) fn says_no_such_set(&self) -> bool {
        self.stderr.contains("The set with the given name does not exist")
    }

    pub(crate) fn says_in_use(&self) -> bool {
        self.stderr.contains("it is in use by a kernel component")
    }

    pub(crate) fn says_types_differ(&self) -> bool {
        self.stderr.contains("cannot be swapped")
    }

    /// The line of the restore text that ipset complains about.
    pub(crate) fn line(&self) -> Option<usize> {
        let (_, rest) = self.stderr.split_once("Error in line ")?;
        let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse().ok()
    }
}

/// What the end of a round of plans leaves behind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub struct Report {
    /// The sets that do not hold what they should, in order of their names.
    pub failures: Vec<SetFailure>,
    /// Why the names of the sets could not be listed, after many attempts.
    pub listing: Option<CommandFailure>,
    /// Sets wait to be destroyed or to be re-read; ask again soon (Felix: within 100 ms).
    pub more: bool,
    /// How many sets were destroyed.
    pub destroyed: usize,
    /// The failed sets are due to be tried again after that long.
    pub retry_after: Option<Duration>,
}

impl Report {
    /// Whether everything that is wanted is in the kernel.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.failures.is_empty() && self.listing.is_none()
    }
}

/// A set that does not hold what it should.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("IP set {name} ({id})")]
#[non_exhaustive]
pub struct SetFailure {
    /// The set's name in the kernel.
    pub name: IpSetName,
    /// The set's id.
    pub id: IpSetId,
    /// Whether there is a set of that name in the kernel, as far as is known; without one, rules
    /// that refer to it cannot be written.
    pub exists: bool,
    /// Whether it may lack members that it should hold, as far as is known.
    pub lacks: bool,
    /// Whether it may hold members that it should not, as far as is known.
    pub exceeds: bool,
    /// What went wrong.
    #[source]
    pub error: SetError,
}

/// What is wrong with a set.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SetError {
    /// ipset refuses what should be written.
    #[error("{attempts} failed attempts")]
    Refused {
        /// The number of attempts since it last succeeded.
        attempts: u32,
        /// The last failure.
        #[source]
        failure: CommandFailure,
    },
    /// There are more members than fit in; as many as fit are in the kernel. Raise `MaxIpsetSize`.
    #[error("{members} members, but no more than {max_elements} fit in (MaxIpsetSize)")]
    TooManyMembers {
        /// The number of members.
        members: usize,
        /// How many fit in.
        max_elements: usize,
    },
    /// Too much else failed in this round; this set is written in the next.
    #[error("not written yet, since writing other sets failed")]
    Deferred,
}
