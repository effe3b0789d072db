//! Events for the thread that writes into the datastore.

use std::collections::BTreeMap;

use tortie_dataplane::StatusChange;
use tortie_model::{Family, HostEndpointName, WorkloadEndpointId};

use super::reporter::StatusSettings;
use crate::engine::ProcessStatus;

/// Event for the status in the datastore.
#[derive(Clone, Debug, PartialEq)]
pub enum StatusUpdate {
    /// A session begins, with these settings.
    Begin(StatusSettings),
    /// Statuses of endpoints have changed.
    Changes(Vec<StatusChange>),
    /// Status of a driver's process.
    ProcessStatus(ProcessStatus),
    /// All updates up to here are in force.
    InForce,
    /// This node's public key of `WireGuard`; empty for none.
    WireguardKey(Family, String),
}

/// Waiting events, in order. The beginning of a session drops all earlier ones but the status of
/// the process.
#[derive(Debug, Default, PartialEq)]
pub(super) struct PendingUpdates {
    pub(super) begin: Option<StatusSettings>,
    pub(super) changes: BTreeMap<Endpoint, StatusChange>,
    pub(super) process_status: Option<ProcessStatus>,
    pub(super) in_force: bool,
    pub(super) wireguard_keys: BTreeMap<Family, String>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Endpoint {
    Workload(WorkloadEndpointId),
    Host(HostEndpointName),
}

impl Endpoint {
    fn of(change: &StatusChange) -> Self {
        match change {
            StatusChange::Workload(id, _) => Self::Workload(id.clone()),
            StatusChange::Host(name, _) => Self::Host(name.clone()),
        }
    }
}

impl PendingUpdates {
    pub(super) fn add(&mut self, update: StatusUpdate) {
        match update {
            StatusUpdate::Begin(settings) => {
                let process_status = self.process_status.take();
                *self = Self { begin: Some(settings), process_status, ..Self::default() };
            }
            StatusUpdate::Changes(changes) => {
                self.changes.extend(changes.into_iter().map(|change| (Endpoint::of(&change), change)));
            }
            StatusUpdate::ProcessStatus(sign) => self.process_status = Some(sign),
            StatusUpdate::InForce => self.in_force = true,
            StatusUpdate::WireguardKey(family, key) => {
                self.wireguard_keys.insert(family, key);
            }
        }
    }
}

#[cfg(test)]
mod tests;
