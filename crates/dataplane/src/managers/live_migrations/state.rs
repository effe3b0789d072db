//! How far the live migration of an endpoint's virtual machine is, from this node's point of view.

use std::fmt;

use tortie_model::desired::LiveMigrationRole;

use crate::config::RoutePriority;

/// How far the live migration to an endpoint is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "whoever acts on a change must know them all")]
pub enum MigrationState {
    /// There is none, or it is away from here.
    #[default]
    Base,
    /// The virtual machine still runs elsewhere.
    Target,
    /// The virtual machine runs here, and the migration is not over.
    Live,
    /// The migration is over, and other nodes may not have heard of it yet.
    TimeWait,
}

/// What moves a migration on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MigrationInput {
    /// The endpoint takes no part in a migration any more.
    NoRole,
    /// The virtual machine is to leave.
    Source,
    /// The virtual machine is to come.
    Target,
    /// The virtual machine has announced itself.
    Announced,
    /// Other nodes have had the time that they are given.
    TimeUp,
    /// The endpoint is gone.
    Deleted,
}

impl MigrationState {
    /// The state after an input, as in `felix/dataplane/linux/live_migration.go`.
    pub(crate) const fn after(self, input: MigrationInput) -> Self {
        match (self, input) {
            (Self::Base, MigrationInput::Target) => Self::Target,
            (Self::Target, MigrationInput::Announced) => Self::Live,
            // A target whose announcement was missed is live as well.
            (Self::Target | Self::Live, MigrationInput::NoRole) => Self::TimeWait,
            (Self::TimeWait, MigrationInput::TimeUp) | (_, MigrationInput::Source | MigrationInput::Deleted) => {
                Self::Base
            }
            (
                state,
                MigrationInput::NoRole | MigrationInput::Target | MigrationInput::Announced | MigrationInput::TimeUp,
            ) => state,
        }
    }

    /// What routes to the endpoint have; `None` if there must not be any.
    pub(crate) const fn priority(self) -> Option<RoutePriority> {
        match self {
            Self::Base => Some(RoutePriority::Normal),
            Self::Target => None,
            Self::Live | Self::TimeWait => Some(RoutePriority::Elevated),
        }
    }
}

impl From<Option<LiveMigrationRole>> for MigrationInput {
    fn from(role: Option<LiveMigrationRole>) -> Self {
        match role {
            None => Self::NoRole,
            Some(LiveMigrationRole::Source) => Self::Source,
            Some(LiveMigrationRole::Target) => Self::Target,
        }
    }
}

impl fmt::Display for MigrationState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Base => "Base",
            Self::Target => "Target",
            Self::Live => "Live",
            Self::TimeWait => "TimeWait",
        })
    }
}
