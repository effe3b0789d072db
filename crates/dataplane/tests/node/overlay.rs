//! Tunnels to other nodes, and routes through and beside them.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tortie_dataplane::fake::{FakeKernel, Writes};
use tortie_dataplane::{
    Clock, Dataplane, DataplaneConfig, DataplaneProblem, DeviceKind, LinkEvent, RouteKind, RouteProtocol,
};
use tortie_iptables::{Backend, Table};
use tortie_model::desired::{
    DesiredUpdate, Encapsulation, HostMetadata, PoolType, Route, RouteTypes, Vtep, VtepAddresses,
};
use tortie_model::{Cidr, Family, Mac, with_causes};

use crate::common::{addresses, apply_until_in_sync, cidr, config, ip, kernel, pod, profile, texts, up, workload};

const V4: &str = "vxlan.calico";
const V6: &str = "vxlan-v6.calico";

/// A dataplane with a kernel, whose interface events it receives.
struct Node {
    dataplane: Dataplane,
    kernel: FakeKernel,
    monitored: BTreeMap<String, u32>,
}

impl Node {
    fn with(kernel: FakeKernel, vni: u32) -> Self {
        let mut options = config(Backend::Nft);
        options.tunnels.vxlan_vni = vni;
        Self::of(options, kernel)
    }

    fn of(options: DataplaneConfig, kernel: FakeKernel) -> Self {
        let mut dataplane = Dataplane::new(options);
        dataplane.on_link(up("eth0", 2));
        dataplane.on_link(addresses("eth0", &["10.0.0.1", "fd00::1"]));
        dataplane.on_link(up("eth1", 3));
        dataplane.on_update(DesiredUpdate::InSync);
        dataplane.on_links_in_sync();
        Self { dataplane, kernel, monitored: BTreeMap::new() }
    }

    fn new() -> Self {
        Self::with(kernel(Backend::Nft), 4096)
    }

    fn send_updates(&mut self, updates: impl IntoIterator<Item = DesiredUpdate>) -> &mut Self {
        updates.into_iter().for_each(|update| self.dataplane.on_update(update));
        self
    }

    /// Passes the events of the interface monitor to the dataplane.
    fn deliver_link_events(&mut self) {
        let now: BTreeMap<String, u32> = self
            .kernel
            .links
            .devices
            .iter()
            .filter(|(_, (device, _))| device.is_up)
            .map(|(name, (device, _))| (name.clone(), device.index))
            .collect();
        for (name, index) in &self.monitored {
            if now.get(name) != Some(index) {
                self.dataplane.on_link(LinkEvent::Gone { name: name.parse().expect("an interface name") });
            }
        }
        for (name, index) in &now {
            self.dataplane.on_link(up(name, *index));
        }
        self.monitored = now;
    }

    /// Applies until all events are processed; returns the remaining problems.
    fn settle(&mut self) -> Vec<DataplaneProblem> {
        for _ in 0..3 {
            self.deliver_link_events();
            apply_until_in_sync(&mut self.dataplane, &mut self.kernel);
        }
        self.dataplane.problems().to_vec()
    }

    /// Returns each route to other nodes in short form.
    fn routes(&self) -> Vec<String> {
        let name = |index: u32| match index {
            2 => "eth0",
            3 => "eth1",
            index => {
                self.monitored.iter().find(|(_, monitored)| **monitored == index).map_or("?", |(name, _)| name.as_str())
            }
        };
        let mut routes: Vec<String> = self
            .kernel
            .routing
            .routes
            .iter()
            .map(|route| {
                let target = &route.target;
                let kind = if target.kind == RouteKind::Blackhole { " blackhole" } else { "" };
                let gateway = target.gateway.map(|gateway| format!(" via {gateway}")).unwrap_or_default();
                let device = target.interface.map(|index| format!(" dev {}", name(index))).unwrap_or_default();
                let on_link = if target.on_link { " onlink" } else { "" };
                let mtu = target.mtu.map(|mtu| format!(" mtu {mtu}")).unwrap_or_default();
                let protocol = target.protocol.0;
                format!("{}{kind}{gateway}{device} proto {protocol}{on_link}{mtu}", route.key.destination)
            })
            .collect();
        routes.sort();
        routes
    }
}

fn vtep(number: u8) -> Vtep {
    let mac = |family| Mac([0x66, 0, 0, 0, family, number]);
    Vtep {
        v4: Some(VtepAddresses {
            mac: mac(4),
            tunnel: ip(&format!("10.65.{number}.1")),
            parent: ip(&format!("10.0.0.{number}")),
        }),
        v6: Some(VtepAddresses {
            mac: mac(6),
            tunnel: ip(&format!("fd00:65:{number}::1")),
            parent: ip(&format!("fd00::{number}")),
        }),
    }
}

fn name(number: u8) -> tortie_model::Hostname {
    format!("node-{number}").as_str().into()
}

fn vtep_update(number: u8) -> DesiredUpdate {
    DesiredUpdate::Vtep(name(number), vtep(number))
}

fn encapsulation(vxlan: bool) -> DesiredUpdate {
    DesiredUpdate::Encapsulation(Encapsulation { vxlan, vxlan_v6: vxlan, ..Encapsulation::default() })
}

fn block(net: &str, number: u8) -> DesiredUpdate {
    let net = cidr(net);
    DesiredUpdate::Route(net, route(net, number))
}

fn route(net: Cidr, number: u8) -> Route {
    let address = match net.family() {
        Family::V4 => format!("10.0.0.{number}"),
        Family::V6 => format!("fd00::{number}"),
    };
    let types = if number == 1 { RouteTypes::LOCAL_WORKLOAD } else { RouteTypes::REMOTE_WORKLOAD };
    Route {
        pool_type: PoolType::Vxlan,
        types,
        node: Some(name(number)),
        node_address: Some(ip(&address)),
        ..Route::default()
    }
}

/// Two nodes with IPAM blocks in both families; this node is the first.
fn two_nodes() -> Vec<DesiredUpdate> {
    vec![
        encapsulation(true),
        vtep_update(1),
        vtep_update(2),
        block("10.65.1.0/26", 1),
        block("10.65.2.0/26", 2),
        block("fd00:65:1::/122", 1),
        block("fd00:65:2::/122", 2),
    ]
}

const ROUTES: [&str; 4] = [
    "10.65.1.0/26 blackhole proto 80",
    "10.65.2.0/26 via 10.65.2.1 dev vxlan.calico proto 3 onlink mtu 1410",
    "fd00:65:1::/122 blackhole proto 80",
    "fd00:65:2::/122 via fd00:65:2::1 dev vxlan-v6.calico proto 3 onlink mtu 1390",
];

#[test]
fn objects_removed_while_stopped_are_restored() {
    let mut node = Node::new();
    assert_eq!(node.send_updates(two_nodes()).settle(), []);
    let state = node.kernel.state();
    // The interfaces are unchanged, so there are no events for them.
    node.kernel.routing.routes.clear();
    node.kernel.neighbours.fdb.clear();
    node.kernel.neighbours.entries.clear();
    node.dataplane.on_links_in_sync();
    assert_eq!(node.settle(), []);
    assert_eq!(node.kernel.state(), state);
}

#[test]
fn other_nodes_are_reached_through_tunnels_of_both_families() {
    let mut node = Node::new();
    assert_eq!(node.send_updates(two_nodes()).settle(), []);
    assert_eq!(node.routes(), ROUTES);
    for (device, own, other, mtu) in [
        (V4, "10.65.1.1/32", vtep(2).v4.expect("it has one"), 1410),
        (V6, "fd00:65:1::1/128", vtep(2).v6.expect("it has one"), 1390),
    ] {
        let (device, addresses) = &node.kernel.links.devices[device];
        assert_eq!((device.mtu, device.is_up), (mtu, true));
        assert_eq!(addresses.iter().copied().collect::<Vec<_>>(), [cidr(own)]);
        let DeviceKind::Vxlan(vxlan) = &device.kind else { panic!("{device:?}") };
        assert_eq!((vxlan.vni, vxlan.port, vxlan.parent, vxlan.learns), (4096, 4789, Some(2), false));
        assert_eq!(node.kernel.neighbours.entries[&(device.index, other.tunnel)], other.mac);
        assert_eq!(node.kernel.neighbours.fdb[&(device.index, other.mac)], other.parent);
    }
    assert_eq!(node.kernel.netfilter.sets.members("cali40all-vxlan-net"), ["10.0.0.2"]);
    let filter = node.kernel.netfilter.tables_v4.saved(Table::Filter);
    assert!(filter.contains("Allow IPv4 VXLAN packets from allowed hosts"), "{filter}");
    assert!(node.kernel.netfilter.tables_v4.saved(Table::Nat).contains("vxlan.calico"));

    // A restart finds everything in place.
    node.kernel.reset_writes();
    let mut again = Node::with(node.kernel, 4096);
    assert_eq!(again.send_updates(two_nodes()).settle(), []);
    assert_eq!(again.kernel.writes(), Writes::default());
}

#[test]
fn objects_removed_by_hand_are_restored() {
    let mut node = Node::new();
    node.send_updates(two_nodes()).settle();
    let state = |node: &Node| (node.routes(), node.kernel.neighbours.fdb.len(), node.kernel.neighbours.entries.len());
    let before = state(&node);
    let index = node.kernel.links.devices[V4].0.index;
    node.kernel.remove_device(index).expect("it is there");
    assert_eq!(node.settle(), []);
    assert_eq!(state(&node), before);
    assert_ne!(node.kernel.links.devices[V4].0.index, index);

    // Changes without an event are found by the periodic check.
    let (device, addresses) = node.kernel.links.devices.get_mut(V4).expect("it is there");
    (device.mtu, device.is_up) = (1500, false);
    addresses.insert(cidr("192.0.2.1/24"));
    node.kernel.neighbours.fdb.clear();
    node.kernel.neighbours.entries.clear();
    node.kernel.sleep(std::time::Duration::from_secs(91));
    node.kernel.interrupted_lists = 1;
    node.dataplane.apply(&mut node.kernel);
    assert_eq!(node.settle(), []);
    assert_eq!(state(&node), before);
    let (device, addresses) = &node.kernel.links.devices[V4];
    assert_eq!((device.mtu, device.is_up, addresses.len()), (1410, true, 1));
}

#[test]
fn a_device_with_other_parameters_is_made_afresh() {
    let mut node = Node::new();
    node.send_updates(two_nodes()).settle();
    let index = node.kernel.links.devices[V4].0.index;
    let mut again = Node::with(node.kernel, 7);
    assert_eq!(again.send_updates(two_nodes()).settle(), []);
    assert_ne!(again.kernel.links.devices[V4].0.index, index);
    assert_eq!(again.routes(), ROUTES);

    // The node's address moves to another interface.
    again.dataplane.on_link(addresses("eth0", &[]));
    assert!(matches!(&again.settle()[..], [DataplaneProblem::Device { .. }, DataplaneProblem::Device { .. }]));
    again.dataplane.on_link(addresses("eth1", &["10.0.0.1", "fd00::1"]));
    assert_eq!(again.settle(), []);
    let DeviceKind::Vxlan(vxlan) = &again.kernel.links.devices[V4].0.kind else { panic!("it is one") };
    assert_eq!(vxlan.parent, Some(3));
}

#[test]
fn leftovers_are_removed_when_the_overlay_is_disabled() {
    let mut node = Node::new();
    assert_eq!(node.settle(), []);
    let before = node.kernel.state();
    node.send_updates(two_nodes()).settle();
    node.send_updates([encapsulation(false)]);
    assert_eq!(node.settle(), []);
    let left: Vec<String> =
        node.kernel.state().lines().filter(|line| !before.contains(line)).map(str::to_owned).collect();
    assert_eq!(left, [""; 0]);
    assert_eq!(node.kernel.state().lines().count(), before.lines().count());
    node.send_updates([encapsulation(true)]).settle();
    assert_eq!(node.routes(), ROUTES);
}

#[test]
fn nodes_of_the_same_subnet_are_reached_without_a_tunnel() {
    let mut node = Node::new();
    node.send_updates(two_nodes()).settle();
    let near = |net: &str| {
        let net = cidr(net);
        DesiredUpdate::Route(net, Route { same_subnet: true, ..route(net, 2) })
    };
    node.send_updates([near("10.65.2.0/26"), near("fd00:65:2::/122")]);
    assert_eq!(node.settle(), []);
    assert_eq!(node.routes()[1], "10.65.2.0/26 via 10.0.0.2 dev eth0 proto 80 onlink");
    assert_eq!(node.routes()[3], "fd00:65:2::/122 via fd00::2 dev eth0 proto 80 onlink");
    assert_eq!(node.kernel.conntrack.flushed.len(), 0);
    node.send_updates([block("10.65.2.0/26", 2), block("fd00:65:2::/122", 2)]);
    assert_eq!(node.settle(), [], "tunnels end within the networks that they lead to");
    assert_eq!(node.routes(), ROUTES);

    // Without a tunnel there is nothing to fall back to.
    let no_encap = Encapsulation { no_encap: true, ..Encapsulation::default() };
    let host = |address: &str| HostMetadata { ipv4_addr: address.into(), ..HostMetadata::default() };
    let plain = |net: &str, number| {
        let net = cidr(net);
        DesiredUpdate::Route(net, Route { pool_type: PoolType::NoEncap, ..route(net, number) })
    };
    let mut node = Node::new();
    node.send_updates([DesiredUpdate::Encapsulation(no_encap), plain("10.65.2.0/26", 2), plain("10.65.1.0/26", 1)])
        .settle();
    assert_eq!(node.routes(), ["10.65.1.0/26 blackhole proto 80"]);
    node.send_updates([DesiredUpdate::Host(name(1), host("10.0.0.1/24"))]).settle();
    assert_eq!(node.routes()[1], "10.65.2.0/26 via 10.0.0.2 dev eth0 proto 80 onlink");
}

#[test]
fn single_addresses_are_reached_where_they_are() {
    let mut node = Node::new();
    node.send_updates(two_nodes());
    let of = |net: &str, types, borrowed| {
        let net = cidr(net);
        DesiredUpdate::Route(net, Route { types, borrowed, ..route(net, 2) })
    };
    node.send_updates([
        of("10.65.9.1/32", RouteTypes::REMOTE_TUNNEL, true),
        of("10.65.9.2/32", RouteTypes::REMOTE_TUNNEL, false),
        of("10.65.9.3/32", RouteTypes::REMOTE_TUNNEL | RouteTypes::REMOTE_WORKLOAD, false),
        of("10.65.9.4/32", RouteTypes::REMOTE_WORKLOAD, true),
        of("10.65.9.5/32", RouteTypes::LOCAL_WORKLOAD, true),
        of("10.65.9.6/32", RouteTypes::REMOTE_HOST, false),
    ]);
    assert_eq!(node.settle(), []);
    let found: Vec<String> = node.routes().into_iter().filter(|route| route.starts_with("10.65.9")).collect();
    assert_eq!(
        found,
        [
            "10.65.9.1/32 dev vxlan.calico proto 3 mtu 1410",
            "10.65.9.3/32 dev vxlan.calico proto 3 mtu 1410",
            "10.65.9.4/32 via 10.65.2.1 dev vxlan.calico proto 3 onlink mtu 1410",
        ]
    );
}

#[test]
fn ip_in_ip_has_a_device_that_stays() {
    let mut options = config(Backend::Nft);
    options.tunnels.ipip_address = Some(ip("10.65.1.2"));
    let mut node = Node::new();
    node.dataplane = Dataplane::new(options);
    node.dataplane.on_link(up("eth0", 2));
    node.dataplane.on_link(addresses("eth0", &["10.0.0.1"]));
    node.dataplane.on_links_in_sync();
    let host = |number: u8| {
        let address = format!("10.0.0.{number}/24");
        DesiredUpdate::Host(
            name(number),
            HostMetadata { ipv4_addr: address.as_str().into(), ..HostMetadata::default() },
        )
    };
    let net = cidr("10.65.2.0/26");
    let ipip = |ipip| DesiredUpdate::Encapsulation(Encapsulation { ipip, ..Encapsulation::default() });
    let remote = DesiredUpdate::Route(net, Route { pool_type: PoolType::IpIp, ..route(net, 2) });
    node.send_updates([DesiredUpdate::InSync, ipip(true), host(1), host(2), remote]);
    assert_eq!(node.settle(), []);
    assert_eq!(node.routes(), ["10.65.2.0/26 via 10.0.0.2 dev tunl0 proto 80 onlink mtu 1440"]);
    let (device, addresses) = &node.kernel.links.devices["tunl0"];
    assert_eq!((device.mtu, addresses.len()), (1440, 1));
    node.send_updates([ipip(false)]);
    assert_eq!(node.settle(), []);
    assert_eq!(node.routes(), [] as [&str; 0]);
    assert!(node.kernel.links.devices["tunl0"].1.is_empty());
}

#[test]
fn no_route_to_other_nodes_exists_before_policy_is_in_force() {
    let mut node = Node::new();
    node.kernel.netfilter.not_runnable = vec!["tables-nft-restore".to_owned()];
    node.send_updates(two_nodes()).send_updates([profile("kns.default"), workload("one", pod("cali1", 1), &[])]);
    node.settle();
    assert!(
        node.kernel.links.devices.is_empty() && node.kernel.routing.routes.is_empty(),
        "{:?}",
        node.kernel.links.devices
    );
    node.kernel.netfilter.not_runnable.clear();
    assert_eq!(node.settle(), []);
    assert_eq!(node.routes(), ROUTES);
}

#[test]
fn a_device_that_cannot_be_made_is_tried_again_and_named() {
    let mut node = Node::new();
    node.kernel.links.broken_devices.insert(V4.to_owned());
    node.send_updates(two_nodes());
    let problems = node.settle();
    let [problem @ DataplaneProblem::Device { .. }] = &problems[..] else { panic!("{problems:?}") };
    assert_eq!(with_causes(problem), "device vxlan.calico: it cannot be made: Operation not supported");
    assert_eq!(node.routes().len(), 3, "the other family is not held up: {:?}", node.routes());
    node.kernel.links.broken_devices.clear();
    node.kernel.sleep(std::time::Duration::from_secs(10));
    assert_eq!(node.settle(), []);
    assert_eq!(node.routes(), ROUTES);
}

#[test]
fn checksums_are_not_left_to_devices_of_a_kernel_that_gets_them_wrong() {
    let mut sound = Node::new();
    sound.send_updates(two_nodes()).settle();
    assert!(sound.kernel.links.without_checksum_offload.is_empty());

    let mut options = config(Backend::Nft);
    options.tunnels.checksum_offload_broken = true;
    let mut node = Node::of(options, kernel(Backend::Nft));
    node.send_updates(two_nodes());
    assert_eq!(node.settle(), []);
    let off = |node: &Node| node.kernel.links.without_checksum_offload.iter().cloned().collect::<Vec<_>>();
    assert_eq!(off(&node), [V6, V4]);
    // An operator enables the offload again, and deletes the other device.
    node.kernel.links.without_checksum_offload.remove(V6);
    let index = node.kernel.links.devices[V4].0.index;
    node.kernel.remove_device(index);
    node.kernel.sleep(std::time::Duration::from_secs(10));
    assert_eq!(node.settle(), []);
    assert_eq!(off(&node), [V6, V4]);

    // The tunnel works for most packets even if the offload cannot be disabled.
    let mut options = config(Backend::Nft);
    options.tunnels.checksum_offload_broken = true;
    let mut node = Node::of(options, kernel(Backend::Nft));
    node.kernel.links.broken_offload = true;
    node.send_updates(two_nodes());
    let problems = texts(&node.settle());
    let why = "its checksum offload cannot be switched off: No such file or directory";
    assert_eq!(problems, [V4, V6].map(|name| format!("device {name}: {why}")));
    assert_eq!(node.routes(), ROUTES);
    node.kernel.links.broken_offload = false;
    node.kernel.sleep(std::time::Duration::from_secs(10));
    assert_eq!(node.settle(), []);
    assert_eq!(off(&node), [V6, V4]);
}

#[test]
fn of_two_nodes_with_one_tunnel_address_the_first_has_it() {
    let mut node = Node::new();
    node.send_updates(two_nodes());
    let twin = Vtep { v4: vtep(2).v4.map(|old| VtepAddresses { mac: vtep(3).v4.expect("it").mac, ..old }), v6: None };
    node.send_updates([DesiredUpdate::Vtep(name(3), twin)]).settle();
    let mac = |node: &Node| node.kernel.neighbours.entries[&(node.kernel.links.devices[V4].0.index, ip("10.65.2.1"))];
    assert_eq!(mac(&node).0[5], 2);
    node.send_updates([DesiredUpdate::VtepRemove(name(2))]).settle();
    assert_eq!(mac(&node).0[5], 3);
    assert!(!node.routes().iter().any(|route| route.starts_with("10.65.2.0")), "its node has no tunnel end any more");
}

#[derive(Clone, Debug)]
enum Step {
    Tell(DesiredUpdate),
    Addresses(&'static str, Vec<&'static str>),
    RemoveDevice,
    ForgetEntries,
    Settle,
}

fn step() -> impl Strategy<Value = Step> {
    let nets = ["10.65.1.0/26", "10.65.2.0/26", "10.65.2.7/32", "fd00:65:2::/122"];
    let updates = prop_oneof![
        (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(vxlan, vxlan_v6, no_encap)| {
            DesiredUpdate::Encapsulation(Encapsulation { ipip: false, vxlan, vxlan_v6, no_encap })
        }),
        (1..4_u8, 1..4_u8).prop_map(|(number, end)| DesiredUpdate::Vtep(name(number), vtep(end))),
        (1..4_u8).prop_map(|number| DesiredUpdate::VtepRemove(name(number))),
        (0..nets.len(), 1..4_u8, any::<bool>(), any::<bool>()).prop_map(move |(net, number, same_subnet, plain)| {
            let net = cidr(nets[net]);
            let pool_type = if plain { PoolType::NoEncap } else { PoolType::Vxlan };
            DesiredUpdate::Route(net, Route { same_subnet, pool_type, ..route(net, number) })
        }),
        (0..nets.len()).prop_map(move |net| DesiredUpdate::RouteRemove(cidr(nets[net]))),
        any::<bool>().prop_map(|is_there| match is_there {
            true => DesiredUpdate::Host(
                name(1),
                HostMetadata { ipv4_addr: "10.0.0.1/24".into(), ..HostMetadata::default() },
            ),
            false => DesiredUpdate::HostRemove(name(1)),
        }),
    ];
    prop_oneof![
        8 => updates.prop_map(Step::Tell),
        1 => (any::<bool>(), any::<bool>()).prop_map(|(first, has_them)| {
            let addresses = if has_them { vec!["10.0.0.1", "fd00::1"] } else { vec![] };
            Step::Addresses(if first { "eth0" } else { "eth1" }, addresses)
        }),
        1 => Just(Step::RemoveDevice),
        1 => Just(Step::ForgetEntries),
        2 => Just(Step::Settle),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// After any history, the kernel is equal to that of a new dataplane which received the last
    /// state only.
    #[test]
    fn the_end_does_not_depend_on_the_way(steps in prop::collection::vec(step(), 0..40)) {
        let mut node = Node::new();
        let mut fresh = Node::new();
        // An unknown parent leaves a device as it is, so the end makes the parent known.
        let end = [
            Step::Addresses("eth1", vec![]),
            Step::Addresses("eth0", vec!["10.0.0.1", "fd00::1"]),
            Step::Tell(vtep_update(1)),
        ];
        for step in steps.into_iter().chain(end) {
            match step {
                Step::Tell(update) => {
                    node.send_updates([update.clone()]);
                    fresh.send_updates([update]);
                }
                Step::Addresses(interface, list) => {
                    node.dataplane.on_link(addresses(interface, &list));
                    fresh.dataplane.on_link(addresses(interface, &list));
                }
                Step::RemoveDevice => {
                    if let Some(index) = node.kernel.links.devices.get(V4).map(|(device, _)| device.index) {
                        node.kernel.remove_device(index);
                    }
                }
                Step::ForgetEntries => {
                    node.kernel.neighbours.fdb.clear();
                    node.kernel.interrupted_lists = 2;
                }
                Step::Settle => {
                    node.settle();
                }
            }
        }
        node.settle();
        node.kernel.sleep(std::time::Duration::from_secs(91));
        prop_assert_eq!(node.settle(), []);
        prop_assert_eq!(fresh.settle(), []);
        prop_assert_eq!(node.routes(), fresh.routes());
        let entries = |node: &Node| {
            let mut fdb: Vec<_> = node.kernel.neighbours.fdb.iter().map(|((_, mac), to)| (*mac, *to)).collect();
            let mut neighbours: Vec<_> = node.kernel.neighbours.entries.iter().map(|((_, at), mac)| (*at, *mac)).collect();
            let devices: Vec<_> = node.kernel.links.devices.iter().map(|(name, (device, _))| (name.clone(), device.kind.clone())).collect();
            fdb.sort_unstable();
            neighbours.sort_unstable();
            (fdb, neighbours, devices, node.kernel.netfilter.sets.members("cali40all-vxlan-net").len())
        };
        prop_assert_eq!(entries(&node), entries(&fresh));
        let is_own = |protocol: RouteProtocol| protocol == RouteProtocol::BOOT || protocol == RouteProtocol::CALICO;
        prop_assert!(node.kernel.routing.routes.iter().all(|route| is_own(route.target.protocol)));
    }
}
