//! Addresses for which the node answers on its own network.

use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tortie_lab::netns::Namespace;
use tortie_lab::pods::{LabHost, interface_name};

use super::agent::Node;

const CLUSTER: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: v4}
spec: {cidr: 10.65.0.0/16, ipipMode: Never, vxlanMode: Never, natOutgoing: false}
---
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: v6}
spec: {cidr: 'fd00:65::/64', ipipMode: Never, vxlanMode: Never, natOutgoing: false}
---
apiVersion: projectcalico.org/v3
kind: Node
metadata: {name: n1}
spec: {bgp: {ipv4Address: 10.65.0.1/24, ipv6Address: 'fd00:65::1/64'}}
";

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop}
spec: {nodeName: n1, containers: [{name: c, image: i}]}
status: {phase: Running, podIPs: [{ip: 10.65.0.50}, {ip: 'fd00:65::50'}]}
";

const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {name: shop, namespace: shop}
spec: {type: LoadBalancer, clusterIPs: [10.96.0.9], ports: [{port: 80}]}
status: {loadBalancer: {ingress: [{ip: 10.65.0.60}, {ip: 'fd00:65::60'}]}}
";

const POD_ADDRESSES: [&str; 2] = ["10.65.0.50", "fd00:65::50"];
const SERVICE_ADDRESSES: [&str; 2] = ["10.65.0.60", "fd00:65::60"];
const PORT: u16 = 80;
const PATIENCE: Duration = Duration::from_secs(90);

fn reachability(mode: &str) -> String {
    format!(
        "apiVersion: projectcalico.org/v3\nkind: FelixConfiguration\nmetadata: {{name: default}}\nspec: \
         {{localSubnetL2Reachability: {mode}}}\n"
    )
}

/// A node and another machine at a bridge, and a pod on the node.
struct Network {
    node: Node,
    other: Namespace,
    _bridge: Namespace,
    _pod: Namespace,
    _server: TcpListener,
}

impl Network {
    fn new(backend: &'static str) -> Self {
        let node = Node::new(backend, CLUSTER);
        node.write("pod.yaml", POD);
        node.shell("sysctl -qw net.ipv6.conf.default.accept_dad=0 net.ipv6.conf.all.forwarding=1");
        let [bridge, other, pod] = [(); 3].map(|()| {
            let namespace = Namespace::new().unwrap();
            namespace.sysctl(&[("ipv6/conf/default/accept_dad".to_owned(), "0")]).unwrap();
            namespace
        });
        bridge.shell("ip link add br0 type bridge; ip link set br0 up").unwrap();
        let attach = |port: &str| {
            format!(
                "ip link add eth0 type veth peer name {port} netns {}; ip link set eth0 up",
                bridge.path().display()
            )
        };
        node.shell(&attach("node"));
        node.shell("ip addr add 10.65.0.1/24 dev eth0; ip addr add fd00:65::1/64 dev eth0");
        other.shell(&attach("other")).unwrap();
        other.shell("ip addr add 10.65.0.9/24 dev eth0; ip addr add fd00:65::9/64 dev eth0").unwrap();
        bridge.shell("ip link set node master br0 up; ip link set other master br0 up").unwrap();

        // As Calico's CNI plugin does it.
        let interface = interface_name(&LabHost::pod("shop", "web")).unwrap();
        node.shell(&format!(
            "ip link add {interface} address ee:ee:ee:ee:ee:ee type veth peer name eth0 netns {}; ip link set {interface} up",
            pod.path().display()
        ));
        pod.shell(
            "ip addr add 10.65.0.50/32 dev eth0; ip addr add fd00:65::50/128 dev eth0; ip link set eth0 up; ip route add \
             169.254.1.1 dev eth0; ip neigh add 169.254.1.1 lladdr ee:ee:ee:ee:ee:ee dev eth0; ip route add default via 169.254.1.1 dev eth0; ip -6 route add default via \
             fe80::ecee:eeff:feee:eeee dev eth0",
        )
        .unwrap();
        let server = pod.run(|| TcpListener::bind(("::", PORT))).unwrap().unwrap();
        Self { node, other, _bridge: bridge, _pod: pod, _server: server }
    }

    fn is_reached(&self, address: &str) -> bool {
        let address: IpAddr = address.parse().unwrap();
        let connect = || TcpStream::connect_timeout(&(address, PORT).into(), Duration::from_secs(2)).is_ok();
        self.other.run(connect).unwrap()
    }

    /// Reports whether the node answers the other machine's ARP or neighbour request for an
    /// address.
    fn is_answered(&self, address: &str) -> bool {
        self.other.shell(&format!("ip neigh flush to {address} dev eth0")).unwrap();
        let any = if address.contains(':') { "[::]:0" } else { "0.0.0.0:0" };
        let ask = || UdpSocket::bind(any)?.send_to(b"?", (address.parse::<IpAddr>().unwrap(), 9));
        self.other.run(ask).unwrap().unwrap();
        let patience = Instant::now() + PATIENCE;
        loop {
            let found = self.other.shell(&format!("ip neigh show to {address} dev eth0")).unwrap();
            if found.contains("lladdr") || found.contains("FAILED") {
                let mac = self.node.shell("ip -o link show dev eth0");
                let mac = mac.split_once("link/ether ").unwrap().1.split_whitespace().next().unwrap();
                return found.contains(mac);
            }
            assert!(Instant::now() < patience, "{address}: {found}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn proxied_by_the_kernel(&self) -> String {
        self.node.shell("ip -4 neigh show proxy; ip -6 neigh show proxy")
    }

    fn until(&self, condition: &str, done: impl Fn() -> bool) {
        let patience = Instant::now() + PATIENCE;
        while !done() {
            assert!(Instant::now() < patience, "waiting until {condition}\n{}", self.node.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn until_answered(&self, addresses: [&str; 2], is_wanted: bool) {
        for address in addresses {
            self.until(&format!("{address} is answered for: {is_wanted}"), || self.is_answered(address) == is_wanted);
        }
    }
}

tortie_lab::kernel_test! {
    fn pods_and_load_balancers_are_reached_from_the_nodes_own_network() {
        for backend in ["nft", "legacy"] {
            let mut network = Network::new(backend);
            network.node.start();
            assert!(POD_ADDRESSES.iter().all(|address| !network.is_answered(address)), "no address is configured yet");

            network.node.write("felix.yaml", &reachability("PodsAndLoadBalancers"));
            network.until_answered(POD_ADDRESSES, true);
            for address in POD_ADDRESSES {
                network.until(&format!("{address} is reached"), || network.is_reached(address));
            }
            network.node.write("service.yaml", SERVICE);
            network.until_answered(SERVICE_ADDRESSES, true);

            std::fs::remove_file(network.node.manifests().join("service.yaml")).unwrap();
            std::fs::remove_file(network.node.manifests().join("pod.yaml")).unwrap();
            network.until_answered(SERVICE_ADDRESSES, false);
            network.until_answered(POD_ADDRESSES, false);
            network.node.write("pod.yaml", POD);
            network.until_answered(POD_ADDRESSES, true);
            network.node.write("felix.yaml", &reachability("Disabled"));
            network.until_answered(POD_ADDRESSES, false);
        }
    }

    fn a_kill_leaves_nothing_behind_and_foreign_proxy_entries_stay() {
        let mut network = Network::new("nft");
        network.node.shell("ip neigh add proxy 10.65.0.77 dev eth0; ip neigh add proxy fd00:65::77 dev eth0");
        let theirs = network.proxied_by_the_kernel();
        assert!(theirs.contains("10.65.0.77") && theirs.contains("fd00:65::77"), "{theirs}");
        network.node.write("felix.yaml", &reachability("PodsAndLoadBalancers"));
        for _ in 0..2 {
            network.node.start();
            network.until_answered(POD_ADDRESSES, true);
            network.node.stop(Signal::KILL);
            network.until_answered(POD_ADDRESSES, false);
        }
        network.node.cleanup();
        assert_eq!(network.proxied_by_the_kernel(), theirs);
    }

    fn an_interface_that_comes_later_is_answered_on_as_well() {
        let mut network = Network::new("nft");
        network.node.write("felix.yaml", &reachability("PodsAndLoadBalancers"));
        network.node.shell("ip addr flush dev eth0; ip link set eth0 down");
        network.node.start();
        network.node.shell("ip link set eth0 up; ip addr add 10.65.0.1/24 dev eth0; ip addr add fd00:65::1/64 dev eth0");
        network.until_answered(POD_ADDRESSES, true);
        network.node.shell("ip link set eth0 address 02:00:00:00:77:01");
        network.node.shell("ip link set eth0 down; ip link set eth0 up; ip addr replace fd00:65::1/64 dev eth0");
        network.until_answered(POD_ADDRESSES, true);
        network.until("the pod is reached", || network.is_reached(POD_ADDRESSES[0]));
    }
}
