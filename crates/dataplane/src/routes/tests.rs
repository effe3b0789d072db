//! Routes are added, kept and left alone as desired.

use std::collections::BTreeSet;
use std::time::Duration;

use tortie_iptables::{Backend, InterfaceName};
use tortie_model::{Cidr, Family};

use super::{Ownership, RouteClass, RouteTable, Slot};
use crate::config::{RoutePriority, RoutesConfig};
use crate::fake::FakeKernel;
use crate::kernel::Clock;
use crate::links::{KnownLinks, LinkChange, LinkEvent};
use crate::report::DataplaneProblem;
use crate::route::{Route, RouteKey, RouteKind, RouteProtocol, RouteScope, RouteTarget};

mod classes;
mod priorities;

const PREFIXES: [InterfaceName; 1] = [InterfaceName::from_static("cali")];
const GRACE: Duration = Duration::from_secs(10);

/// A table with its kernel and interfaces.
struct Node {
    kernel: FakeKernel,
    links: KnownLinks,
    table: RouteTable,
    config: RoutesConfig,
    bgp_peers: [bool; 2],
}

impl Node {
    fn new(family: Family, config: RoutesConfig) -> Self {
        let table = RouteTable::new(family, config.clone());
        let kernel = FakeKernel::new(Backend::Nft, []);
        Self { kernel, links: KnownLinks::default(), table, config, bgp_peers: [false; 2] }
    }

    fn v4() -> Self {
        Self::new(Family::V4, RoutesConfig::default())
    }

    fn link(&mut self, event: LinkEvent) {
        for change in self.links.apply(event) {
            if let LinkChange::State(name) = change {
                self.table.on_link(name);
            }
        }
    }

    fn up(&mut self, name: &str, index: u32) {
        self.link(LinkEvent::Up { name: name.parse().unwrap(), index });
    }

    fn set(&mut self, name: &str, destinations: &[&str]) {
        self.prioritize(name, destinations, RoutePriority::Normal);
    }

    fn prioritize(&mut self, name: &str, destinations: &[&str], priority: RoutePriority) {
        let destinations: Vec<Cidr> = destinations.iter().map(|text| cidr(text)).collect();
        self.table.set(name.parse().unwrap(), destinations, priority);
    }

    fn apply(&mut self) -> Vec<DataplaneProblem> {
        let mut problems = Vec::new();
        let ownership = Ownership {
            links: &self.links,
            workload_prefixes: &PREFIXES,
            config: &self.config,
            bgp_peers: self.bgp_peers,
            device: None,
        };
        self.table.apply(&mut self.kernel, &self.links, &ownership, &BTreeSet::new(), &mut problems);
        problems
    }

    fn next(&mut self) -> Option<Duration> {
        let ownership = Ownership {
            links: &self.links,
            workload_prefixes: &PREFIXES,
            config: &self.config,
            bgp_peers: self.bgp_peers,
            device: None,
        };
        self.table.next(self.kernel.now(), Duration::from_secs(10), &ownership)
    }

    /// Destination and interface of each route.
    fn routes(&self) -> Vec<String> {
        let text = |route: &Route| format!("{} {}", route.key.destination, route.target.interface.unwrap_or_default());
        let mut routes: Vec<String> = self.kernel.routing.routes.iter().map(text).collect();
        routes.sort();
        routes
    }
}

fn cidr(text: &str) -> Cidr {
    text.parse().expect(text)
}

fn foreign(destination: &str, interface: u32, protocol: RouteProtocol) -> Route {
    Route {
        key: RouteKey { destination: cidr(destination), tos: 0, metric: 0 },
        target: RouteTarget {
            kind: RouteKind::Unicast,
            interface: Some(interface),
            scope: RouteScope::UNIVERSE,
            protocol,
            gateway: None,
            on_link: false,
            mtu: None,
            source: None,
        },
    }
}

/// A table with routes through a tunnel to many nodes.
fn large(count: u32) -> Node {
    let mut node = Node::v4();
    node.up("vxlan.calico", 2);
    let slot = Slot { class: RouteClass::VxlanTunnel, interface: Some("vxlan.calico".parse().unwrap()) };
    for number in 0..count {
        let net = Cidr::new(std::net::Ipv4Addr::from(0x0a64_0000 + number * 64).into(), 26).expect("a network");
        let key = RouteKey { destination: net, tos: 0, metric: 0 };
        node.table.set_route(&slot, key, Some(foreign("0.0.0.0/0", 0, RouteProtocol::BOOT).target));
    }
    assert_eq!(node.apply(), []);
    assert_eq!(node.kernel.routing.routes.len(), count as usize);
    node
}

#[test]
fn a_change_of_an_interface_costs_its_own_routes() {
    let mut node = large(1000);
    node.kernel.routing.listed_routes = 0;
    for number in 0..20 {
        node.set("cali1", &["10.65.0.1/32"]);
        node.up("cali1", 10 + number);
        assert_eq!(node.apply(), []);
        assert_eq!(node.routes().len(), 1001);
        node.link(LinkEvent::Gone { name: "cali1".parse().unwrap() });
        node.kernel.routing.routes.retain(|route| route.target.interface == Some(2));
        assert_eq!(node.apply(), []);
    }
    assert!(node.kernel.routing.listed_routes < 50, "{} routes were listed", node.kernel.routing.listed_routes);
    // Routes that the kernel dropped are restored.
    node.link(LinkEvent::Down { name: "vxlan.calico".parse().unwrap(), index: 2 });
    node.kernel.routing.routes.clear();
    assert_eq!(node.apply(), []);
    node.up("vxlan.calico", 2);
    assert_eq!(node.apply(), []);
    assert_eq!(node.kernel.routing.routes.len(), 1000);
}

#[test]
fn routes_that_an_interface_brings_along_are_removed() {
    let mut node = large(3);
    let stray = foreign("10.65.0.9/32", 7, RouteProtocol::BOOT);
    node.kernel.routing.routes.push(stray.clone());
    node.set("cali1", &["10.65.0.1/32"]);
    node.up("cali1", 7);
    assert_eq!(node.apply(), []);
    assert!(!node.kernel.routing.routes.contains(&stray));
    // A second route to the same destination, by another interface, is unexpected.
    let key = RouteKey { metric: 1024, ..foreign("10.65.0.1/32", 0, RouteProtocol::BOOT).key };
    let twin = Route { key, target: foreign("10.65.0.1/32", 8, RouteProtocol::BOOT).target };
    node.kernel.routing.routes.push(twin.clone());
    node.up("cali2", 8);
    node.set("cali2", &["10.65.0.2/32"]);
    assert_eq!(node.apply(), []);
    assert!(!node.kernel.routing.routes.contains(&twin), "{:?}", node.routes());
    assert_eq!(node.routes().len(), 5);
}

#[test]
fn a_list_of_an_interface_that_fails_is_made_up_for() {
    let mut node = large(3);
    node.set("cali1", &["10.65.0.1/32"]);
    node.up("cali1", 7);
    node.kernel.interrupted_lists = 1;
    assert_eq!(node.apply().len(), 1);
    assert_eq!(node.next(), Some(Duration::from_secs(10)));
    assert_eq!(node.apply(), []);
    assert_eq!(node.routes().len(), 4);
}

#[test]
fn a_route_is_made_once_its_interface_is_up() {
    let mut node = Node::v4();
    node.set("cali1", &["10.65.0.1/32", "fd00::1/128"]);
    assert_eq!(node.apply(), []);
    assert_eq!(node.routes(), [] as [&str; 0]);

    node.link(LinkEvent::Down { name: "cali1".parse().unwrap(), index: 7 });
    node.apply();
    assert_eq!(node.routes(), [] as [&str; 0]);

    node.up("cali1", 7);
    node.apply();
    let expected = Route {
        key: RouteKey { destination: cidr("10.65.0.1/32"), tos: 0, metric: 1024 },
        target: RouteTarget { scope: RouteScope::LINK, ..foreign("10.65.0.1/32", 7, RouteProtocol::BOOT).target },
    };
    assert_eq!(node.kernel.routing.routes, [expected]);

    // The kernel drops the routes of an interface that goes down and up.
    node.kernel.routing.routes.clear();
    node.link(LinkEvent::Down { name: "cali1".parse().unwrap(), index: 7 });
    node.up("cali1", 7);
    node.apply();
    assert_eq!(node.routes(), ["10.65.0.1/32 7"]);
}

#[test]
fn strange_routes_on_workload_interfaces_go_after_a_grace() {
    let mut node = Node::v4();
    node.up("eth0", 1);
    node.up("cali1", 7);
    node.kernel.routing.routes = vec![
        foreign("10.65.0.9/32", 7, RouteProtocol::BOOT),
        foreign("10.65.0.8/32", 7, RouteProtocol(99)),
        foreign("10.9.0.0/24", 1, RouteProtocol(99)),
        foreign("0.0.0.0/0", 1, RouteProtocol::BOOT),
    ];
    node.apply();
    assert_eq!(node.kernel.routing.routes.len(), 4);
    let wait = node.next().expect("it waits for the grace to end");
    assert!(wait <= GRACE);

    node.kernel.sleep(wait);
    assert_eq!(node.apply(), []);
    assert_eq!(node.routes(), ["0.0.0.0/0 1", "10.9.0.0/24 1"], "those of others stay");
    assert_eq!(node.kernel.conntrack.flushed.len(), 2);
}

#[test]
fn the_grace_ends_when_the_endpoint_is_known() {
    let mut node = Node::v4();
    node.up("cali1", 7);
    node.kernel.routing.routes = vec![foreign("10.65.0.9/32", 7, RouteProtocol::BOOT)];
    node.set("cali1", &["10.65.0.1/32"]);
    node.apply();
    assert_eq!(node.routes(), ["10.65.0.1/32 7"]);
}

#[test]
fn routes_of_others_stay_where_they_are_welcome() {
    let mut keep = RoutesConfig { remove_external: false, grace_period: Duration::ZERO, ..RoutesConfig::default() };
    let mut node = Node::new(Family::V4, keep.clone());
    node.up("cali1", 7);
    node.kernel.routing.routes =
        vec![foreign("10.1.0.0/24", 7, RouteProtocol::BIRD), foreign("10.65.0.9/32", 7, RouteProtocol::BOOT)];
    node.apply();
    assert_eq!(node.routes(), ["10.1.0.0/24 7"]);

    keep.remove_external = true;
    for (is_peer, left) in [(true, 1), (false, 0)] {
        let mut node = Node::new(Family::V4, keep.clone());
        node.bgp_peers = [is_peer, false];
        node.up("cali1", 7);
        node.kernel.routing.routes = vec![foreign("10.1.0.0/24", 7, RouteProtocol::BIRD)];
        node.apply();
        assert_eq!(node.kernel.routing.routes.len(), left);
    }

    let mut node = Node::new(Family::V6, keep);
    node.up("cali1", 7);
    node.kernel.routing.routes =
        vec![foreign("fe80::/64", 7, RouteProtocol::KERNEL), foreign("fd00::9/128", 7, RouteProtocol::BOOT)];
    node.apply();
    assert_eq!(node.routes(), ["fe80::/64 7"]);
}

#[test]
fn an_address_that_moves_loses_its_connections() {
    let mut node = Node::v4();
    node.up("cali1", 7);
    node.up("cali2", 8);
    node.set("cali1", &["10.65.0.1/32", "10.65.1.0/24"]);
    node.apply();
    assert!(node.kernel.conntrack.flushed.is_empty());

    // Both claim it for a moment: the younger interface wins.
    node.set("cali2", &["10.65.0.1/32", "10.65.1.0/24"]);
    node.apply();
    assert_eq!(node.routes(), ["10.65.0.1/32 8", "10.65.1.0/24 8"]);
    assert_eq!(node.kernel.conntrack.flushed, ["10.65.0.1".parse::<std::net::IpAddr>().expect("address")]);

    node.set("cali1", &[]);
    node.apply();
    assert_eq!(node.kernel.conntrack.flushed.len(), 1);

    // The route vanished with its interface.
    node.link(LinkEvent::Gone { name: "cali2".parse().unwrap() });
    node.kernel.routing.routes.clear();
    node.apply();
    assert_eq!(node.kernel.conntrack.flushed.len(), 1, "the interface may come back");
    node.set("cali2", &[]);
    node.apply();
    assert_eq!(node.kernel.conntrack.flushed.len(), 2);
}

#[test]
fn a_restart_adopts_existing_routes() {
    let mut node = Node::v4();
    node.up("cali1", 7);
    node.set("cali1", &["10.65.0.1/32"]);
    node.apply();
    node.kernel.reset_writes();
    node.table = RouteTable::new(Family::V4, RoutesConfig::default());
    node.set("cali1", &["10.65.0.1/32"]);
    node.apply();
    assert_eq!(node.kernel.writes(), crate::fake::Writes::default());

    // The address moved while the interface was gone.
    node.up("cali2", 8);
    node.table = RouteTable::new(Family::V4, RoutesConfig::default());
    node.set("cali2", &["10.65.0.1/32"]);
    node.apply();
    assert_eq!(node.routes(), ["10.65.0.1/32 8"]);
    assert_eq!(node.kernel.conntrack.flushed.len(), 1);
}

#[test]
fn a_restart_flushes_connections_left_by_its_predecessor() {
    let config = RoutesConfig { grace_period: Duration::ZERO, ..RoutesConfig::default() };
    let mut node = Node::new(Family::V4, config.clone());
    node.up("cali1", 7);
    node.up("cali2", 8);
    node.set("cali1", &["10.65.0.1/32"]);
    node.apply();
    let address = "10.65.0.1".parse().expect("address");
    node.kernel.conntrack.unflushable.insert(address);
    node.set("cali1", &[]);
    node.apply();
    assert_eq!(node.routes(), [] as [&str; 0]);

    // Neither the new owner nor the next process adds a route to the address before the conntrack
    // entries are deleted.
    node.table = RouteTable::new(Family::V4, config.clone());
    node.set("cali2", &["10.65.0.1/32"]);
    node.apply();
    assert_eq!(node.routes(), [] as [&str; 0]);
    assert!(node.kernel.conntrack.flushed.is_empty());

    node.kernel.conntrack.unflushable.clear();
    let wait = node.next().expect("it tries again");
    node.kernel.sleep(wait);
    assert_eq!(node.apply(), []);
    assert_eq!(node.routes(), ["10.65.0.1/32 8"]);
    assert_eq!(node.kernel.conntrack.flushed, [address]);
    assert!(node.kernel.conntrack.marked.is_empty());

    // A deletion of conntrack entries is not repeated.
    node.table = RouteTable::new(Family::V4, config);
    node.set("cali2", &["10.65.0.1/32"]);
    node.apply();
    assert_eq!(node.kernel.conntrack.flushed.len(), 1);
}

#[test]
fn one_route_that_fails_does_not_stop_the_others() {
    let mut node = Node::v4();
    node.up("cali1", 7);
    node.up("cali2", 8);
    node.set("cali1", &["10.65.0.1/32"]);
    node.set("cali2", &["10.65.0.2/32"]);
    node.kernel.routing.broken_interfaces.insert(7);
    let problems = node.apply();
    assert!(matches!(&problems[..], [DataplaneProblem::Route { .. }]), "{problems:?}");
    assert_eq!(node.routes(), ["10.65.0.2/32 8"]);
    assert!(node.next().is_some_and(|pause| pause <= Duration::from_secs(10)));

    node.kernel.routing.broken_interfaces.clear();
    assert_eq!(node.apply(), []);
    assert_eq!(node.routes(), ["10.65.0.1/32 7", "10.65.0.2/32 8"]);
}

#[test]
fn a_removed_route_is_restored_at_the_next_refresh() {
    let mut node = Node::v4();
    node.up("cali1", 7);
    node.set("cali1", &["10.65.0.1/32"]);
    node.apply();
    node.kernel.routing.routes.clear();
    node.apply();
    assert_eq!(node.routes(), [] as [&str; 0]);
    let wait = node.next().expect("it looks again");
    node.kernel.sleep(wait);
    node.apply();
    assert_eq!(node.routes(), ["10.65.0.1/32 7"]);
}

#[test]
fn nothing_is_done_if_routes_are_switched_off() {
    let mut node = Node::new(Family::V4, RoutesConfig { enabled: false, ..RoutesConfig::default() });
    node.up("cali1", 7);
    node.set("cali1", &["10.65.0.1/32"]);
    node.kernel.routing.routes = vec![foreign("10.65.0.9/32", 7, RouteProtocol::BOOT)];
    node.kernel.sleep(GRACE * 2);
    node.apply();
    assert_eq!(node.routes(), ["10.65.0.9/32 7"]);
    assert_eq!(node.next(), None);
}
