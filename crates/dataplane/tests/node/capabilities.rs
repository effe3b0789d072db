//! Kernels that lack subsystems.

use std::time::Duration;

use tortie_dataplane::fake::FakeKernel;
use tortie_dataplane::{
    ApplyReport, Clock, Command, Conntrack, Dataplane, DataplaneProblem, EndpointStatus, Kernel, KernelError,
    Neighbours, Netfilter, Outcome, Routing, Subsystem, Sysctls,
};
use tortie_iptables::{Backend, Table};
use tortie_model::desired::DesiredUpdate;
use tortie_model::{Family, WorkloadExtras};
use tortie_nftables::wire::Snapshot;
use tortie_nftables::{CommitError, TableId, Transaction};
use tortie_rules::WorkloadDispatch;

use crate::common::*;

/// A kernel with netfilter and a clock, and nothing else.
struct Tables(FakeKernel);

impl Kernel for Tables {}

impl Clock for Tables {
    fn now(&mut self) -> Duration {
        self.0.now()
    }

    fn sleep(&mut self, duration: Duration) {
        self.0.sleep(duration);
    }
}

impl Netfilter for Tables {
    fn run(&mut self, commands: Vec<Command>) -> Vec<Outcome> {
        self.0.run(commands)
    }

    fn ruleset_generation(&mut self) -> Option<u32> {
        self.0.ruleset_generation()
    }

    fn read_nftables(&mut self, table: TableId) -> Result<Option<Snapshot>, KernelError> {
        self.0.read_nftables(table)
    }

    fn commit_nftables(&mut self, transaction: &Transaction) -> Result<(), CommitError> {
        self.0.commit_nftables(transaction)
    }
}

/// A kernel that has everything but devices.
struct WithoutLinks(Tables);

impl Kernel for WithoutLinks {
    fn sysctls(&mut self) -> Option<&mut dyn Sysctls> {
        self.0.0.sysctls()
    }

    fn conntrack(&mut self) -> Option<&mut dyn Conntrack> {
        self.0.0.conntrack()
    }

    fn routing(&mut self) -> Option<&mut dyn Routing> {
        self.0.0.routing()
    }

    fn neighbours(&mut self) -> Option<&mut dyn Neighbours> {
        self.0.0.neighbours()
    }
}

impl Clock for WithoutLinks {
    fn now(&mut self) -> Duration {
        self.0.now()
    }

    fn sleep(&mut self, duration: Duration) {
        self.0.sleep(duration);
    }
}

impl Netfilter for WithoutLinks {
    fn run(&mut self, commands: Vec<Command>) -> Vec<Outcome> {
        self.0.run(commands)
    }

    fn ruleset_generation(&mut self) -> Option<u32> {
        self.0.ruleset_generation()
    }

    fn read_nftables(&mut self, table: TableId) -> Result<Option<Snapshot>, KernelError> {
        self.0.read_nftables(table)
    }

    fn commit_nftables(&mut self, transaction: &Transaction) -> Result<(), CommitError> {
        self.0.commit_nftables(transaction)
    }
}

fn in_sync_with(has_routes: bool, more: impl IntoIterator<Item = DesiredUpdate>) -> Dataplane {
    let mut config = config(Backend::Nft);
    config.routes.enabled = has_routes;
    config.ip_forwarding = has_routes;
    let mut dataplane = Dataplane::new(config);
    let updates = [profile("kns.default"), workload("one", pod("cali1", 1), &[])];
    updates.into_iter().chain(more).for_each(|update| dataplane.on_update(update));
    dataplane.on_link(up("cali1", 1));
    dataplane.on_update(DesiredUpdate::InSync);
    dataplane.on_links_in_sync();
    dataplane
}

fn missing(report: &ApplyReport) -> Vec<(Subsystem, Vec<&'static str>)> {
    let missing = report.problems.iter().map(|problem| match problem {
        DataplaneProblem::MissingSubsystem { subsystem, needed_for } => (*subsystem, needed_for.clone()),
        other => panic!("{other}"),
    });
    missing.collect()
}

fn status(dataplane: &Dataplane) -> Vec<EndpointStatus> {
    dataplane.workload_statuses().map(|(_, status)| status).collect()
}

#[test]
fn netfilter_alone_is_enough_where_routes_are_off() {
    let mut kernel = Tables(kernel(Backend::Nft));
    let mut dataplane = in_sync_with(false, []);
    let report = apply_until_in_sync(&mut dataplane, &mut kernel);
    assert!(report.is_complete(), "{:?}", report.problems);
    assert_eq!(status(&dataplane), [EndpointStatus::Up]);
    assert!(kernel.0.tables(Family::V4).chains(Table::Filter).contains(&"cali-tw-cali1".to_owned()));
    let untouched = FakeKernel::new(Backend::Nft, ["cali1", "cali2", "cali3", "cali4", "eth0"]);
    assert_eq!(kernel.0.sysctls.values, untouched.sysctls.values);
}

#[test]
fn routes_without_routing_are_reported_by_subsystem_and_their_endpoints_are_not_up() {
    let mut kernel = Tables(kernel(Backend::Nft));
    let mut dataplane = in_sync_with(true, []);
    for _ in 0..2 {
        let report = dataplane.apply(&mut kernel);
        assert!(report.applied && !report.is_complete() && report.enforced());
        let needed = [Subsystem::Sysctls, Subsystem::Routing, Subsystem::Neighbours];
        let purposes = [vec!["IP forwarding", "routes"], vec!["routes"], vec!["routes"]];
        assert_eq!(missing(&report), Vec::from_iter(needed.into_iter().zip(purposes)));
        assert_eq!(report.problems[1].to_string(), "the kernel lacks routing, needed for routes");
        assert_eq!(status(&dataplane), [EndpointStatus::Down]);
    }
    assert!(kernel.0.tables(Family::V4).chains(Table::Filter).contains(&"cali-tw-cali1".to_owned()));
}

#[test]
fn devices_are_missed_only_by_features_that_need_them() {
    let without_links = || WithoutLinks(Tables(kernel(Backend::Nft)));
    let mut kernel = without_links();
    let mut dataplane = in_sync_with(true, []);
    let report = apply_until_in_sync(&mut dataplane, &mut kernel);
    assert!(report.is_complete(), "{:?}", report.problems);
    assert_eq!(status(&dataplane), [EndpointStatus::Up]);
    assert_eq!(kernel.0.0.routing.routes.len(), 2);

    let mut limited = pod("cali1", 1);
    let qos = tortie_model::QosControls { ingress_bandwidth: 8_000_000, ingress_burst: 8_000, ..Default::default() };
    limited.extras = Some(Box::new(WorkloadExtras { qos: Some(qos), ..WorkloadExtras::default() }));
    let mut dataplane = in_sync_with(true, [workload("one", limited, &[])]);
    let report = apply_until_in_sync(&mut dataplane, &mut without_links());
    assert_eq!(missing(&report), [(Subsystem::Links, vec!["bandwidth limits"])]);
    assert_eq!(status(&dataplane), [EndpointStatus::Up]);
}

#[test]
fn forwarding_without_sysctls_is_reported() {
    let mut config = config(Backend::Nft);
    config.routes.enabled = false;
    let mut dataplane = Dataplane::new(config);
    dataplane.on_update(DesiredUpdate::InSync);
    dataplane.on_links_in_sync();
    let report = dataplane.apply(&mut Tables(kernel(Backend::Nft)));
    assert_eq!(missing(&report), [(Subsystem::Sysctls, vec!["IP forwarding"])]);
}

#[test]
fn addresses_that_no_kernel_locates_are_looked_for_ever_less_often() {
    let mut config = config(Backend::Nft);
    config.routes.enabled = false;
    config.ip_forwarding = false;
    config.rules.workloads = WorkloadDispatch::Address;
    let mut dataplane = Dataplane::new(config);
    dataplane.on_update(profile("kns.default"));
    dataplane.on_update(workload("one", pod("cali1", 1), &[]));
    dataplane.on_update(DesiredUpdate::InSync);
    dataplane.on_links_in_sync();
    let mut kernel = Tables(kernel(Backend::Nft));
    let (mut pauses, mut are_late) = (Vec::new(), Vec::new());
    for _ in 0..6 {
        let report = dataplane.apply(&mut kernel);
        let lacks = |problem: &&DataplaneProblem| matches!(problem, DataplaneProblem::MissingSubsystem { .. });
        assert_eq!(report.problems.iter().filter(lacks).count(), 2, "{:?}", report.problems);
        let messages = texts(&report.problems);
        are_late.push(messages.iter().any(|problem| problem.contains("no interface of this node leads")));
        let next = report.next.expect("the address is searched for again");
        pauses.push(next);
        kernel.0.sleep(next);
    }
    assert!(
        are_late.is_sorted() && !are_late[0] && are_late[5],
        "an address is missed after some searches: {are_late:?}"
    );
    assert!(pauses.iter().skip(1).all(|pause| *pause >= Duration::from_millis(10)), "{pauses:?}");
}
