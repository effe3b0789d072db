//! State of the live migration of an endpoint's virtual machine, from this node's point of view.

use std::fmt;

use tortie_model::desired::LiveMigrationRole;

use crate::config::RoutePriority;

/// State of a live migration to an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "consumers of changes must handle every state")]
pub enum MigrationState {
    /// No migration, or one away from here.
    #[default]
    Base,
    /// The virtual machine still runs elsewhere.
    Target,
    /// The virtual machine runs here, and the migration is not over.
    Live,
    /// The migration is over, and other nodes may not have learned the routes yet.
    TimeWait,
}

/// Event that may change the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MigrationInput {
    /// The endpoint no longer takes part in a migration.
    NoRole,
    /// The virtual machine moves away from here.
    Source,
    /// The virtual machine moves here.
    Target,
    /// The virtual machine has announced itself.
    Announced,
    /// The convergence time is over.
    TimeUp,
    /// The endpoint was removed.
    Deleted,
}

impl MigrationState {
    /// Returns the state after an event, as in `felix/dataplane/linux/live_migration.go`.
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

    /// Returns the priority of routes to the endpoint; `None` if there must not be any.
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
