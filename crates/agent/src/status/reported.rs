//! Telling of endpoints.

use std::collections::BTreeMap;
use std::mem;
use std::time::Duration;

use tortie_dataplane::{EndpointStatus, StatusChange};
use tortie_model::desired::DesiredUpdate;
use tortie_model::{Family, IpSetId, Update, WorkloadEndpointId};

#[cfg(feature = "kubernetes")]
use super::NodeKeyWriter;
use super::{FileNews, FileWriter, file_text};
#[cfg(feature = "etcd")]
use super::{StatusNews, StatusWriter};
use crate::config::{Resolved, Sources};
use crate::driver::{DriverError, DriverEvent};
use crate::engine::{Enforcement, EnforcementReport, Progress};
use crate::monitor::MonitorEvent;

/// Those who are told.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StatusWriters {
    /// Who keeps a file for each workload endpoint, if anybody wants them.
    pub files: Option<FileWriter>,
    /// Who writes into the datastore, if that is one for it.
    #[cfg(feature = "etcd")]
    pub datastore: Option<StatusWriter>,
    /// Who writes this node's keys into its `Node` of Kubernetes, if that is the datastore.
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

/// An enforcement whose endpoints' status is reported.
#[derive(Debug)]
pub struct Reported<E> {
    inner: E,
    writers: StatusWriters,
    /// What the files of endpoints are to hold once what was told of them is in force.
    texts: BTreeMap<WorkloadEndpointId, Option<String>>,
    /// Whether it has been told that everything is in force.
    told: bool,
}

impl<E: Enforcement> Reported<E> {
    /// Reports what happens to endpoints under this enforcement.
    pub fn new(inner: E, writers: StatusWriters) -> Self {
        Self { inner, writers, texts: BTreeMap::new(), told: false }
    }

    fn note(&mut self, update: &DesiredUpdate) {
        let (id, text) = match update {
            _ if self.writers.files.is_none() => return,
            DesiredUpdate::WorkloadEndpoint(id, state) => (id, Some(file_text::content(state))),
            DesiredUpdate::WorkloadEndpointRemove(id) => (id, None),
            _ => return,
        };
        self.texts.insert(id.clone(), text);
    }

    fn tell_files(&mut self, progress: &Progress, is_in_force: bool) {
        let Some(files) = &self.writers.files else { return };
        let mut news = Vec::new();
        for change in &progress.statuses {
            let StatusChange::Workload(id, status) = change else { continue };
            news.extend(self.texts.remove(id).map(|text| FileNews::Endpoint(id.clone(), text)));
            news.push(FileNews::Status(id.clone(), *status == Some(EndpointStatus::Up)));
        }
        if progress.done {
            news.extend(mem::take(&mut self.texts).into_iter().map(|(id, text)| FileNews::Endpoint(id, text)));
        }
        if is_in_force {
            news.push(FileNews::InForce);
        }
        if !news.is_empty() {
            files.tell(news);
        }
    }

    #[cfg(feature = "etcd")]
    fn tell_datastore(&self, progress: &Progress, is_in_force: bool) {
        let Some(writer) = &self.writers.datastore else { return };
        if !progress.statuses.is_empty() {
            writer.tell(StatusNews::Changes(progress.statuses.clone()));
        }
        if let Some(sign) = &progress.process_status {
            writer.tell(StatusNews::ProcessStatus(sign.clone()));
        }
        if is_in_force {
            writer.tell(StatusNews::InForce);
        }
    }

    /// Tells whoever writes the node's keys, or says those that nobody is told.
    fn tell_keys(&self, progress: &Progress) {
        #[cfg(feature = "etcd")]
        if let Some(writer) = &self.writers.datastore {
            for (family, key) in &progress.wireguard_keys {
                writer.tell(StatusNews::WireguardKey(*family, key.clone()));
            }
            return;
        }
        #[cfg(feature = "kubernetes")]
        if let Some(writer) = &self.writers.node {
            for (family, key) in &progress.wireguard_keys {
                writer.tell(*family, key.clone());
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

impl<E: Enforcement> Enforcement for Reported<E> {
    fn must_restart(&self, old: &Resolved, new: &Resolved) -> bool {
        self.inner.must_restart(old, new)
    }

    fn on_config(&mut self, sources: &Sources, resolved: &Resolved) -> Result<(), DriverError> {
        self.inner.on_config(sources, resolved)
    }

    fn takes_more(&self) -> bool {
        self.inner.takes_more()
    }

    fn on_object(&mut self, update: &Update) {
        self.inner.on_object(update);
    }

    fn on_update(&mut self, update: DesiredUpdate) {
        self.note(&update);
        self.inner.on_update(update);
    }

    fn on_links(&mut self, event: MonitorEvent) {
        self.inner.on_links(event);
    }

    fn on_driver(&mut self, event: DriverEvent) -> Result<(), DriverError> {
        self.inner.on_driver(event)
    }

    fn enforce(&mut self) -> Result<Progress, DriverError> {
        let progress = self.inner.enforce()?;
        let is_in_force = !self.told && self.inner.has_enforced();
        self.told |= is_in_force;
        self.tell_files(&progress, is_in_force);
        #[cfg(feature = "etcd")]
        self.tell_datastore(&progress, is_in_force);
        self.tell_keys(&progress);
        Ok(progress)
    }

    fn now(&mut self) -> Duration {
        self.inner.now()
    }

    fn outdated(&self) -> Option<&str> {
        self.inner.outdated()
    }

    fn has_enforced(&self) -> bool {
        self.inner.has_enforced()
    }

    fn report(&self) -> EnforcementReport {
        self.inner.report()
    }

    fn set_members(&self, id: &IpSetId) -> Option<Vec<String>> {
        self.inner.set_members(id)
    }
}
