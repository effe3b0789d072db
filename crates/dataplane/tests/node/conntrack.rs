//! An address is not assigned to another workload before the conntrack entries of the previous one
//! are deleted.

use std::time::Duration;

use tortie_dataplane::fake::FakeKernel;
use tortie_dataplane::{Clock, Dataplane, DataplaneProblem, EndpointStatus};
use tortie_iptables::Backend;
use tortie_model::desired::DesiredUpdate;

use crate::common::{apply_until_in_sync, dataplane, ip, kernel, pod, profile, texts, up, workload, workload_id};

/// A node on which the address of `old` moves to `new`, and whose conntrack entries cannot be
/// deleted.
fn moving() -> (Dataplane, FakeKernel) {
    let mut kernel = kernel(Backend::Nft);
    let updates = [profile("kns.default"), workload("old", pod("cali1", 1), &[])];
    let mut dataplane = dataplane(Backend::Nft, updates, [up("cali1", 7), up("cali2", 8), up("cali3", 9)]);
    assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());
    kernel.conntrack.unflushable.insert(ip("10.65.0.1"));
    dataplane.on_update(DesiredUpdate::WorkloadEndpointRemove(workload_id("old")));
    (dataplane, kernel)
}

fn routes(kernel: &FakeKernel) -> Vec<String> {
    let text = |route: &tortie_dataplane::Route| {
        format!("{} by {}", route.key.destination, route.target.interface.unwrap_or_default())
    };
    let mut routes: Vec<String> = kernel.routing.routes.iter().map(text).collect();
    routes.sort();
    routes
}

fn status(dataplane: &Dataplane, name: &str) -> Option<EndpointStatus> {
    let id = workload_id(name);
    dataplane.workload_statuses().find(|(other, _)| **other == id).map(|(_, status)| status)
}

#[test]
fn the_new_workload_waits_and_is_named_and_others_are_not_held_up() {
    let (mut dataplane, mut kernel) = moving();
    dataplane.on_update(workload("new", pod("cali2", 1), &[]));
    dataplane.on_update(workload("other", pod("cali3", 3), &[]));
    let report = dataplane.apply(&mut kernel);
    let texts = texts(&report.problems);
    assert!(matches!(report.problems[..], [DataplaneProblem::Conntrack { .. }]), "{texts:?}");
    assert!(texts[0].contains("10.65.0.1") && texts[0].contains("k8s/default/new/eth0"), "{texts:?}");
    assert_eq!(routes(&kernel), ["10.65.0.3/32 by 9", "fd00::1/128 by 8", "fd00::3/128 by 9"]);
    assert_eq!(status(&dataplane, "new"), Some(EndpointStatus::Down));
    assert_eq!(status(&dataplane, "other"), Some(EndpointStatus::Up));
    assert_eq!(kernel.writes().flushes, 1 + 1, "each address once");

    kernel.conntrack.unflushable.clear();
    assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());
    assert!(routes(&kernel).contains(&"10.65.0.1/32 by 8".to_owned()));
    assert_eq!(status(&dataplane, "new"), Some(EndpointStatus::Up));
}

#[test]
fn an_address_that_was_given_back_earlier_waits_as_well() {
    let (mut dataplane, mut kernel) = moving();
    let report = dataplane.apply(&mut kernel);
    let texts = texts(&report.problems);
    assert!(texts.len() == 1 && texts[0].contains("10.65.0.1"), "{texts:?}");
    dataplane.on_update(workload("new", pod("cali2", 1), &[]));
    dataplane.apply(&mut kernel);
    assert!(!routes(&kernel).contains(&"10.65.0.1/32 by 8".to_owned()));
    assert_eq!(status(&dataplane, "new"), Some(EndpointStatus::Down));
    // `new` is removed, and the next workload waits.
    dataplane.on_update(DesiredUpdate::WorkloadEndpointRemove(workload_id("new")));
    dataplane.apply(&mut kernel);
    dataplane.on_update(workload("third", pod("cali3", 1), &[]));
    dataplane.apply(&mut kernel);
    assert!(dataplane.problems()[0].to_string().contains("k8s/default/third/eth0"), "{:?}", dataplane.problems());
    kernel.conntrack.unflushable.clear();
    apply_until_in_sync(&mut dataplane, &mut kernel);
    assert!(routes(&kernel).contains(&"10.65.0.1/32 by 9".to_owned()));
}

#[test]
fn retries_back_off_regardless_of_other_changes() {
    let (mut dataplane, mut kernel) = moving();
    dataplane.on_update(workload("new", pod("cali2", 1), &[]));
    dataplane.apply(&mut kernel);
    let mut tried = Vec::new();
    let (start, mut before) = (kernel.now(), kernel.writes().flushes);
    while kernel.now() < start + Duration::from_secs(600) {
        dataplane.on_update(profile("kns.default"));
        let report = dataplane.apply(&mut kernel);
        assert_eq!(report.problems.len(), 1, "it stays reported between the attempts");
        if kernel.writes().flushes > before {
            before = kernel.writes().flushes;
            tried.push(kernel.now() - start);
        }
        assert!(report.next.is_some_and(|pause| pause <= Duration::from_secs(60)));
        kernel.sleep(Duration::from_millis(250));
    }
    let pauses: Vec<u64> = tried.windows(2).map(|pair| (pair[1] - pair[0]).as_secs()).collect();
    assert!(tried[0] <= Duration::from_millis(1300), "{tried:?}");
    assert!(pauses.is_sorted() && pauses[0] < 3 && pauses.last() >= Some(&59), "{pauses:?}");
}

#[test]
fn no_connections_are_deleted_while_there_is_a_route() {
    // The same interface still has the address, so the connections are its own.
    let mut kernel = kernel(Backend::Nft);
    let updates = [profile("kns.default"), workload("w", pod("cali1", 1), &[])];
    let mut dataplane = dataplane(Backend::Nft, updates, [up("cali1", 7)]);
    apply_until_in_sync(&mut dataplane, &mut kernel);
    kernel.conntrack.unflushable.insert(ip("10.65.0.1"));
    dataplane.on_update(workload("w", pod("cali1", 1), &["missing"]));
    apply_until_in_sync(&mut dataplane, &mut kernel);
    assert_eq!(kernel.writes().flushes, 0);
    assert_eq!(kernel.routing.routes.len(), 2);
}

#[test]
fn the_addresses_of_an_apply_cost_one_walk_and_other_routes_do_not_wait_for_it() {
    let mut kernel = kernel(Backend::Nft);
    let names: Vec<String> = (1..=200).map(|number| format!("w{number}")).collect();
    let old = names.iter().zip(1..).map(|(name, number)| workload(name, pod(&format!("cali{number}"), number), &[]));
    let links: Vec<_> = (1..=201).map(|number| up(&format!("cali{number}"), 100 + number)).collect();
    let updates: Vec<_> = std::iter::once(profile("kns.default")).chain(old).collect();
    let mut dataplane = dataplane(Backend::Nft, updates, links);
    assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());
    assert_eq!((kernel.conntrack.walks, kernel.routing.routes.len()), (0, 400));

    // One address moves, and cannot be flushed; a new one needs no deletion.
    kernel.conntrack.unflushable.insert(ip("10.65.0.1"));
    names.iter().for_each(|name| dataplane.on_update(DesiredUpdate::WorkloadEndpointRemove(workload_id(name))));
    dataplane.on_update(workload("heir", pod("cali2", 1), &[]));
    dataplane.on_update(workload("other", pod("cali201", 201), &[]));
    dataplane.apply(&mut kernel);
    assert_eq!(routes(&kernel), ["10.65.0.201/32 by 301", "fd00::1/128 by 102", "fd00::c9/128 by 301"]);
    assert_eq!((kernel.conntrack.walks, kernel.conntrack.flushed.len()), (2, 399), "one for each family");
    let walked = kernel.conntrack.walks;
    dataplane.apply(&mut kernel);
    assert_eq!(kernel.conntrack.walks, walked, "nothing is due");
}
