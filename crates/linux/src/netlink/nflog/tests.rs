//! Against the kernel.

use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};
use rustix::net::{AddressFamily, Protocol, SocketType, ipproto, socket, sockopt};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use tortie_lab::kernel_test;
use tortie_lab::netns::Namespace;
use tortie_lab::pods::{Lab, LabHost, LabOptions, Pod, Port, interface_name};
use tortie_model::Family;

use super::*;
use crate::netlink::{Connection, ConnectionEvents, Flow, Netlink, Tuple};
use crate::stop::poll_for;

const PATIENCE: Duration = Duration::from_secs(20);

/// Logged packet, independent of its datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Logged {
    group: u16,
    prefix: String,
    headers: LoggedHeaders,
    interfaces: [Option<u32>; 2],
    original: Option<Tuple>,
    is_reply: bool,
}

impl From<LoggedPacket<'_>> for Logged {
    fn from(packet: LoggedPacket<'_>) -> Self {
        Self {
            group: packet.group,
            prefix: String::from_utf8(packet.prefix.to_vec()).unwrap(),
            headers: packet.packet,
            interfaces: [packet.in_interface, packet.out_interface],
            original: packet.original,
            is_reply: packet.is_reply,
        }
    }
}

/// Reads until this many packets have been passed.
fn collect(nflog: &mut Nflog, count: usize) -> Vec<Logged> {
    let (begin, mut packets) = (Instant::now(), Vec::new());
    while packets.len() < count {
        assert!(begin.elapsed() < PATIENCE, "{count}: {packets:?}");
        poll_for(&mut [PollFd::new(nflog, PollFlags::IN)], PATIENCE).unwrap();
        let read = nflog.read(|packet| packets.push(Logged::from(packet))).unwrap();
        assert_eq!((read.lost, read.unreadable), (0, 0));
    }
    assert_eq!(packets.len(), count, "{packets:?}");
    packets
}

/// Two pods, x/client and x/server, on a node.
fn lab() -> Lab {
    let pod = |name, last: u8| {
        let addresses = [format!("192.168.1.{last}"), format!("fd00:10::{last:x}")].map(|text| text.parse().unwrap());
        Pod::new("x", name, addresses, [Port::tcp(80), Port::udp(80)])
    };
    Lab::new(&[pod("client", 10), pod("server", 11)], &LabOptions::default()).unwrap()
}

fn tuple(source: IpAddr, destination: SocketAddr, protocol: u8, source_port: u16) -> Tuple {
    let flow = Flow::Ports { source: source_port, destination: destination.port() };
    Tuple { source, destination: destination.ip(), protocol, flow }
}

/// Packets of the client in one family, and the log of all rules about them.
struct Side {
    group: u16,
    client: IpAddr,
    server: IpAddr,
    service: SocketAddr,
    echo: (AddressFamily, Protocol),
    icmp: (u8, u8),
    header: u32,
}

impl Side {
    fn of(family: Family) -> Self {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        match family {
            Family::V4 => Self {
                group: 1,
                client: address("192.168.1.10"),
                server: address("192.168.1.11"),
                service: "10.96.0.1:8000".parse().unwrap(),
                echo: (AddressFamily::INET, ipproto::ICMP),
                icmp: (1, 8),
                header: 20,
            },
            Family::V6 => Self {
                group: 2,
                client: address("fd00:10::a"),
                server: address("fd00:10::b"),
                service: "[fd00:96::1]:8000".parse().unwrap(),
                echo: (AddressFamily::INET6, ipproto::ICMPV6),
                icmp: (58, 128),
                header: 40,
            },
        }
    }

    fn rules(&self, program: &str) -> String {
        let Self { group, service, server, .. } = self;
        let (address, port) = (service.ip(), service.port());
        let server = SocketAddr::new(*server, 80);
        format!(
            "{program} -w -A FORWARD -m conntrack --ctstate NEW -j NFLOG --nflog-group {group} --nflog-prefix 'APE0|{program}'
             {program} -w -t nat -A PREROUTING -d {address} -p tcp --dport {port} -j DNAT --to-destination {server}
            "
        )
    }

    /// Makes the client ping the server, send it five bytes over UDP and open a connection to the
    /// service, each once. Returns the packets as they are sent, and those of the connection as
    /// they arrive, without the id of the ping.
    fn send(&self, client: &Namespace) -> ([Tuple; 3], [(Tuple, u32); 3]) {
        client.sysctl(&[("ipv4/ping_group_range".to_owned(), "0 0")]).unwrap();
        let (udp_port, tcp_port) = client
            .run(|| {
                let (family, protocol) = self.echo;
                let socket = UdpSocket::from(socket(family, SocketType::DGRAM, Some(protocol)).unwrap());
                let mut request = [0; 64];
                request[0] = self.icmp.1;
                socket.send_to(&request, SocketAddr::new(self.server, 0)).unwrap();
                let socket = UdpSocket::bind(SocketAddr::new(self.client, 0)).unwrap();
                socket.send_to(b"hello", SocketAddr::new(self.server, 80)).unwrap();
                let stream = TcpStream::connect_timeout(&self.service, PATIENCE).unwrap();
                (socket.local_addr().unwrap().port(), stream.local_addr().unwrap().port())
            })
            .unwrap();
        let (protocol, icmp_type) = self.icmp;
        let flow = Flow::Icmp { id: 0, icmp_type, code: 0 };
        let ping = Tuple { source: self.client, destination: self.server, protocol, flow };
        let server = SocketAddr::new(self.server, 80);
        let udp = tuple(self.client, server, 17, udp_port);
        let sent = [ping, udp, tuple(self.client, self.service, 6, tcp_port)];
        let arriving = [(ping, 64), (udp, 8 + 5), (tuple(self.client, server, 6, tcp_port), 40)];
        (sent, arriving.map(|(tuple, length)| (tuple, self.header + length)))
    }
}

fn without_id(tuple: Tuple) -> Tuple {
    match tuple.flow {
        Flow::Icmp { icmp_type, code, .. } => Tuple { flow: Flow::Icmp { id: 0, icmp_type, code }, ..tuple },
        Flow::Ports { .. } | Flow::Other => tuple,
    }
}

/// Logs the packets from the client to the server through chains of this implementation, in both
/// families.
fn packets_through(implementation: &str) {
    let lab = lab();
    let [client, server] = ["client", "server"].map(|name| LabHost::pod("x", name));
    let sides = Family::ALL.map(Side::of);
    let programs = [format!("iptables-{implementation}"), format!("ip6tables-{implementation}")];
    for (side, program) in sides.iter().zip(&programs) {
        lab.node().shell(&side.rules(program)).unwrap();
    }
    let (mut nflog, mut events, links) = lab
        .node()
        .run(|| {
            let links = Netlink::open(PATIENCE).unwrap().links().unwrap();
            (Nflog::open(&[1, 2, 2]).unwrap(), ConnectionEvents::open().unwrap(), links)
        })
        .unwrap();
    let index_of = |place| {
        let name = interface_name(place).unwrap();
        Some(links.iter().find(|link| link.name.as_str() == name).unwrap().index)
    };
    let interfaces = [index_of(&client), index_of(&server)];
    for (side, program) in sides.iter().zip(&programs) {
        let (sent, arriving) = side.send(lab.namespace(&client).unwrap());
        // Neighbour discovery of IPv6 uses ICMPv6 as well, but does not pass the node.
        let logged = collect(&mut nflog, 3);
        let mut begun: Vec<Connection> = Vec::new();
        let _ = events.read(|event| begun.extend((!event.ended).then_some(event.connection))).unwrap();
        for ((packet, sent), (arriving, length)) in logged.iter().zip(sent).zip(arriving) {
            let headers = LoggedHeaders { tuple: without_id(packet.headers.tuple), length: packet.headers.length };
            if arriving.protocol == 6 {
                assert_eq!(headers.tuple, arriving, "{program}");
                assert!(headers.length >= length && headers.length <= length + 40, "{headers:?} with options");
            } else {
                assert_eq!(headers, LoggedHeaders { tuple: arriving, length }, "{program}");
            }
            let connection = begun.iter().find(|one| without_id(one.original) == sent).expect("an event of each");
            if arriving.protocol != 6 {
                assert_eq!(packet.headers.tuple, connection.original, "the same id");
            }
            assert_eq!(connection.reply.source, arriving.destination);
            let expected = Logged {
                group: side.group,
                prefix: format!("APE0|{program}"),
                headers: packet.headers,
                interfaces,
                original: nflog.provides_connections().then_some(connection.original),
                is_reply: false,
            };
            assert_eq!(*packet, expected);
        }
    }
}

/// Returns a namespace that logs its packets to its port 9, in group 3, and a function that sends a
/// number of packets.
fn loopback() -> (Namespace, impl Fn(u64)) {
    let namespace = Namespace::new().unwrap();
    namespace.shell("iptables -w -A OUTPUT -p udp --dport 9 -j NFLOG --nflog-group 3").unwrap();
    let socket = namespace.run(|| UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
    (namespace, move |count| {
        for _ in 0..count {
            socket.send_to(&[0; 100], "127.0.0.1:9").unwrap();
        }
    })
}

kernel_test! {
    fn packets_through_nftables_are_read() {
        packets_through("nft");
    }

    fn packets_through_legacy_tables_are_read() {
        packets_through("legacy");
    }

    fn a_slow_reader_gets_the_number_of_lost_messages_and_continues() {
        const MANY: u64 = 5000;
        let (namespace, send) = loopback();
        let mut nflog = namespace.run(|| Nflog::open(&[3]).unwrap()).unwrap();
        assert_eq!(nflog.read(|_| panic!()).unwrap(), Read::default());
        sockopt::set_socket_recv_buffer_size(&nflog, 1).unwrap();
        let (mut sent, mut given_out, mut lost) = (0, 0, 0);
        for _ in 0..3 {
            send(MANY);
            sent += MANY;
            let read = nflog.read(|_| {}).unwrap();
            assert!(read.lost > 0, "an overrun is known at once: {read:?}");
            given_out += read.messages as u64;
            lost += read.lost;
            // The next packets show the number of lost ones.
            while given_out + lost < sent {
                send(1);
                sent += 1;
                poll_for(&mut [PollFd::new(&nflog, PollFlags::IN)], PATIENCE).unwrap();
                let read = nflog.read(|_| {}).unwrap();
                given_out += read.messages as u64;
                lost += read.lost;
            }
            assert_eq!(given_out + lost, sent);
            assert!(lost > sent / 2 && given_out > 0, "{given_out} of {sent}");
        }
        sockopt::set_socket_recv_buffer_size(&nflog, 100_000).unwrap();
        send(10);
        assert_eq!(collect(&mut nflog, 10).len(), 10);
    }

    fn a_group_has_one_reader_in_a_namespace() {
        let [here, elsewhere] = [Namespace::new().unwrap(), Namespace::new().unwrap()];
        let open = |namespace: &Namespace, groups: &[u16]| namespace.run(|| Nflog::open(groups)).unwrap();
        let taken = |outcome: Result<Nflog, NetlinkError>| match outcome {
            Err(error @ NetlinkError::GroupTaken { .. }) => error.to_string(),
            outcome => panic!("{outcome:?}"),
        };
        let first = open(&here, &[3, 500]).unwrap();
        let message = "NFLOG group 500: another process in this network namespace reads it";
        assert_eq!(taken(open(&here, &[4, 500])), message);
        // A program that another thread is starting holds the socket briefly, until it is executed.
        let open_soon = |groups: &[u16]| {
            let begin = Instant::now();
            loop {
                match open(&here, groups) {
                    Err(NetlinkError::GroupTaken { .. }) if begin.elapsed() < PATIENCE => {}
                    outcome => return outcome.expect("no other socket has the group"),
                }
            }
        };
        let second = open_soon(&[4]);
        open(&elsewhere, &[3, 4, 500]).expect("groups of another namespace are others");
        drop(first);
        drop((open_soon(&[3, 500]), second));

        let unprivileged = here.run(|| {
            let mut sets = capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::NET_ADMIN);
            set_capabilities(None, sets).unwrap();
            Nflog::open(&[3])
        });
        let error = unprivileged.unwrap().unwrap_err();
        assert_eq!(error.errno(), Some(Errno::PERM), "{error}");
    }
}
