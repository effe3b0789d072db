//! Nodes with an IPAM block each, and pods with addresses of these blocks.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use tortie_calc::RouteSource;
use tortie_model::{
    Cidr, ConfigName, EncapMode, HostConfigKey, Hostname, Interner, IpPool, IpamBlock, Node, NodeBgp, NodeTunnels,
    Policy, PolicyId, PolicyKind, ProfileName, Update, Valid, WorkloadEndpoint, WorkloadEndpointKey,
};

use crate::{Counts, Input, LOCAL, Scenario};

/// Number of addresses in a block.
const BLOCK: u32 = 64;

/// Returns the scenario for this number of nodes, including this one, and of pods on each, all in
/// one subnet, with VXLAN to other subnets.
#[must_use]
pub fn routes(nodes: u32, pods_each: u32, source: RouteSource) -> Scenario {
    let pods = nodes * pods_each;
    // The pool, and for each node its block, its address and the address of its tunnel, the first
    // of the block.
    let of_pods = if source == RouteSource::CalicoIpam { pods_each } else { pods };
    let blocks = if source == RouteSource::CalicoIpam { nodes } else { 0 };
    let sent = 1 + blocks + 2 * nodes + of_pods;
    let configuration = 3;
    Scenario {
        name: format!("Routes {{ nodes: {nodes}, pods_each: {pods_each}, source: {source:?} }}"),
        expected: Counts {
            // The configuration, the pool, the policy; for each node its metadata and its VTEP.
            messages: (configuration + 1 + 1 + 2 * nodes + sent + pods_each) as usize,
            policies: 1,
            endpoints: pods_each as usize,
            references: 2 * pods_each as usize,
            routes: sent as usize,
            vteps: nodes as usize,
            ..Counts::default()
        },
        input: Input {
            feeds: vec![
                ("policies", vec![policy()]),
                ("pool", vec![pool()]),
                ("nodes", (0..nodes).flat_map(|n| [node(n, node_address(n)), tunnel(n)]).collect()),
                ("blocks", (0..nodes).map(block).collect()),
                ("pods", workloads(nodes, pods_each)),
            ],
            route_source: source,
            ..Input::default()
        },
        unit: Some(("pod", pods)),
        ..Scenario::default()
    }
}

/// The same scenario, after which this node moves to another subnet, so that all routes change.
pub(crate) fn other_subnet(nodes: u32, pods_each: u32) -> Scenario {
    let mut scenario = routes(nodes, pods_each, RouteSource::WorkloadIps);
    scenario.input.changes = vec![node(0, Ipv4Addr::new(172, 17, 0, 1))];
    let expected = &mut scenario.expected;
    // All pods, all tunnels and this node's new address.
    let again = (nodes * (pods_each + 1) + 1) as usize;
    expected.routes += again;
    expected.vteps += 1;
    // In addition the old address is removed, and a VTEP and this node's metadata are sent.
    expected.messages += again + 3;
    scenario
}

fn hostname(n: u32) -> Hostname {
    if n == 0 { Hostname::new(LOCAL) } else { Hostname::new(format!("node-{n}")) }
}

fn node_address(n: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0xac10_0000 + n)
}

/// Returns an address of a node's block; the first is the node's own.
fn address(node: u32, place: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a00_0000 + BLOCK * node + place)
}

fn net(address: Ipv4Addr, length: u8) -> Cidr {
    Cidr::new(address.into(), length).expect("a length of IPv4")
}

fn policy() -> Update {
    let id = PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", "all");
    Update::Policy(id, Some(Valid::new(Policy::default()).expect("valid")))
}

fn pool() -> Update {
    let cidr = net(Ipv4Addr::new(10, 0, 0, 0), 8);
    let pool = IpPool {
        cidr,
        ipip_mode: EncapMode::Never,
        vxlan_mode: EncapMode::CrossSubnet,
        masquerade: true,
        disabled: false,
        allowed_uses: [].into(),
    };
    Update::IpPool(cidr, Some(pool.into()))
}

fn node(n: u32, own: Ipv4Addr) -> Update {
    let bgp = NodeBgp { ipv4_address: format!("{own}/16").into(), ..NodeBgp::default() };
    let tunnels = NodeTunnels { vxlan: Some(IpAddr::V4(address(n, 0))), ..NodeTunnels::default() };
    let node = Node {
        bgp: Some(bgp),
        addresses: [].into(),
        tunnels: Some(tunnels.into()),
        labels: Interner::new().labels([("kubernetes.io/os", "linux")]).expect("short values"),
        pod_networks: [].into(),
    };
    Update::Node(hostname(n), Some(Valid::new(node).expect("valid")))
}

fn tunnel(n: u32) -> Update {
    let key = HostConfigKey { host: hostname(n), name: ConfigName::new("IPv4VXLANTunnelAddr") };
    Update::HostConfig(key, Some(address(n, 0).to_string().into()))
}

fn block(n: u32) -> Update {
    let block = IpamBlock { text: "{}".into(), affinity: Some(hostname(n)), borrowed: [].into() };
    Update::Block(net(address(n, 0), 26), Some(block.into()))
}

fn workloads(nodes: u32, pods_each: u32) -> Vec<Update> {
    let mut interner = Interner::new();
    let profiles: Arc<[ProfileName]> = [].into();
    let mut pod = |node: u32, place: u32| {
        let name = format!("shop/web-{node}-{place}");
        let endpoint = WorkloadEndpoint {
            iface: Some(format!("cali{node:x}-{place:x}").parse().expect("an interface name")),
            profiles: Arc::clone(&profiles),
            ipv4_nets: [Cidr::host(address(node, place).into())].into_iter().collect(),
            labels: interner.labels([("app", "web"), ("pod", &name)]).expect("short values"),
            ..WorkloadEndpoint::default()
        };
        let key = WorkloadEndpointKey::new(hostname(node).as_str(), "k8s", &name, "eth0");
        interner.share(Update::WorkloadEndpoint(key, Some(Valid::new(endpoint).expect("valid"))))
    };
    let places = |node| (1..=pods_each).map(move |place| (node, place));
    (0..nodes).flat_map(places).map(|(node, place)| pod(node, place)).collect()
}
