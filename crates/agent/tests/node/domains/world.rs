//! A node with pods, and a network outside with DNS servers.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};
use tortie_lab::netns::Namespace;

use super::super::agent::Node;
use super::super::connections::{connect, serve, until};
use super::messages::{A, HEADER, Record, answer, question, read_question};

pub(super) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 53);
/// Another trusted server.
pub(super) const SECOND: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 54);
pub(super) const NAMED: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 80);
pub(super) const OTHER: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 81);
/// Address of the node in the network outside.
pub(super) const NODE: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
/// Less than the time after which a client sends its first packet again. The node rejects packets
/// that it denies, so that their senders do not wait.
const ONE_PACKET: Duration = Duration::from_millis(800);
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) const POLICY: &str = "
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: names, namespace: shop}
spec:
  order: 10
  selector: app != 'staged'
  types: [Egress]
  egress:
  - {action: Allow, protocol: UDP, destination: {ports: [53, 5353]}}
  - {action: Allow, protocol: TCP, destination: {ports: [53]}}
  - {action: Allow, protocol: TCP, destination: {domains: ['*.example.com', Exact.Example.NET., '*.svc.cluster.local'], ports: [7, 80]}}
";

/// Back end of a node: the implementation of iptables, or with a layout nftables instead. `ebpf`
/// has chains of either beside programs.
#[derive(Clone, Copy)]
pub(super) struct By(pub(super) &'static str, pub(super) Option<&'static str>);

impl By {
    pub(super) const NFT: Self = Self("nft", None);
    pub(super) const LEGACY: Self = Self("legacy", None);
    pub(super) const NFTABLES: Self = Self("nft", Some("Felix"));
    pub(super) const FAST: Self = Self("nft", Some("Fast"));
    pub(super) const EBPF: Self = Self("ebpf", None);
    pub(super) const EBPF_BESIDE_NFTABLES: Self = Self("ebpf", Some("Felix"));

    pub(super) fn is_ebpf(self) -> bool {
        self.0 == "ebpf"
    }

    /// Returns the implementation of iptables on the node.
    pub(super) fn iptables(self) -> &'static str {
        if self.is_ebpf() { "nft" } else { self.0 }
    }
}

type Records = BTreeMap<(String, u16), Vec<Record>>;

/// Records by name and kind.
#[derive(Clone, Default)]
pub(super) struct Zone(Arc<Mutex<Records>>);

impl Zone {
    pub(super) fn set(&self, name: &str, kind: u16, records: impl Into<Vec<Record>>) {
        self.0.lock().unwrap().insert((name.to_owned(), kind), records.into());
    }

    /// Gives a name one address.
    pub(super) fn name(&self, name: &str, address: Ipv4Addr) {
        self.set(name, A, [Record::v4(name, address)]);
    }

    /// Answers a question. A name without records has one address: [`NAMED`] below `example.com`.
    pub(super) fn answer(&self, asked: &[u8]) -> Vec<u8> {
        let (name, kind) = read_question(asked);
        let address = if name.ends_with(".example.com") { NAMED } else { OTHER };
        let known = self.0.lock().unwrap().get(&(name.clone(), kind)).cloned();
        answer(asked, &known.unwrap_or_else(|| vec![Record::v4(&name, address)]))
    }

    /// Answers by UDP and TCP at an address of a namespace; returns the socket of UDP.
    pub(super) fn serve(&self, namespace: &Namespace, address: SocketAddr) -> UdpSocket {
        let bind = || (UdpSocket::bind(address).unwrap(), TcpListener::bind(address).unwrap());
        let (socket, listener) = namespace.run(bind).unwrap();
        let returned = socket.try_clone().unwrap();
        let (by_udp, by_tcp) = (self.clone(), self.clone());
        thread::spawn(move || {
            let mut asked = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut asked) {
                if length > HEADER {
                    let _ = socket.send_to(&by_udp.answer(&asked[..length]), from);
                }
            }
        });
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut length = [0; 2];
                while stream.read_exact(&mut length).is_ok() {
                    let mut asked = vec![0; u16::from_be_bytes(length).into()];
                    stream.read_exact(&mut asked).unwrap();
                    let answer = by_tcp.answer(&asked);
                    // The length and each half of the message are segments of their own.
                    stream.set_nodelay(true).unwrap();
                    stream.write_all(&u16::try_from(answer.len()).unwrap().to_be_bytes()).unwrap();
                    let (first, second) = answer.split_at(answer.len() / 2);
                    stream.write_all(first).unwrap();
                    stream.write_all(second).unwrap();
                }
            }
        });
        returned
    }
}

/// A node with the pods `web` and `client`, and a network outside. All addresses of 10.98.0.0/16
/// and `fd00:98::/64` are outside, and answer at port 80 and 7.
pub(super) struct World {
    pub(super) node: Node,
    pub(super) pods: [Namespace; 2],
    pub(super) outside: Namespace,
    pub(super) zone: Zone,
    /// The socket of [`SERVER`].
    pub(super) server: UdpSocket,
    pub(super) by: By,
    used: Cell<u16>,
}

impl World {
    pub(super) fn new(by: By) -> Self {
        let mut world = Self::prepare(by);
        world.node.start();
        world
    }

    /// Makes everything, and does not start the agent.
    pub(super) fn prepare(by: By) -> Self {
        let mut node = Node::new(by.iptables(), &cluster());
        node.set("FELIX_BPFENABLED", if by.is_ebpf() { "true" } else { "false" });
        node.set("FELIX_NFTABLESMODE", if by.1.is_some() { "Enabled" } else { "Disabled" });
        node.set("FELIX_NFTABLESLAYOUT", by.1.unwrap_or("Felix"));
        node.set("FELIX_IPTABLESFILTERDENYACTION", "Reject");
        node.set("FELIX_NFTABLESFILTERDENYACTION", "Reject");
        node.write("policy.yaml", POLICY);
        let cache = node.folder().join("dns-cache").display().to_string();
        node.set("FELIX_DNSCACHEFILE", &cache);
        node.set("FELIX_DNSTRUSTEDSERVERS", &format!("{SERVER},{SECOND}"));
        node.shell(
            "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv6.conf.all.accept_dad=0 \
             net.ipv6.conf.default.accept_dad=0 net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0",
        );
        let pods = [pod(&node, "web", 2), pod(&node, "client", 3)];
        let outside = outside(&node);
        let zone = Zone::default();
        let server = zone.serve(&outside, (SERVER, 53).into());
        zone.serve(&outside, (SECOND, 53).into());
        Self { node, pods, outside, zone, server, by, used: Cell::new(0) }
    }

    /// Returns an address outside that no name has had.
    pub(super) fn address(&self) -> Ipv4Addr {
        let number = self.used.get() + 1;
        self.used.set(number);
        Ipv4Addr::from_bits(0x0a62_0000 + u32::from(number))
    }

    pub(super) fn connects(&self, from: &Namespace, address: impl Into<IpAddr>) -> bool {
        connects(from, (address.into(), 80).into())
    }

    /// Asks the server until it answers, and returns the answer.
    pub(super) fn look_up(&self, from: &Namespace, name: &str) -> Vec<u8> {
        self.ask(from, (SERVER, 53).into(), name, A)
    }

    pub(super) fn ask(&self, from: &Namespace, server: SocketAddr, name: &str, kind: u16) -> Vec<u8> {
        let socket = client(from, server);
        let begin = Instant::now();
        loop {
            if let Some(answer) = ask_once(&socket, name, kind) {
                return answer;
            }
            assert!(begin.elapsed() < PATIENCE, "{server} does not answer\n{}", self.node.log());
        }
    }

    /// Asks by TCP.
    pub(super) fn ask_by_tcp(&self, from: &Namespace, name: &str) {
        let stream = from.run(|| TcpStream::connect_timeout(&(SERVER, 53).into(), PATIENCE)).unwrap();
        let (mut stream, asked) = (stream.unwrap(), question(name, A));
        stream.write_all(&[&u16::try_from(asked.len()).unwrap().to_be_bytes()[..], &asked].concat()).unwrap();
        let mut length = [0; 2];
        stream.read_exact(&mut length).unwrap();
        stream.read_exact(&mut vec![0; u16::from_be_bytes(length).into()]).unwrap();
    }

    /// Gives a name an address, has a pod look it up, and asserts that the first packet passes.
    #[track_caller]
    pub(super) fn assert_opens(&self, from: &Namespace, name: &str) -> Ipv4Addr {
        let address = self.address();
        self.zone.name(name, address);
        self.look_up(from, name);
        self.assert_connects(from, address, true);
        address
    }

    #[track_caller]
    pub(super) fn assert_connects(&self, from: &Namespace, address: impl Into<IpAddr>, expected: bool) {
        let address = address.into();
        if self.connects(from, address) != expected {
            panic!("{address}: not {expected}\n{}\n{}", self.state(), self.node.log());
        }
    }

    /// Waits until a connection to the address succeeds, or fails.
    pub(super) fn until_connects(&self, from: &Namespace, address: impl Into<IpAddr>, expected: bool) {
        let address = address.into();
        let condition = format!("{address} is {}", if expected { "open" } else { "closed" });
        until(&condition, &self.node, || (self.connects(from, address) == expected).then_some(()));
    }

    fn state(&self) -> String {
        match self.by.1 {
            Some(_) => self.node.shell("nft list ruleset"),
            None => self.node.kernel_state(),
        }
    }

    /// Returns the addresses that endpoints have learned, as often as they are members of sets.
    pub(super) fn members(&self) -> Vec<IpAddr> {
        let listed = self.node.shell(match self.by.1 {
            Some(_) => "nft list ruleset | grep -oE '\" \\. [0-9a-f.:]+' | cut -c5-",
            None => "ipset save | grep -E '^add cali[46]0d:' | cut -d' ' -f3 | cut -d, -f1",
        });
        listed.lines().map(|line| line.parse().unwrap_or_else(|error| panic!("{line}: {error}"))).collect()
    }
}

/// Returns a socket that is connected to this server.
pub(super) fn client(from: &Namespace, server: SocketAddr) -> UdpSocket {
    let socket = from.run(|| UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
    socket.connect(server).unwrap();
    socket
}

/// Sends a question once, and returns the answer.
pub(super) fn ask_once(socket: &UdpSocket, name: &str, kind: u16) -> Option<Vec<u8>> {
    // A server whose socket the client cannot reach is told by an error of the next packet.
    socket.send(&question(name, kind)).ok()?;
    receive(socket, Duration::from_secs(1))
}

pub(super) fn receive(socket: &UdpSocket, patience: Duration) -> Option<Vec<u8>> {
    let mut received = [0; 8_192];
    socket.set_read_timeout(Some(patience)).unwrap();
    let length = socket.recv(&mut received).ok()?;
    Some(received[..length].to_vec())
}

/// Reports whether the first packet of a connection passes.
pub(super) fn connects(from: &Namespace, address: SocketAddr) -> bool {
    from.run(|| TcpStream::connect_timeout(&address, ONE_PACKET)).unwrap().is_ok()
}

/// The same from one of several addresses of a namespace.
pub(super) fn connects_from(namespace: &Namespace, source: Ipv4Addr, address: SocketAddr) -> bool {
    let connect = || {
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap();
        rustix::net::bind(&socket, &SocketAddr::from((source, 0))).unwrap();
        assert_eq!(rustix::net::connect(&socket, &address), Err(Errno::INPROGRESS));
        let mut waiting = [PollFd::new(&socket, PollFlags::OUT)];
        poll(&mut waiting, Some(&ONE_PACKET.try_into().unwrap())).unwrap() == 1
            && sockopt::socket_error(&socket).unwrap().is_ok()
    };
    namespace.run(connect).unwrap()
}

/// Returns the manifests of a cluster with the pods of the tests.
fn cluster() -> String {
    let mut cluster = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n---\napiVersion: v1\nkind: Node\nmetadata: \
                       {name: n1, annotations: {projectcalico.org/IPv4Address: 10.99.0.1/24}}\nstatus: {addresses: [{type: \
                       InternalIP, address: 10.99.0.1}]}\n---\napiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: \
                       {name: pods}\nspec: {cidr: 10.65.0.0/16}\n"
        .to_owned();
    for (name, last) in [("web", 2), ("client", 3), ("staged", 4), ("dns", 53)] {
        cluster += &format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: shop, labels: {{app: {name}}}}}\nspec: \
             {{nodeName: n1, containers: [{{name: c, image: i}}]}}\nstatus: {{phase: Running, podIPs: [{{ip: 10.65.0.{last}}}, \
             {{ip: 'fd00:65::{last}'}}]}}\n"
        );
    }
    cluster
}

/// Returns a pod with addresses of both families, which answers at port 80.
pub(super) fn pod(node: &Node, name: &str, last: u8) -> Namespace {
    let pod = connect(node, name, last);
    pod.shell(&format!(
        "ip addr add fd00:65::{last}/128 dev eth0 nodad; ip neigh add fe80::1 lladdr ee:ee:ee:ee:ee:ee dev eth0; ip route add \
         default via fe80::1 dev eth0"
    ))
    .unwrap();
    serve(&pod, &[80], &[]);
    pod
}

fn outside(node: &Node) -> Namespace {
    let outside = Namespace::new().unwrap();
    node.shell(&format!(
        "ip link add out0 type veth peer name eth0 netns {}; ip addr add {NODE}/24 dev out0; ip addr add fd00:99::1/64 dev out0 \
         nodad; ip link set out0 up",
        outside.path().display()
    ));
    let addresses: Vec<String> =
        [SERVER, SECOND, NAMED, OTHER].map(|address| format!("ip addr add {address}/24 dev eth0")).into();
    outside
        .shell(&format!(
            "{}; ip addr add fd00:99::53/64 dev eth0 nodad; ip link set eth0 up; ip route add 10.65.0.0/16 via {NODE}; ip route \
             add fd00:65::/64 via fd00:99::1; ip route add local 10.98.0.0/16 dev lo; ip route add local fd00:98::/64 dev lo",
            addresses.join("; ")
        ))
        .unwrap();
    node.shell(&format!("ip route add 10.98.0.0/16 via {SERVER}; ip route add fd00:98::/64 via fd00:99::53"));
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 80));
    let listener = outside.run(|| TcpListener::bind(any)).unwrap().unwrap();
    thread::spawn(move || listener.incoming().for_each(drop));
    serve(&outside, &[7], &[]);
    outside
}
