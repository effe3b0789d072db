//! Encrypted tunnels to other nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use tortie_dataplane::fake::{FakeKernel, Writes};
use tortie_dataplane::{
    Clock, Dataplane, DataplaneConfig, DataplaneProblem, Device, DeviceKind, DevicePeer, LinkEvent, Route, RouteKey,
    RouteKind, RouteProtocol, RouteScope, RouteTableIndex, RouteTarget, RoutingRule, WireguardKey,
};
use tortie_iptables::{Backend, Table};
use tortie_model::desired::{
    DesiredUpdate, HostMetadata, PoolType, Route as DesiredRoute, RouteTypes, TunnelTypes, WireguardPeer,
};
use tortie_model::{Family, Hostname};
use tortie_rules::{Marks, RulesConfig};

use crate::common::{apply_until_in_sync, cidr, config, dataplane, ip, kernel, texts, up};

const TABLE: RouteTableIndex = RouteTableIndex(1);
const DEVICES: [&str; 2] = ["wireguard.cali", "wg-v6.cali"];

fn rule(family: Family, table: RouteTableIndex) -> RoutingRule {
    RoutingRule { family, priority: 99, mark: 0x20_0000, mask: 0x20_0000, is_inverted: true, table, has_more: false }
}

fn route(destination: &str, kind: RouteKind, interface: Option<u32>) -> Route {
    Route {
        key: RouteKey { destination: cidr(destination), tos: 0, metric: 0 },
        target: RouteTarget {
            kind,
            interface,
            scope: RouteScope::UNIVERSE,
            protocol: RouteProtocol::BOOT,
            gateway: None,
            on_link: false,
            mtu: None,
            source: None,
        },
    }
}

fn add_device(kernel: &mut FakeKernel, name: &str, index: u32, kind: &str) {
    let kind = DeviceKind::Other(kind.to_owned());
    let device = Device { index, mac: None, mtu: 1440, is_up: true, kind };
    kernel.links.devices.insert(name.to_owned(), (device, BTreeSet::new()));
}

#[test]
fn leftovers_are_removed_when_wireguard_is_disabled() {
    let mut kernel = kernel(Backend::Nft);
    let foreign = rule(Family::V4, RouteTableIndex(2));
    kernel.routing.rules = vec![rule(Family::V4, TABLE), rule(Family::V6, TABLE), foreign];
    add_device(&mut kernel, "wireguard.cali", 20, "wireguard");
    add_device(&mut kernel, "wg-v6.cali", 21, "dummy");
    let throw = route("10.65.0.0/26", RouteKind::Throw, None);
    let tunnel = route("10.65.1.0/26", RouteKind::Unicast, Some(20));
    let others = route("192.0.2.0/24", RouteKind::Unicast, Some(1));
    kernel.routing.other_routes.insert(TABLE, vec![throw, tunnel, others.clone()]);
    let links = [up("eth0", 1), up("wireguard.cali", 20), up("wg-v6.cali", 21)];
    let mut dataplane = dataplane(Backend::Nft, [], links);
    let report = apply_until_in_sync(&mut dataplane, &mut kernel);
    assert_eq!(report.problems, []);
    assert_eq!(kernel.routing.rules, [foreign]);
    assert_eq!(kernel.routing.other_routes[&TABLE], [others]);
    let devices: Vec<&str> = kernel.links.devices.keys().map(String::as_str).collect();
    assert_eq!(devices, ["wg-v6.cali"], "devices of other types stay");
}

/// A node with encryption, and a kernel whose interface events it receives on request.
struct Node {
    dataplane: Dataplane,
    kernel: FakeKernel,
    monitored: BTreeMap<String, (u32, bool)>,
    /// Published keys of this node.
    published: Vec<(Family, Option<WireguardKey>)>,
}

fn settings(encrypts_hosts: bool) -> DataplaneConfig {
    let mut options = config(Backend::Nft);
    let marks = Marks::allocate(Marks::DEFAULT_MASK, true, false).expect("it is large enough");
    options.rules = RulesConfig::with_marks(marks);
    options.rules.wireguard.v4.enabled = true;
    options.rules.wireguard.v6.enabled = true;
    options.rules.wireguard.encrypt_host_traffic = encrypts_hosts;
    options.wireguard.keep_alive = 25;
    options.wireguard.has_threads = true;
    options
}

impl Node {
    fn with(options: DataplaneConfig, kernel: FakeKernel) -> Self {
        let mut dataplane = Dataplane::new(options);
        dataplane.on_link(up("eth0", 2));
        dataplane.on_update(DesiredUpdate::InSync);
        dataplane.on_links_in_sync();
        Self { dataplane, kernel, monitored: BTreeMap::new(), published: Vec::new() }
    }

    fn new(encrypts_hosts: bool) -> Self {
        Self::with(settings(encrypts_hosts), kernel(Backend::Nft))
    }

    fn send_updates(&mut self, updates: impl IntoIterator<Item = DesiredUpdate>) -> &mut Self {
        updates.into_iter().for_each(|update| self.dataplane.on_update(update));
        self
    }

    /// Passes the events of the interface monitor to the dataplane.
    fn deliver_link_events(&mut self) {
        let devices = self.kernel.links.devices.iter();
        let now: BTreeMap<String, (u32, bool)> =
            devices.map(|(name, (device, _))| (name.clone(), (device.index, device.is_up))).collect();
        for name in self.monitored.keys().filter(|name| !now.contains_key(*name)) {
            self.dataplane.on_link(LinkEvent::Gone { name: name.parse().expect("an interface name") });
        }
        for (name, (index, is_up)) in &now {
            let (name, index) = (name.parse().expect("an interface name"), *index);
            let event = if *is_up { LinkEvent::Up { name, index } } else { LinkEvent::Down { name, index } };
            self.dataplane.on_link(event);
        }
        self.monitored = now;
    }

    fn apply(&mut self) -> Vec<DataplaneProblem> {
        let report = self.dataplane.apply(&mut self.kernel);
        self.published.extend(report.wireguard_keys);
        report.problems
    }

    /// Applies until all events are processed; returns the remaining problems.
    fn settle(&mut self) -> Vec<DataplaneProblem> {
        let mut problems = Vec::new();
        for _ in 0..6 {
            self.deliver_link_events();
            problems = self.apply();
            self.kernel.sleep(Duration::from_secs(11));
        }
        problems
    }

    fn device(&self, name: &str) -> &Device {
        &self.kernel.links.devices[name].0
    }

    fn peers(&self, name: &str) -> &BTreeMap<WireguardKey, DevicePeer> {
        &self.kernel.links.wireguards[&self.device(name).index].peers
    }

    /// Returns the routes of the table in short form.
    fn routes(&self) -> Vec<String> {
        let name = |index: u32| {
            let found = self.kernel.links.devices.iter().find(|(_, (device, _))| device.index == index);
            found.map_or("?", |(name, _)| name.as_str())
        };
        let table = self.kernel.routing.other_routes.get(&TABLE).into_iter().flatten();
        let mut routes: Vec<String> = table
            .map(|route| match (route.target.kind, route.target.interface) {
                (RouteKind::Throw, None) => format!("throw {}", route.key.destination),
                (RouteKind::Unicast, Some(index)) => format!("{} dev {}", route.key.destination, name(index)),
                other => format!("{other:?}"),
            })
            .collect();
        routes.sort();
        routes
    }

    /// Returns the `WireGuard` state of the kernel, except the parts that depend on when a device
    /// was made.
    fn state(&self) -> String {
        let mut lines = self.routes();
        for name in DEVICES {
            let Some((device, addresses)) = self.kernel.links.devices.get(name) else { continue };
            lines.push(format!("{name} {} {} {:?} {addresses:?}", device.mtu, device.is_up, device.kind));
            let wireguard = &self.kernel.links.wireguards[&device.index];
            lines.push(format!("{} {:#x} {}", wireguard.port, wireguard.mark, wireguard.public_key.is_some()));
            lines.extend(wireguard.peers.iter().map(|peer| format!("{peer:?}")));
            // Without peers, threaded reception is not changed.
            let threads = self.kernel.links.threaded.get(name).filter(|_| !wireguard.peers.is_empty());
            lines.push(format!("{threads:?}"));
        }
        let rules: BTreeSet<RoutingRule> = self.kernel.routing.rules.iter().copied().collect();
        lines.extend(rules.iter().map(|rule| format!("{rule:?}")));
        lines.push(self.kernel.sysctls.values["net/ipv4/conf/all/src_valid_mark"].clone());
        lines.join("\n")
    }
}

fn name(number: usize) -> Hostname {
    format!("node-{number}").as_str().into()
}

fn key(number: u8) -> WireguardKey {
    WireguardKey([number; 32])
}

fn host(number: usize, last: u8) -> DesiredUpdate {
    let metadata = HostMetadata {
        ipv4_addr: format!("192.0.2.{last}/24").as_str().into(),
        ipv6_addr: format!("2001:db8::{last}/64").as_str().into(),
        ..HostMetadata::default()
    };
    DesiredUpdate::Host(name(number), metadata)
}

fn peer(family: Family, number: usize, key: &str, address: Option<&str>) -> DesiredUpdate {
    let peer = WireguardPeer { public_key: key.into(), address: address.map(ip) };
    match family {
        Family::V4 => DesiredUpdate::Wireguard(name(number), peer),
        Family::V6 => DesiredUpdate::WireguardV6(name(number), peer),
    }
}

fn net(net: &str, number: usize, types: RouteTypes) -> DesiredUpdate {
    let route = DesiredRoute {
        pool_type: PoolType::NoEncap,
        types,
        node: Some(name(number)),
        node_address: None,
        same_subnet: false,
        nat_outgoing: false,
        local_workload: false,
        borrowed: false,
        tunnels: TunnelTypes::default(),
    };
    DesiredUpdate::Route(cidr(net), route)
}

fn two_nodes() -> Vec<DesiredUpdate> {
    vec![
        host(1, 1),
        host(2, 2),
        host(3, 3),
        peer(Family::V4, 1, "", Some("10.65.0.5")),
        peer(Family::V4, 2, &key(2).to_string(), None),
        net("10.65.0.0/26", 1, RouteTypes::LOCAL_WORKLOAD),
        net("10.65.0.5/32", 1, RouteTypes::LOCAL_TUNNEL),
        net("10.66.0.9/32", 1, RouteTypes::LOCAL_WORKLOAD),
        net("10.65.1.0/26", 2, RouteTypes::REMOTE_WORKLOAD),
        net("10.65.1.9/32", 2, RouteTypes::REMOTE_TUNNEL),
        net("192.0.2.2/32", 2, RouteTypes::REMOTE_HOST),
        net("10.65.2.0/26", 3, RouteTypes::REMOTE_WORKLOAD),
        net("192.0.2.1/32", 1, RouteTypes::LOCAL_HOST),
    ]
}

#[test]
fn packets_to_nodes_with_a_key_are_encrypted_and_others_are_not() {
    let mut node = Node::new(false);
    assert_eq!(node.send_updates(two_nodes()).settle(), []);
    let device = node.device("wireguard.cali").clone();
    assert_eq!((device.mtu, device.is_up), (1400, true));
    let addresses = &node.kernel.links.devices["wireguard.cali"].1;
    assert_eq!(addresses.iter().copied().collect::<Vec<_>>(), [cidr("10.65.0.5/32")]);
    let wireguard = &node.kernel.links.wireguards[&device.index];
    assert_eq!((wireguard.port, wireguard.mark), (51820, 0x20_0000));
    let peer = DevicePeer {
        endpoint: Some("192.0.2.2:51820".parse().expect("an address")),
        keep_alive: 25,
        allowed: [cidr("10.65.1.0/26"), cidr("10.65.1.9/32")].into(),
    };
    assert_eq!(*node.peers("wireguard.cali"), [(key(2), peer)].into());
    let routes = [
        "10.65.1.0/26 dev wireguard.cali",
        "10.65.1.9/32 dev wireguard.cali",
        // This node's networks, except single addresses within them, and those of a node without a
        // key.
        "throw 10.65.0.0/26",
        "throw 10.65.2.0/26",
        "throw 10.66.0.9/32",
    ];
    assert_eq!(node.routes(), routes);
    assert_eq!(node.kernel.routing.rules, [rule(Family::V4, TABLE), rule(Family::V6, TABLE)]);
    assert_eq!(node.kernel.links.threaded, [("wireguard.cali".to_owned(), true)].into());
    assert_eq!(node.kernel.sysctls.values["net/ipv4/conf/all/src_valid_mark"], "0");
    let own = wireguard.public_key;
    assert!(own.is_some() && node.published.contains(&(Family::V4, own)), "{:?}", node.published);

    // A restart writes nothing again.
    node.kernel.reset_writes();
    assert_eq!(node.settle(), []);
    let mut next = Node::with(settings(false), node.kernel);
    assert_eq!(next.send_updates(two_nodes()).settle(), []);
    assert_eq!(next.kernel.writes(), Writes::default());
    assert!(next.published.contains(&(Family::V4, own)), "the key is the device's");
}

#[test]
fn hosts_are_encrypted_if_that_is_asked_for() {
    let mut node = Node::new(true);
    node.send_updates(two_nodes()).send_updates([peer(Family::V4, 1, "", None)]);
    assert_eq!(node.settle(), []);
    assert!(node.peers("wireguard.cali")[&key(2)].allowed.contains(&cidr("192.0.2.2/32")));
    assert!(node.routes().contains(&"192.0.2.2/32 dev wireguard.cali".to_owned()));
    let addresses = &node.kernel.links.devices["wireguard.cali"].1;
    assert_eq!(addresses.iter().copied().collect::<Vec<_>>(), [cidr("192.0.2.1/32")], "the node's own address");
    assert_eq!(node.kernel.sysctls.values["net/ipv4/conf/all/src_valid_mark"], "1");
    let raw = node.kernel.netfilter.tables_v4.saved(Table::Raw);
    assert!(raw.contains("-A cali-PREROUTING") && raw.contains("-j cali-wireguard-incoming-mark"), "{raw}");
}

#[test]
fn rules_let_tunnels_through() {
    let mut node = Node::new(false);
    assert_eq!(node.settle(), []);
    let filter = node.kernel.netfilter.tables_v4.saved(Table::Filter);
    assert!(filter.contains("Allow incoming IPv4 Wireguard packets"), "{filter}");
    assert!(filter.contains("--dports 51820") && !filter.contains("51821"));
    assert!(node.kernel.netfilter.tables_v6.saved(Table::Filter).contains("--dports 51821"));
    assert!(!node.kernel.netfilter.tables_v4.saved(Table::Raw).contains("-j cali-wireguard-incoming-mark"));
}

#[test]
fn a_key_of_two_nodes_belongs_to_neither() {
    let mut node = Node::new(false);
    node.send_updates(two_nodes()).send_updates([peer(Family::V4, 3, &key(2).to_string(), None)]);
    assert_eq!(node.settle(), []);
    assert!(node.peers("wireguard.cali").is_empty());
    assert!(node.routes().iter().all(|route| route.starts_with("throw ")), "{:?}", node.routes());
    node.send_updates([peer(Family::V4, 3, "no key", None)]);
    assert_eq!(node.settle(), []);
    assert_eq!(node.peers("wireguard.cali").keys().copied().collect::<Vec<_>>(), [key(2)]);
    node.send_updates([peer(Family::V4, 2, &key(4).to_string(), None), peer(Family::V4, 3, &key(2).to_string(), None)]);
    assert_eq!(node.settle(), []);
    assert_eq!(node.peers("wireguard.cali").keys().copied().collect::<Vec<_>>(), [key(2), key(4)]);
    assert_eq!(node.peers("wireguard.cali")[&key(2)].allowed, [cidr("10.65.2.0/26")].into());
}

#[test]
fn a_change_costs_its_own_peer() {
    let mut node = Node::new(false);
    node.send_updates(two_nodes());
    for number in 10..60_u8 {
        let index = usize::from(number);
        node.send_updates([host(index, number), peer(Family::V4, index, &key(number).to_string(), None)]);
    }
    assert_eq!(node.settle(), []);
    node.kernel.reset_writes();
    node.send_updates([net("10.65.3.0/26", 12, RouteTypes::REMOTE_WORKLOAD)]);
    assert_eq!(node.apply(), []);
    let writes = node.kernel.writes();
    assert_eq!((writes.peers, writes.routes), (1, 1));
}

#[test]
fn a_kernel_without_wireguard_is_reported_and_no_key_is_published() {
    let mut kernel = kernel(Backend::Nft);
    kernel.links.lacks_wireguard = true;
    let mut node = Node::with(settings(false), kernel);
    node.send_updates(two_nodes());
    let problems = texts(&node.settle());
    let expected = "device wireguard.cali: it cannot be made: the kernel does not support it";
    assert!(problems.iter().any(|problem| problem == expected), "{problems:?}");
    assert_eq!(node.published, [(Family::V4, None), (Family::V6, None)]);
    assert_eq!(node.kernel.routing.rules, []);
}

#[test]
fn a_wrong_published_key_is_published_again() {
    let mut node = Node::new(false);
    node.send_updates(two_nodes()).settle();
    let own = node.kernel.links.wireguards[&node.device("wireguard.cali").index].public_key;
    node.published.clear();
    node.send_updates([peer(Family::V4, 1, &key(9).to_string(), Some("10.65.0.5"))]).settle();
    assert_eq!(node.published, [(Family::V4, own)], "once");
    node.send_updates([peer(Family::V4, 1, &own.expect("there is one").to_string(), Some("10.65.0.5"))]).settle();
    assert_eq!(node.published.len(), 1);
    let index = node.device("wireguard.cali").index;
    node.kernel.remove_device(index);
    node.settle();
    let other = node.kernel.links.wireguards[&node.device("wireguard.cali").index].public_key;
    assert_ne!(other, own);
    assert_eq!(node.published, [(Family::V4, own), (Family::V4, other)]);
}

const NETS: [&str; 8] = [
    "10.65.0.0/26",
    "10.65.0.1/32",
    "10.65.1.0/26",
    "10.65.1.7/32",
    "192.0.2.2/32",
    "fd00:65::/122",
    "fd00:65::1/128",
    "fd00:66::/122",
];
const TYPES: [RouteTypes; 5] = [
    RouteTypes::LOCAL_WORKLOAD,
    RouteTypes::REMOTE_WORKLOAD,
    RouteTypes::REMOTE_HOST,
    RouteTypes::REMOTE_TUNNEL,
    RouteTypes::LOCAL_HOST,
];

#[derive(Clone, Debug)]
enum Event {
    Host(usize, Option<u8>),
    Peer(bool, usize, Option<(u8, bool)>),
    Net(usize, Option<(usize, usize)>),
    LinkEvents,
    Apply,
    Wait,
    Delete(usize),
    Meddle(usize, u8),
    Fail(bool, bool, usize),
}

fn event() -> impl Strategy<Value = Event> {
    let node = 1..5_usize;
    prop_oneof![
        3 => (node.clone(), prop::option::of(1..5_u8)).prop_map(|(node, last)| Event::Host(node, last)),
        4 => (any::<bool>(), node.clone(), prop::option::of((0..4_u8, any::<bool>())))
            .prop_map(|(is_v6, node, key)| Event::Peer(is_v6, node, key)),
        6 => (0..NETS.len(), prop::option::of((node, 0..TYPES.len()))).prop_map(|(net, of)| Event::Net(net, of)),
        3 => Just(Event::LinkEvents),
        4 => Just(Event::Apply),
        1 => Just(Event::Wait),
        1 => (0..2_usize).prop_map(Event::Delete),
        1 => (0..2_usize, 0..5_u8).prop_map(|(device, how)| Event::Meddle(device, how)),
        1 => (any::<bool>(), any::<bool>(), 0..3_usize).prop_map(|(a, b, lists)| Event::Fail(a, b, lists)),
    ]
}

/// The last update of each object.
#[derive(Debug, Default)]
struct LastUpdates {
    hosts: BTreeMap<usize, u8>,
    peers: BTreeMap<(bool, usize), (u8, bool)>,
    nets: BTreeMap<usize, (usize, usize)>,
}

impl LastUpdates {
    fn note(&mut self, event: &Event) {
        fn set<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
            match value {
                Some(value) => drop(map.insert(key, value)),
                None => drop(map.remove(&key)),
            }
        }
        match *event {
            Event::Host(node, last) => set(&mut self.hosts, node, last),
            Event::Peer(is_v6, node, key) => set(&mut self.peers, (is_v6, node), key),
            Event::Net(net, of) => set(&mut self.nets, net, of),
            _ => {}
        }
    }

    fn events(&self) -> Vec<Event> {
        let nets = self.nets.iter().map(|(net, of)| Event::Net(*net, Some(*of)));
        let peers = self.peers.iter().map(|((is_v6, node), key)| Event::Peer(*is_v6, *node, Some(*key)));
        let hosts = self.hosts.iter().map(|(node, last)| Event::Host(*node, Some(*last)));
        nets.chain(peers).chain(hosts).collect()
    }
}

impl Node {
    fn meddle(&mut self, device: usize, how: u8) {
        let Some(index) = self.kernel.links.devices.get(DEVICES[device]).map(|(device, _)| device.index) else {
            return;
        };
        let Some(wireguard) = self.kernel.links.wireguards.get_mut(&index) else { return };
        match how {
            0 => wireguard.peers.clear(),
            1 => drop(wireguard.peers.insert(key(77), DevicePeer::default())),
            2 => (wireguard.port, wireguard.mark) = (7, 7),
            3 => wireguard.peers.values_mut().for_each(|peer| peer.allowed.clear()),
            _ => {
                self.kernel.routing.rules.clear();
                self.kernel.routing.other_routes.clear();
            }
        }
    }

    fn apply_event(&mut self, event: &Event) {
        match *event {
            Event::Host(node, Some(last)) => drop(self.send_updates([host(node, last)])),
            Event::Host(node, None) => drop(self.send_updates([DesiredUpdate::HostRemove(name(node))])),
            Event::Peer(is_v6, node, Some((number, has_address))) => {
                let family = if is_v6 { Family::V6 } else { Family::V4 };
                let key = if number == 0 { "none".to_owned() } else { key(number).to_string() };
                let address = ["10.65.9.9", "fd00:65::9"][usize::from(is_v6)];
                self.send_updates([peer(family, node, &key, has_address.then_some(address))]);
            }
            Event::Peer(false, node, None) => drop(self.send_updates([DesiredUpdate::WireguardRemove(name(node))])),
            Event::Peer(true, node, None) => drop(self.send_updates([DesiredUpdate::WireguardV6Remove(name(node))])),
            Event::Net(at, Some((node, types))) => drop(self.send_updates([net(NETS[at], node, TYPES[types])])),
            Event::Net(at, None) => drop(self.send_updates([DesiredUpdate::RouteRemove(cidr(NETS[at]))])),
            Event::LinkEvents => self.deliver_link_events(),
            Event::Apply => drop(self.apply()),
            Event::Wait => self.kernel.sleep(Duration::from_secs(91)),
            Event::Delete(device) => {
                let index = self.kernel.links.devices.get(DEVICES[device]).map(|(device, _)| device.index);
                index.and_then(|index| self.kernel.remove_device(index));
            }
            Event::Meddle(device, how) => self.meddle(device, how),
            Event::Fail(peers, rules, lists) => {
                self.kernel.links.wireguards_fail = peers;
                self.kernel.routing.rules_fail = rules;
                self.kernel.interrupted_lists = lists;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// After updates in any order, failures, and changes by other processes, the kernel is equal to
    /// that of a dataplane which received the final state only.
    #[test]
    fn history_leaves_no_trace(
        encrypts_hosts in any::<bool>(),
        events in prop::collection::vec(event(), 1..40),
    ) {
        let mut lived = Node::new(encrypts_hosts);
        let mut last = LastUpdates::default();
        for event in &events {
            last.note(event);
            lived.apply_event(event);
        }
        lived.apply_event(&Event::Fail(false, false, 0));
        lived.settle();
        lived.kernel.sleep(Duration::from_secs(91));
        prop_assert_eq!(lived.settle(), []);

        let mut born = Node::new(encrypts_hosts);
        last.events().iter().for_each(|event| born.apply_event(event));
        prop_assert_eq!(born.settle(), []);
        prop_assert_eq!(lived.state(), born.state());

        // Nothing is left to do, not even for another process.
        let mut next = Node::with(settings(encrypts_hosts), lived.kernel.clone());
        next.kernel.reset_writes();
        last.events().iter().for_each(|event| next.apply_event(event));
        prop_assert_eq!(next.settle(), []);
        prop_assert_eq!(next.state(), born.state());
        prop_assert_eq!(next.kernel.writes().peers, 0);
        prop_assert_eq!(next.kernel.writes().routes, 0);
    }
}
