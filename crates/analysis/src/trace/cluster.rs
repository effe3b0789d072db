//! A cluster, and which endpoints a connection meets in it.

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

/// What nodes depend on besides the objects of the cluster.
#[derive(Debug, Clone)]
struct NodeConfig {
    graph: GraphConfig,
    settings: Settings,
}

/// A cluster as the datastore has it. See the crate's documentation.
#[derive(Debug)]
pub struct Cluster {
    config: NodeConfig,
    /// Those of nodes that have their own.
    configs: AHashMap<Hostname, NodeConfig>,
    objects: AHashMap<Key, Update>,
    index: Places,
    services: Services,
    /// The nodes that have been asked.
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
    /// One without any objects, whose nodes have these parameters. The name of the node in `graph` means nothing.
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

    /// Gives a node parameters of its own.
    pub fn configure(&mut self, node: Hostname, graph: GraphConfig, settings: Settings) {
        self.nodes.remove(&node);
        self.configs.insert(node, NodeConfig { graph, settings });
    }

    /// Takes a change of an object.
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

    /// What has an address. Of several workloads that have it, the one that was told first.
    #[must_use]
    pub fn place_of(&self, address: IpAddr) -> Place {
        self.index.place(address)
    }

    /// The network set that holds an address; see [`Places::network_set`].
    #[must_use]
    pub fn network_set_of(&self, address: IpAddr, namespace: Option<&str>) -> Option<&NetworkSetName> {
        self.index.network_set(address, namespace)
    }

    /// The Services, by the addresses and ports at which they are reached.
    #[must_use]
    pub fn services(&self) -> &Services {
        &self.services
    }

    /// The endpoints of a workload, by the name that its orchestrator gives it: `namespace/pod` for Kubernetes.
    #[must_use]
    pub fn workloads_named(&self, name: &str) -> &[WorkloadEndpointKey] {
        self.index.workloads(name)
    }

    /// The names of all workloads, in no order.
    pub fn workload_names(&self) -> impl Iterator<Item = &str> {
        self.index.workload_names()
    }

    /// A workload.
    #[must_use]
    pub fn workload(&self, key: &WorkloadEndpointKey) -> Option<&WorkloadEndpoint> {
        match self.objects.get(&Key::WorkloadEndpoint(key.clone())) {
            Some(Update::WorkloadEndpoint(_, Some(endpoint))) => Some(endpoint),
            _ => None,
        }
    }

    /// The first address of a node in a family, in the order in which the node was told.
    #[must_use]
    pub fn node_address(&self, host: &Hostname, family: Family) -> Option<IpAddr> {
        let Some(Update::Node(_, Some(node))) = self.objects.get(&Key::Node(host.clone())) else { return None };
        node.own_addresses().find(|address| Family::of(*address) == family)
    }

    /// An object.
    #[must_use]
    pub fn object(&self, key: &Key) -> Option<&Update> {
        self.objects.get(key)
    }

    /// All objects, in no order.
    pub fn objects(&self) -> impl Iterator<Item = &Update> {
        self.objects.values()
    }

    /// What becomes of the first packet of a connection between two places. The packet has the addresses that policy sees:
    /// those behind any translation.
    ///
    /// # Errors
    /// If neither place is in the cluster, or one of them does not exist in it.
    pub fn connection(&mut self, from: &Place, to: &Place, packet: &Packet) -> Result<Connection, TraceError> {
        self.ask(from, to, Asked { packet, is_pending: false })
    }

    /// The same as [`Cluster::connection`], if all staged policies were in force, and those of the same names that they are to
    /// replace were not.
    ///
    /// # Errors
    /// If neither place is in the cluster, or one of them does not exist in it.
    pub fn pending_connection(&mut self, from: &Place, to: &Place, packet: &Packet) -> Result<Connection, TraceError> {
        self.ask(from, to, Asked { packet, is_pending: true })
    }

    /// What becomes of a connection that a node takes in at one of its own addresses and passes on to what answers for a Service
    /// (a node port). `entering` is its first packet as it comes to that node, `packet` the same behind the translation of the
    /// destination, and `leaving` as another node sees it, with the address of the node that passed it on as its source.
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
            // The node translates it before its policies see it.
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
            // The original does not police what a node sends to its own workloads.
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

    /// What the source's node says. `forwarded` is what its host endpoints take a workload's packets for, if they see them.
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

    /// What the destination's node says.
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

    /// A node as it is now.
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
