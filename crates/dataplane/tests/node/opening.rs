//! Nothing leads to a workload before its policy is in force.

use tortie_dataplane::fake::{FakeKernel, Writes};
use tortie_dataplane::{Dataplane, EndpointStatus};
use tortie_iptables::{Backend, Table};
use tortie_model::Family;
use tortie_model::desired::DesiredUpdate;

use crate::common::{
    apply_until_in_sync, cidr, dataplane, host, host_endpoint, ip, kernel, pod, policy, profile, up, workload,
    workload_id,
};

const BACKENDS: [Backend; 2] = [Backend::Legacy, Backend::Nft];

fn updates() -> Vec<DesiredUpdate> {
    vec![
        profile("kns.default"),
        policy("a", "all()", None),
        workload("w", pod("cali1", 1), &["a"]),
        host("h", host_endpoint(Some("eth0"), &[]), &[]),
    ]
}

fn start(backend: Backend) -> Dataplane {
    dataplane(backend, updates(), [up("eth0", 1), up("cali1", 7), up("cali2", 8)])
}

/// Returns the objects that lead to workloads in a family: routes, neighbour entries, and sysctls
/// that differ from the kernel's defaults.
fn open_paths(kernel: &FakeKernel, family: Family) -> Vec<String> {
    let of_family = |address: std::net::IpAddr| address.is_ipv4() == (family == Family::V4);
    let routes = kernel.routing.routes.iter().filter(|route| of_family(route.key.destination.address()));
    let mut open_paths: Vec<String> = routes
        .map(|route| format!("{} by {}", route.key.destination, route.target.interface.unwrap_or_default()))
        .collect();
    open_paths.extend(
        kernel.neighbours.entries.keys().filter(|key| of_family(key.1)).map(|key| format!("neighbour {}", key.1)),
    );
    let untouched = crate::common::kernel(Backend::Nft).sysctls.values;
    let folder = if family == Family::V4 { "net/ipv4" } else { "net/ipv6" };
    let changed = kernel.sysctls.values.iter().filter(|(path, value)| untouched.get(*path) != Some(*value));
    open_paths
        .extend(changed.filter(|(path, _)| path.starts_with(folder)).map(|(path, value)| format!("{path}={value}")));
    open_paths.sort();
    open_paths
}

fn status(dataplane: &Dataplane, name: &str) -> Option<EndpointStatus> {
    let id = workload_id(name);
    dataplane.workload_statuses().find(|(other, _)| **other == id).map(|(_, status)| status)
}

fn tables(kernel: &mut FakeKernel, family: Family) -> &mut tortie_iptables::fake::FakeKernel {
    match family {
        Family::V4 => &mut kernel.netfilter.tables_v4,
        Family::V6 => &mut kernel.netfilter.tables_v6,
    }
}

type Fault = fn(&mut FakeKernel, Family);

/// Faults, each of a whole family.
const FAULTS: [(&str, Fault); 7] = [
    ("restores fail", |kernel, family| tables(kernel, family).fail_restores(usize::MAX)),
    ("saves fail", |kernel, family| {
        tables(kernel, family).fail_saves(usize::MAX);
        must_be_read(kernel);
    }),
    ("saves are cut off", |kernel, family| {
        tables(kernel, family).truncate_saves(usize::MAX);
        must_be_read(kernel);
    }),
    ("filter is unreadable", |kernel, family| tables(kernel, family).set_incompatible(Table::Filter, true)),
    ("raw is unreadable", |kernel, family| tables(kernel, family).set_incompatible(Table::Raw, true)),
    ("mangle is unreadable", |kernel, family| tables(kernel, family).set_incompatible(Table::Mangle, true)),
    ("programs cannot be run", |kernel, family| {
        let program = if family == Family::V4 { "iptables-" } else { "ip6tables-" };
        kernel.netfilter.not_runnable.push(program.to_owned());
    }),
];

/// Makes earlier readings invalid, so that the tables must be read again.
fn must_be_read(kernel: &mut FakeKernel) {
    Family::ALL.into_iter().for_each(|family| tables(kernel, family).hide_generation(true));
}

fn repair(kernel: &mut FakeKernel) {
    for family in Family::ALL {
        let tables = tables(kernel, family);
        tables.behave();
        Table::ALL.into_iter().for_each(|table| tables.set_incompatible(table, false));
    }
    kernel.netfilter.not_runnable.clear();
}

#[test]
fn nothing_of_a_family_is_opened_before_its_policy_is_in_force_and_the_other_is_not_held_up() {
    for backend in BACKENDS {
        for (case, fault) in FAULTS {
            // Before the first write, a listing has nothing that could be cut off.
            if backend == Backend::Nft && case == "saves are cut off" {
                continue;
            }
            for (broken, other) in [(Family::V4, Family::V6), (Family::V6, Family::V4)] {
                let case = format!("{backend}: {broken:?}: {case}");
                let mut kernel = kernel(backend);
                fault(&mut kernel, broken);
                let mut dataplane = start(backend);
                for _ in 0..3 {
                    let report = dataplane.apply(&mut kernel);
                    assert!(!report.enforced(), "{case}");
                    assert_eq!(report.unenforced, [broken], "{case}");
                    assert!(report.next.is_some_and(|pause| pause <= std::time::Duration::from_secs(10)), "{case}");
                    assert_eq!(open_paths(&kernel, broken), [] as [&str; 0], "{case}");
                    assert!(open_paths(&kernel, other).len() > 3, "{case}: {:?}", open_paths(&kernel, other));
                    assert_eq!(status(&dataplane, "w"), Some(EndpointStatus::Down), "{case}");
                    let hosts: Vec<_> = dataplane.host_statuses().map(|(_, status)| status).collect();
                    assert_eq!(hosts, [EndpointStatus::Down], "{case}");
                }
                repair(&mut kernel);
                let report = apply_until_in_sync(&mut dataplane, &mut kernel);
                assert!(report.is_complete() && report.enforced(), "{case}: {report:?}");
                assert!(open_paths(&kernel, broken).len() > 3, "{case}");
                assert_eq!(status(&dataplane, "w"), Some(EndpointStatus::Up), "{case}");
            }
        }
    }
}

#[test]
fn without_any_program_nothing_is_touched() {
    let mut kernel = kernel(Backend::Nft);
    kernel.netfilter.not_runnable.push(String::new());
    let mut dataplane = start(Backend::Nft);
    let report = dataplane.apply(&mut kernel);
    assert_eq!(report.unenforced, Family::ALL);
    assert_eq!(kernel.writes(), Writes::default());

    // Sets that cannot be listed may hold anything, so they count as much as tables.
    kernel.netfilter.not_runnable = vec!["ipset".to_owned()];
    dataplane.apply(&mut kernel);
    assert_eq!((kernel.writes().routes, kernel.writes().sysctls, kernel.writes().neighbours), (0, 0, 0));
    kernel.netfilter.not_runnable.clear();
    assert!(apply_until_in_sync(&mut dataplane, &mut kernel).enforced());
    assert_eq!(kernel.routing.routes.len(), 2);
}

#[test]
fn a_table_in_which_nothing_can_be_denied_holds_nothing_up() {
    let mut kernel = kernel(Backend::Nft);
    kernel.netfilter.tables_v4.set_incompatible(Table::Nat, true);
    let mut dataplane = start(Backend::Nft);
    let report = dataplane.apply(&mut kernel);
    assert_eq!(report.unenforced, []);
    assert!(!report.enforced(), "a table failed as a whole");
    assert_eq!(kernel.routing.routes.len(), 2);
}

#[test]
fn policy_left_by_an_earlier_run_is_enough_to_open() {
    for backend in BACKENDS {
        let mut kernel = kernel(backend);
        apply_until_in_sync(&mut start(backend), &mut kernel);
        let before = kernel.state();
        kernel.routing.routes.clear();
        kernel.netfilter.tables_v4.fail_restores(usize::MAX);
        assert!(start(backend).apply(&mut kernel).enforced(), "{backend}");
        assert_eq!(kernel.state(), before, "{backend}");

        // The gate stays closed if the policy in the kernel differs from the desired one.
        kernel.routing.routes.clear();
        let mut other = start(backend);
        other.on_update(policy("a", "all()", Some("s:none")));
        other.apply(&mut kernel);
        assert!(kernel.routing.routes.iter().all(|route| route.key.destination.family() == Family::V6), "{backend}");
    }
}

#[test]
fn a_new_workload_is_not_reached_while_its_chains_cannot_be_written() {
    for backend in BACKENDS {
        for (case, fault) in FAULTS {
            let mut kernel = kernel(backend);
            let mut dataplane = start(backend);
            apply_until_in_sync(&mut dataplane, &mut kernel);
            let before = open_paths(&kernel, Family::V4);

            fault(&mut kernel, Family::V4);
            if case.starts_with("raw") || case.starts_with("mangle") {
                // These tables are read again only if something changes in them, or at the refresh
                // interval.
                tortie_dataplane::Clock::sleep(&mut kernel, std::time::Duration::from_secs(600));
            }
            dataplane.on_update(workload("new", pod("cali2", 2), &["a"]));
            let report = dataplane.apply(&mut kernel);
            assert_eq!(report.unenforced, [Family::V4], "{backend}: {case}");
            let after = open_paths(&kernel, Family::V4);
            let opened: Vec<_> = after.iter().filter(|path| path.contains("10.65.0.2")).collect();
            assert!(opened.is_empty(), "{backend}: {case}: {opened:?}");
            assert!(before.iter().all(|path| after.contains(path)), "{backend}: {case}: the others stay");
            assert!(open_paths(&kernel, Family::V6).iter().any(|path| path.contains("fd00::2")), "{backend}: {case}");
            assert_eq!(status(&dataplane, "new"), Some(EndpointStatus::Down));
            assert_eq!(status(&dataplane, "w"), Some(EndpointStatus::Up));

            // Routes that are no longer desired are removed all the same.
            dataplane.on_update(DesiredUpdate::WorkloadEndpointRemove(workload_id("w")));
            dataplane.apply(&mut kernel);
            assert!(!kernel.routing.routes.iter().any(|route| route.key.destination == cidr("10.65.0.1/32")), "{case}");
            assert!(kernel.conntrack.flushed.contains(&ip("10.65.0.1")));

            repair(&mut kernel);
            assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete(), "{backend}: {case}");
            assert!(open_paths(&kernel, Family::V4).contains(&"10.65.0.2/32 by 8".to_owned()), "{backend}: {case}");
            assert_eq!(status(&dataplane, "new"), Some(EndpointStatus::Up));
        }
    }
}

#[test]
fn an_address_that_moves_is_taken_from_the_old_workload_but_not_given_to_the_new_one_before_its_policy() {
    let mut kernel = kernel(Backend::Nft);
    let mut dataplane = start(Backend::Nft);
    apply_until_in_sync(&mut dataplane, &mut kernel);
    kernel.netfilter.tables_v4.fail_restores(usize::MAX);
    // For a moment both claim the address: its route stays.
    dataplane.on_update(workload("new", pod("cali2", 1), &["a"]));
    dataplane.apply(&mut kernel);
    assert!(open_paths(&kernel, Family::V4).contains(&"10.65.0.1/32 by 7".to_owned()));
    assert!(open_paths(&kernel, Family::V6).contains(&"fd00::1/128 by 8".to_owned()));

    dataplane.on_update(DesiredUpdate::WorkloadEndpointRemove(workload_id("w")));
    dataplane.apply(&mut kernel);
    assert!(!kernel.routing.routes.iter().any(|route| route.key.destination == cidr("10.65.0.1/32")));

    kernel.netfilter.tables_v4.behave();
    assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());
    assert!(open_paths(&kernel, Family::V4).contains(&"10.65.0.1/32 by 8".to_owned()));
    assert!(kernel.conntrack.flushed.contains(&ip("10.65.0.1")), "conntrack entries of the old workload are deleted");
}

#[test]
fn routes_stay_but_are_not_recreated_while_policy_cannot_be_changed() {
    let mut kernel = kernel(Backend::Nft);
    let mut dataplane = start(Backend::Nft);
    apply_until_in_sync(&mut dataplane, &mut kernel);
    let before = kernel.routing.routes.clone();
    for family in Family::ALL {
        tables(&mut kernel, family).fail_restores(usize::MAX);
    }
    dataplane.on_update(policy("b", "all()", None));
    dataplane.on_update(workload("w", pod("cali1", 1), &["b"]));
    dataplane.apply(&mut kernel);
    assert_eq!(kernel.routing.routes, before);
    assert_eq!(status(&dataplane, "w"), Some(EndpointStatus::Down));

    // The interface was down for a moment, and the kernel dropped its routes.
    kernel.routing.routes.clear();
    dataplane.on_link(tortie_dataplane::LinkEvent::Down { name: "cali1".parse().unwrap(), index: 7 });
    dataplane.on_link(up("cali1", 7));
    dataplane.apply(&mut kernel);
    assert_eq!(kernel.routing.routes, []);
    repair(&mut kernel);
    apply_until_in_sync(&mut dataplane, &mut kernel);
    assert_eq!(kernel.routing.routes.len(), 2);
}
