//! Routes whose metric changes.

use std::collections::BTreeSet;

use super::{GRACE, Node, RouteProtocol, foreign};
use crate::config::{RoutePriority, RoutesConfig};
use crate::fake::FakeKernel;
use crate::kernel::Clock;
use crate::route::{Route, RouteKey};
use crate::routes::Ownership;
use tortie_iptables::InterfaceName;
use tortie_model::Family;

use RoutePriority::{Elevated, Normal};

const ADDRESS: &[&str] = &["10.65.0.1/32"];

fn node(priority: RoutePriority) -> Node {
    let mut node = Node::v4();
    node.up("cali1", 7);
    node.up("cali2", 8);
    node.prioritize("cali1", ADDRESS, priority);
    assert_eq!(node.apply(), []);
    node
}

/// Metric and interface of each route.
fn metrics(kernel: &FakeKernel) -> Vec<(u32, u32)> {
    let mut metrics: Vec<(u32, u32)> = kernel
        .routing
        .routes
        .iter()
        .map(|route| (route.key.metric, route.target.interface.unwrap_or_default()))
        .collect();
    metrics.sort_unstable();
    metrics
}

#[test]
fn a_route_stays_until_its_replacement_with_the_new_metric_exists() {
    for (old, new, [before, after]) in [(Elevated, Normal, [512, 1024]), (Normal, Elevated, [1024, 512])] {
        let mut node = node(old);
        assert_eq!(metrics(&node.kernel), [(before, 7)]);
        node.kernel.routing.broken_interfaces.insert(7);
        node.prioritize("cali1", ADDRESS, new);
        assert_eq!(node.apply().len(), 1);
        assert_eq!(metrics(&node.kernel), [(before, 7)]);
        node.kernel.routing.broken_interfaces.clear();
        assert_eq!(node.apply(), []);
        assert_eq!(metrics(&node.kernel), [(after, 7)]);
        assert_eq!(node.kernel.conntrack.flushed, [] as [std::net::IpAddr; 0], "its connections go on");
        assert_eq!(node.kernel.conntrack.marked, BTreeSet::new());
    }
}

#[test]
fn a_route_stays_as_long_as_the_new_one_has_to_wait_for_policy() {
    let mut node = node(Elevated);
    node.prioritize("cali1", ADDRESS, Normal);
    let held: BTreeSet<InterfaceName> = [InterfaceName::from_static("cali1")].into();
    let config = node.config.clone();
    let ownership = Ownership {
        links: &node.links,
        workload_prefixes: &super::PREFIXES,
        config: &config,
        bgp_peers: [false; 2],
        device: None,
    };
    node.table.apply(&mut node.kernel, &node.links, &ownership, &held, &mut Vec::new());
    assert_eq!(metrics(&node.kernel), [(512, 7)]);
    assert_eq!(node.apply(), []);
    assert_eq!(metrics(&node.kernel), [(1024, 7)]);
}

#[test]
fn of_two_metrics_that_an_earlier_process_left_the_wanted_one_stays() {
    let mut first = node(Elevated);
    let mut node = node(Normal);
    node.kernel.routing.routes.append(&mut first.kernel.routing.routes);
    let mut second = Node::new(Family::V4, RoutesConfig::default());
    second.kernel = node.kernel;
    second.up("cali1", 7);
    second.set("cali1", ADDRESS);
    assert_eq!(second.apply(), []);
    assert_eq!(metrics(&second.kernel), [(1024, 7)]);
    assert_eq!(second.kernel.writes().routes, 1 + 1, "nothing but the one that is too many is touched");
}

#[test]
fn an_address_that_changes_hands_leaves_its_old_metric_first() {
    let mut node = node(Elevated);
    node.kernel.routing.broken_interfaces.insert(8);
    node.set("cali1", &[]);
    node.set("cali2", ADDRESS);
    assert_eq!(node.apply().len(), 1);
    assert_eq!(metrics(&node.kernel), []);
    node.kernel.routing.broken_interfaces.clear();
    assert_eq!(node.apply(), []);
    assert_eq!(metrics(&node.kernel), [(1024, 8)]);
    assert_eq!(node.kernel.conntrack.flushed.len(), 1);
}

#[test]
fn formerly_desired_routes_are_removed_without_grace_period() {
    let mut node = node(Normal);
    let stray = Route {
        key: RouteKey { metric: 0, ..foreign("10.65.0.9/32", 0, RouteProtocol::BOOT).key },
        target: foreign("10.65.0.9/32", 8, RouteProtocol::BOOT).target,
    };
    node.kernel.routing.routes.push(stray);
    node.up("cali2", 8);
    node.table.on_link("cali2".parse().unwrap());
    node.set("cali1", &[]);
    assert_eq!(node.apply(), []);
    assert_eq!(metrics(&node.kernel), [(0, 8)], "of the other interface no endpoint is known yet");
    node.kernel.sleep(GRACE);
    assert_eq!(node.apply(), []);
    assert_eq!(metrics(&node.kernel), []);
}
