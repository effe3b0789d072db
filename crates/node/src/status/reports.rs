//! Passes events of endpoints to the writers of status.

use std::collections::BTreeMap;
use std::mem;

use tortie_dataplane::{EndpointStatus, StatusChange};
use tortie_model::desired::DesiredUpdate;
use tortie_model::{Family, WorkloadEndpointId};
use tortie_protocol::status_file;

#[cfg(feature = "kubernetes")]
use super::NodeKeyWriter;
use super::{FileUpdate, FileWriter};
#[cfg(feature = "etcd")]
use super::{StatusUpdate, StatusWriter};
use crate::engine::{Observer, Progress};

/// Writers of status.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StatusWriters {
    /// Writer of a file for each workload endpoint, if files are enabled.
    pub files: Option<FileWriter>,
    /// Writer into the datastore, if it takes statuses.
    #[cfg(feature = "etcd")]
    pub datastore: Option<StatusWriter>,
    /// Writer of this node's keys into its `Node` of Kubernetes, if that is the datastore.
    #[cfg(feature = "kubernetes")]
    pub node: Option<NodeKeyWriter>,
}

impl StatusWriters {
    /// With these files.
    #[must_use]
    pub fn new(files: Option<FileWriter>) -> Self {
        Self {
            files,
            #[cfg(feature = "etcd")]
            datastore: None,
            #[cfg(feature = "kubernetes")]
            node: None,
        }
    }
}

/// Passes events of endpoints to the writers.
#[derive(Debug)]
pub struct StatusReports {
    writers: StatusWriters,
    /// Contents of endpoints' files, until the updates from which they follow are in force.
    texts: BTreeMap<WorkloadEndpointId, Option<String>>,
    reported_in_force: bool,
}

impl StatusReports {
    /// Reports to these.
    #[must_use]
    pub fn new(writers: StatusWriters) -> Self {
        Self { writers, texts: BTreeMap::new(), reported_in_force: false }
    }

    fn send_to_files(&mut self, progress: &Progress, is_in_force: bool) {
        let Some(files) = &self.writers.files else { return };
        let mut updates = Vec::new();
        for change in &progress.statuses {
            let StatusChange::Workload(id, status) = change else { continue };
            updates.extend(self.texts.remove(id).map(|text| FileUpdate::Endpoint(id.clone(), text)));
            updates.push(FileUpdate::Status(id.clone(), *status == Some(EndpointStatus::Up)));
        }
        if progress.done {
            updates.extend(mem::take(&mut self.texts).into_iter().map(|(id, text)| FileUpdate::Endpoint(id, text)));
        }
        if is_in_force {
            updates.push(FileUpdate::InForce);
        }
        if !updates.is_empty() {
            files.send(updates);
        }
    }

    #[cfg(feature = "etcd")]
    fn send_to_datastore(&self, progress: &Progress, is_in_force: bool) {
        let Some(writer) = &self.writers.datastore else { return };
        if !progress.statuses.is_empty() {
            writer.send(StatusUpdate::Changes(progress.statuses.clone()));
        }
        if let Some(sign) = &progress.process_status {
            writer.send(StatusUpdate::ProcessStatus(sign.clone()));
        }
        if is_in_force {
            writer.send(StatusUpdate::InForce);
        }
    }

    /// Sends keys to the writer of the node's keys; logs them if there is none.
    fn send_keys(&self, progress: &Progress) {
        #[cfg(feature = "etcd")]
        if let Some(writer) = &self.writers.datastore {
            for (family, key) in &progress.wireguard_keys {
                writer.send(StatusUpdate::WireguardKey(*family, key.clone()));
            }
            return;
        }
        #[cfg(feature = "kubernetes")]
        if let Some(writer) = &self.writers.node {
            for (family, key) in &progress.wireguard_keys {
                writer.send(*family, key.clone());
            }
            return;
        }
        for (family, key) in progress.wireguard_keys.iter().filter(|(_, key)| !key.is_empty()) {
            let field = match family {
                Family::V4 => "wireguardPublicKey",
                Family::V6 => "wireguardPublicKeyV6",
            };
            tracing::warn!(%family, key, field, "other nodes do not encrypt before the status of this node has its key: this datastore is not written to");
        }
    }
}

impl Observer for StatusReports {
    fn on_update(&mut self, update: &DesiredUpdate) {
        let (id, text) = match update {
            _ if self.writers.files.is_none() => return,
            DesiredUpdate::WorkloadEndpoint(id, state) => (id, Some(status_file::content(state))),
            DesiredUpdate::WorkloadEndpointRemove(id) => (id, None),
            _ => return,
        };
        self.texts.insert(id.clone(), text);
    }

    fn on_progress(&mut self, progress: &Progress, has_enforced: bool) {
        let is_in_force = has_enforced && !self.reported_in_force;
        self.reported_in_force |= is_in_force;
        self.send_to_files(progress, is_in_force);
        #[cfg(feature = "etcd")]
        self.send_to_datastore(progress, is_in_force);
        self.send_keys(progress);
    }
}
