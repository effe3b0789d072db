//! Nodes on one bridge, a pod and a friend of it on each, and the manifests that all agents read.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tortie_testkit::lab::{Place, interface_name};
use tortie_testkit::netns::Namespace;

const PATIENCE: Duration = Duration::from_secs(90);
const PORT: u16 = 80;
const GATEWAY_MAC: &str = "ee:ee:ee:ee:ee:ee";
const GATEWAY_V6: &str = "fe80::ecee:eeff:feee:eeee";

/// How the pools are encapsulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Always,
    CrossSubnet,
    Never,
}

/// A node, and what runs on it.
struct Node {
    namespace: Namespace,
    folder: TempDir,
    /// The last byte of its addresses.
    address: u8,
    agent: Option<Child>,
    /// A server that only friends reach, and a friend.
    web: Namespace,
    friend: Namespace,
    stranger: Namespace,
}

pub(crate) struct Cluster {
    switch: Namespace,
    manifests: TempDir,
    nodes: BTreeMap<u8, Node>,
    mode: Mode,
}

impl Cluster {
    /// Three nodes whose agents do not run yet.
    pub(crate) fn new(mode: Mode) -> Self {
        let switch = Namespace::new().unwrap();
        switch.ip(["link add br0 type bridge", "link set br0 up"]).unwrap();
        let manifests = TempDir::new().unwrap();
        let mut cluster = Self { switch, manifests, nodes: BTreeMap::new(), mode };
        for number in 1..=3 {
            cluster.add(number);
        }
        cluster.write();
        cluster
    }

    fn add(&mut self, number: u8) {
        let namespace = Namespace::new().unwrap();
        let path = namespace.path();
        self.switch
            .ip([
                format!("link add port{number} type veth peer name eth0 netns {}", path.display()),
                format!("link set port{number} master br0"),
                format!("link set port{number} up"),
            ])
            .unwrap();
        let setting = |name: &str, value| (name.to_owned(), value);
        namespace
            .sysctl(&[
                setting("ipv4/ip_forward", "1"),
                setting("ipv6/conf/all/forwarding", "1"),
                setting("ipv4/conf/all/rp_filter", "0"),
                setting("ipv4/conf/default/rp_filter", "0"),
                setting("ipv6/conf/default/accept_dad", "0"),
                setting("ipv6/conf/all/accept_dad", "0"),
            ])
            .unwrap();
        namespace.ip(["link set eth0 up"]).unwrap();
        namespace.ip(address_lines(number)).unwrap();
        let pod = |name: &str, last| plug(&namespace, &format!("{name}{number}"), number, last);
        let web = pod("web", 2);
        serve(&web);
        let (friend, stranger) = (pod("friend", 3), pod("stranger", 4));
        let folder = TempDir::new().unwrap();
        self.nodes.insert(number, Node { namespace, folder, address: number, agent: None, web, friend, stranger });
    }

    /// Writes all that agents are told.
    fn write(&self) {
        let mut text = String::from("apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n");
        let mode = format!("{:?}", self.mode);
        for (name, net) in [("v4", "10.65.0.0/16"), ("v6", "fd00:65::/32")] {
            let spec = format!("{{cidr: '{net}', vxlanMode: {mode}, natOutgoing: false}}");
            object(&mut text, "projectcalico.org/v3", "IPPool", name, &spec);
        }
        for (number, node) in &self.nodes {
            let [v4, v6] = node_addresses(node.address);
            let bgp = format!("{{ipv4Address: {v4}, ipv6Address: '{v6}'}}");
            let tunnels = format!("ipv4VXLANTunnelAddr: 10.65.{number}.1, ipv6VXLANTunnelAddr: 'fd00:65:{number}::1'");
            let spec = format!("{{bgp: {bgp}, {tunnels}}}");
            object(&mut text, "projectcalico.org/v3", "Node", &format!("n{number}"), &spec);
            for (name, net) in [("4", format!("10.65.{number}.0/26")), ("6", format!("fd00:65:{number}::/122"))] {
                let spec = format!(
                    "{{cidr: '{net}', affinity: 'host:n{number}', allocations: [], attributes: [], unallocated: []}}"
                );
                object(&mut text, "crd.projectcalico.org/v1", "IPAMBlock", &format!("block-{name}-{number}"), &spec);
            }
            for (name, last) in [("web", 2), ("friend", 3), ("stranger", 4)] {
                let [v4, v6] = pod_addresses(*number, last);
                let _ = write!(
                    text,
                    "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}{number}, namespace: shop, labels: {{app: \
                     {name}}}}}\nspec: {{nodeName: n{number}, containers: [{{name: c, image: i}}]}}\nstatus: {{phase: \
                     Running, podIPs: [{{ip: {v4}}}, {{ip: '{v6}'}}]}}\n"
                );
            }
        }
        text += "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: web, namespace: shop}\nspec:\n  \
                 podSelector: {matchLabels: {app: web}}\n  ingress: [{from: [{podSelector: {matchLabels: {app: friend}}}]}]\n";
        let new = self.manifests.path().join(".new");
        fs::write(&new, text).unwrap();
        fs::rename(new, self.manifests.path().join("cluster.yaml")).unwrap();
    }

    pub(crate) fn start_all(&mut self) {
        let numbers: Vec<u8> = self.nodes.keys().copied().collect();
        numbers.iter().for_each(|number| self.start(*number));
    }

    /// Starts a node's agent.
    pub(crate) fn start(&mut self, number: u8) {
        let node = self.nodes.get_mut(&number).unwrap();
        let log = fs::OpenOptions::new().create(true).append(true).open(node.folder.path().join("log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tortie"));
        command
            .args(["run", "--node", &format!("n{number}"), "--datastore"])
            .arg(format!("file:{}", self.manifests.path().display()))
            .arg("--state-dir")
            .arg(node.folder.path().join("state"))
            .args(["--file-settle-ms", "50", "--empty-file-settle-ms", "50"])
            .env("XTABLES_LOCKFILE", node.folder.path().join("xtables.lock"))
            .envs([("FELIX_IPTABLESBACKEND", "nft"), ("FELIX_ENDPOINTSTATUSPATHPREFIX", "none")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        node.agent = Some(node.namespace.spawn(&mut command).unwrap());
    }

    pub(crate) fn stop(&mut self, number: u8, signal: Signal) {
        let mut agent = self.nodes.get_mut(&number).unwrap().agent.take().unwrap();
        kill_process(Pid::from_raw(i32::try_from(agent.id()).unwrap()).unwrap(), signal).unwrap();
        agent.wait().unwrap();
    }

    /// Runs a line on a node.
    pub(crate) fn node(&self, number: u8, line: &str) -> String {
        self.nodes[&number].namespace.shell(line).unwrap_or_else(|error| format!("{error}"))
    }

    /// Gives a node other addresses.
    pub(crate) fn readdress(&mut self, number: u8, address: u8) {
        let node = self.nodes.get_mut(&number).unwrap();
        let old = node_addresses(node.address);
        node.namespace.ip(old.map(|address| format!("addr del {address} dev eth0"))).unwrap();
        node.namespace.ip(address_lines(address)).unwrap();
        node.address = address;
        self.write();
    }

    /// Takes a node out of the cluster, with all that runs there.
    pub(crate) fn remove(&mut self, number: u8) {
        self.stop(number, Signal::TERM);
        self.nodes.remove(&number);
        self.write();
    }

    pub(crate) fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
        self.write();
    }

    /// Whether routes between the first two nodes go through tunnels, in both families.
    pub(crate) fn is_tunnelled(&self) -> bool {
        let routes = self.node(1, "ip route show 10.65.2.0/26; ip -6 route show fd00:65:2::/122");
        routes.contains("vxlan.calico") && routes.contains("vxlan-v6.calico")
    }

    #[track_caller]
    pub(crate) fn assert_tunnelled(&self, is_so: bool) {
        assert_eq!(self.is_tunnelled(), is_so, "{}", self.describe());
    }

    /// Waits until each friend reaches the server on each node.
    #[track_caller]
    pub(crate) fn until_connected(&self, when: &str) {
        self.until(when, |cluster| {
            let pairs = cluster.nodes.values().flat_map(|from| cluster.nodes.keys().map(move |to| (&from.friend, *to)));
            pairs.into_iter().all(|(from, to)| reaches(from, to, Duration::from_millis(300)))
        });
    }

    /// No stranger reaches any server.
    #[track_caller]
    pub(crate) fn assert_denied(&self, when: &str) {
        for (number, from) in &self.nodes {
            for to in self.nodes.keys() {
                for address in pod_addresses(*to, 2) {
                    let is_reached = connects(&from.stranger, address, Duration::from_millis(150));
                    assert!(!is_reached, "{when}: from node {number} {address} is reached");
                }
            }
        }
    }

    #[track_caller]
    pub(crate) fn until(&self, what: &str, done: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done(self) {
            assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}\n{}", self.describe());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn describe(&self) -> String {
        let mut text = String::new();
        for (number, node) in &self.nodes {
            let log = fs::read_to_string(node.folder.path().join("log")).unwrap_or_default();
            let state = "ip -d addr show type vxlan; ip route; ip -6 route; bridge fdb show dev vxlan.calico; ip neigh";
            let tail: Vec<&str> = log.lines().rev().take(15).collect();
            let _ = writeln!(text, "node {number}:\n{}{}", self.node(*number, state), tail.join("\n"));
            let web = node.web.shell("ip addr show dev eth0; ip route").unwrap_or_default();
            let _ = writeln!(text, "{web}");
        }
        text
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in self.nodes.values_mut() {
            if let Some(agent) = &mut node.agent {
                let _ = agent.kill();
                let _ = agent.wait();
            }
        }
    }
}

fn object(text: &mut String, api: &str, kind: &str, name: &str, spec: &str) {
    let _ = write!(text, "---\napiVersion: {api}\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {spec}\n");
}

fn node_addresses(number: u8) -> [String; 2] {
    [format!("172.30.0.{number}/24"), format!("fd00:30::{number}/64")]
}

fn address_lines(number: u8) -> Vec<String> {
    let mut lines: Vec<String> =
        node_addresses(number).iter().map(|address| format!("addr add {address} dev eth0")).collect();
    // Proxy ARP answers for what is reached by another interface than the one that asks.
    lines.push("route add default via 172.30.0.254".to_owned());
    lines
}

fn pod_addresses(node: u8, last: u8) -> [IpAddr; 2] {
    let v6 = Ipv6Addr::new(0xfd00, 0x65, node.into(), 0, 0, 0, 0, last.into());
    [IpAddr::from([10, 65, node, last]), v6.into()]
}

/// A pod's namespace, joined to its node. The rest is the agent's.
fn plug(node: &Namespace, name: &str, number: u8, last: u8) -> Namespace {
    let interface = interface_name(&Place::pod("shop", name)).unwrap();
    let pod = Namespace::new().unwrap();
    let setting = |name: &str| (name.to_owned(), "0");
    pod.sysctl(&[setting("ipv6/conf/default/accept_dad"), setting("ipv6/conf/all/accept_dad")]).unwrap();
    node.ip([
        format!("link add {interface} address {GATEWAY_MAC} type veth peer name eth0 netns {}", pod.path().display()),
        format!("addr add {GATEWAY_V6}/64 dev {interface} nodad"),
        format!("link set {interface} up"),
    ])
    .unwrap();
    let [v4, v6] = pod_addresses(number, last);
    pod.ip([
        format!("addr add {v4}/32 dev eth0"),
        format!("addr add {v6}/128 dev eth0 nodad"),
        "link set eth0 up".to_owned(),
        "route add 169.254.1.1 dev eth0 scope link".to_owned(),
        "route add default via 169.254.1.1 dev eth0".to_owned(),
        format!("route add default via {GATEWAY_V6} dev eth0"),
    ])
    .unwrap();
    pod
}

/// Takes connections for as long as the test runs.
fn serve(pod: &Namespace) {
    let listener = pod.run(|| TcpListener::bind((Ipv6Addr::UNSPECIFIED, PORT))).unwrap().unwrap();
    std::thread::spawn(move || listener.incoming().for_each(drop));
}

fn connects(from: &Namespace, to: IpAddr, patience: Duration) -> bool {
    from.run(|| TcpStream::connect_timeout(&SocketAddr::new(to, PORT), patience).is_ok()).unwrap()
}

fn reaches(from: &Namespace, node: u8, patience: Duration) -> bool {
    pod_addresses(node, 2).into_iter().all(|address| connects(from, address, patience))
}
