use std::net::IpAddr;

use proptest::prelude::*;
use tortie_lab::kernel_test;
use tortie_lab::netns::Namespace;

use super::message::*;
use super::*;

fn addresses() -> impl Strategy<Value = (IpAddr, IpAddr)> {
    let v4 = || any::<[u8; 4]>().prop_map(IpAddr::from);
    let v6 = || any::<[u8; 16]>().prop_map(IpAddr::from);
    prop_oneof![(v4(), v4()), (v6(), v6())]
}

fn flows() -> impl Strategy<Value = Flow> {
    prop_oneof![
        any::<(u16, u16)>().prop_map(|(source, destination)| Flow::Ports { source, destination }),
        any::<(u16, u8, u8)>().prop_map(|(id, icmp_type, code)| Flow::Icmp { id, icmp_type, code }),
        Just(Flow::Other),
    ]
}

fn connections() -> impl Strategy<Value = Connection> {
    (addresses(), any::<u8>(), flows(), flows(), any::<u32>(), prop_oneof![Just(0), any::<u16>()]).prop_map(
        |((source, destination), protocol, there, back, id, zone)| Connection {
            original: Tuple { source, destination, protocol, flow: there },
            reply: Tuple { source: destination, destination: source, protocol, flow: back },
            id,
            zone,
        },
    )
}

/// Returns a connection as the kernel lists it, with an unknown attribute.
fn listed(connection: &Connection) -> Vec<u8> {
    let mut payload = delete_payload(connection);
    put_tuple(&mut payload, CTA_TUPLE_REPLY, &connection.reply);
    put(&mut payload, 99, &[1, 2, 3]);
    payload
}

proptest! {
    #[test]
    fn encoded_connections_are_parsed_back(connection in connections()) {
        prop_assert_eq!(parse(IPCTNL_MSG_CT_NEW, &listed(&connection)).unwrap(), Some(connection));
        prop_assert_eq!(parse(IPCTNL_MSG_CT_DELETE, &listed(&connection)).unwrap(), None);
    }

    #[test]
    fn counters_are_read_where_they_are(connection in connections(), traffic in proptest::option::of(traffics())) {
        let bytes = counted(&connection, traffic);
        for (kind, ended) in [(IPCTNL_MSG_CT_NEW, false), (IPCTNL_MSG_CT_DELETE, true)] {
            let event = ConnectionEvent::parse(kind, &bytes).unwrap();
            prop_assert_eq!(event, Some(ConnectionEvent { ended, connection, traffic }));
        }
        prop_assert_eq!(ConnectionEvent::parse(IPCTNL_MSG_CT_GET, &bytes).unwrap(), None);
        // The parser of connections alone ignores the counters.
        prop_assert_eq!(parse(IPCTNL_MSG_CT_NEW, &bytes).unwrap(), Some(connection));
    }

    #[test]
    fn any_bytes_are_read_without_harm(
        connection in connections(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<prop::sample::Index>(),
        noise in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        let mut payload = listed(&connection);
        let at = at.index(payload.len());
        payload[at] = byte;
        payload.truncate(cut.index(payload.len()) + 1);
        for bytes in [&payload, &noise] {
            let _ = parse(IPCTNL_MSG_CT_NEW, bytes);
            let _ = ConnectionEvent::parse(IPCTNL_MSG_CT_DELETE, bytes);
        }
    }
}

fn traffics() -> impl Strategy<Value = Traffic> {
    let count = || any::<(u64, u64)>().prop_map(|(packets, bytes)| Count { packets, bytes });
    (count(), count()).prop_map(|(original, reply)| Traffic { original, reply })
}

/// Returns the attributes of a connection with this original direction.
pub(in crate::netlink) fn attributes_of(original: &Tuple) -> Vec<u8> {
    let mut attributes = Vec::new();
    put(&mut attributes, CTA_ZONE, &[0, 0]);
    put_tuple(&mut attributes, CTA_TUPLE_ORIG, original);
    attributes
}

fn put_count(bytes: &mut Vec<u8>, kind: u16, count: Count) {
    let mut nested = Vec::new();
    put(&mut nested, CTA_COUNTERS_PACKETS, &count.packets.to_be_bytes());
    put(&mut nested, 5, &[]);
    put(&mut nested, CTA_COUNTERS_BYTES, &count.bytes.to_be_bytes());
    put(bytes, kind | NLA_F_NESTED, &nested);
}

/// Returns a connection as the kernel reports it, with its counters.
fn counted(connection: &Connection, traffic: Option<Traffic>) -> Vec<u8> {
    let mut payload = listed(connection);
    if let Some(traffic) = traffic {
        put_count(&mut payload, CTA_COUNTERS_ORIG, traffic.original);
        put_count(&mut payload, CTA_COUNTERS_REPLY, traffic.reply);
    }
    payload
}

#[test]
fn a_truncated_event_is_rejected_or_lacks_the_truncated_part() {
    let connection = both_ways("10.0.0.1", "10.0.0.2", 6, Flow::Other, Flow::Other, 7);
    let count = Count { packets: 3, bytes: 180 };
    let bytes = counted(&connection, Some(Traffic { original: count, reply: count }));
    let uncounted = counted(&connection, None).len();
    for cut in 0..bytes.len() {
        match ConnectionEvent::parse(IPCTNL_MSG_CT_DELETE, &bytes[..cut]) {
            Ok(Some(event)) => {
                assert_eq!((event.connection, event.traffic), (connection, None), "{cut}");
            }
            Ok(None) => panic!("{cut}"),
            Err(_) => assert_ne!(cut, uncounted),
        }
    }
}

/// TCP from 10.65.0.3:40000 to the service 10.96.0.1:80, translated to 10.65.0.2:8080.
#[test]
fn a_translated_connection_is_read() {
    let tuple = |source: [u8; 4], from: u16, destination: [u8; 4], to: u16| Tuple {
        source: source.into(),
        destination: destination.into(),
        protocol: 6,
        flow: Flow::Ports { source: from, destination: to },
    };
    let bytes: &[u8] = &[
        2, 0, 0, 0, // IPv4
        52, 0, 1, 0x80, 20, 0, 1, 0x80, 8, 0, 1, 0, 10, 65, 0, 3, 8, 0, 2, 0, 10, 96, 0, 1, 28, 0, 2, 0x80, 5, 0, 1, 0,
        6, 0, 0, 0, 6, 0, 2, 0, 0x9c, 0x40, 0, 0, 6, 0, 3, 0, 0, 80, 0, 0, // original
        52, 0, 2, 0x80, 20, 0, 1, 0x80, 8, 0, 1, 0, 10, 65, 0, 2, 8, 0, 2, 0, 10, 65, 0, 3, 28, 0, 2, 0x80, 5, 0, 1, 0,
        6, 0, 0, 0, 6, 0, 2, 0, 0x1f, 0x90, 0, 0, 6, 0, 3, 0, 0x9c, 0x40, 0, 0, // reply
        8, 0, 12, 0, 0xde, 0xad, 0xbe, 0xef, // id
        8, 0, 3, 0, 0, 0, 1, 0x8e, // status
    ];
    let expected = Connection {
        original: tuple([10, 65, 0, 3], 40_000, [10, 96, 0, 1], 80),
        reply: tuple([10, 65, 0, 2], 8080, [10, 65, 0, 3], 40_000),
        id: 0xdead_beef,
        zone: 0,
    };
    if cfg!(target_endian = "little") {
        assert_eq!(parse(IPCTNL_MSG_CT_NEW, bytes).unwrap(), Some(expected));
    }
}

pub(in crate::netlink) fn both_ways(
    source: &str,
    destination: &str,
    protocol: u8,
    there: Flow,
    back: Flow,
    zone: u16,
) -> Connection {
    let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
    Connection {
        original: Tuple { source, destination, protocol, flow: there },
        reply: Tuple { source: destination, destination: source, protocol, flow: back },
        id: 0,
        zone,
    }
}

kernel_test! {
    fn the_kernel_lists_inserted_connections_and_deletes_exactly_the_matching_ones() {
        let ports = |source, destination| Flow::Ports { source, destination };
        let echo = |icmp_type| Flow::Icmp { id: 9, icmp_type, code: 0 };
        let given = [
            both_ways("10.0.0.1", "10.0.0.2", 6, ports(40_000, 80), ports(80, 40_000), 0),
            both_ways("10.0.0.1", "10.0.0.2", 6, ports(40_000, 80), ports(80, 40_000), 5),
            both_ways("fd00::1", "fd00::2", 17, ports(5353, 53), ports(53, 5353), 0),
            both_ways("10.0.0.1", "10.0.0.2", 1, echo(8), echo(0), 0),
            both_ways("fd00::1", "fd00::2", 58, echo(128), echo(129), 0),
            both_ways("10.0.0.1", "10.0.0.2", 132, ports(1, 2), ports(2, 1), 0),
        ];
        Namespace::new().unwrap().run(|| {
            let mut conntrack = Conntrack::open(Duration::from_secs(30)).unwrap();
            conntrack.insert(&given).unwrap();
            let list = |conntrack: &mut Conntrack| {
                let mut listed = conntrack.connections(|_| true).unwrap();
                listed.sort_by_key(|one| given.iter().position(|given| Connection { id: 0, ..*one } == *given));
                listed
            };
            let listed = list(&mut conntrack);
            let without_ids: Vec<Connection> = listed.iter().map(|one| Connection { id: 0, ..*one }).collect();
            assert_eq!(without_ids, given);

            let later = Connection { id: listed[0].id ^ 1, ..listed[0] };
            let deleted = conntrack.delete(&[later, listed[1], listed[3], listed[4], listed[3]]).unwrap();
            let deleted: Vec<bool> = deleted.into_iter().map(Result::unwrap).collect();
            assert_eq!(deleted, [false, true, true, true, false], "one that was opened later must stay");
            assert_eq!(list(&mut conntrack), [listed[0], listed[2], listed[5]]);
            let only_udp = conntrack.connections(|one| one.original.protocol == 17).unwrap();
            assert_eq!(only_udp, [listed[2]]);
        }).unwrap();
    }
}
