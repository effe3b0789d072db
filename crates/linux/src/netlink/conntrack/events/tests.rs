//! Against the kernel.

use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};
use rustix::net::sockopt;
use tortie_lab::kernel_test;
use tortie_lab::netns::Namespace;

use super::*;
use crate::netlink::conntrack::tests::both_ways;
use crate::netlink::waiting::DATAGRAMS;
use crate::netlink::{Conntrack, Count, Flow};
use crate::stop::poll_for;

const PATIENCE: Duration = Duration::from_secs(20);

/// Returns a namespace with connection tracking, with or without counters.
fn tracked(accounting: &str) -> Namespace {
    let namespace = Namespace::new().unwrap();
    namespace.sysctl(&[("netfilter/nf_conntrack_acct".to_owned(), accounting)]).unwrap();
    for program in ["iptables", "ip6tables"] {
        let drop = "-p udp --dport 9 -j DROP";
        let track = format!("{program} -w -A INPUT -m conntrack --ctstate INVALID -j DROP");
        namespace.shell(&format!("{track}; {program} -w -A OUTPUT {drop}")).unwrap();
    }
    namespace
}

/// Reads until there are this many events.
fn read_events(events: &mut ConnectionEvents, count: usize) -> Vec<ConnectionEvent> {
    let begin = Instant::now();
    let mut all = Vec::new();
    while all.len() < count {
        assert!(begin.elapsed() < PATIENCE, "{count}: {all:?}");
        poll_for(&mut [PollFd::new(events, PollFlags::IN)], PATIENCE).unwrap();
        let read = events.read(|event| all.push(event)).unwrap();
        assert_eq!((read.lost, read.unreadable), (0, 0));
    }
    assert_eq!(all.len(), count, "{all:?}");
    all
}

/// Connections of this host to itself.
struct Conversation {
    /// Their protocols, sources and destinations.
    connections: [(u8, SocketAddr, SocketAddr); 2],
    /// Open until the end, since the kernel may count the packets that close a connection at any
    /// time.
    _tcp: (TcpListener, TcpStream),
}

/// UDP back and forth, and TCP.
fn exchange_packets(ip: &str) -> Conversation {
    let any = || SocketAddr::new(ip.parse().unwrap(), 0);
    let [client, server] = [(); 2].map(|()| UdpSocket::bind(any()).unwrap());
    let ends = [client.local_addr().unwrap(), server.local_addr().unwrap()];
    for _ in 0..3 {
        client.send_to(&[0; 100], ends[1]).unwrap();
    }
    server.send_to(&[0; 10], ends[0]).unwrap();
    let dropped = SocketAddr::new(ends[1].ip(), 9);
    assert!(client.send_to(&[0; 100], dropped).is_err(), "a packet of a first that is dropped");
    let listener = TcpListener::bind(any()).unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let tcp = (6, stream.local_addr().unwrap(), stream.peer_addr().unwrap());
    Conversation { connections: [(17, ends[0], ends[1]), tcp], _tcp: (listener, stream) }
}

/// Connections over TCP, from so many ports.
fn given(from: u16, count: u16) -> Vec<Connection> {
    let ports = |source, destination| Flow::Ports { source, destination };
    let one = |port| both_ways("10.0.0.1", "10.0.0.2", 6, ports(port, 80), ports(80, port), 0);
    (from..from + count).map(one).collect()
}

fn begins_and_ends(accounting: &str) {
    let namespace = tracked(accounting);
    namespace
        .run(|| {
            let mut events = ConnectionEvents::open().unwrap();
            let mut conntrack = Conntrack::open(PATIENCE).unwrap();
            for (ip, header) in [("127.0.0.1", 20), ("::1", 40)] {
                let exchange_packets = exchange_packets(ip);
                let begun = read_events(&mut events, 2);
                for (event, (protocol, client, server)) in begun.iter().zip(exchange_packets.connections) {
                    let ConnectionEvent { ended, connection, traffic } = *event;
                    assert!(!ended && traffic.is_none(), "{event:?}");
                    let ports =
                        |from: SocketAddr, to: SocketAddr| Flow::Ports { source: from.port(), destination: to.port() };
                    let (there, back) = (ports(client, server), ports(server, client));
                    let expected = both_ways(ip, ip, protocol, there, back, 0);
                    assert_eq!(Connection { id: 0, ..connection }, expected);
                }
                let mut listed = Vec::new();
                conntrack.traffic(|connection, traffic| listed.push((*connection, traffic))).unwrap();
                let connections: Vec<Connection> = begun.iter().map(|event| event.connection).collect();
                let mut both = conntrack.connections(|_| true).unwrap();
                both.sort_by_key(|one| connections.iter().position(|begun| begun == one));
                assert_eq!(both, connections);

                conntrack.delete(&connections).unwrap().into_iter().for_each(|outcome| assert!(outcome.unwrap()));
                let ended = read_events(&mut events, 2);
                for (event, connection) in ended.iter().zip(&connections) {
                    assert!(event.ended);
                    assert_eq!(event.connection, *connection);
                    let counted = listed.iter().find(|(one, _)| one == connection).expect("listed").1;
                    assert_eq!(event.traffic, counted, "nothing was sent since");
                    assert_eq!(event.traffic.is_some(), accounting == "1");
                }
                if accounting == "1" {
                    let expected = Traffic {
                        original: Count { packets: 3, bytes: 3 * (header + 8 + 100) },
                        reply: Count { packets: 1, bytes: header + 8 + 10 },
                    };
                    assert_eq!(ended[0].traffic, Some(expected));
                }
            }
        })
        .unwrap();
}

kernel_test! {
    fn events_of_begin_and_end_carry_counters() {
        begins_and_ends("1");
    }

    fn connections_begin_and_end_where_nothing_is_counted() {
        begins_and_ends("0");
    }

    fn waiting_events_are_read_in_bounded_batches() {
        Namespace::new().unwrap().run(|| {
            let mut events = ConnectionEvents::open().unwrap();
            assert_eq!(events.read(|_| panic!()).unwrap(), Read::default());
            Conntrack::open(PATIENCE).unwrap().insert(&given(1, 260)).unwrap();
            let read = events.read(|_| {}).unwrap();
            assert_eq!(read, Read { messages: DATAGRAMS, more: true, ..Read::default() });
            let read = events.read(|_| {}).unwrap();
            assert_eq!(read, Read { messages: 4, ..Read::default() });
        }).unwrap();
    }

    fn a_slow_reader_detects_losses_and_continues() {
        Namespace::new().unwrap().run(|| {
            let mut events = ConnectionEvents::open().unwrap();
            let mut conntrack = Conntrack::open(PATIENCE).unwrap();
            conntrack.insert(&given(1, 50)).unwrap();
            assert_eq!(read_events(&mut events, 50).len(), 50);
            sockopt::set_socket_recv_buffer_size(&events, 1).unwrap();
            conntrack.insert(&given(100, 2000)).unwrap();
            let read = events.read(|event| assert!(!event.ended)).unwrap();
            assert!(read.lost > 0 && read.messages > 0 && read.messages < 2000, "{read:?}");
            assert!(!read.more);
            sockopt::set_socket_recv_buffer_size(&events, 1_000_000).unwrap();
            conntrack.insert(&given(5000, 50)).unwrap();
            let begun = read_events(&mut events, 50);
            assert_eq!(begun[0].connection.original, given(5000, 1)[0].original);
        }).unwrap();
    }
}
