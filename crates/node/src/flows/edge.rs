//! Conversion of kernel events to the collector's types.

use std::net::IpAddr;

use tortie_evaluate::{Packet, Payload};
use tortie_flows::{ConnectionReport, Count, FlowId, Traffic};

use tortie_linux::netlink::{self, Connection, Flow, Tuple};

pub(super) fn of_packet(tuple: &Tuple) -> Option<FlowId> {
    let (payload, icmp_id) = match tuple.flow {
        Flow::Ports { source, destination } => (Payload::Ports { source, destination }, 0),
        Flow::Icmp { id, icmp_type, code } => (Payload::Icmp { icmp_type, code }, id),
        Flow::Other => (Payload::Other, 0),
    };
    let packet = Packet::new(tuple.source, tuple.destination, tuple.protocol, payload).ok()?;
    Some(FlowId { packet, icmp_id })
}

/// Returns a connection as policy saw it: from its first source to the destination that answers.
/// `None` for a connection in a conntrack zone: other programs use zones, and its packets bypass
/// the node's rules.
pub(super) fn of_connection(connection: &Connection, traffic: Option<netlink::Traffic>) -> Option<ConnectionReport> {
    if connection.zone != 0 {
        return None;
    }
    let Connection { original, reply, .. } = connection;
    let flow = match (original.flow, reply.flow) {
        (Flow::Ports { source, .. }, Flow::Ports { source: destination, .. }) => Flow::Ports { source, destination },
        (flow, _) => flow,
    };
    let translated = Tuple { destination: reply.source, flow, ..*original };
    let port = |flow| match flow {
        Flow::Ports { destination, .. } => Some(destination),
        Flow::Icmp { .. } | Flow::Other => None,
    };
    let sent_to: (IpAddr, Option<u16>) = (original.destination, port(original.flow));
    Some(ConnectionReport {
        id: of_packet(&translated)?,
        sent_to: Some(sent_to).filter(|sent_to| *sent_to != (translated.destination, port(flow))),
        traffic: traffic.map(|traffic| Traffic { original: count(traffic.original), reply: count(traffic.reply) }),
    })
}

fn count(count: netlink::Count) -> Count {
    Count { packets: count.packets, bytes: count.bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(source: &str, destination: &str, flow: Flow) -> Tuple {
        Tuple { source: source.parse().unwrap(), destination: destination.parse().unwrap(), protocol: 6, flow }
    }

    fn ports(source: u16, destination: u16) -> Flow {
        Flow::Ports { source, destination }
    }

    #[test]
    fn a_translated_connection_is_the_one_that_policy_saw() {
        // A pod to a service, masqueraded on the way.
        let connection = Connection {
            original: tuple("10.0.0.1", "10.96.0.10", ports(40000, 80)),
            reply: tuple("10.0.1.2", "192.0.2.1", ports(8080, 61000)),
            id: 7,
            zone: 0,
        };
        let event = of_connection(&connection, None).unwrap();
        assert_eq!(Some(event.id), of_packet(&tuple("10.0.0.1", "10.0.1.2", ports(40000, 8080))));
        assert_eq!(event.sent_to, Some(("10.96.0.10".parse().unwrap(), Some(80))));

        let plain = Connection { reply: tuple("10.96.0.10", "10.0.0.1", ports(80, 40000)), ..connection };
        assert_eq!(of_connection(&plain, None).unwrap().sent_to, None);
        assert_eq!(of_connection(&Connection { zone: 3, ..plain }, None), None);
    }

    #[test]
    fn requests_of_icmp_keep_their_id() {
        let echo = |icmp_type| Flow::Icmp { id: 99, icmp_type, code: 0 };
        let connection = Connection {
            original: Tuple { protocol: 1, ..tuple("10.0.0.1", "10.0.0.2", echo(8)) },
            reply: Tuple { protocol: 1, ..tuple("10.0.0.2", "10.0.0.1", echo(0)) },
            id: 7,
            zone: 0,
        };
        let event = of_connection(&connection, None).unwrap();
        assert_eq!(Some(event.id), of_packet(&connection.original));
        assert_eq!(event.id.icmp_id, 99);
    }
}
