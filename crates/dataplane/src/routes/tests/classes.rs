//! Routes of several writers: precedence and ownership.

use proptest::prelude::*;
use tortie_model::InterfaceName;

use super::*;
use crate::device;
use crate::routes::{RouteClass, Slot};

const CLASSES: [RouteClass; 4] =
    [RouteClass::LocalWorkload, RouteClass::VxlanSameSubnet, RouteClass::VxlanTunnel, RouteClass::BlackholeVxlan];
const NETS: [&str; 4] = ["10.65.0.1/32", "10.65.0.2/32", "10.65.1.0/26", "10.65.2.0/26"];
const INTERFACES: [&str; 4] = ["cali1", "cali2", "eth0", device::VXLAN_V4];

fn slot(class: RouteClass, interface: Option<&str>) -> Slot {
    Slot { class, interface: interface.map(|name| name.parse().unwrap()) }
}

fn key(destination: &str) -> RouteKey {
    RouteKey { destination: cidr(destination), tos: 0, metric: 0 }
}

fn target(gateway: Option<&str>) -> RouteTarget {
    RouteTarget {
        kind: RouteKind::Unicast,
        interface: None,
        scope: RouteScope::UNIVERSE,
        protocol: RouteProtocol::CALICO,
        gateway: gateway.map(|text| text.parse().expect(text)),
        on_link: gateway.is_some(),
        mtu: None,
        source: None,
    }
}

fn blackhole() -> RouteTarget {
    RouteTarget { kind: RouteKind::Blackhole, ..target(None) }
}

#[test]
fn the_first_class_with_a_usable_interface_has_the_route() {
    let mut node = Node::v4();
    let net = "10.65.1.0/26";
    for (class, interface) in [
        (RouteClass::BlackholeVxlan, None),
        (RouteClass::VxlanTunnel, Some(device::VXLAN_V4)),
        (RouteClass::VxlanSameSubnet, Some("eth0")),
    ] {
        let target = if interface.is_some() { target(Some("10.0.0.2")) } else { blackhole() };
        node.table.set_route(&slot(class, interface), key(net), Some(target));
    }
    node.apply();
    assert_eq!(node.routes(), ["10.65.1.0/26 0"], "a route that leaves by no interface needs none");
    node.up(device::VXLAN_V4, 5);
    node.apply();
    assert_eq!(node.routes(), ["10.65.1.0/26 5"]);
    node.up("eth0", 2);
    node.apply();
    assert_eq!(node.routes(), ["10.65.1.0/26 2"]);
    let [route] = &node.kernel.routing.routes[..] else { panic!("one route") };
    assert!(route.target.on_link);

    node.link(LinkEvent::Down { name: "eth0".parse().unwrap(), index: 2 });
    node.kernel.routing.routes.clear();
    node.apply();
    assert_eq!(node.routes(), ["10.65.1.0/26 5"]);
    node.link(LinkEvent::Gone { name: device::VXLAN_V4.parse().unwrap() });
    node.kernel.routing.routes.clear();
    node.apply();
    assert_eq!(node.routes(), ["10.65.1.0/26 0"]);
    node.table.set_route(&slot(RouteClass::BlackholeVxlan, None), key(net), None);
    node.apply();
    assert_eq!(node.routes(), [] as [&str; 0]);
}

#[test]
fn own_routes_are_identified_by_protocol_and_device() {
    let mut node = Node::v4();
    node.up("eth0", 1);
    node.up(device::VXLAN_V4, 5);
    node.up(device::IPIP, 6);
    let nowhere = |destination, protocol| {
        let mut route = foreign(destination, 0, protocol);
        route.target.interface = None;
        route
    };
    node.kernel.routing.routes = vec![
        foreign("10.9.0.0/26", 1, RouteProtocol::CALICO),
        foreign("10.9.1.0/26", 1, RouteProtocol::BOOT),
        foreign("10.9.2.0/26", 5, RouteProtocol::BOOT),
        foreign("10.9.3.0/26", 5, RouteProtocol::KERNEL),
        foreign("10.9.4.0/26", 6, RouteProtocol::BIRD),
        foreign("10.9.5.0/26", 6, RouteProtocol::BOOT),
        nowhere("10.9.6.0/26", RouteProtocol::CALICO),
        nowhere("10.9.7.0/26", RouteProtocol::BIRD),
    ];
    assert_eq!(node.apply(), []);
    assert_eq!(node.routes(), ["10.9.1.0/26 1", "10.9.3.0/26 5", "10.9.5.0/26 6", "10.9.7.0/26 0"]);

    let config = RoutesConfig { program_ipip: false, protocol: RouteProtocol(77), ..RoutesConfig::default() };
    let mut node = Node::new(Family::V4, config);
    node.up(device::IPIP, 6);
    node.kernel.routing.routes = vec![
        foreign("10.9.0.0/26", 1, RouteProtocol::CALICO),
        foreign("10.9.1.0/26", 1, RouteProtocol(77)),
        foreign("10.9.4.0/26", 6, RouteProtocol::BIRD),
    ];
    node.apply();
    assert_eq!(node.routes(), ["10.9.0.0/26 1", "10.9.4.0/26 6"], "80 is no sign of ours if another is configured");
}

#[test]
fn only_moves_from_or_to_this_node_cost_connections() {
    let mut node = Node::v4();
    node.up("cali1", 3);
    node.up("eth0", 1);
    node.up(device::VXLAN_V4, 5);
    let tunnel = slot(RouteClass::VxlanTunnel, Some(device::VXLAN_V4));
    let subnet = slot(RouteClass::VxlanSameSubnet, Some("eth0"));
    let local = slot(RouteClass::LocalWorkload, Some("cali1"));
    let key = key("10.65.0.1/32");
    node.table.set_route(&tunnel, key, Some(target(Some("10.0.0.2"))));
    node.apply();
    node.table.set_route(&subnet, key, Some(target(Some("10.0.0.2"))));
    node.apply();
    assert_eq!(node.routes(), ["10.65.0.1/32 1"]);
    assert_eq!(node.kernel.conntrack.flushed.len(), 0, "it may be the same workload, reached another way");
    node.table.set_route(&local, key, Some(target(None)));
    node.apply();
    assert_eq!(node.routes(), ["10.65.0.1/32 3"]);
    assert_eq!(node.kernel.conntrack.flushed.len(), 1);
    node.table.set_route(&local, key, None);
    node.apply();
    assert_eq!(node.routes(), ["10.65.0.1/32 1"]);
    assert_eq!(node.kernel.conntrack.flushed.len(), 2);
}

/// A step of a history.
#[derive(Clone, Debug)]
enum Step {
    Set(usize, usize, usize, Option<u8>),
    Link(usize, Option<(u32, bool)>),
    Refuse(u32, bool),
    Apply,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..CLASSES.len(), 0..INTERFACES.len(), 0..NETS.len(), prop::option::of(0..3u8))
            .prop_map(|(class, interface, net, gateway)| Step::Set(class, interface, net, gateway)),
        2 => (0..INTERFACES.len(), prop::option::of((1..9u32, any::<bool>())))
            .prop_map(|(interface, state)| Step::Link(interface, state)),
        1 => (1..9u32, any::<bool>()).prop_map(|(index, is_refused)| Step::Refuse(index, is_refused)),
        3 => Just(Step::Apply),
    ]
}

impl Node {
    fn take(&mut self, step: &Step) {
        match *step {
            Step::Set(class, interface, net, gateway) => {
                let class = CLASSES[class];
                let interface = (class != RouteClass::BlackholeVxlan).then(|| INTERFACES[interface]);
                let target = gateway.map(|last| match interface {
                    Some(_) => target(Some(&format!("10.0.0.{last}"))),
                    None => blackhole(),
                });
                self.table.set_route(&slot(class, interface), key(NETS[net]), target);
            }
            Step::Link(interface, state) => {
                let name: InterfaceName = INTERFACES[interface].parse().unwrap();
                let offset = u32::try_from(interface).expect("few") * 10;
                let new = state.map(|(index, is_up)| crate::links::Link { index: index + offset, is_up });
                if let Some(old) = self.links.get(name).filter(|old| Some(*old) != new) {
                    // The kernel drops the routes of an interface that goes down or away.
                    self.kernel.routing.routes.retain(|route| route.target.interface != Some(old.index));
                }
                self.link(match state {
                    Some((index, true)) => LinkEvent::Up { name, index: index + offset },
                    Some((index, false)) => LinkEvent::Down { name, index: index + offset },
                    None => LinkEvent::Gone { name },
                });
            }
            Step::Refuse(index, true) => {
                self.kernel.routing.broken_interfaces.insert(index);
            }
            Step::Refuse(index, false) => {
                self.kernel.routing.broken_interfaces.remove(&index);
            }
            Step::Apply => {
                self.apply();
            }
        }
    }
}

proptest! {
    #[test]
    fn the_end_does_not_depend_on_the_way(steps in prop::collection::vec(step(), 0..60)) {
        let config = RoutesConfig { grace_period: Duration::ZERO, ..RoutesConfig::default() };
        let mut node = Node::new(Family::V4, config.clone());
        let mut fresh = Node::new(Family::V4, config);
        for step in &steps {
            node.take(step);
            if !matches!(step, Step::Apply | Step::Refuse(..)) {
                fresh.take(step);
            }
        }
        node.kernel.routing.broken_interfaces.clear();
        node.apply();
        node.apply();
        fresh.apply();
        let sorted = |node: &Node| {
            let mut routes = node.kernel.routing.routes.clone();
            routes.sort();
            routes
        };
        prop_assert_eq!(sorted(&node), sorted(&fresh));
        node.kernel.reset_writes();
        node.kernel.sleep(Duration::from_secs(100));
        node.apply();
        prop_assert_eq!(node.kernel.writes().routes, 0);
    }
}
