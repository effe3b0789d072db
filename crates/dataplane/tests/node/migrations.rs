//! Virtual machines that move to this node.

use std::time::Duration;

use tortie_dataplane::fake::FakeKernel;
use tortie_dataplane::{AnnouncementWatch, Clock, Dataplane, EndpointStatus, LinkEvent};
use tortie_iptables::Backend;
use tortie_model::WorkloadEndpoint;
use tortie_model::desired::{ComputedFields, DesiredUpdate, LiveMigrationRole};

use crate::common::{apply_until_in_sync, config, dataplane, kernel, pod, profile, up, workload, workload_id};

const SOURCE: Option<LiveMigrationRole> = Some(LiveMigrationRole::Source);
const TARGET: Option<LiveMigrationRole> = Some(LiveMigrationRole::Target);
const NORMAL: [u32; 2] = [1024; 2];
const ELEVATED: [u32; 2] = [512; 2];
const NONE: [u32; 0] = [];

fn machine(endpoint: WorkloadEndpoint, role: Option<LiveMigrationRole>) -> DesiredUpdate {
    let DesiredUpdate::WorkloadEndpoint(id, mut state) = workload("vm", endpoint, &[]) else { panic!("a workload") };
    let computed = ComputedFields {
        live_migration_role: role,
        live_migration_uid: role.map(|_| "uid").unwrap_or_default().into(),
        ..ComputedFields::default()
    };
    state.computed = Some(Box::new(computed));
    DesiredUpdate::WorkloadEndpoint(id, state)
}

fn role(role: Option<LiveMigrationRole>) -> DesiredUpdate {
    machine(pod("cali1", 1), role)
}

/// A node on which the virtual machine behind `cali1` has this role, and another workload runs.
fn node(begin: Option<LiveMigrationRole>, kernel: &mut FakeKernel) -> Dataplane {
    let updates = [profile("kns.default"), workload("other", pod("cali2", 2), &[]), role(begin)];
    let mut dataplane = dataplane(Backend::Nft, updates, [up("cali1", 7), up("cali2", 8)]);
    assert!(apply_until_in_sync(&mut dataplane, kernel).is_complete());
    dataplane
}

fn watches(dataplane: &Dataplane) -> Vec<AnnouncementWatch> {
    dataplane.announcement_watches().collect()
}

fn announce(dataplane: &mut Dataplane) {
    let [watch] = &watches(dataplane)[..] else { panic!("one is awaited") };
    dataplane.on_announcement(watch.number);
}

/// The metrics of the routes to the virtual machine, IPv4 and IPv6.
fn metrics(kernel: &FakeKernel) -> Vec<u32> {
    let of_machine = kernel.routing.routes.iter().filter(|route| route.target.interface == Some(7));
    of_machine.map(|route| route.key.metric).collect()
}

fn transitions(dataplane: &mut Dataplane) -> Vec<String> {
    let changes = dataplane.take_migrations();
    changes.iter().map(|change| format!("{} {} {}-{}", change.id, change.uid, change.from, change.to)).collect()
}

fn status(dataplane: &Dataplane) -> Option<EndpointStatus> {
    let id = workload_id("vm");
    dataplane.workload_statuses().find(|(other, _)| **other == id).map(|(_, status)| status)
}

#[test]
fn nothing_leads_to_a_machine_that_runs_elsewhere_until_it_announces_itself() {
    let mut kernel = kernel(Backend::Nft);
    let mut dataplane = node(TARGET, &mut kernel);
    assert_eq!(metrics(&kernel), NONE);
    assert_eq!(kernel.routing.routes.len(), 2, "others are reached");
    assert_eq!(kernel.neighbours.entries.len(), 1);
    assert_eq!(status(&dataplane), Some(EndpointStatus::Up), "its policy is in force");
    assert!(kernel.netfilter.tables_v4.rules(tortie_iptables::Table::Filter, "cali-tw-cali1").is_some());

    announce(&mut dataplane);
    assert!(dataplane.wants_apply(kernel.now()));
    assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());
    assert_eq!(metrics(&kernel), ELEVATED);
    assert_eq!(kernel.neighbours.entries.len(), 2);
    assert!(watches(&dataplane).is_empty());
    kernel.sleep(Duration::from_secs(3600));
    dataplane.apply(&mut kernel);
    assert_eq!(metrics(&kernel), ELEVATED, "for as long as the migration lasts");

    dataplane.on_update(role(None));
    let mut report = dataplane.apply(&mut kernel);
    let begin = kernel.now();
    while metrics(&kernel) == ELEVATED {
        kernel.sleep(report.next.expect("something is waited for"));
        report = dataplane.apply(&mut kernel);
    }
    let lasted = kernel.now() - begin;
    assert!((29..=31).contains(&lasted.as_secs()), "{lasted:?}");
    assert_eq!(metrics(&kernel), NORMAL);
    let id = "k8s/default/vm/eth0 uid";
    let expected = ["Base-Target", "Target-Live", "Live-TimeWait", "TimeWait-Base"].map(|step| format!("{id} {step}"));
    assert_eq!(transitions(&mut dataplane), expected);
    assert_eq!(kernel.conntrack.flushed, [] as [std::net::IpAddr; 0]);
}

#[test]
fn a_missed_announcement_is_made_up_for_by_the_end_of_the_migration() {
    let mut kernel = kernel(Backend::Nft);
    let mut dataplane = node(TARGET, &mut kernel);
    dataplane.on_update(role(None));
    dataplane.apply(&mut kernel);
    assert_eq!(metrics(&kernel), ELEVATED);
    kernel.sleep(Duration::from_secs(31));
    dataplane.apply(&mut kernel);
    assert_eq!(metrics(&kernel), NORMAL);
}

#[test]
fn a_machine_that_leaves_keeps_its_normal_routes() {
    let mut kernel = kernel(Backend::Nft);
    let mut dataplane = node(SOURCE, &mut kernel);
    assert_eq!(metrics(&kernel), NORMAL);
    let writes = kernel.writes();
    dataplane.on_update(role(None));
    dataplane.apply(&mut kernel);
    assert_eq!(kernel.writes(), writes);
    assert!(dataplane.take_migrations().is_empty());
}

#[test]
fn a_machine_that_goes_back_at_once_has_normal_routes_at_once() {
    let mut kernel = kernel(Backend::Nft);
    let mut dataplane = node(TARGET, &mut kernel);
    announce(&mut dataplane);
    dataplane.apply(&mut kernel);
    assert_eq!(metrics(&kernel), ELEVATED);
    dataplane.on_update(role(SOURCE));
    dataplane.apply(&mut kernel);
    assert_eq!(metrics(&kernel), NORMAL);
}

#[test]
fn routes_are_removed_when_the_migration_is_reported_after_the_endpoint() {
    let mut kernel = kernel(Backend::Nft);
    let mut dataplane = node(None, &mut kernel);
    assert_eq!(metrics(&kernel), NORMAL);
    dataplane.on_update(role(TARGET));
    dataplane.apply(&mut kernel);
    assert_eq!(metrics(&kernel), NONE);
}

#[test]
fn a_target_that_is_given_up_never_has_routes() {
    let mut kernel = kernel(Backend::Nft);
    let mut dataplane = node(TARGET, &mut kernel);
    let writes = kernel.writes().routes;
    dataplane.on_update(DesiredUpdate::WorkloadEndpointRemove(workload_id("vm")));
    dataplane.apply(&mut kernel);
    assert_eq!((metrics(&kernel), kernel.writes().routes), (vec![], writes));
    assert!(watches(&dataplane).is_empty());
}

#[test]
fn an_interface_that_is_replaced_is_watched_again() {
    let mut kernel = kernel(Backend::Nft);
    let mut dataplane = node(TARGET, &mut kernel);
    let [first] = &watches(&dataplane)[..] else { panic!("one is awaited") };
    assert_eq!((first.index, first.interface.as_str()), (7, "cali1"));
    dataplane.on_link(LinkEvent::Gone { name: "cali1".parse().unwrap() });
    assert!(watches(&dataplane).is_empty());
    dataplane.on_link(up("cali1", 9));
    let [second] = &watches(&dataplane)[..] else { panic!("one is awaited") };
    assert_eq!((second.index, second.number), (9, first.number));
    // After a change of its interface, the endpoint is expected on the new one.
    dataplane.on_link(up("cali3", 10));
    dataplane.on_update(machine(pod("cali3", 1), TARGET));
    assert_eq!(watches(&dataplane)[0].interface.as_str(), "cali3");
}

#[test]
fn a_restart_knows_the_machines_that_had_announced_themselves() {
    let mut kernel = kernel(Backend::Nft);
    let mut first = node(TARGET, &mut kernel);
    announce(&mut first);
    apply_until_in_sync(&mut first, &mut kernel);
    let before = kernel.writes();
    let mut second = node(TARGET, &mut kernel);
    assert_eq!(metrics(&kernel), ELEVATED);
    assert_eq!(kernel.writes(), before);
    assert!(watches(&second).is_empty());
    assert_eq!(transitions(&mut second).len(), 2);
    // The migration ends while no agent runs.
    let _ = node(None, &mut kernel);
    assert_eq!(metrics(&kernel), NORMAL);
}

#[test]
fn a_restart_does_not_take_other_routes_for_an_announcement() {
    let mut kernel = kernel(Backend::Nft);
    let _ = node(None, &mut kernel);
    assert_eq!(metrics(&kernel), NORMAL);
    let second = node(TARGET, &mut kernel);
    assert_eq!(watches(&second).len(), 1);
    assert_eq!(metrics(&kernel), NONE, "they go when the interface has had its grace");

    // If both metrics are equal, they prove nothing.
    let same = || {
        let mut config = config(Backend::Nft);
        config.routes.elevated_metric_v4 = config.routes.metric_v4;
        config.routes.elevated_metric_v6 = config.routes.metric_v6;
        let mut dataplane = Dataplane::new(config);
        [up("cali1", 7), up("cali2", 8)].into_iter().for_each(|event| dataplane.on_link(event));
        dataplane.on_links_in_sync();
        dataplane
    };
    for begin in [None, TARGET] {
        let mut dataplane = same();
        dataplane.on_update(role(begin));
        dataplane.on_update(DesiredUpdate::InSync);
        apply_until_in_sync(&mut dataplane, &mut kernel);
        assert_eq!(watches(&dataplane).len(), usize::from(begin.is_some()));
    }
}
