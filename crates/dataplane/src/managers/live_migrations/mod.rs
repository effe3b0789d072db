//! Live migrations of virtual machines to this node and away from it
//! (`felix/dataplane/linux/live_migration.go`).
//!
//! While a virtual machine runs elsewhere, no routes lead to the endpoint that it moves to. Once it
//! announces itself there, its routes get a metric by which BGP prefers them to those of its
//! previous node. They keep that metric until other nodes have had time to learn them after the
//! migration.

mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tortie_model::WorkloadEndpointId;
use tortie_model::desired::{ComputedFields, LiveMigrationRole};

use crate::config::RoutePriority;

use state::MigrationInput;
pub use state::MigrationState;

/// Endpoints of this node that take part in a live migration, or recently did.
#[derive(Debug, Default)]
pub(crate) struct LiveMigrations {
    migrations: BTreeMap<WorkloadEndpointId, Migration>,
    /// Endpoints whose state changed since their routes were last updated.
    dirty: BTreeSet<WorkloadEndpointId>,
    changes: Vec<MigrationChange>,
    /// Number of waits for an announcement so far.
    waits: u64,
}

#[derive(Debug, Default)]
struct Migration {
    role: Option<LiveMigrationRole>,
    state: MigrationState,
    uid: Arc<str>,
    machine: Arc<str>,
    /// Number of its wait for an announcement.
    wait: u64,
    /// End of the convergence time; `None` until it has started.
    time_up: Option<Duration>,
}

/// A change of the state of a live migration.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MigrationChange {
    /// The endpoint.
    pub id: WorkloadEndpointId,
    /// The UID of the last migration that it took part in; empty if it had none.
    pub uid: Arc<str>,
    /// The name of the virtual machine; empty if it is unknown.
    pub machine: Arc<str>,
    /// The previous state.
    pub from: MigrationState,
    /// The new state.
    pub to: MigrationState,
}

impl LiveMigrations {
    /// Notes the computed fields of an endpoint of this node.
    pub(crate) fn on_update(&mut self, id: &WorkloadEndpointId, computed: Option<&ComputedFields>) {
        let role = computed.and_then(|computed| computed.live_migration_role);
        if role.is_none() && !self.migrations.contains_key(id) {
            return;
        }
        let migration = self.migrations.entry(id.clone()).or_default();
        if let Some(computed) = computed {
            // State changes after a migration keep its UID and machine name.
            let ComputedFields { live_migration_uid: uid, live_migration_vmi_name: machine, .. } = computed;
            let keep_last = |last: &mut Arc<str>, new: &Arc<str>| {
                if !new.is_empty() {
                    *last = Arc::clone(new);
                }
            };
            keep_last(&mut migration.uid, uid);
            keep_last(&mut migration.machine, machine);
        }
        if std::mem::replace(&mut migration.role, role) != role {
            self.input(id, role.into());
        }
    }

    /// Notes that an endpoint of this node was removed.
    pub(crate) fn on_remove(&mut self, id: &WorkloadEndpointId) {
        if let Some(migration) = self.migrations.get_mut(id) {
            migration.role = None;
            self.input(id, MigrationInput::Deleted);
        }
    }

    /// Notes the announcement for a wait. One for a wait that is over is ignored.
    pub(crate) fn on_announcement(&mut self, wait: u64) {
        let awaited = self.awaited().find(|(_, number)| *number == wait);
        if let Some(id) = awaited.map(|(id, _)| id.clone()) {
            self.input(&id, MigrationInput::Announced);
        }
    }

    /// Ends convergence times that have passed, and starts those that have not started.
    pub(crate) fn advance(&mut self, now: Duration, convergence: Duration) {
        let mut over = Vec::new();
        for (id, migration) in self.migrations.iter_mut().filter(|(_, m)| m.state == MigrationState::TimeWait) {
            if *migration.time_up.get_or_insert(now + convergence) <= now {
                over.push(id.clone());
            }
        }
        over.iter().for_each(|id| self.input(id, MigrationInput::TimeUp));
    }

    /// Returns the time until the next convergence time ends.
    pub(crate) fn next(&self, now: Duration) -> Option<Duration> {
        self.migrations.values().filter_map(|migration| migration.time_up).min().map(|at| at.saturating_sub(now))
    }

    /// Returns the priority of routes to an endpoint; `None` if there must not be any.
    pub(crate) fn priority(&self, id: &WorkloadEndpointId) -> Option<RoutePriority> {
        self.migrations.get(id).map_or(Some(RoutePriority::Normal), |migration| migration.state.priority())
    }

    /// Returns the endpoints whose virtual machines are expected to announce themselves, and the
    /// number of each wait.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = (&WorkloadEndpointId, u64)> {
        let awaited = self.migrations.iter().filter(|(_, migration)| migration.state == MigrationState::Target);
        awaited.map(|(id, migration)| (id, migration.wait))
    }

    /// Returns the endpoints whose routes may have to change.
    pub(crate) fn take_dirty(&mut self) -> BTreeSet<WorkloadEndpointId> {
        std::mem::take(&mut self.dirty)
    }

    /// Returns the changes since the last call, in order.
    pub(crate) fn take_changes(&mut self) -> Vec<MigrationChange> {
        std::mem::take(&mut self.changes)
    }

    fn input(&mut self, id: &WorkloadEndpointId, input: MigrationInput) {
        let Some(migration) = self.migrations.get_mut(id) else { return };
        let (from, to) = (migration.state, migration.state.after(input));
        migration.state = to;
        if from != to {
            migration.time_up = None;
            if to == MigrationState::Target {
                self.waits += 1;
                migration.wait = self.waits;
            }
            let Migration { uid, machine, .. } = migration;
            let change = MigrationChange { id: id.clone(), uid: uid.clone(), machine: machine.clone(), from, to };
            self.changes.push(change);
            self.dirty.insert(id.clone());
        }
        if to == MigrationState::Base && migration.role.is_none() {
            self.migrations.remove(id);
        }
    }
}

#[cfg(test)]
mod tests;
