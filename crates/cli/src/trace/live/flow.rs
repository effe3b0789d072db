use std::fmt;
use std::net::{IpAddr, SocketAddr};

use tortie_linux::netlink::nftrace::{Filter, Transport};
use tortie_linux::probe::FlowFields;
use tortie_model::Family;

use super::super::question;
use super::steps::Source;

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// ICMP request types of both families, each with the type of its reply.
const ANSWERS: [(u8, u8); 5] = [(8, 0), (13, 14), (15, 16), (17, 18), (128, 129)];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TracedFlow {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) protocol: u8,
    pub(super) fields: FlowFields,
    pub(super) backends: Vec<SocketAddr>,
}

impl TracedFlow {
    /// Returns the flow of a question. `mark` is its source port, or its ICMP id, if it is known.
    pub(super) fn new(
        transport: question::Transport,
        source: IpAddr,
        destination: IpAddr,
        mark: Option<u16>,
        backends: Vec<SocketAddr>,
    ) -> Self {
        let is_v4 = source.is_ipv4();
        let (protocol, fields) = match transport {
            question::Transport::Ports { protocol, destination, .. } => {
                (protocol.number(), FlowFields::Ports { source: mark, destination })
            }
            question::Transport::Icmp { icmp_type, code } => {
                let icmp_type = icmp_type.unwrap_or(if is_v4 { 8 } else { 128 });
                (if is_v4 { ICMP } else { ICMPV6 }, FlowFields::Icmp { icmp_type, code, id: mark })
            }
            question::Transport::Other { protocol } => (protocol, FlowFields::Other),
        };
        Self { source, destination, protocol, fields, backends }
    }

    pub(super) fn family(&self) -> Family {
        Family::of(self.source)
    }

    pub(super) fn from(&self) -> Source {
        let port = match self.fields {
            FlowFields::Ports { source, .. } => source,
            FlowFields::Icmp { .. } | FlowFields::Other => None,
        };
        Source { address: self.source, port }
    }

    /// Returns filters for its packets in both directions, before and after the translation of a
    /// Service's address.
    pub(super) fn filters(&self) -> Vec<Filter> {
        let mut ends = vec![(self.destination, self.fields)];
        if let FlowFields::Ports { source, .. } = self.fields {
            let backend = |end: &SocketAddr| (end.ip(), FlowFields::Ports { source, destination: end.port() });
            ends.extend(self.backends.iter().map(backend));
        }
        ends.into_iter().flat_map(|(destination, fields)| self.both_ways(destination, fields)).collect()
    }

    fn both_ways(&self, destination: IpAddr, fields: FlowFields) -> Vec<Filter> {
        let (original, reply) = match fields {
            FlowFields::Ports { source, destination } => (
                Transport::Ports { source, destination: Some(destination) },
                Some(Transport::Ports { source: Some(destination), destination: source }),
            ),
            FlowFields::Icmp { icmp_type, code, id } => {
                let answer = ANSWERS.into_iter().find(|(request, _)| *request == icmp_type);
                let reply = answer.map(|(_, answer)| Transport::Icmp { icmp_type: answer, code: None, id });
                (Transport::Icmp { icmp_type, code: Some(code), id: id.filter(|_| answer.is_some()) }, reply)
            }
            FlowFields::Other => (Transport::Any, Some(Transport::Any)),
        };
        let (source, protocol) = (self.source, self.protocol);
        let reply = reply.map(|transport| Filter { source: destination, destination: source, protocol, transport });
        [Filter { source, destination, protocol, transport: original }].into_iter().chain(reply).collect()
    }
}

impl fmt::Display for TracedFlow {
    /// `TCP 10.0.0.1:50000 -> 10.0.0.2:80`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, destination, .. } = self;
        f.write_str(&protocol_name(self.protocol))?;
        match self.fields {
            FlowFields::Ports { source: Some(port), destination: to } => {
                write!(f, " {} -> {}", SocketAddr::new(*source, port), SocketAddr::new(*destination, to))
            }
            FlowFields::Ports { source: None, destination: to } => {
                write!(f, " {source} -> {}", SocketAddr::new(*destination, to))
            }
            FlowFields::Icmp { icmp_type, code, .. } => {
                write!(f, " type {icmp_type} code {code} {source} -> {destination}")
            }
            FlowFields::Other => write!(f, " {source} -> {destination}"),
        }
    }
}

pub(super) fn protocol_name(protocol: u8) -> String {
    match protocol {
        ICMP => "ICMP".to_owned(),
        6 => "TCP".to_owned(),
        17 => "UDP".to_owned(),
        ICMPV6 => "ICMPv6".to_owned(),
        132 => "SCTP".to_owned(),
        136 => "UDPLite".to_owned(),
        other => format!("protocol {other}"),
    }
}

#[cfg(test)]
mod tests;
