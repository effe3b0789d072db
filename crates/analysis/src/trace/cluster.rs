//! A cluster, and the endpoints that a connection passes in it.

use std::net::IpAddr;

use ahash::AHashMap;
use tortie_calc::GraphConfig;
use tortie_evaluate::{Packet, Settings};
use tortie_model::{Family, Hostname, Key, NetworkSetName, Update, WorkloadEndpoint, WorkloadEndpointKey};

use crate::trace::connection::{Connection, Place};
use crate::trace::error::TraceError;
use crate::trace::index::AddressIndex;
use crate::trace::node::NodeView;
use crate::trace::pools::{NatSettings, Pools};
use crate::trace::query::ConnectionQuery;
use crate::trace::services::Services;

/// Parameters of a node besides the objects of the cluster.
#[derive(Debug, Clone)]
struct NodeConfig {
    graph: GraphConfig,
    settings: Settings,
}

/// A cluster with the objects of the datastore. See the crate's documentation.
#[derive(Debug)]
pub struct Cluster {
    config: NodeConfig,
    /// Parameters of nodes with different ones.
    configs: AHashMap<Hostname, NodeConfig>,
    objects: AHashMap<Key, Update>,
    index: AddressIndex,
    services: Services,
    pub(crate) pools: Pools,
    /// Parameters of address translation, by node.
    pub(crate) nat: AHashMap<Hostname, NatSettings>,
    /// Nodes that have been evaluated.
    nodes: AHashMap<Hostname, NodeView>,
}

/// A cluster whose nodes have Felix's defaults.
impl Default for Cluster {
    fn default() -> Self {
        Self::new(GraphConfig::new("".into()), Settings::default())
    }
}

/// These objects, in a cluster whose nodes have Felix's defaults.
impl FromIterator<Update> for Cluster {
    fn from_iter<T: IntoIterator<Item = Update>>(updates: T) -> Self {
        let mut cluster = Self::default();
        updates.into_iter().for_each(|update| cluster.apply(update));
        cluster
    }
}

impl Cluster {
    /// Returns a cluster without objects, whose nodes have these parameters. The name of the node
    /// in `graph` has no effect.
    #[must_use]
    pub fn new(graph: GraphConfig, settings: Settings) -> Self {
        Self {
            config: NodeConfig { graph, settings },
            configs: AHashMap::new(),
            objects: AHashMap::new(),
            index: AddressIndex::default(),
            services: Services::default(),
            pools: Pools::default(),
            nat: AHashMap::new(),
            nodes: AHashMap::new(),
        }
    }

    /// Sets separate parameters of a node.
    pub fn configure(&mut self, node: Hostname, graph: GraphConfig, settings: Settings) {
        self.nodes.remove(&node);
        self.configs.insert(node, NodeConfig { graph, settings });
    }

    /// Applies a change of an object.
    pub fn apply(&mut self, update: Update) {
        for node in self.nodes.values_mut() {
            node.on_update(update.clone());
        }
        let key = update.key();
        let before = self.objects.remove(&key);
        self.index.replace(before.as_ref(), &update);
        self.services.replace(before.as_ref(), &update);
        self.pools.replace(&update);
        if update.exists() {
            self.objects.insert(key, update);
        }
    }

    pub(crate) fn index(&self) -> &AddressIndex {
        &self.index
    }

    /// Returns the place with an address; see [`AddressIndex::place`].
    #[must_use]
    pub fn place_of(&self, address: IpAddr) -> Place {
        self.index.place(address)
    }

    /// Returns the network set that contains an address; see [`AddressIndex::network_set`].
    #[must_use]
    pub fn network_set_of(&self, address: IpAddr, namespace: Option<&str>) -> Option<&NetworkSetName> {
        self.index.network_set(address, namespace)
    }

    /// Returns the Services by the addresses and ports at which they are reached.
    #[must_use]
    pub fn services(&self) -> &Services {
        &self.services
    }

    /// Returns the endpoints of a workload by the name that its orchestrator gives it:
    /// `namespace/pod` in Kubernetes.
    #[must_use]
    pub fn workloads_named(&self, name: &str) -> &[WorkloadEndpointKey] {
        self.index.workloads(name)
    }

    /// Returns the names of all workloads in arbitrary order.
    pub fn workload_names(&self) -> impl Iterator<Item = &str> {
        self.index.workload_names()
    }

    /// Returns a workload.
    #[must_use]
    pub fn workload(&self, key: &WorkloadEndpointKey) -> Option<&WorkloadEndpoint> {
        match self.objects.get(&Key::WorkloadEndpoint(key.clone())) {
            Some(Update::WorkloadEndpoint(_, Some(endpoint))) => Some(endpoint),
            _ => None,
        }
    }

    /// Returns the first address of a node in a family, in the order of the node's fields.
    #[must_use]
    pub fn node_address(&self, host: &Hostname, family: Family) -> Option<IpAddr> {
        let Some(Update::Node(_, Some(node))) = self.objects.get(&Key::Node(host.clone())) else { return None };
        node.own_addresses().find(|address| Family::of(*address) == family)
    }

    /// Returns an object.
    #[must_use]
    pub fn object(&self, key: &Key) -> Option<&Update> {
        self.objects.get(key)
    }

    /// Returns all objects in arbitrary order.
    pub fn objects(&self) -> impl Iterator<Item = &Update> {
        self.objects.values()
    }

    /// Evaluates the first packet of a connection between two places. The packet has the addresses
    /// that policy sees, after any translation.
    ///
    /// # Errors
    /// If neither place is in the cluster, or one of them does not exist in it.
    pub fn connection(&mut self, from: &Place, to: &Place, packet: &Packet) -> Result<Connection, TraceError> {
        self.evaluate(&ConnectionQuery::new(from.clone(), to.clone(), *packet))
    }

    /// As [`Cluster::connection`], with all staged policies in force in place of the policies that
    /// they replace.
    ///
    /// # Errors
    /// If neither place is in the cluster, or one of them does not exist in it.
    pub fn pending_connection(&mut self, from: &Place, to: &Place, packet: &Packet) -> Result<Connection, TraceError> {
        self.evaluate(&ConnectionQuery::new(from.clone(), to.clone(), *packet).pending(true))
    }

    /// Returns the current view of a node.
    pub(crate) fn node(&mut self, host: &Hostname) -> Result<&NodeView, TraceError> {
        let Self { config, configs, objects, nodes, .. } = self;
        let node = nodes.entry(host.clone()).or_insert_with(|| {
            let NodeConfig { graph, settings } = configs.get(host).unwrap_or(config);
            let mut node = NodeView::new(host.clone(), graph, settings.clone());
            objects.values().for_each(|update| node.on_update(update.clone()));
            node
        });
        node.flush()?;
        Ok(node)
    }
}
