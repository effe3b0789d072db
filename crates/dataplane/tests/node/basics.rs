//! Writes of a dataplane, and their timing.

use crate::common::{apply_until_in_sync, dataplane, kernel, pod, policy, profile, set, up, workload, workload_id};
use tortie_dataplane::fake::Writes;
use tortie_dataplane::{Awaited, Dataplane, EndpointStatus, StatusChange};
use tortie_iptables::{Backend, Table};
use tortie_model::Family;
use tortie_model::desired::DesiredUpdate;

const BACKENDS: [Backend; 2] = [Backend::Legacy, Backend::Nft];

fn updates() -> Vec<DesiredUpdate> {
    vec![
        set("s:clients", &["10.1.0.0/16", "fd01::/64"]),
        policy("a", "all()", Some("s:clients")),
        policy("b", "all()", None),
        profile("kns.default"),
        workload("one", pod("cali1", 1), &["a", "b"]),
        workload("two", pod("cali2", 2), &["a"]),
    ]
}

#[test]
fn nothing_is_written_before_both_gates_are_open() {
    let mut kernel = kernel(Backend::Nft);
    let mut dataplane = Dataplane::new(crate::common::config(Backend::Nft));
    updates().into_iter().for_each(|update| dataplane.on_update(update));
    let mut waiting_for = |dataplane: &mut Dataplane| {
        let report = dataplane.apply(&mut kernel);
        assert!(!report.applied);
        report.waiting_for
    };
    assert_eq!(waiting_for(&mut dataplane), [Awaited::Datastore, Awaited::Links]);
    dataplane.on_update(DesiredUpdate::InSync);
    assert_eq!(waiting_for(&mut dataplane), [Awaited::Links]);
    assert!(!dataplane.wants_apply(std::time::Duration::MAX));
    assert_eq!(kernel.writes(), Writes::default());

    dataplane.on_links_in_sync();
    assert!(dataplane.wants_apply(std::time::Duration::ZERO));
    assert!(dataplane.apply(&mut kernel).is_complete());
    // Chains of the workloads exist before their interfaces do.
    assert!(kernel.netfilter.tables_v4.rules(Table::Filter, "cali-tw-cali1").is_some());
    assert_eq!(kernel.routing.routes, []);
}

#[test]
fn a_first_apply_writes_all_and_a_second_nothing() {
    for backend in BACKENDS {
        let mut kernel = kernel(backend);
        let mut dataplane = dataplane(backend, updates(), [up("cali1", 1), up("cali2", 2)]);
        let report = dataplane.apply(&mut kernel);
        assert!(report.is_complete(), "{backend}: {:?}", report.problems);
        for family in Family::ALL {
            let chains = kernel.tables(family).chains(Table::Filter);
            for chain in ["cali-fw-cali1", "cali-tw-cali2", "cali-pi-gnp/a", "cali-pri-kns.default"] {
                assert!(chains.contains(&chain.to_owned()), "{backend} {family:?}: {chain} in {chains:?}");
            }
        }
        assert_eq!(kernel.netfilter.sets.members("cali40s:clients"), ["10.1.0.0/16"]);
        assert_eq!(kernel.netfilter.sets.members("cali60s:clients"), ["fd01::/64"]);
        assert_eq!(kernel.routing.routes.len(), 4);
        assert_eq!(kernel.neighbours.entries.len(), 2);
        let up = |name| StatusChange::Workload(workload_id(name), Some(EndpointStatus::Up));
        assert_eq!(report.statuses, [up("one"), up("two")]);

        kernel.reset_writes();
        assert_eq!(dataplane.apply(&mut kernel).statuses, []);
        assert_eq!(kernel.writes(), Writes::default(), "{backend}");
    }
}

#[test]
fn a_restart_with_the_same_state_writes_nothing() {
    for backend in BACKENDS {
        let mut kernel = kernel(backend);
        let links = || [up("cali1", 1), up("cali2", 2)];
        apply_until_in_sync(&mut dataplane(backend, updates(), links()), &mut kernel);
        kernel.reset_writes();
        let report = apply_until_in_sync(&mut dataplane(backend, updates(), links()), &mut kernel);
        assert!(report.is_complete());
        assert_eq!(kernel.writes(), Writes::default(), "{backend}");
    }
}

#[test]
fn after_removal_of_all_objects_only_the_base_configuration_is_left() {
    for backend in BACKENDS {
        let mut empty = kernel(backend);
        apply_until_in_sync(&mut dataplane(backend, [], []), &mut empty);

        let mut kernel = kernel(backend);
        let mut dataplane = dataplane(backend, updates(), []);
        apply_until_in_sync(&mut dataplane, &mut kernel);
        for name in ["one", "two"] {
            dataplane.on_update(DesiredUpdate::WorkloadEndpointRemove(workload_id(name)));
        }
        dataplane.on_update(DesiredUpdate::ProfileRemove("kns.default".into()));
        for name in ["a", "b"] {
            dataplane.on_update(DesiredUpdate::PolicyRemove(crate::common::policy_id(name)));
        }
        dataplane.on_update(DesiredUpdate::IpSetRemove("s:clients".into()));
        assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());
        assert_eq!(kernel.state(), empty.state(), "{backend}");
        assert_eq!(dataplane.workload_statuses().count(), 0);
    }
}
