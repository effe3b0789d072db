//! Encrypted tunnels to other nodes.

use std::collections::BTreeSet;

use tortie_dataplane::fake::FakeKernel;
use tortie_dataplane::{
    Device, DeviceKind, Route, RouteKey, RouteKind, RouteProtocol, RouteScope, RouteTableIndex, RouteTarget,
    RoutingRule,
};
use tortie_iptables::Backend;
use tortie_model::Family;

use crate::common::{apply_until_in_sync, cidr, dataplane, kernel, up};

const TABLE: RouteTableIndex = RouteTableIndex(1);

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
    kernel.devices.insert(name.to_owned(), (device, BTreeSet::new()));
}

#[test]
fn what_is_left_of_it_goes_when_it_is_switched_off() {
    let mut kernel = kernel(Backend::Nft);
    let foreign = rule(Family::V4, RouteTableIndex(2));
    kernel.routing_rules = vec![rule(Family::V4, TABLE), rule(Family::V6, TABLE), foreign];
    add_device(&mut kernel, "wireguard.cali", 20, "wireguard");
    add_device(&mut kernel, "wg-v6.cali", 21, "dummy");
    let throw = route("10.65.0.0/26", RouteKind::Throw, None);
    let tunnel = route("10.65.1.0/26", RouteKind::Unicast, Some(20));
    let others = route("192.0.2.0/24", RouteKind::Unicast, Some(1));
    kernel.other_routes.insert(TABLE, vec![throw, tunnel, others.clone()]);
    let links = [up("eth0", 1), up("wireguard.cali", 20), up("wg-v6.cali", 21)];
    let mut dataplane = dataplane(Backend::Nft, [], links);
    assert_eq!(apply_until_in_sync(&mut dataplane, &mut kernel).problems, []);
    assert_eq!(kernel.routing_rules, [foreign]);
    assert_eq!(kernel.other_routes[&TABLE], [others]);
    let devices: Vec<&str> = kernel.devices.keys().map(String::as_str).collect();
    assert_eq!(devices, ["wg-v6.cali"], "what is no WireGuard device is not ours");
}
