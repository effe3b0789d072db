//! Workloads that are identified by address.

use std::time::Duration;

use tortie_dataplane::fake::FakeKernel;
use tortie_dataplane::{AddressPlace, Clock, Dataplane, EndpointStatus, LinkEvent};
use tortie_iptables::{Backend, Table};
use tortie_model::Family;
use tortie_model::desired::DesiredUpdate;
use tortie_rules::WorkloadDispatch;

use crate::common::*;

fn by_address(links: impl IntoIterator<Item = LinkEvent>) -> Dataplane {
    let mut config = config(Backend::Nft);
    config.rules.workloads = WorkloadDispatch::Address;
    config.rules.workload_prefixes = vec!["veth".parse().expect("short"), "cni".parse().expect("short")];
    let mut dataplane = Dataplane::new(config);
    [profile("kns.default"), workload("a", pod("cali1", 1), &[]), workload("b", pod("cali2", 2), &[])]
        .into_iter()
        .for_each(|update| dataplane.on_update(update));
    links.into_iter().for_each(|event| dataplane.on_link(event));
    dataplane.on_update(DesiredUpdate::InSync);
    dataplane.on_links_in_sync();
    dataplane
}

fn place(interface: &str, port: Option<&str>, index: u32) -> AddressPlace {
    AddressPlace {
        interface: interface.parse().expect("an interface name"),
        port: port.map(|port| port.parse().expect("an interface name")),
        index,
    }
}

fn kernel_with(places: &[(&str, AddressPlace)]) -> FakeKernel {
    let mut kernel = kernel(Backend::Nft);
    kernel.neighbours.places = places.iter().map(|(address, place)| (ip(address), place.clone())).collect();
    kernel
}

/// Returns the rules for an address, of both directions.
fn rules(kernel: &FakeKernel, address: &str) -> Vec<String> {
    let saved = kernel.tables(Family::V4).saved(Table::Filter);
    let about = |line: &&str| line.contains(&format!("{address}/32 ")) || line.ends_with(&format!("{address}/32"));
    let without_comments = |line: &str| {
        let parts = line.split(" -m comment --comment ");
        parts.map(|part| part.rsplit_once('"').map_or(part, |(_, rest)| rest)).collect::<String>()
    };
    saved.lines().filter(about).map(without_comments).collect()
}

fn jumps_to(kernel: &FakeKernel, address: &str, target: &str) -> bool {
    rules(kernel, address).iter().any(|rule| rule.contains(target))
}

#[test]
fn an_address_is_denied_until_it_was_found_and_then_only_elsewhere() {
    let mut dataplane = by_address([up("veth1", 11)]);
    let mut kernel = kernel_with(&[]);
    let report = dataplane.apply(&mut kernel);
    let denied = rules(&kernel, "10.65.0.1");
    assert_eq!(denied.len(), 2, "{denied:?}");
    assert!(denied.iter().all(|rule| rule.contains("-j DROP")), "{denied:?}");
    assert!(report.next.is_some_and(|pause| pause < Duration::from_secs(1)), "{report:?}");

    kernel.neighbours.places.insert(ip("10.65.0.1"), place("veth1", None, 11));
    kernel.neighbours.places.insert(ip("fd00::1"), place("veth1", None, 11));
    dataplane.on_link(up("veth2", 12));
    let report = dataplane.apply(&mut kernel);
    assert!(jumps_to(&kernel, "10.65.0.1", "-i veth1 -g cali-fw-cali1"), "{:?}", rules(&kernel, "10.65.0.1"));
    assert!(jumps_to(&kernel, "10.65.0.1", "-o veth1 -g cali-tw-cali1"));
    assert_eq!(rules(&kernel, "10.65.0.1").len(), 4);
    assert!(!jumps_to(&kernel, "10.65.0.2", "-g"));
    let statuses: Vec<_> = dataplane.workload_statuses().map(|(_, status)| status).collect();
    assert_eq!(statuses, [EndpointStatus::Up, EndpointStatus::Down], "{report:?}");
    assert!(kernel.conntrack.flushed.is_empty() && kernel.routing.routes.is_empty());
}

#[test]
fn a_restart_writes_nothing_and_no_address_is_denied_meanwhile() {
    let places = [("10.65.0.1", place("veth1", None, 11)), ("10.65.0.2", place("veth2", None, 12))];
    let mut kernel = kernel_with(&places);
    let links = || [up("veth1", 11), up("veth2", 12)];
    by_address(links()).apply(&mut kernel);
    kernel.reset_writes();
    let state = kernel.state();
    by_address(links()).apply(&mut kernel);
    assert_eq!((kernel.writes().table_restores, kernel.writes().set_restores), (0, 0));
    assert_eq!(kernel.state(), state);
}

#[test]
fn a_replaced_interface_is_denied_until_its_connections_are_deleted() {
    let mut dataplane = by_address([up("veth1", 11), up("veth2", 12)]);
    let mut kernel = kernel_with(&[("10.65.0.1", place("veth1", None, 11)), ("10.65.0.2", place("veth2", None, 12))]);
    dataplane.apply(&mut kernel);
    // The same name, another interface.
    dataplane.on_link(LinkEvent::Gone { name: "veth1".parse().unwrap() });
    dataplane.on_link(up("veth1", 21));
    kernel.neighbours.places.insert(ip("10.65.0.1"), place("veth1", None, 21));
    kernel.conntrack.unflushable.insert(ip("10.65.0.1"));
    let report = dataplane.apply(&mut kernel);
    assert!(!jumps_to(&kernel, "10.65.0.1", "-g"));
    assert!(jumps_to(&kernel, "10.65.0.2", "-g"), "{report:?}");
    let report = apply_until_in_sync(&mut dataplane, &mut kernel);
    assert!(!jumps_to(&kernel, "10.65.0.1", "-g"));
    assert!(report.problems.iter().any(|problem| problem.to_string().contains("10.65.0.1")), "{report:?}");
    kernel.conntrack.unflushable.clear();
    apply_until_in_sync(&mut dataplane, &mut kernel);
    assert!(jumps_to(&kernel, "10.65.0.1", "-i veth1 -g"));
    assert_eq!(kernel.conntrack.flushed, [ip("10.65.0.1")]);
}

#[test]
fn an_address_that_comes_to_another_workload_loses_its_connections_while_it_is_denied() {
    let mut dataplane = by_address([up("veth1", 11), up("veth2", 12)]);
    let mut kernel = kernel_with(&[("10.65.0.1", place("veth1", None, 11)), ("10.65.0.2", place("veth2", None, 12))]);
    dataplane.apply(&mut kernel);
    dataplane.on_update(DesiredUpdate::WorkloadEndpointRemove(workload_id("a")));
    dataplane.on_update(workload("c", pod("cali3", 1), &[]));
    kernel.neighbours.places.insert(ip("10.65.0.1"), place("veth2", None, 12));
    dataplane.apply(&mut kernel);
    assert!(!jumps_to(&kernel, "10.65.0.1", "-g"));
    assert!(kernel.conntrack.flushed.contains(&ip("10.65.0.1")));
    apply_until_in_sync(&mut dataplane, &mut kernel);
    assert!(jumps_to(&kernel, "10.65.0.1", "-i veth2 -g cali-fw-cali3"));
}

#[test]
fn behind_a_bridge_the_port_counts_and_an_unfiltered_bridge_is_reported() {
    let links = [up("cni0", 10), up("veth1", 11), up("veth2", 12)];
    let places = [("10.65.0.1", place("cni0", Some("veth1"), 11)), ("10.65.0.2", place("cni0", Some("veth2"), 12))];
    let mut dataplane = by_address(links);
    let mut kernel = kernel_with(&places);
    let report = dataplane.apply(&mut kernel);
    assert!(report.problems.iter().any(tortie_dataplane::DataplaneProblem::is_degraded), "{report:?}");
    assert!(jumps_to(&kernel, "10.65.0.1", "-i cni0 -g"));
    kernel.sysctls.values.insert("net/bridge/bridge-nf-call-iptables".to_owned(), "1".to_owned());
    kernel.sleep(Duration::from_secs(11));
    let report = apply_until_in_sync(&mut dataplane, &mut kernel);
    assert!(!report.problems.iter().any(tortie_dataplane::DataplaneProblem::is_degraded), "{report:?}");
    let found = "-i cni0 -m physdev --physdev-in veth1 -g cali-fw-cali1";
    assert!(jumps_to(&kernel, "10.65.0.1", found), "{:?}", rules(&kernel, "10.65.0.1"));
}

#[test]
fn fields_that_need_a_separate_interface_are_reported_without_effect() {
    let mut dataplane = by_address([up("veth1", 11)]);
    let mut kernel = kernel_with(&[("10.65.0.1", place("veth1", None, 11))]);
    let extras = |qos: bool, prefixes: bool| {
        let mut endpoint = pod("cali1", 1);
        let qos = qos.then(|| tortie_model::QosControls { egress_bandwidth: 1_000_000, ..Default::default() });
        let allowed_source_prefixes = if prefixes { vec!["192.0.2.0/24".parse().unwrap()].into() } else { [].into() };
        endpoint.extras =
            Some(Box::new(tortie_model::WorkloadExtras { qos, allowed_source_prefixes, ..Default::default() }));
        endpoint
    };
    let warnings = |dataplane: &mut Dataplane, kernel: &mut FakeKernel| {
        let report = dataplane.apply(kernel);
        let problems = texts(&report.problems).into_iter();
        problems.filter(|problem| problem.contains("has no effect")).collect::<Vec<_>>()
    };
    dataplane.on_update(workload("a", extras(true, true), &[]));
    let problems = warnings(&mut dataplane, &mut kernel);
    assert!(problems.len() == 2 && problems[0].contains("bandwidth"), "{problems:?}");
    dataplane.on_update(workload("a", extras(false, true), &[]));
    assert_eq!(warnings(&mut dataplane, &mut kernel).len(), 1);
    dataplane.on_update(workload("a", extras(false, false), &[]));
    assert_eq!(warnings(&mut dataplane, &mut kernel), Vec::<String>::new());
}
