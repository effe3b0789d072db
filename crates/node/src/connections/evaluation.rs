//! Decides whether the policy in force denies a tracked connection.
//!
//! A packet meets policy after DNAT and before SNAT: its source is that of the conntrack entry's
//! first direction, and its destination is the source of the reply direction. The kernel does not
//! record the packet's path. It is derived from the addresses: those of the node, those of its
//! workloads, and for all others the interface of the route there. A connection whose path is
//! ambiguous is left alone.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use tortie_evaluate::{Answer, DecidedBy, Evaluator, Layer, Missing, Packet, Payload, Verdict};
use tortie_model::{Direction, HostEndpointName, HostInterface, InterfaceName, WorkloadEndpointId};

use tortie_linux::netlink::{Connection, Flow, Tuple};

#[derive(Clone, Debug, Default)]
pub(crate) struct NodeAddresses {
    pub(crate) addresses: BTreeMap<InterfaceName, BTreeSet<IpAddr>>,
    /// The node's addresses on interfaces whose names no rule can be written with.
    pub(crate) at_odd_names: BTreeSet<IpAddr>,
}

/// Traffic that is exempt from host endpoint policy, or from evaluation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Exceptions {
    pub(crate) tunnel_ports: Vec<u16>,
    /// Packets of workloads to the host are left out, since more than policy decides about them
    /// (`OpenStack`).
    pub(crate) workloads_to_host: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndLocation<'a> {
    Node,
    Workload(&'a WorkloadEndpointId),
    Elsewhere,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AtInterface<'a> {
    None,
    One(&'a HostEndpointName),
    /// Several candidates, or the interface is not known.
    Unknown,
}

#[derive(Debug)]
pub(crate) struct ConnectionEvaluator<'a> {
    evaluator: &'a Evaluator,
    exceptions: &'a Exceptions,
    node_addresses: BTreeSet<IpAddr>,
    by_interface: HashMap<InterfaceName, AtInterface<'a>>,
    any: AtInterface<'a>,
}

trait Endpoints<'a> {
    fn at(
        &mut self,
        connection_evaluator: &ConnectionEvaluator<'a>,
        place: EndLocation<'a>,
        address: IpAddr,
    ) -> Option<Vec<&'a HostEndpointName>>;
}

struct AnyHostEndpoint;

struct RoutedHostEndpoint<F>(F);

impl<'a> Endpoints<'a> for AnyHostEndpoint {
    fn at(
        &mut self,
        connection_evaluator: &ConnectionEvaluator<'a>,
        _: EndLocation<'a>,
        _: IpAddr,
    ) -> Option<Vec<&'a HostEndpointName>> {
        Some(connection_evaluator.evaluator.host_endpoints().map(|(name, _)| name).collect())
    }
}

impl<'a, F: FnMut(IpAddr) -> Option<InterfaceName>> Endpoints<'a> for RoutedHostEndpoint<F> {
    fn at(
        &mut self,
        connection_evaluator: &ConnectionEvaluator<'a>,
        place: EndLocation<'a>,
        address: IpAddr,
    ) -> Option<Vec<&'a HostEndpointName>> {
        let endpoint = match place {
            EndLocation::Node => AtInterface::None,
            EndLocation::Workload(_) => connection_evaluator.any,
            EndLocation::Elsewhere => {
                let interface = (self.0)(address)?;
                connection_evaluator.by_interface.get(&interface).copied().unwrap_or(connection_evaluator.any)
            }
        };
        match endpoint {
            AtInterface::None => Some(Vec::new()),
            AtInterface::One(name) => Some(vec![name]),
            AtInterface::Unknown => None,
        }
    }
}

impl<'a> ConnectionEvaluator<'a> {
    pub(crate) fn new(evaluator: &'a Evaluator, node_addresses: &'a NodeAddresses, exceptions: &'a Exceptions) -> Self {
        let mut by_interface = HashMap::new();
        let mut any = AtInterface::None;
        let add = |at: &mut AtInterface<'a>, name| {
            *at = if *at == AtInterface::None { AtInterface::One(name) } else { AtInterface::Unknown };
        };
        for (name, state) in evaluator.host_endpoints() {
            let endpoint = &*state.endpoint;
            match endpoint.iface {
                Some(HostInterface::All) => add(&mut any, name),
                Some(HostInterface::Named(interface)) => {
                    add(by_interface.entry(interface).or_insert(AtInterface::None), name);
                }
                None => {
                    let expected: BTreeSet<&IpAddr> =
                        endpoint.expected_ipv4.iter().chain(&endpoint.expected_ipv6).collect();
                    for (interface, addresses) in &node_addresses.addresses {
                        if addresses.iter().any(|address| expected.contains(address)) {
                            add(by_interface.entry(*interface).or_insert(AtInterface::None), name);
                        }
                    }
                }
            }
        }
        let named = node_addresses.addresses.values().flatten();
        let node_addresses = named.chain(&node_addresses.at_odd_names).copied().collect();
        Self { evaluator, exceptions, node_addresses, by_interface, any }
    }

    /// Whether the connection is denied if the strictest of all host endpoints apply to it. False
    /// for most.
    pub(crate) fn may_deny(&self, connection: &Connection) -> bool {
        self.decide(connection, &mut AnyHostEndpoint)
    }

    /// Whether the connection is denied. `route` returns the interface by which packets to an
    /// address leave.
    pub(crate) fn denies(&self, connection: &Connection, route: impl FnMut(IpAddr) -> Option<InterfaceName>) -> bool {
        self.decide(connection, &mut RoutedHostEndpoint(route))
    }

    /// Whether an address is neither the node's nor of one of its workloads.
    pub(crate) fn is_elsewhere(&self, address: IpAddr) -> bool {
        self.place(address) == Some(EndLocation::Elsewhere)
    }

    /// Returns the host endpoints that may govern packets from elsewhere that arrive by an
    /// interface: one, or all candidates if that is ambiguous. `None` in the result means no host
    /// endpoint.
    pub(crate) fn host_endpoints_at(&self, interface: Option<InterfaceName>) -> Vec<Option<&'a HostEndpointName>> {
        let all = || self.evaluator.host_endpoints().map(|(name, _)| Some(name));
        let Some(interface) = interface else { return all().chain([None]).collect() };
        match self.by_interface.get(&interface).copied().unwrap_or(self.any) {
            AtInterface::None => vec![None],
            AtInterface::One(name) => vec![Some(name)],
            AtInterface::Unknown => all().collect(),
        }
    }

    fn decide(&self, connection: &Connection, endpoints: &mut impl Endpoints<'a>) -> bool {
        // Other programs use conntrack zones for packets that bypass the node's own rules.
        if connection.zone != 0 {
            return false;
        }
        let Connection { original, reply, .. } = connection;
        let (Some(from), Some(to)) = (self.place(original.source), self.place(reply.source)) else { return false };
        let packet = packet(original, reply.source, reply_port(reply));
        let Some(packet) = packet else { return false };
        // A state that lacks a referenced object is not in force.
        let denied = self.workloads_deny(from, to, &packet).and_then(|denied| {
            Ok(denied || self.hosts_deny((from, to), connection, &packet, endpoints)?.unwrap_or(false))
        });
        denied.unwrap_or(false)
    }

    /// `None` for addresses that no packet between endpoints has, and for an address with several
    /// owners.
    fn place(&self, address: IpAddr) -> Option<EndLocation<'a>> {
        if address.is_loopback() || address.is_unspecified() || address.is_multicast() {
            return None;
        }
        let is_node = self.node_addresses.contains(&address);
        match self.evaluator.workloads_with_address(address) {
            [] if is_node => Some(EndLocation::Node),
            [] => Some(EndLocation::Elsewhere),
            [one] if !is_node => Some(EndLocation::Workload(one)),
            _ => None,
        }
    }

    fn workloads_deny(&self, from: EndLocation<'_>, to: EndLocation<'_>, packet: &Packet) -> Result<bool, Missing> {
        if let EndLocation::Workload(id) = from {
            let answer = match to {
                EndLocation::Node if self.exceptions.workloads_to_host => return Ok(false),
                EndLocation::Node => self.evaluator.workload_to_host(id, packet)?,
                EndLocation::Workload(_) | EndLocation::Elsewhere => {
                    self.evaluator.workload(id, Direction::Egress, packet)?
                }
            };
            // A connection to an address with a name stays when the address expires.
            if answer.denies_surely() {
                return Ok(true);
            }
        }
        match (from, to) {
            // The host can always reach its workloads.
            (EndLocation::Node, _) => Ok(false),
            (_, EndLocation::Workload(id)) => {
                Ok(self.evaluator.workload(id, Direction::Ingress, packet)?.verdict == Verdict::Deny)
            }
            _ => Ok(false),
        }
    }

    /// `None` if it is not known which host endpoint decides.
    fn hosts_deny(
        &self,
        (from, to): (EndLocation<'a>, EndLocation<'a>),
        connection: &Connection,
        packet: &Packet,
        endpoints: &mut impl Endpoints<'a>,
    ) -> Result<Option<bool>, Missing> {
        let has_none = self.any == AtInterface::None && self.by_interface.is_empty();
        if has_none || self.is_of_tunnel(packet) || (from, to) == (EndLocation::Node, EndLocation::Node) {
            return Ok(Some(false));
        }
        if from != EndLocation::Node {
            let Some(names) = endpoints.at(self, from, connection.original.source) else { return Ok(None) };
            for name in names {
                if self.denies_on_the_way_in(name, (from, to), connection, packet)? {
                    return Ok(Some(true));
                }
            }
        }
        let layer = match (from, to) {
            (_, EndLocation::Node) | (EndLocation::Node, EndLocation::Workload(_)) => return Ok(Some(false)),
            (EndLocation::Node, EndLocation::Elsewhere) => Layer::Normal,
            _ => Layer::Forward,
        };
        let Some(names) = endpoints.at(self, to, connection.reply.source) else { return Ok(None) };
        for name in names {
            if self.evaluator.host(name, layer, Direction::Egress, packet)?.denies_surely() {
                return Ok(Some(true));
            }
        }
        Ok(Some(false))
    }

    fn denies_on_the_way_in(
        &self,
        name: &HostEndpointName,
        (from, to): (EndLocation<'_>, EndLocation<'_>),
        connection: &Connection,
        translated: &Packet,
    ) -> Result<bool, Missing> {
        let original = &connection.original;
        let Some(untranslated) = packet(original, original.destination, destination_port(original)) else {
            return Ok(false);
        };
        let ask = |layer, packet| self.evaluator.host(name, layer, Direction::Ingress, packet);
        match ask(Layer::PreDnat, &untranslated)? {
            Answer { verdict: Verdict::Deny, .. } => return Ok(true),
            // An allow by a pre-DNAT rule holds for the whole endpoint; a failsafe port only skips
            // the pre-DNAT layer.
            Answer { verdict: Verdict::Allow, decided_by, .. } if !matches!(decided_by, DecidedBy::Failsafe(_)) => {
                return Ok(false);
            }
            _ => {}
        }
        let layer = match (from, to) {
            (EndLocation::Workload(_), EndLocation::Node) => return Ok(false),
            (_, EndLocation::Node) => Layer::Normal,
            _ => Layer::Forward,
        };
        Ok(ask(layer, translated)?.verdict == Verdict::Deny)
    }

    fn is_of_tunnel(&self, packet: &Packet) -> bool {
        const IPIP: u8 = 4;
        const UDP: u8 = 17;
        let to_tunnel = packet.destination_port().is_some_and(|port| self.exceptions.tunnel_ports.contains(&port));
        packet.protocol() == IPIP || packet.protocol() == UDP && to_tunnel
    }
}

fn packet(original: &Tuple, destination: IpAddr, port: Option<u16>) -> Option<Packet> {
    let payload = match (original.flow, port) {
        (Flow::Ports { source, .. }, Some(destination)) => Payload::Ports { source, destination },
        (Flow::Icmp { icmp_type, code, .. }, _) => Payload::Icmp { icmp_type, code },
        (Flow::Other, _) => Payload::Other,
        (Flow::Ports { .. }, None) => return None,
    };
    Packet::new(original.source, destination, original.protocol, payload).ok()
}

fn reply_port(reply: &Tuple) -> Option<u16> {
    match reply.flow {
        Flow::Ports { source, .. } => Some(source),
        Flow::Icmp { .. } | Flow::Other => None,
    }
}

fn destination_port(original: &Tuple) -> Option<u16> {
    match original.flow {
        Flow::Ports { destination, .. } => Some(destination),
        Flow::Icmp { .. } | Flow::Other => None,
    }
}

#[cfg(test)]
mod tests;
