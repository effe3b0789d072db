//! Which nodes endpoints are on and what is particular to a node, where a whole cluster is looked at as one.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;
use tortie_evaluate::Settings;
use tortie_model::{HostEndpointName, Hostname, WorkloadEndpointId};

use crate::classes::Classes;
use crate::ids::{Id, SettingsId};

/// What is known of nodes. States share what they have in common.
#[derive(Clone, Debug, Default)]
pub(crate) struct Nodes {
    workloads: Arc<AHashMap<WorkloadEndpointId, Hostname>>,
    hosts: Arc<AHashMap<HostEndpointName, Hostname>>,
    addresses: Arc<AHashMap<Hostname, Box<[IpAddr]>>>,
    /// Of nodes that have their own, each once.
    kinds: Vec<Settings>,
    kind_of: AHashMap<Hostname, usize>,
}

impl Nodes {
    pub(crate) fn of_workload(&self, id: &WorkloadEndpointId) -> Option<&Hostname> {
        self.workloads.get(id)
    }

    pub(crate) fn of_host(&self, name: &HostEndpointName) -> Option<&Hostname> {
        self.hosts.get(name)
    }

    pub(crate) fn addresses(&self, node: &Hostname) -> &[IpAddr] {
        self.addresses.get(node).map_or(&[], |addresses| addresses)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.workloads.is_empty() && self.hosts.is_empty() && self.addresses.is_empty()
    }
}

/// Whether settings are alike to what workloads send.
fn is_alike(one: &Settings, other: &Settings) -> bool {
    let sent = |settings: &Settings| (settings.vxlan_port, settings.vxlan_from_workloads, settings.ipip_from_workloads);
    sent(one) == sent(other)
}

impl Classes {
    /// Says on which node a workload is, where all endpoints of a cluster are together; `None` if that does not matter any more.
    ///
    /// [Differences](crate::Compiled::difference) have connections of workloads meet the host endpoints of their nodes.
    pub fn set_workload_node(&mut self, id: &WorkloadEndpointId, node: Option<Hostname>) {
        if self.nodes.of_workload(id) != node.as_ref() {
            set(&mut self.nodes.workloads, id, node);
        }
    }

    /// Says on which node a host endpoint is, where all endpoints of a cluster are together; `None` if that does not matter any
    /// more.
    pub fn set_host_node(&mut self, name: &HostEndpointName, node: Option<Hostname>) {
        if self.nodes.of_host(name) != node.as_ref() {
            set(&mut self.nodes.hosts, name, node);
        }
    }

    /// Replaces the addresses of a node itself: what its workloads send there meets none of its host endpoints.
    pub fn set_node_addresses(&mut self, node: &Hostname, addresses: &[IpAddr]) {
        if self.nodes.addresses(node) != addresses {
            set(&mut self.nodes.addresses, node, (!addresses.is_empty()).then(|| addresses.into()));
        }
    }

    /// Replaces the settings of all nodes that have their own: endpoints of these are judged by them, all others by those of
    /// [`Self::set_settings`].
    pub fn set_node_settings(&mut self, settings: BTreeMap<Hostname, Settings>) {
        self.nodes.kinds.clear();
        self.nodes.kind_of.clear();
        for (node, settings) in settings {
            let known = self.nodes.kinds.iter().position(|kind| *kind == settings);
            let kind = known.unwrap_or_else(|| {
                self.nodes.kinds.push(settings);
                self.nodes.kinds.len() - 1
            });
            self.nodes.kind_of.insert(node, kind);
        }
    }

    /// Those of all nodes that have no others, or of single ones.
    pub(crate) fn settings_with(&self, id: SettingsId) -> &Settings {
        let kind = (id.number() as usize).checked_sub(1).and_then(|kind| self.nodes.kinds.get(kind));
        kind.unwrap_or(&self.settings)
    }

    /// All that there are.
    pub(crate) fn all_settings(&self) -> impl Iterator<Item = &Settings> {
        std::iter::once(&self.settings).chain(&self.nodes.kinds)
    }

    /// By which settings a host endpoint is judged.
    pub(crate) fn settings_of_host(&self, name: &HostEndpointName) -> SettingsId {
        self.settings_like(self.nodes.of_host(name), |one, other| one == other)
    }

    /// By which settings it is judged what a workload sends. Where they do not differ in that, they are the same.
    pub(crate) fn settings_of_workload(&self, id: &WorkloadEndpointId) -> SettingsId {
        if self.nodes.kinds.is_empty() {
            return SettingsId::default();
        }
        self.settings_like(self.nodes.of_workload(id), is_alike)
    }

    fn settings_like(&self, node: Option<&Hostname>, is_like: fn(&Settings, &Settings) -> bool) -> SettingsId {
        let own = node.and_then(|node| self.nodes.kinds.get(*self.nodes.kind_of.get(node)?));
        let place = own.and_then(|own| self.all_settings().position(|settings| is_like(settings, own)));
        SettingsId::new(u32::try_from(place.unwrap_or_default()).unwrap_or_default())
    }
}

fn set<K: Clone + Eq + std::hash::Hash, V: Clone>(map: &mut Arc<AHashMap<K, V>>, key: &K, value: Option<V>) {
    let map = Arc::make_mut(map);
    match value {
        Some(value) => drop(map.insert(key.clone(), value)),
        None => drop(map.remove(key)),
    }
}
