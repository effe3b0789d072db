//! Nodes of endpoints, and settings of single nodes, for the endpoints of a whole cluster in one
//! state.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;
use tortie_evaluate::Settings;
use tortie_model::{HostEndpointName, Hostname, WorkloadEndpointId};

use crate::ids::{Id, SettingsId};

/// The endpoints, addresses and settings of nodes. States share common parts.
#[derive(Clone, Debug)]
pub(crate) struct Nodes {
    workloads: Arc<AHashMap<WorkloadEndpointId, Hostname>>,
    hosts: Arc<AHashMap<HostEndpointName, Hostname>>,
    addresses: Arc<AHashMap<Hostname, Box<[IpAddr]>>>,
    /// Settings of all nodes that are not in `kind_of`.
    common: Settings,
    /// Settings of single nodes, without duplicates.
    kinds: Vec<Settings>,
    kind_of: AHashMap<Hostname, usize>,
}

impl Nodes {
    pub(crate) fn new(common: Settings) -> Self {
        Self {
            workloads: Arc::default(),
            hosts: Arc::default(),
            addresses: Arc::default(),
            common,
            kinds: Vec::new(),
            kind_of: AHashMap::new(),
        }
    }

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

    pub(crate) fn set_workload(&mut self, id: &WorkloadEndpointId, node: Option<Hostname>) {
        if self.of_workload(id) != node.as_ref() {
            set(&mut self.workloads, id, node);
        }
    }

    pub(crate) fn set_host(&mut self, name: &HostEndpointName, node: Option<Hostname>) {
        if self.of_host(name) != node.as_ref() {
            set(&mut self.hosts, name, node);
        }
    }

    pub(crate) fn set_addresses(&mut self, node: &Hostname, addresses: &[IpAddr]) {
        if self.addresses(node) != addresses {
            set(&mut self.addresses, node, (!addresses.is_empty()).then(|| addresses.into()));
        }
    }

    /// Replaces the settings of all nodes that have no separate ones.
    pub(crate) fn set_common(&mut self, settings: Settings) {
        self.common = settings;
    }

    /// Replaces the separate settings of single nodes.
    pub(crate) fn set_own(&mut self, settings: BTreeMap<Hostname, Settings>) {
        self.kinds.clear();
        self.kind_of.clear();
        for (node, settings) in settings {
            let known = self.kinds.iter().position(|kind| *kind == settings);
            let kind = known.unwrap_or_else(|| {
                self.kinds.push(settings);
                self.kinds.len() - 1
            });
            self.kind_of.insert(node, kind);
        }
    }

    /// Returns the settings of all nodes that have no separate ones.
    pub(crate) fn common(&self) -> &Settings {
        &self.common
    }

    #[expect(clippy::indexing_slicing, reason = "ids are of settings in `all_settings`, in their order")]
    pub(crate) fn settings(&self, id: SettingsId) -> &Settings {
        match (id.number() as usize).checked_sub(1) {
            Some(kind) => &self.kinds[kind],
            None => &self.common,
        }
    }

    /// Returns all settings: the common ones first.
    pub(crate) fn all_settings(&self) -> impl Iterator<Item = &Settings> {
        std::iter::once(&self.common).chain(&self.kinds)
    }

    /// The settings that apply to a host endpoint.
    pub(crate) fn settings_of_host(&self, name: &HostEndpointName) -> SettingsId {
        self.settings_like(self.of_host(name), |one, other| one == other)
    }

    /// The settings that apply to packets from a workload. Settings that are alike for these
    /// packets have one id.
    pub(crate) fn settings_of_workload(&self, id: &WorkloadEndpointId) -> SettingsId {
        if self.kinds.is_empty() {
            return SettingsId::default();
        }
        self.settings_like(self.of_workload(id), is_alike)
    }

    /// The first settings that are like those of a node.
    #[expect(
        clippy::expect_used,
        clippy::indexing_slicing,
        reason = "a node with its own settings has one of the kinds"
    )]
    fn settings_like(&self, node: Option<&Hostname>, is_like: fn(&Settings, &Settings) -> bool) -> SettingsId {
        let Some(kind) = node.and_then(|node| self.kind_of.get(node)) else { return SettingsId::default() };
        let own = &self.kinds[*kind];
        let first = (0..).zip(self.all_settings()).find(|(_, settings)| is_like(settings, own));
        first.map(|(number, _)| SettingsId::new(number)).expect("settings are like themselves")
    }
}

/// Whether settings treat packets from workloads alike.
fn is_alike(one: &Settings, other: &Settings) -> bool {
    let sent = |settings: &Settings| (settings.vxlan_port, settings.vxlan_from_workloads, settings.ipip_from_workloads);
    sent(one) == sent(other)
}

fn set<K: Clone + Eq + std::hash::Hash, V: Clone>(map: &mut Arc<AHashMap<K, V>>, key: &K, value: Option<V>) {
    let map = Arc::make_mut(map);
    match value {
        Some(value) => drop(map.insert(key.clone(), value)),
        None => drop(map.remove(key)),
    }
}
