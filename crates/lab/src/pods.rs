//! Nodes with pods on this machine, and measurement of the reachability between them.
//!
//! Every pod is a network namespace connected to the node's namespace by a veth pair, as with
//! Calico. The node side has the name [`interface_name`] and the address `ee:ee:ee:ee:ee:ee`. The
//! pod side is `eth0` with the pod's addresses as /32 and /128, and default routes via
//! `169.254.1.1` (which the node side answers by proxy ARP) and `fe80::ecee:eeff:feee:eeee`. Each
//! node's `eth0` is connected to the bridge of its subnet. The bridges are those of a host outside
//! the cluster, which is the router between subnets.
//!
//! Every pod serves its ports over TCP, UDP and SCTP. [`Lab::probe`] tries any set of flows
//! concurrently.

mod client;
mod flow;
mod sctp;
mod server;
mod wiring;

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr, TcpStream},
    time::{Duration, Instant},
};

pub use flow::{Family, Flow, FlowOutcome, LabHost, NotAPod, NotAProtocol, Port, Protocol, Reachability};
pub use wiring::{NODE_ADDRESSES, OUTSIDE_ADDRESSES, interface_name, node_addresses, node_name};

use crate::netns::{Namespace, NetnsError};
use server::Server;

/// A pod of a laboratory: addresses and ports, no labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// Kubernetes namespace and name.
    pub place: LabHost,
    /// Addresses, at most one per family in practice.
    pub addresses: Vec<IpAddr>,
    /// Served ports.
    pub ports: Vec<Port>,
    /// Number of its node, from 0.
    pub node: usize,
}

impl Pod {
    /// Returns a pod `namespace/name` on the first node.
    #[must_use]
    pub fn new(
        namespace: &str,
        name: &str,
        addresses: impl IntoIterator<Item = IpAddr>,
        ports: impl IntoIterator<Item = Port>,
    ) -> Self {
        Self {
            place: LabHost::pod(namespace, name),
            addresses: addresses.into_iter().collect(),
            ports: ports.into_iter().collect(),
            node: 0,
        }
    }

    /// Moves it to another node.
    #[must_use]
    pub fn on(mut self, node: usize) -> Self {
        self.node = node;
        self
    }
}

/// Party that configures the node's side of the pods' interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NodeSide {
    /// The laboratory: routes to the pods, proxy ARP and forwarding are in place before
    /// [`Lab::new`] returns.
    #[default]
    Complete,
    /// The agent under test; without it, no packet reaches a pod.
    ByAgent,
}

/// Options of a laboratory.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LabOptions {
    /// Party that configures the node's side of the pods' interfaces.
    pub node_side: NodeSide,
    /// Subnet of each node. The first node is in subnet 0.
    pub subnets: Vec<u8>,
}

impl Default for LabOptions {
    fn default() -> Self {
        Self { node_side: NodeSide::default(), subnets: vec![0] }
    }
}

impl LabOptions {
    /// Returns options that leave routes and interface settings of the node to the agent under
    /// test.
    #[must_use]
    pub fn for_agent() -> Self {
        Self { node_side: NodeSide::ByAgent, ..Self::default() }
    }

    /// Sets this number of nodes, in one subnet.
    #[must_use]
    pub fn nodes(self, nodes: usize) -> Self {
        self.subnets(vec![0; nodes.max(1)])
    }

    /// Sets a node in each of these subnets.
    #[must_use]
    pub fn subnets(mut self, subnets: impl Into<Vec<u8>>) -> Self {
        self.subnets = subnets.into();
        self
    }
}

/// Waiting times of a probe.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Maximum wait for the answer of a flow.
    pub timeout: Duration,
    /// Time without any answer after which the round ends early.
    pub quiet: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self { timeout: Duration::from_millis(800), quiet: Duration::from_millis(200) }
    }
}

impl Timing {
    /// Waits the whole `timeout` for every flow, as for a second measurement.
    #[must_use]
    pub fn patient(timeout: Duration) -> Self {
        Self { timeout, quiet: timeout }
    }
}

/// A place in the laboratory, with its namespace.
#[derive(Debug)]
struct Station {
    pod: Pod,
    namespace: Namespace,
    /// Stops when dropped; `None` for places that only send.
    _server: Option<Server>,
}

/// Nodes with pods. Their namespaces disappear when it is dropped, or when the process ends.
#[derive(Debug)]
pub struct Lab {
    options: LabOptions,
    stations: BTreeMap<LabHost, Station>,
    /// Nodes after the first one, which is a [`LabHost`].
    other_nodes: Vec<Namespace>,
}

impl Lab {
    /// Builds the nodes with `pods`.
    ///
    /// # Errors
    /// If a namespace, an interface or a server cannot be created. All namespaces are removed then.
    pub fn new(pods: &[Pod], options: &LabOptions) -> Result<Self, NetnsError> {
        let (node, other_nodes, outside) = wiring::build_nodes(&options.subnets)?;
        let served = |place, addresses: [IpAddr; 2], namespace: Namespace| -> Result<Station, NetnsError> {
            let pod = Pod { place, addresses: addresses.to_vec(), ports: Vec::new(), node: 0 };
            let server = Server::start(&namespace, &pod)?;
            Ok(Station { pod, namespace, _server: Some(server) })
        };
        let stations = BTreeMap::from([
            (LabHost::Node, served(LabHost::Node, NODE_ADDRESSES, node)?),
            (LabHost::Outside, served(LabHost::Outside, OUTSIDE_ADDRESSES, outside)?),
        ]);
        let mut lab = Self { options: options.clone(), stations, other_nodes };
        lab.set_pods(pods)?;
        Ok(lab)
    }

    /// Adds and removes pods so that the nodes have exactly `pods`. An unchanged pod keeps its
    /// namespace; a pod with different addresses, ports or node is recreated.
    ///
    /// # Errors
    /// If a namespace, an interface or a server cannot be created, or the node of a pod does not
    /// exist.
    pub fn set_pods(&mut self, pods: &[Pod]) -> Result<(), NetnsError> {
        for pod in pods {
            self.node_of_number(pod.node)?;
        }
        let removed: Vec<Pod> = self.pods().filter(|pod| !pods.contains(pod)).cloned().collect();
        for number in 0..self.nodes() {
            let names = removed.iter().filter(|pod| pod.node == number).filter_map(|pod| interface_name(&pod.place));
            // Deleting the link frees its name immediately; the kernel deletes the namespace later.
            self.node_of_number(number)?.ip(names.map(|name| format!("link del {name}")))?;
        }
        for pod in &removed {
            self.stations.remove(&pod.place);
        }
        for number in 0..self.nodes() {
            let is_new = |pod: &&Pod| pod.node == number && !self.stations.contains_key(&pod.place);
            let new: Vec<&Pod> = pods.iter().filter(is_new).collect();
            let namespaces = wiring::connect_pods(self.node_of_number(number)?, &new, self.options.node_side)?;
            for (pod, namespace) in new.into_iter().zip(namespaces) {
                let server = Server::start(&namespace, pod)?;
                self.stations.insert(pod.place.clone(), Station { pod: pod.clone(), namespace, _server: Some(server) });
            }
        }
        Ok(())
    }

    /// Deletes a pod's interface, as a malfunction of the node would. Its namespace and the
    /// processes in it remain.
    ///
    /// # Errors
    /// If the pod is unknown or has no interface.
    pub fn unplug(&self, place: &LabHost) -> Result<(), NetnsError> {
        let name = interface_name(place).ok_or_else(|| unknown(place))?;
        self.node_of(place)?.ip([format!("link del {name}")])
    }

    /// Recreates a pod's interface with the same name and another index. Its settings and routes on
    /// the node are left to the agent.
    ///
    /// # Errors
    /// If the pod is unknown, or has an interface.
    pub fn plug(&self, place: &LabHost) -> Result<(), NetnsError> {
        let station = self.stations.get(place).ok_or_else(|| unknown(place))?;
        wiring::plug(self.node_of(place)?, &station.pod, &station.namespace)
    }

    /// Serves `ports` on the node or on the outside host, instead of the ports served before.
    ///
    /// # Errors
    /// If a server cannot be started, or the place does not exist.
    pub fn serve(&mut self, place: &LabHost, ports: &[Port]) -> Result<(), NetnsError> {
        let station = self.stations.get_mut(place).ok_or_else(|| unknown(place))?;
        station._server = None;
        station.pod.ports = ports.to_vec();
        station._server = Some(Server::start(&station.namespace, &station.pod)?);
        Ok(())
    }

    /// Returns the node's namespace, in which to start the agent.
    ///
    /// # Panics
    /// Never: every laboratory has a node.
    #[must_use]
    pub fn node(&self) -> &Namespace {
        &self.stations[&LabHost::Node].namespace
    }

    /// Returns the namespace of the node of this number, from 0.
    #[must_use]
    pub fn node_at(&self, number: usize) -> Option<&Namespace> {
        number.checked_sub(1).map_or_else(|| Some(self.node()), |number| self.other_nodes.get(number))
    }

    /// Returns the number of nodes.
    #[must_use]
    pub fn nodes(&self) -> usize {
        1 + self.other_nodes.len()
    }

    fn node_of_number(&self, number: usize) -> Result<&Namespace, NetnsError> {
        self.node_at(number).ok_or_else(|| NetnsError::Socket {
            description: format!("no {} in the laboratory", node_name(number)),
            source: std::io::ErrorKind::NotFound.into(),
        })
    }

    /// Returns the namespace of a pod's node.
    fn node_of(&self, place: &LabHost) -> Result<&Namespace, NetnsError> {
        self.node_of_number(self.stations.get(place).ok_or_else(|| unknown(place))?.pod.node)
    }

    /// Returns the namespace of a pod, of the node or of the outside host.
    #[must_use]
    pub fn namespace(&self, place: &LabHost) -> Option<&Namespace> {
        self.stations.get(place).map(|station| &station.namespace)
    }

    /// Returns the present pods, in order of their names.
    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.stations.values().map(|station| &station.pod).filter(|pod| matches!(pod.place, LabHost::Pod { .. }))
    }

    /// Returns every flow from a pod to a port of another pod, in every family that both have.
    #[must_use]
    pub fn flows(&self) -> Vec<Flow> {
        let mut flows = Vec::new();
        for from in self.pods() {
            for to in self.pods().filter(|to| to.place != from.place) {
                for family in [Family::V4, Family::V6] {
                    let both = [from, to].iter().all(|pod| address(pod, family).is_some());
                    flows.extend(to.ports.iter().filter(|_| both).map(|&port| Flow {
                        from: from.place.clone(),
                        to: to.place.clone(),
                        port,
                        family,
                    }));
                }
            }
        }
        flows
    }

    /// Tries all `flows` concurrently and returns their outcomes.
    ///
    /// # Errors
    /// If a flow names an unknown place or an address that the place lacks, or the prober fails. A
    /// flow without an answer is an outcome, not an error.
    pub fn probe(&self, flows: &[Flow], timing: &Timing) -> Result<Reachability, NetnsError> {
        client::probe(&self.attempts(flows)?, timing)
    }

    /// Tries all `flows` repeatedly until one of them succeeds, and returns the time of its answer.
    /// `None` if none succeeds within `patience`.
    ///
    /// # Errors
    /// As [`Lab::probe`].
    pub fn first_reached(&self, flows: &[Flow], patience: Duration) -> Result<Option<Instant>, NetnsError> {
        client::first_reached(&self.attempts(flows)?, patience)
    }

    fn attempts<'a>(&'a self, flows: &'a [Flow]) -> Result<Vec<client::Attempt<'a>>, NetnsError> {
        let resolve = |flow: &'a Flow| {
            let from = self.stations.get(&flow.from).ok_or_else(|| unknown(&flow.from))?;
            let to = self.stations.get(&flow.to).ok_or_else(|| unknown(&flow.to))?;
            let target = |pod| address(pod, flow.family).ok_or_else(|| unknown(&pod.place));
            Ok(client::Attempt {
                flow,
                namespace: &from.namespace,
                source: target(&from.pod)?,
                target: SocketAddr::new(target(&to.pod)?, flow.port.number),
            })
        };
        flows.iter().map(resolve).collect()
    }

    /// Opens a persistent TCP connection, to test the effect of a later change on it. The server
    /// sends its name and then echoes.
    ///
    /// # Errors
    /// If the connection cannot be established within `timeout`.
    pub fn connect(&self, flow: &Flow, timeout: Duration) -> Result<TcpStream, NetnsError> {
        let from = self.stations.get(&flow.from).ok_or_else(|| unknown(&flow.from))?;
        let to = self.stations.get(&flow.to).ok_or_else(|| unknown(&flow.to))?;
        let target = address(&to.pod, flow.family).ok_or_else(|| unknown(&flow.to))?;
        from.namespace
            .run(|| TcpStream::connect_timeout(&SocketAddr::new(target, flow.port.number), timeout))?
            .map_err(|source| NetnsError::Socket { description: format!("connecting {flow}"), source })
    }
}

fn address(pod: &Pod, family: Family) -> Option<IpAddr> {
    pod.addresses.iter().copied().find(|address| address.is_ipv4() == (family == Family::V4))
}

fn unknown(place: &LabHost) -> NetnsError {
    NetnsError::Socket {
        description: format!("no such place or address in the laboratory: {place}"),
        source: std::io::ErrorKind::NotFound.into(),
    }
}

#[cfg(test)]
mod tests;
