use std::net::IpAddr;
use std::sync::Arc;

use tortie_labelindex::SetChange;
use tortie_model::{EndpointSlice, EndpointSlicePort, IpSetId, NamedProtocol, NamespacedName};

use super::ServiceIndex;
use crate::scanner::ServiceSet;

fn name(name: &str) -> NamespacedName {
    NamespacedName::new("ns", name)
}

fn slice(service: &str, addresses: &[&str], port: Option<u16>) -> Option<Arc<EndpointSlice>> {
    Some(Arc::new(EndpointSlice {
        service: Some(name(service)),
        addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
        ports: [EndpointSlicePort { name: "".into(), protocol: NamedProtocol::Tcp, port }].into(),
        not_ready: Box::default(),
        draining: Box::default(),
    }))
}

fn set(service: &str, with_ports: bool) -> (IpSetId, ServiceSet) {
    (IpSetId::new(format!("{service}:{with_ports}")), ServiceSet { service: name(service), with_ports })
}

fn flush(index: &mut ServiceIndex) -> Vec<String> {
    flush_without(index, &[])
}

/// Flushes while these are addresses of pods of other namespaces.
fn flush_without(index: &mut ServiceIndex, foreign: &[&str]) -> Vec<String> {
    let mut out = Vec::new();
    let is_foreign = |namespace: &str, address: IpAddr| {
        assert_eq!(namespace, "ns");
        foreign.iter().any(|other| *other == address.to_string())
    };
    index.flush(is_foreign, &mut out);
    out.into_iter()
        .map(|change| match change {
            SetChange::Full(update) => format!("={} {:?}", update.id, update.members),
            SetChange::Delta(delta) => format!("~{} +{:?} -{:?}", delta.id, delta.added, delta.removed),
            SetChange::Remove(id) => format!("-{id}"),
        })
        .collect()
}

#[test]
fn slices_of_endpoints_count_while_their_service_has_no_other() {
    let mut index = ServiceIndex::default();
    let (id, set) = set("a", false);
    let (of_endpoints, own) = (name("a").slice_of_endpoints(0), name("a-x"));
    index.add_set(id.clone(), &set);
    index.on_slice(&of_endpoints, slice("a", &["10.0.0.1"], Some(80)));
    assert_eq!(flush(&mut index), ["=a:false Nets([10.0.0.1/32])"]);
    index.on_slice(&own, slice("a", &["10.0.0.2"], Some(80)));
    assert_eq!(flush(&mut index), ["~a:false +Nets([10.0.0.2/32]) -Nets([10.0.0.1/32])"]);
    // A set that rules begin to use later has the same members.
    let (with_ports, set_with_ports) = self::set("a", true);
    index.add_set(with_ports.clone(), &set_with_ports);
    let members = flush(&mut index);
    assert!(members.len() == 1 && members[0].contains("10.0.0.2") && !members[0].contains("10.0.0.1"), "{members:?}");
    index.remove_set(with_ports, &set_with_ports);
    flush(&mut index);
    // The last slice of its own belongs to another service from now on.
    index.on_slice(&own, slice("b", &["10.0.0.2"], Some(80)));
    assert_eq!(flush(&mut index), ["~a:false +Nets([10.0.0.1/32]) -Nets([10.0.0.2/32])"]);
    index.on_slice(&own, None);
    index.on_slice(&of_endpoints, None);
    index.remove_set(id, &set);
    assert_eq!(flush(&mut index), ["-a:false"]);
    assert!(index.is_empty());
}

#[test]
fn slices_of_endpoints_are_reconsidered_only_with_the_first_and_the_last_other_slice() {
    let mut index = ServiceIndex::default();
    let (id, set) = set("a", false);
    index.add_set(id, &set);
    let of_endpoints = [0, 1].map(|subset| name("a").slice_of_endpoints(subset));
    for name in &of_endpoints {
        index.on_slice(name, slice("a", &["10.0.0.1"], Some(80)));
    }
    flush(&mut index);
    let (first, second) = (name("a-x"), name("a-y"));
    let mut dirty_after = |name: &NamespacedName, slice| {
        index.on_slice(name, slice);
        let dirty = index.dirty_slices.len();
        flush(&mut index);
        dirty
    };
    assert_eq!(dirty_after(&first, slice("a", &["10.0.0.2"], Some(80))), 3);
    assert_eq!(dirty_after(&second, slice("a", &["10.0.0.3"], Some(80))), 1);
    assert_eq!(dirty_after(&first, slice("a", &["10.0.0.4"], Some(80))), 1);
    assert_eq!(dirty_after(&first, None), 1);
    assert_eq!(dirty_after(&of_endpoints[0], slice("a", &["10.0.0.5"], Some(80))), 1);
    assert_eq!(dirty_after(&second, slice("a", &["10.0.0.6"], Some(80))), 1);
    assert_eq!(dirty_after(&second, None), 3);
    assert_eq!(index.applied.len(), 2);
}

#[test]
fn readiness_causes_no_work() {
    let mut index = ServiceIndex::default();
    let (id, set) = set("a", true);
    index.add_set(id.clone(), &set);
    let one = name("one");
    index.on_slice(&one, slice("a", &["10.0.0.1", "10.0.0.2"], Some(80)));
    flush(&mut index);
    let mut value = EndpointSlice::clone(&index.slices[&one]);
    value.not_ready = ["10.0.0.1".parse().unwrap()].into();
    value.draining = value.not_ready.clone();
    index.on_slice(&one, Some(Arc::new(value.clone())));
    assert!(index.dirty.is_empty() && index.dirty_slices.is_empty());
    assert_eq!(*index.slices[&one], value);
    value.addresses = ["10.0.0.2".parse().unwrap()].into();
    index.on_slice(&one, Some(Arc::new(value)));
    assert_eq!(flush(&mut index), ["~a:true +IpPorts([]) -IpPorts([10.0.0.1,tcp:80])"]);
    index.on_slice(&one, None);
    index.remove_set(id, &set);
    flush(&mut index);
    assert!(index.is_empty());
}

#[test]
fn a_slice_that_changes_service_moves_its_members() {
    let mut index = ServiceIndex::default();
    for service in ["a", "b"] {
        let (id, set) = set(service, false);
        index.add_set(id, &set);
    }
    index.on_slice(&name("slice"), slice("a", &["10.0.0.1"], Some(80)));
    assert_eq!(flush(&mut index), ["=a:false Nets([10.0.0.1/32])", "=b:false Nets([])"]);
    index.on_slice(&name("slice"), slice("b", &["10.0.0.1"], Some(80)));
    let moved = ["~a:false +Nets([]) -Nets([10.0.0.1/32])", "~b:false +Nets([10.0.0.1/32]) -Nets([])"];
    assert_eq!(flush(&mut index), moved);
    index.on_slice(&name("slice"), None);
    flush(&mut index);
    for service in ["a", "b"] {
        let (id, set) = set(service, false);
        index.remove_set(id, &set);
    }
    assert_eq!(flush(&mut index), ["-a:false", "-b:false"]);
    assert!(index.is_empty());
}

#[test]
fn ports_without_a_number_contribute_nothing() {
    let mut index = ServiceIndex::default();
    let (id, set) = set("a", true);
    index.add_set(id, &set);
    index.on_slice(&name("one"), slice("a", &["10.0.0.1", "fd00::1"], Some(80)));
    index.on_slice(&name("two"), slice("a", &["10.0.0.2"], None));
    assert_eq!(flush(&mut index), ["=a:true IpPorts([10.0.0.1,tcp:80, fd00::1,tcp:80])"]);
}

#[test]
fn an_address_in_two_slices_stays_until_both_are_removed() {
    let mut index = ServiceIndex::default();
    let (id, set) = set("a", false);
    index.add_set(id, &set);
    index.on_slice(&name("one"), slice("a", &["10.0.0.1"], None));
    index.on_slice(&name("two"), slice("a", &["10.0.0.1"], None));
    flush(&mut index);
    index.on_slice(&name("one"), None);
    assert!(flush(&mut index).is_empty());
    index.on_slice(&name("two"), None);
    assert_eq!(flush(&mut index), ["~a:false +Nets([]) -Nets([10.0.0.1/32])"]);
}

#[test]
fn addresses_of_foreign_pods_are_no_members_while_they_have_them() {
    let mut index = ServiceIndex::default();
    for with_ports in [false, true] {
        let (id, set) = set("a", with_ports);
        index.add_set(id, &set);
    }
    index.on_slice(&name("one"), slice("a", &["10.0.0.1", "10.0.0.2", "10.0.0.3"], Some(80)));
    index.on_slice(&name("other"), slice("b", &["10.0.0.3"], Some(80)));
    let updates = flush_without(&mut index, &["10.0.0.2", "10.0.0.3"]);
    assert_eq!(updates, ["=a:false Nets([10.0.0.1/32])", "=a:true IpPorts([10.0.0.1,tcp:80])"]);
    let problems: Vec<String> = index.problems().map(|problem| problem.to_string()).collect();
    let reason = "endpoints: 10.0.0.2 is the address of a pod of another namespace; 2 such addresses are not used";
    assert_eq!(problems, [format!("endpoint slice ns/one: {reason}")]);
    // An address that no slice of a used service names causes no calculation.
    index.on_address("10.0.0.9".parse().unwrap());
    assert!(index.dirty_slices.is_empty());
    index.on_address("10.0.0.2".parse().unwrap());
    let updates = flush_without(&mut index, &["10.0.0.3"]);
    assert_eq!(
        updates,
        ["~a:false +Nets([10.0.0.2/32]) -Nets([])", "~a:true +IpPorts([10.0.0.2,tcp:80]) -IpPorts([])"]
    );
    for with_ports in [false, true] {
        let (id, set) = set("a", with_ports);
        index.remove_set(id, &set);
    }
    flush(&mut index);
    assert_eq!(index.problems().count(), 0);
    for slice in ["one", "other"] {
        index.on_slice(&name(slice), None);
    }
    flush(&mut index);
    assert!(index.is_empty());
}
