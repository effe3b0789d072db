//! Status of each endpoint, and its changes.

use std::collections::{BTreeMap, BTreeSet};

use tortie_model::{HostEndpointName, WorkloadEndpointId};

use crate::report::{EndpointStatus, StatusChange};

/// Statuses as last reported.
#[derive(Debug, Default)]
pub(crate) struct Statuses {
    workloads: BTreeMap<WorkloadEndpointId, EndpointStatus>,
    hosts: BTreeMap<HostEndpointName, EndpointStatus>,
}

impl Statuses {
    /// Replaces all statuses and returns the changed ones.
    pub(crate) fn replace(
        &mut self,
        workloads: BTreeMap<WorkloadEndpointId, EndpointStatus>,
        hosts: BTreeMap<HostEndpointName, EndpointStatus>,
    ) -> Vec<StatusChange> {
        let mut changes = Vec::new();
        for (id, status) in changed(&self.workloads, &workloads) {
            changes.push(StatusChange::Workload(id, status));
        }
        for (name, status) in changed(&self.hosts, &hosts) {
            changes.push(StatusChange::Host(name, status));
        }
        (self.workloads, self.hosts) = (workloads, hosts);
        changes
    }

    pub(crate) fn workloads(&self) -> impl Iterator<Item = (&WorkloadEndpointId, EndpointStatus)> {
        self.workloads.iter().map(|(id, status)| (id, *status))
    }

    pub(crate) fn hosts(&self) -> impl Iterator<Item = (&HostEndpointName, EndpointStatus)> {
        self.hosts.iter().map(|(name, status)| (name, *status))
    }
}

fn changed<K: Ord + Clone>(
    old: &BTreeMap<K, EndpointStatus>,
    new: &BTreeMap<K, EndpointStatus>,
) -> Vec<(K, Option<EndpointStatus>)> {
    let keys: BTreeSet<&K> = old.keys().chain(new.keys()).collect();
    let differs = |key: &&K| old.get(*key) != new.get(*key);
    keys.into_iter().filter(differs).map(|key| (key.clone(), new.get(key).copied())).collect()
}
