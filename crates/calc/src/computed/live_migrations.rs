//! The roles of workloads in live migrations (`felix/calc/live_migration_calculator.go`).

use std::sync::Arc;

use ahash::AHashMap;
use tortie_model::desired::LiveMigrationRole;
use tortie_model::{Hostname, LiveMigration, MigrationParty, NamespacedName, WorkloadEndpointKey};

/// The orchestrator whose workloads have names that are unique in the cluster.
const KUBERNETES: &str = "k8s";

/// A workload of this node, or one of its endpoints, that a migration names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    party: MigrationParty,
    role: LiveMigrationRole,
    migration: NamespacedName,
}

impl Named {
    /// Reports whether it is this endpoint of this node.
    pub(super) fn is(&self, key: &WorkloadEndpointKey) -> bool {
        let MigrationParty { host: _, orchestrator, workload, endpoint } = &self.party;
        (endpoint.is_empty() || **endpoint == *key.endpoint())
            && **workload == *key.workload()
            && **orchestrator == *key.orchestrator()
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct LiveMigrations {
    hostname: Hostname,
    migrations: AHashMap<NamespacedName, Arc<LiveMigration>>,
    /// By the workload's name.
    named: AHashMap<Arc<str>, Vec<Named>>,
}

impl LiveMigrations {
    pub(super) fn new(hostname: Hostname) -> Self {
        Self { hostname, migrations: AHashMap::new(), named: AHashMap::new() }
    }

    /// Records a migration; `None` removes it. Returns the endpoints that it named before or names
    /// now.
    pub(super) fn on_migration(&mut self, name: &NamespacedName, migration: Option<Arc<LiveMigration>>) -> Vec<Named> {
        let was = match &migration {
            Some(migration) => self.migrations.insert(name.clone(), Arc::clone(migration)),
            None => self.migrations.remove(name),
        };
        let mut affected = was.map(|was| self.parties(name, &was)).unwrap_or_default();
        for named in &affected {
            if let Some(of_workload) = self.named.get_mut(&named.party.workload) {
                of_workload.retain(|other| other != named);
                if of_workload.is_empty() {
                    self.named.remove(&named.party.workload);
                }
            }
        }
        let now = migration.map(|migration| self.parties(name, &migration)).unwrap_or_default();
        for named in &now {
            self.named.entry(Arc::clone(&named.party.workload)).or_default().push(named.clone());
        }
        affected.extend(now);
        affected
    }

    /// Returns the endpoints that a migration names, if they may be on this node.
    fn parties(&self, name: &NamespacedName, migration: &LiveMigration) -> Vec<Named> {
        let parties = [(&migration.source, LiveMigrationRole::Source), (&migration.target, LiveMigrationRole::Target)];
        let named = parties.into_iter().filter_map(|(party, role)| {
            let party = party.as_ref()?.clone();
            (&*party.orchestrator == KUBERNETES || party.host == self.hostname).then(|| Named {
                party,
                role,
                migration: name.clone(),
            })
        });
        named.collect()
    }

    /// Returns the role of an endpoint of this node that the selectors of these migrations match.
    /// Targets by selector come before those by name, and these before sources; of several
    /// migrations the greatest UID counts.
    pub(super) fn role(
        &self,
        key: &WorkloadEndpointKey,
        selecting: &[&NamespacedName],
    ) -> Option<(LiveMigrationRole, Arc<str>)> {
        if !selecting.is_empty() {
            return Some((LiveMigrationRole::Target, self.greatest_uid(selecting.iter().copied())));
        }
        let named = || self.named.get(key.workload()).into_iter().flatten().filter(|named| named.is(key));
        let role = named().map(|named| named.role).max()?;
        Some((role, self.greatest_uid(named().filter(|named| named.role == role).map(|named| &named.migration))))
    }

    fn greatest_uid<'a>(&self, names: impl Iterator<Item = &'a NamespacedName>) -> Arc<str> {
        let uids = names.filter_map(|name| Some(&self.migrations.get(name)?.uid));
        uids.max().cloned().unwrap_or_default()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.migrations.is_empty() && self.named.is_empty()
    }
}
