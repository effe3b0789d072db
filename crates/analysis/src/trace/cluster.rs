//! A cluster, and the endpoints that a connection passes in it.

use std::net::IpAddr;

use ahash::AHashMap;
use tortie_calc::GraphConfig;
use tortie_evaluate::{Missing, Packet, Settings};
use tortie_model::{Direction, Family, Hostname, Key, NetworkSetName, Update, WorkloadEndpoint, WorkloadEndpointKey};

use crate::trace::connection::{At, Connection, Place};
use crate::trace::error::TraceError;
use crate::trace::host::Traffic;
use crate::trace::index::Places;
use crate::trace::node::{Asked, NodeView};
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
    index: Places,
    services: Services,
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
            index: Places::default(),
            services: Services::default(),
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
        if update.exists() {
            self.objects.insert(key, update);
        }
    }

    /// Returns the place with an address; see [`Places::place`].
    #[must_use]
    pub fn place_of(&self, address: IpAddr) -> Place {
        self.index.place(address)
    }

    /// Returns the network set that contains an address; see [`Places::network_set`].
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
        self.ask(from, to, Asked { packet, is_pending: false })
    }

    /// As [`Cluster::connection`], with all staged policies in force in place of the policies that
    /// they replace.
    ///
    /// # Errors
    /// If neither place is in the cluster, or one of them does not exist in it.
    pub fn pending_connection(&mut self, from: &Place, to: &Place, packet: &Packet) -> Result<Connection, TraceError> {
        self.ask(from, to, Asked { packet, is_pending: true })
    }

    /// Evaluates a connection that a node accepts at one of its addresses and forwards to a backend
    /// of a Service (a node port). `entering` is its first packet as it reaches that node, `packet`
    /// is the same after DNAT, and `leaving` is the packet as another node sees it, with the
    /// address of the forwarding node as its source.
    ///
    /// # Errors
    /// If one of the places does not exist in the cluster.
    pub fn connection_by_node(
        &mut self,
        from: &Place,
        node: &Hostname,
        to: &Place,
        [entering, packet, leaving]: [&Packet; 3],
        is_pending: bool,
    ) -> Result<Connection, TraceError> {
        let [entering, asked, leaving] = [entering, packet, leaving].map(|packet| Asked { packet, is_pending });
        if let Place::Workload(from) = from {
            self.known(from)?;
        }
        let is_on = |place: &Place| match place {
            Place::Workload(key) => key.host() == node.as_str(),
            Place::Node(host) => host == node,
            Place::Outside => false,
        };
        if is_on(from) {
            // The node translates the packet before its policies see it.
            return self.ask(from, to, asked);
        }
        let mut connection = Connection::default();
        self.leave(from, Some(Traffic::Forwarded), entering, &mut connection)?;
        let legs = &mut connection.legs;
        self.node(node)?.host_legs_in(Traffic::Forwarded, entering, asked, legs)?;
        if is_on(to) {
            if let Place::Workload(key) = to {
                let leg = self.node(node)?.leg(At::Workload(key.id()), Direction::Ingress, asked)?;
                legs.push(leg);
            }
        } else {
            self.node(node)?.host_legs(Traffic::Forwarded, Direction::Egress, asked, legs)?;
            self.arrive(to, Some(Traffic::Forwarded), leaving, &mut connection)?;
        }
        Ok(connection)
    }

    fn ask(&mut self, from: &Place, to: &Place, asked: Asked<'_>) -> Result<Connection, TraceError> {
        let mut connection = Connection::default();
        match (from, to) {
            (Place::Outside, Place::Outside) => return Err(TraceError::BothOutside),
            (Place::Workload(from), Place::Workload(to)) if from == to => {
                self.known(from)?;
            }
            (Place::Workload(from), Place::Node(to)) if from.host() == to.as_str() => {
                let node = self.node(to)?;
                connection.legs.push(node.leg(At::WorkloadToHost(from.id()), Direction::Egress, asked)?);
            }
            // Felix applies no policy to packets of a node to its workloads.
            (Place::Node(from), Place::Workload(to)) if from.as_str() == to.host() => self.known(to)?,
            (Place::Node(from), Place::Node(to)) if from == to => {}
            _ => {
                let same_node =
                    matches!((from, to), (Place::Workload(from), Place::Workload(to)) if from.host() == to.host());
                let both = matches!((from, to), (Place::Workload(_), Place::Workload(_)));
                let forwarded = if both { Traffic::BetweenWorkloads } else { Traffic::Forwarded };
                self.leave(from, (!same_node).then_some(forwarded), asked, &mut connection)?;
                self.arrive(to, (!same_node).then_some(forwarded), asked, &mut connection)?;
            }
        }
        Ok(connection)
    }

    /// Evaluates the packet on the source's node. `forwarded` is the kind of a workload's traffic
    /// for the host endpoints; `None` if they do not see it.
    fn leave(
        &mut self,
        from: &Place,
        forwarded: Option<Traffic>,
        asked: Asked<'_>,
        connection: &mut Connection,
    ) -> Result<(), TraceError> {
        match from {
            Place::Workload(key) => {
                let node = self.node(&Hostname::new(key.host()))?;
                connection.legs.push(node.leg(At::Workload(key.id()), Direction::Egress, asked)?);
                if let Some(forwarded) = forwarded {
                    node.host_legs(forwarded, Direction::Egress, asked, &mut connection.legs)?;
                }
            }
            Place::Node(host) => {
                self.node(host)?.host_legs(Traffic::Own, Direction::Egress, asked, &mut connection.legs)?;
            }
            Place::Outside => {}
        }
        Ok(())
    }

    /// Evaluates the packet on the destination's node.
    fn arrive(
        &mut self,
        to: &Place,
        forwarded: Option<Traffic>,
        asked: Asked<'_>,
        connection: &mut Connection,
    ) -> Result<(), TraceError> {
        match to {
            Place::Workload(key) => {
                let node = self.node(&Hostname::new(key.host()))?;
                if let Some(forwarded) = forwarded {
                    node.host_legs(forwarded, Direction::Ingress, asked, &mut connection.legs)?;
                }
                connection.legs.push(node.leg(At::Workload(key.id()), Direction::Ingress, asked)?);
            }
            Place::Node(host) => {
                self.node(host)?.host_legs(Traffic::Own, Direction::Ingress, asked, &mut connection.legs)?;
            }
            Place::Outside => {}
        }
        Ok(())
    }

    fn known(&self, key: &WorkloadEndpointKey) -> Result<(), TraceError> {
        self.workload(key).map(drop).ok_or_else(|| Missing::Workload(key.id()).into())
    }

    /// Returns the current view of a node.
    fn node(&mut self, host: &Hostname) -> Result<&NodeView, TraceError> {
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
