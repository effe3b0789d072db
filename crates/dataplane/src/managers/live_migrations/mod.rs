//! Live migrations of virtual machines to this node and away from it (`felix/dataplane/linux/live_migration.go`).
//!
//! While a virtual machine runs elsewhere nothing leads to the endpoint that it is to move to. As soon as it announces
//! itself there, its routes get a metric by which BGP prefers them to those of the node that it comes from. They keep it
//! until other nodes have had time to hear of them after the migration.

mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tortie_model::WorkloadEndpointId;
use tortie_model::desired::{ComputedFields, LiveMigrationRole};

use crate::config::RoutePriority;

use state::MigrationInput;
pub use state::MigrationState;

/// The endpoints of this node that take part in a live migration, or did so a moment ago.
#[derive(Debug, Default)]
pub(crate) struct LiveMigrations {
    migrations: BTreeMap<WorkloadEndpointId, Migration>,
    /// Endpoints whose state has changed since their routes were last looked at.
    dirty: BTreeSet<WorkloadEndpointId>,
    changes: Vec<MigrationChange>,
    /// How many times an announcement has come to be waited for.
    waits: u64,
}

#[derive(Debug, Default)]
struct Migration {
    role: Option<LiveMigrationRole>,
    state: MigrationState,
    uid: Arc<str>,
    machine: Arc<str>,
    /// Tells one wait for an announcement from another.
    wait: u64,
    /// When its time is up; `None` until it is counted.
    time_up: Option<Duration>,
}

/// A change of how far a live migration is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MigrationChange {
    /// The endpoint.
    pub id: WorkloadEndpointId,
    /// The UID of the last migration that it took part in; empty if it had none.
    pub uid: Arc<str>,
    /// The name of the virtual machine, as far as it is known.
    pub machine: Arc<str>,
    /// The state before.
    pub from: MigrationState,
    /// The state now.
    pub to: MigrationState,
}

impl LiveMigrations {
    /// An endpoint of this node is like this.
    pub(crate) fn on_update(&mut self, id: &WorkloadEndpointId, computed: Option<&ComputedFields>) {
        let role = computed.and_then(|computed| computed.live_migration_role);
        if role.is_none() && !self.migrations.contains_key(id) {
            return;
        }
        let migration = self.migrations.entry(id.clone()).or_default();
        if let Some(computed) = computed {
            // What follows a migration is still a part of it.
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

    /// An endpoint of this node is gone.
    pub(crate) fn on_remove(&mut self, id: &WorkloadEndpointId) {
        if let Some(migration) = self.migrations.get_mut(id) {
            migration.role = None;
            self.input(id, MigrationInput::Deleted);
        }
    }

    /// The announcement that this wait was for has come. Of a wait that is over it means nothing.
    pub(crate) fn on_announcement(&mut self, wait: u64) {
        let awaited = self.awaited().find(|(_, number)| *number == wait);
        if let Some(id) = awaited.map(|(id, _)| id.clone()) {
            self.input(&id, MigrationInput::Announced);
        }
    }

    /// Ends what its time is up for, and begins to count the time of what has none yet.
    pub(crate) fn advance(&mut self, now: Duration, convergence: Duration) {
        let mut over = Vec::new();
        for (id, migration) in self.migrations.iter_mut().filter(|(_, m)| m.state == MigrationState::TimeWait) {
            if *migration.time_up.get_or_insert(now + convergence) <= now {
                over.push(id.clone());
            }
        }
        over.iter().for_each(|id| self.input(id, MigrationInput::TimeUp));
    }

    /// How long nothing ends.
    pub(crate) fn next(&self, now: Duration) -> Option<Duration> {
        self.migrations.values().filter_map(|migration| migration.time_up).min().map(|at| at.saturating_sub(now))
    }

    /// What routes to an endpoint have; `None` if there must not be any.
    pub(crate) fn priority(&self, id: &WorkloadEndpointId) -> Option<RoutePriority> {
        self.migrations.get(id).map_or(Some(RoutePriority::Normal), |migration| migration.state.priority())
    }

    /// The endpoints whose virtual machines are expected to announce themselves, and the number of each wait.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = (&WorkloadEndpointId, u64)> {
        let awaited = self.migrations.iter().filter(|(_, migration)| migration.state == MigrationState::Target);
        awaited.map(|(id, migration)| (id, migration.wait))
    }

    /// Endpoints whose routes may have to be others.
    pub(crate) fn take_dirty(&mut self) -> BTreeSet<WorkloadEndpointId> {
        std::mem::take(&mut self.dirty)
    }

    /// What has changed since this was last asked, in order.
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
