use std::collections::{BTreeMap, BTreeSet};

use tortie_model::{Labels, NodeAddress, NodeAddressKind, NodeAllocation, NodeBgp, NodeTunnels};

use super::*;

const OWN: &str = "here";

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

fn node(address: &str) -> Node {
    let bgp = NodeBgp { ipv4_address: address.into(), ..NodeBgp::default() };
    Node { bgp: Some(bgp), addresses: [].into(), tunnels: None, pod_networks: [].into(), labels: Labels::default() }
}

fn vxlan_tunnel(node: Node, address: &str) -> Node {
    let tunnels = NodeTunnels { vxlan: Some(address.parse().unwrap()), ..NodeTunnels::default() };
    Node { tunnels: Some(tunnels.into()), ..node }
}

fn pool(vxlan_mode: EncapMode) -> IpPool {
    IpPool {
        cidr: cidr("10.0.0.0/16"),
        ipip_mode: EncapMode::Never,
        vxlan_mode,
        masquerade: false,
        disabled: false,
        allowed_uses: [].into(),
    }
}

/// Routes, and the addresses of each workload endpoint, as in the index of members.
struct Feed(L3Routes, BTreeMap<WorkloadEndpointKey, BTreeSet<Cidr>>);

impl Feed {
    fn new() -> Self {
        Self::with(RouteSource::CalicoIpam)
    }

    fn with(source: RouteSource) -> Self {
        let mut routes = L3Routes::new(OWN.into(), source);
        routes.set_wanted(true);
        Self(routes, BTreeMap::new())
    }

    fn node(&mut self, name: &str, node: Option<&Node>) {
        self.0.on_node(&name.into(), node);
    }

    fn pool(&mut self, net: &str, pool: Option<&IpPool>) {
        self.0.on_pool(cidr(net), pool);
    }

    /// Sets a block of a node, with addresses that other nodes have borrowed.
    fn block(&mut self, net: &str, affinity: &str, borrowed: &[(&str, &str)]) {
        let allocation =
            |(address, node): &(&str, &str)| NodeAllocation { address: address.parse().unwrap(), node: (*node).into() };
        let affinity = (!affinity.is_empty()).then(|| affinity.into());
        let borrowed = borrowed.iter().map(allocation).collect();
        self.0.on_block(cidr(net), Some(&IpamBlock { text: "".into(), affinity, borrowed }));
    }

    fn workload(&mut self, host: &str, nets: &[&str]) {
        self.named_workload(host, "ns/pod", nets);
    }

    fn named_workload(&mut self, host: &str, name: &str, nets: &[&str]) {
        let key = WorkloadEndpointKey::new(host, "k8s", name, "eth0");
        let now = nets.iter().map(|net| cidr(net));
        let before = self.1.insert(key.clone(), now.clone().map(Cidr::to_host).collect()).unwrap_or_default();
        self.0.on_workload(&key, before.into_iter(), now);
    }

    /// Returns the sent routes as text: `-` for a removal; of an update the fields that are not
    /// empty.
    fn flush(&mut self) -> Vec<String> {
        let mut changes = RouteChanges::default();
        self.0.flush(&mut changes);
        let mut lines: Vec<String> = changes.removed.iter().map(|net| format!("-{net}")).collect();
        let updated = changes.updated.iter().filter_map(|slot| self.0.route(*slot));
        lines.extend(updated.map(|(net, route)| shown(net, &route)));
        lines
    }
}

fn shown(net: Cidr, route: &Route) -> String {
    let mut words = vec![net.to_string()];
    if route.pool_type != PoolType::None {
        words.push(format!("{:?}", route.pool_type));
    }
    words.push(format!("{:?}", route.types));
    words.extend(route.node.as_ref().map(|node| format!("on {node}")));
    words.extend(route.node_address.map(|address| format!("at {address}")));
    let tunnels = route.tunnels;
    for (is, word) in [
        (route.same_subnet, "same-subnet"),
        (route.nat_outgoing, "nat"),
        (route.local_workload, "local-workload"),
        (route.borrowed, "borrowed"),
        (tunnels.ipip, "ipip"),
        (tunnels.vxlan, "vxlan"),
        (tunnels.wireguard, "wireguard"),
    ] {
        words.extend(is.then(|| word.to_owned()));
    }
    words.join(" ").replace('"', "")
}

#[test]
fn an_address_that_another_node_has_of_a_block_is_borrowed() {
    let mut feed = Feed::new();
    feed.pool("10.0.0.0/16", Some(&pool(EncapMode::Always)));
    feed.node("there", Some(&node("192.168.0.2/24")));
    feed.flush();
    feed.block("10.0.1.0/29", "there", &[("10.0.1.3", OWN)]);
    assert_eq!(
        feed.flush(),
        [
            "10.0.1.0/29 Vxlan {REMOTE_WORKLOAD} on there at 192.168.0.2",
            "10.0.1.3/32 Vxlan {REMOTE_WORKLOAD, LOCAL_WORKLOAD} on here borrowed",
        ]
    );
    feed.workload(OWN, &["10.0.1.3/32"]);
    assert_eq!(feed.flush(), ["10.0.1.3/32 Vxlan {REMOTE_WORKLOAD, LOCAL_WORKLOAD} on here local-workload borrowed"]);
    // The block moves to the node that borrowed: the routes of its addresses change as well.
    feed.block("10.0.1.0/29", OWN, &[]);
    assert_eq!(
        feed.flush(),
        ["10.0.1.0/29 Vxlan {LOCAL_WORKLOAD} on here", "10.0.1.3/32 Vxlan {LOCAL_WORKLOAD} on here local-workload",]
    );
    feed.0.on_block(cidr("10.0.1.0/29"), None);
    assert_eq!(feed.flush(), ["-10.0.1.0/29"]);
}

#[test]
fn a_block_of_one_address() {
    let mut feed = Feed::new();
    feed.block("10.0.1.1/32", "there", &[("10.0.1.1", OWN)]);
    assert_eq!(feed.flush(), ["10.0.1.1/32 {REMOTE_WORKLOAD} on there"]);
    feed.block("10.0.1.1/32", "", &[("10.0.1.1", OWN)]);
    assert_eq!(feed.flush(), ["10.0.1.1/32 {LOCAL_WORKLOAD} on here"]);
    // Blocks do not overlap. If they do, the smallest decides, in any order of updates.
    feed.block("10.0.1.0/24", "other", &[("10.0.1.1", "there")]);
    assert_eq!(
        feed.flush(),
        ["10.0.1.0/24 {REMOTE_WORKLOAD} on other", "10.0.1.1/32 {REMOTE_WORKLOAD, LOCAL_WORKLOAD} on here borrowed"]
    );
    feed.0.on_block(cidr("10.0.1.1/32"), None);
    assert_eq!(feed.flush(), ["10.0.1.1/32 {REMOTE_WORKLOAD} on there borrowed"]);
}

#[test]
fn the_subnet_counts_for_pools_that_cross_subnets() {
    let mut feed = Feed::new();
    feed.pool("10.0.0.0/16", Some(&pool(EncapMode::CrossSubnet)));
    feed.node(OWN, Some(&node("192.168.0.1/24")));
    feed.node("near", Some(&node("192.168.0.2/24")));
    feed.node("far", Some(&node("192.168.1.2/24")));
    feed.block("10.0.1.0/29", "near", &[]);
    feed.block("10.0.2.0/29", "far", &[]);
    feed.block("10.1.0.0/29", "near", &[]);
    let sent = feed.flush();
    let same: Vec<_> = sent.iter().filter(|line| line.contains("same-subnet")).collect();
    assert_eq!(same, ["10.0.1.0/29 Vxlan {REMOTE_WORKLOAD} on near at 192.168.0.2 same-subnet"]);
    // This node moves to another subnet: routes whose `same-subnet` flips are sent, besides the
    // node's addresses.
    feed.node(OWN, Some(&node("192.168.1.1/24")));
    assert_eq!(
        feed.flush(),
        [
            "-192.168.0.1/32",
            "10.0.1.0/29 Vxlan {REMOTE_WORKLOAD} on near at 192.168.0.2",
            "10.0.2.0/29 Vxlan {REMOTE_WORKLOAD} on far at 192.168.1.2 same-subnet",
            "192.168.1.1/32 {LOCAL_HOST} on here at 192.168.1.1",
        ]
    );
    feed.node(OWN, None);
    assert_eq!(feed.flush(), ["-192.168.1.1/32", "10.0.2.0/29 Vxlan {REMOTE_WORKLOAD} on far at 192.168.1.2"]);
}

#[test]
fn of_hosts_that_share_an_address_the_first_counts() {
    let mut feed = Feed::new();
    feed.node("b", Some(&node("192.168.0.2/24")));
    assert_eq!(feed.flush(), ["192.168.0.2/32 {REMOTE_HOST} on b at 192.168.0.2"]);
    feed.node("a", Some(&node("192.168.0.2/24")));
    assert_eq!(feed.flush(), ["192.168.0.2/32 {REMOTE_HOST} on a at 192.168.0.2"]);
    feed.node("c", Some(&node("192.168.0.2/24")));
    assert_eq!(feed.flush(), [""; 0]);
    feed.node("a", None);
    assert_eq!(feed.flush(), ["192.168.0.2/32 {REMOTE_HOST} on b at 192.168.0.2"]);
}

#[test]
fn addresses_of_nodes_of_any_kind_belong_to_the_node() {
    let address = |address: &str, kind| NodeAddress { address: address.into(), kind };
    let mut listed = node("");
    listed.bgp = None;
    listed.addresses = [
        address("1.2.3.4", NodeAddressKind::Other),
        address("192.0.2.9", NodeAddressKind::ExternalIp),
        address("10.9.0.1/8", NodeAddressKind::InternalIp),
        address("fd00::1", NodeAddressKind::ExternalIp),
        address("0.0.0.0", NodeAddressKind::InternalIp),
        address("name", NodeAddressKind::InternalIp),
    ]
    .into();
    let mut feed = Feed::new();
    feed.node("there", Some(&listed));
    assert_eq!(
        feed.flush(),
        [
            "1.2.3.4/32 {REMOTE_HOST} on there at 10.9.0.1",
            "10.9.0.1/32 {REMOTE_HOST} on there at 10.9.0.1",
            "192.0.2.9/32 {REMOTE_HOST} on there at 10.9.0.1",
            "fd00::1/128 {REMOTE_HOST} on there at fd00::1",
        ]
    );
    // A node without an address counts as absent, with its tunnels.
    listed.addresses = [address("1.2.3.4", NodeAddressKind::Other)].into();
    feed.node("there", Some(&vxlan_tunnel(listed, "10.0.0.1")));
    assert_eq!(feed.flush(), ["-1.2.3.4/32", "-10.9.0.1/32", "-192.0.2.9/32", "-fd00::1/128"]);
}

#[test]
fn a_tunnel_in_a_larger_block_is_no_workload() {
    let mut feed = Feed::new();
    feed.block("10.0.1.0/29", "there", &[]);
    feed.node("there", Some(&vxlan_tunnel(node("192.168.0.2/24"), "10.0.1.0")));
    assert_eq!(
        feed.flush(),
        [
            "10.0.1.0/29 {REMOTE_WORKLOAD} on there at 192.168.0.2",
            "10.0.1.0/32 {REMOTE_TUNNEL} on there at 192.168.0.2 vxlan",
            "192.168.0.2/32 {REMOTE_HOST} on there at 192.168.0.2",
        ]
    );
    feed.block("10.0.1.0/32", "there", &[]);
    assert_eq!(feed.flush(), ["10.0.1.0/32 {REMOTE_WORKLOAD, REMOTE_TUNNEL} on there at 192.168.0.2 vxlan"]);
    // Tunnels of the first node that has the address; and a node's own address is no workload's.
    let mut other = vxlan_tunnel(node("10.0.1.1/24"), "10.0.1.0");
    other.tunnels = Some(
        NodeTunnels {
            wireguard: Some([10, 0, 1, 0].into()),
            ipip: Some([10, 0, 1, 0].into()),
            ..NodeTunnels::default()
        }
        .into(),
    );
    feed.node("a", Some(&other));
    assert_eq!(
        feed.flush(),
        [
            "10.0.1.0/32 {REMOTE_WORKLOAD, REMOTE_TUNNEL} on a at 10.0.1.1 borrowed ipip wireguard",
            "10.0.1.1/32 {REMOTE_HOST} on a at 10.0.1.1",
        ]
    );
}

#[test]
fn pools_for_load_balancers_alone_are_of_no_type() {
    let mut balancers = pool(EncapMode::Always);
    balancers.masquerade = true;
    let mut feed = Feed::new();
    balancers.allowed_uses = ["LoadBalancer".into(), "Workload".into()].into();
    feed.pool("10.0.0.0/16", Some(&balancers));
    assert_eq!(feed.flush(), ["10.0.0.0/16 Vxlan {} nat"]);
    balancers.allowed_uses = ["LoadBalancer".into()].into();
    feed.pool("10.0.0.0/16", Some(&balancers));
    assert_eq!(feed.flush(), ["10.0.0.0/16 {} nat"]);
    // Within a pool of workloads it leaves that one's type as it is.
    feed.pool("10.0.0.0/8", Some(&pool(EncapMode::Never)));
    assert_eq!(feed.flush(), ["10.0.0.0/8 NoEncap {}", "10.0.0.0/16 NoEncap {} nat"]);
    let ipip = IpPool { ipip_mode: EncapMode::CrossSubnet, ..pool(EncapMode::Never) };
    feed.pool("10.0.0.0/8", Some(&ipip));
    assert_eq!(feed.flush(), ["10.0.0.0/8 IpIp {}", "10.0.0.0/16 IpIp {} nat"]);
}

#[test]
fn addresses_that_stand_for_none_are_never_sent() {
    let mut feed = Feed::new();
    feed.workload(OWN, &["0.0.0.0/32", "::/128"]);
    feed.node("there", Some(&vxlan_tunnel(node("0.0.0.0/24"), "0.0.0.0")));
    assert_eq!(feed.flush(), [""; 0]);
    feed.workload(OWN, &["0.0.0.0/0"]);
    assert_eq!(feed.flush(), ["0.0.0.0/0 {LOCAL_WORKLOAD} on here local-workload"]);
    feed.workload(OWN, &[]);
    feed.node("there", None);
    assert_eq!(feed.flush(), ["-0.0.0.0/0"]);
    assert!(feed.0.is_empty());
}

#[test]
fn a_workload_may_have_networks() {
    let mut feed = Feed::new();
    let route = |net: &str| format!("{net} {{LOCAL_WORKLOAD}} on here local-workload");
    feed.workload(OWN, &["10.0.1.5/24", "10.0.2.1/32", "10.0.1.9/24"]);
    assert_eq!(feed.flush(), [route("10.0.1.0/24"), route("10.0.2.1/32")]);
    // The address is the same, the network is not.
    feed.workload(OWN, &["10.0.1.5/25", "10.0.2.1/32"]);
    assert_eq!(feed.flush(), ["-10.0.1.0/24", &*route("10.0.1.0/25")]);
    feed.workload(OWN, &["10.0.1.5/32"]);
    assert_eq!(feed.flush(), ["-10.0.1.0/25", "-10.0.2.1/32", &*route("10.0.1.5/32")]);
    feed.workload(OWN, &["10.0.1.5/31"]);
    assert_eq!(feed.flush(), ["-10.0.1.5/32", &*route("10.0.1.4/31")]);
    feed.workload(OWN, &[]);
    assert_eq!(feed.flush(), ["-10.0.1.4/31"]);
    assert!(feed.0.is_empty());
}

#[test]
fn remote_workloads_count_if_routes_come_from_workloads() {
    let mut by_blocks = Feed::new();
    let mut by_workloads = Feed::with(RouteSource::WorkloadIps);
    for feed in [&mut by_blocks, &mut by_workloads] {
        feed.workload("there", &["10.0.1.1/32", "10.0.1.1/32"]);
        feed.block("10.0.2.0/29", "there", &[]);
    }
    assert_eq!(by_blocks.flush(), ["10.0.2.0/29 {REMOTE_WORKLOAD} on there"]);
    assert!(by_blocks.0.table.find(cidr("10.0.1.1/32")).is_none());
    assert_eq!(by_workloads.flush(), ["10.0.1.1/32 {REMOTE_WORKLOAD} on there"]);
    by_workloads.workload("there", &["10.0.1.1/32"]);
    assert_eq!(by_workloads.flush(), [""; 0]);
    by_workloads.workload("there", &[]);
    assert_eq!(by_workloads.flush(), ["-10.0.1.1/32"]);
    assert!(by_workloads.0.is_empty());
}

#[test]
fn a_node_with_another_address_has_all_its_routes_sent_again() {
    let mut feed = Feed::with(RouteSource::WorkloadIps);
    feed.node("there", Some(&node("192.168.0.2/24")));
    for n in 0..5 {
        feed.named_workload("there", &format!("ns/pod-{n}"), &[&format!("10.0.1.{n}")]);
    }
    assert_eq!(feed.flush().len(), 6);
    for n in [3, 0] {
        feed.named_workload("there", &format!("ns/pod-{n}"), &[]);
    }
    assert_eq!(feed.flush(), ["-10.0.1.0/32", "-10.0.1.3/32"]);
    feed.node("there", Some(&node("192.168.0.3/24")));
    assert_eq!(
        feed.flush(),
        [
            "-192.168.0.2/32",
            "10.0.1.1/32 {REMOTE_WORKLOAD} on there at 192.168.0.3",
            "10.0.1.2/32 {REMOTE_WORKLOAD} on there at 192.168.0.3",
            "10.0.1.4/32 {REMOTE_WORKLOAD} on there at 192.168.0.3",
            "192.168.0.3/32 {REMOTE_HOST} on there at 192.168.0.3",
        ]
    );
    feed.node("there", None);
    feed.node("there", Some(&node("192.168.0.3/24")));
    assert_eq!(feed.flush(), [""; 0]);
    feed.node("there", None);
    assert_eq!(feed.flush().len(), 4);
    for n in 0..5 {
        feed.named_workload("there", &format!("ns/pod-{n}"), &[]);
    }
    assert_eq!(feed.flush().len(), 3);
    assert!(feed.0.is_empty());
}

#[test]
fn routes_are_sent_only_if_enabled() {
    let mut feed = Feed::new();
    feed.0.set_wanted(false);
    feed.node("there", Some(&node("192.168.0.2/24")));
    feed.workload(OWN, &["10.0.1.1/32"]);
    feed.workload(OWN, &["10.0.1.2/32"]);
    assert_eq!(feed.flush(), [""; 0]);
    feed.0.set_wanted(true);
    assert_eq!(feed.flush().len(), 2);
    feed.0.set_wanted(false);
    feed.workload(OWN, &[]);
    assert_eq!(feed.flush(), ["-10.0.1.2/32", "-192.168.0.2/32"]);
    feed.node("there", None);
    assert!(feed.0.is_empty());
}

#[test]
fn a_change_that_is_reverted_before_the_flush_is_not_sent() {
    let mut feed = Feed::new();
    feed.block("10.0.1.0/29", "there", &[("10.0.1.3", OWN)]);
    feed.0.on_block(cidr("10.0.1.0/29"), None);
    assert_eq!(feed.flush(), [""; 0]);
    feed.pool("10.0.0.0/16", Some(&pool(EncapMode::Always)));
    feed.flush();
    feed.pool("10.0.0.0/16", None);
    feed.pool("10.0.0.0/16", Some(&pool(EncapMode::Always)));
    assert_eq!(feed.flush(), [""; 0]);
    feed.0.on_pool(cidr("10.9.0.0/16"), None);
    feed.pool("10.0.0.0/16", None);
    assert_eq!(feed.flush(), ["-10.0.0.0/16"]);
    assert!(feed.0.is_empty());
}
