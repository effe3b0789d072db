//! Policy that eBPF programs enforce, which another component manages.

use tortie_dataplane::fake::{FakeKernel, Writes};
use tortie_dataplane::{Dataplane, DataplaneConfig, DataplaneProblem, EndpointProblem, EndpointStatus};
use tortie_iptables::{Backend, Table};
use tortie_model::desired::DesiredUpdate;
use tortie_model::{Family, IpPool, QosControls, WorkloadExtras};
use tortie_rules::PolicyBackend;

use crate::common::{
    apply_until_in_sync, cidr, config, dataplane, host, host_endpoint, kernel, pod, policy, profile, set, texts, up,
    workload, workload_id,
};

fn updates() -> Vec<DesiredUpdate> {
    vec![
        set("s:abc", &["10.0.0.0/8"]),
        profile("kns.default"),
        policy("a", "all()", Some("s:abc")),
        workload("w", pod("cali1", 1), &["a"]),
        host("h", host_endpoint(Some("eth0"), &[]), &["a"]),
    ]
}

fn pool(net: &str, masquerade: bool) -> DesiredUpdate {
    DesiredUpdate::IpPool(IpPool { masquerade, ..IpPool::new(cidr(net)) }.into())
}

fn by_programs() -> DataplaneConfig {
    let mut config = config(Backend::Nft);
    config.rules.policy_backend = PolicyBackend::Programs;
    config
}

fn without_iptables() -> DataplaneConfig {
    let mut config = by_programs();
    config.iptables.uninstalled = Family::ALL.into();
    config.ip_sets.installed = false;
    config
}

fn start(config: DataplaneConfig) -> Dataplane {
    let mut dataplane = Dataplane::new(config);
    updates().into_iter().for_each(|update| dataplane.on_update(update));
    [up("eth0", 1), up("cali1", 7)].into_iter().for_each(|event| dataplane.on_link(event));
    dataplane.on_update(DesiredUpdate::InSync);
    dataplane.on_links_in_sync();
    dataplane
}

/// A kernel without the iptables and ipset programs.
fn bare_kernel() -> FakeKernel {
    let mut kernel = kernel(Backend::Nft);
    kernel.netfilter.not_runnable = vec!["tables".into(), "ipset".into()];
    kernel
}

fn status(dataplane: &Dataplane) -> Option<EndpointStatus> {
    dataplane.workload_statuses().find(|(id, _)| **id == workload_id("w")).map(|(_, status)| status)
}

fn has_chains(kernel: &FakeKernel, table: Table) -> bool {
    Family::ALL.into_iter().any(|family| kernel.tables(family).saved(table).contains("cali"))
}

fn tables_of_ours(kernel: &FakeKernel) -> Vec<Table> {
    Table::ALL.into_iter().filter(|table| has_chains(kernel, *table)).collect()
}

#[test]
fn nothing_leads_to_a_workload_before_programs_enforce_policy() {
    let mut kernel = bare_kernel();
    let mut dataplane = start(without_iptables());
    let before = kernel.state();
    let report = apply_until_in_sync(&mut dataplane, &mut kernel);
    assert!(!report.enforced() && report.unenforced == Family::ALL, "{report:?}");
    assert_eq!(status(&dataplane), Some(EndpointStatus::Down));
    // Forwarding alone leads to no workload.
    assert_eq!(kernel.state(), before);

    dataplane.set_policy_in_force(true, vec![]);
    let report = apply_until_in_sync(&mut dataplane, &mut kernel);
    assert!(report.is_complete() && report.enforced(), "{:?}", report.problems);
    assert_eq!(status(&dataplane), Some(EndpointStatus::Up));
    assert_eq!(kernel.routing.routes.len(), 2);

    // Existing routes are kept, and none are added.
    dataplane.set_policy_in_force(false, vec![]);
    let mut other = pod("cali1", 2);
    other.ipv4_nets = std::iter::once(cidr("10.65.0.9/32")).collect();
    dataplane.on_update(workload("w", other, &["a"]));
    let report = apply_until_in_sync(&mut dataplane, &mut kernel);
    assert!(!report.enforced());
    assert_eq!(status(&dataplane), Some(EndpointStatus::Down));
    let has_route =
        |kernel: &FakeKernel, net: &str| kernel.routing.routes.iter().any(|route| route.key.destination == cidr(net));
    assert!(!has_route(&kernel, "10.65.0.9/32"), "{:?}", kernel.routing.routes);

    dataplane.set_policy_in_force(true, vec![]);
    assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());
    assert_eq!(status(&dataplane), Some(EndpointStatus::Up));
    assert!(has_route(&kernel, "10.65.0.9/32"));
}

#[test]
fn without_iptables_only_features_that_need_it_are_problems() {
    let mut kernel = bare_kernel();
    let mut dataplane = start(without_iptables());
    dataplane.set_policy_in_force(true, vec![]);
    dataplane.on_update(pool("10.65.0.0/16", false));
    assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());

    dataplane.on_update(pool("10.65.0.0/16", true));
    let report = dataplane.apply(&mut kernel);
    let problems = texts(&report.problems);
    assert!(problems.iter().any(|text| text.contains("IPv4 table nat")), "{problems:?}");
    assert!(problems.iter().any(|text| text.contains("IPv4 IP sets")), "{problems:?}");
    // The other family needs no table.
    assert!(!problems.iter().any(|text| text.contains("IPv6")), "{problems:?}");
    assert_eq!(report.unenforced, []);
    assert_eq!(status(&dataplane), Some(EndpointStatus::Up));

    dataplane.on_update(DesiredUpdate::IpPoolRemove(cidr("10.65.0.0/16")));
    assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());
}

#[test]
fn packets_allowed_by_programs_are_accepted_only_once_policy_is_in_force() {
    let mut kernel = kernel(Backend::Nft);
    let mut config = by_programs();
    config.rules.accepts_beside_programs = true;
    let mut dataplane = start(config);
    for _ in 0..3 {
        dataplane.apply(&mut kernel);
    }
    assert!(!has_chains(&kernel, Table::Filter), "no program filters packets yet");
    dataplane.set_policy_in_force(true, vec![]);
    assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());
    assert_eq!(tables_of_ours(&kernel), [Table::Filter]);
    let filter = kernel.netfilter.tables_v4.saved(Table::Filter);
    assert!(
        filter.contains("-i cali+") && filter.contains("-j ACCEPT") || filter.contains("--jump ACCEPT"),
        "{filter}"
    );
    assert!(kernel.netfilter.sets.names().is_empty(), "no rule refers to one");
}

#[test]
fn packets_allowed_by_programs_are_accepted_without_ipset() {
    let mut kernel = kernel(Backend::Nft);
    kernel.netfilter.not_runnable = vec!["ipset".into()];
    let mut config = by_programs();
    config.rules.accepts_beside_programs = true;
    config.ip_sets.installed = false;
    let mut dataplane = start(config);
    dataplane.set_policy_in_force(true, vec![]);
    assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());
    assert_eq!(tables_of_ours(&kernel), [Table::Filter]);
}

#[test]
fn only_tables_that_are_needed_have_chains_and_only_their_sets_are_there() {
    let mut kernel = kernel(Backend::Nft);
    let mut dataplane = start(by_programs());
    dataplane.set_policy_in_force(true, vec![]);
    assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());
    assert_eq!((tables_of_ours(&kernel), kernel.netfilter.sets.names()), (vec![], vec![]));
    kernel.reset_writes();

    dataplane.on_update(pool("10.65.0.0/16", true));
    assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());
    assert_eq!(tables_of_ours(&kernel), [Table::Nat]);
    assert!(kernel.netfilter.tables_v4.saved(Table::Nat).contains("cali40masq-ipam-pools"));
    assert_eq!(kernel.netfilter.sets.members("cali40masq-ipam-pools"), ["10.65.0.0/16"]);
    assert!(
        !kernel.netfilter.sets.names().iter().any(|name| name.contains("abc") || name.starts_with("cali60")),
        "{:?}",
        kernel.netfilter.sets.names()
    );

    // A restart has nothing to write.
    let mut again = start(by_programs());
    again.set_policy_in_force(true, vec![]);
    again.on_update(pool("10.65.0.0/16", true));
    kernel.reset_writes();
    assert!(apply_until_in_sync(&mut again, &mut kernel).is_complete());
    assert_eq!(kernel.writes(), Writes::default());

    let extras =
        WorkloadExtras { qos: Some(QosControls { dscp: Some(10), ..QosControls::default() }), ..Default::default() };
    let marked = tortie_model::WorkloadEndpoint { extras: Some(Box::new(extras)), ..pod("cali1", 1) };
    again.on_update(workload("w", marked, &["a"]));
    assert!(apply_until_in_sync(&mut again, &mut kernel).is_complete());
    assert_eq!(tables_of_ours(&kernel), [Table::Mangle, Table::Nat]);
    assert_eq!(kernel.netfilter.sets.members("cali40dscp-src-net"), ["10.65.0.1"]);

    again.on_update(workload("w", pod("cali1", 1), &["a"]));
    again.on_update(pool("10.65.0.0/16", false));
    assert!(apply_until_in_sync(&mut again, &mut kernel).is_complete());
    assert_eq!((tables_of_ours(&kernel), kernel.netfilter.sets.names()), (vec![], vec![]));
}

#[test]
fn chains_that_enforced_policy_go_once_programs_do() {
    for other in [false, true] {
        let mut before = kernel(Backend::Nft);
        let chains = dataplane(Backend::Nft, updates(), [up("eth0", 1), up("cali1", 7)]);
        let mut chains = chains;
        assert!(apply_until_in_sync(&mut chains, &mut before).is_complete());
        let mut kernel = kernel(if other { Backend::Legacy } else { Backend::Nft });
        if other {
            (kernel.netfilter.other_v4, kernel.netfilter.other_v6) =
                (before.netfilter.tables_v4, before.netfilter.tables_v6);
        } else {
            (kernel.netfilter.tables_v4, kernel.netfilter.tables_v6) =
                (before.netfilter.tables_v4, before.netfilter.tables_v6);
        }
        (kernel.netfilter.sets, kernel.routing.routes, kernel.sysctls.values) =
            (before.netfilter.sets, before.routing.routes, before.sysctls.values);
        let denying = |kernel: &FakeKernel| {
            let (v4, v6) = if other {
                (&kernel.netfilter.other_v4, &kernel.netfilter.other_v6)
            } else {
                (&kernel.netfilter.tables_v4, &kernel.netfilter.tables_v6)
            };
            let tables = [Table::Raw, Table::Mangle, Table::Filter];
            [v4, v6].into_iter().flat_map(|of| tables.map(|table| of.saved(table))).collect::<Vec<String>>()
        };
        let in_force = denying(&kernel);
        assert!(in_force.iter().all(|text| text.contains("cali")), "{in_force:?}");

        let mut config = by_programs();
        if other {
            config.iptables = tortie_dataplane::IptablesConfig::new(Backend::Legacy);
            config.iptables.sweep = Family::ALL.map(|family| (family, Backend::Nft)).into();
        }
        let mut programs = start(config);
        for _ in 0..3 {
            assert!(!apply_until_in_sync(&mut programs, &mut kernel).enforced());
            assert_eq!(denying(&kernel), in_force);
            assert!(kernel.netfilter.sets.names().contains(&"cali40s:abc"));
        }
        programs.set_policy_in_force(true, vec![]);
        let report = apply_until_in_sync(&mut programs, &mut kernel);
        assert!(report.is_complete(), "{:?}", report.problems);
        assert!(denying(&kernel).iter().all(|text| !text.contains("cali")), "{:?}", denying(&kernel));
        assert_eq!(kernel.netfilter.sets.names(), [""; 0]);
    }
}

#[test]
fn fields_that_need_chains_are_named() {
    let qos = QosControls { ingress_packet_rate: 10, egress_max_connections: 5, ..QosControls::default() };
    let extras = WorkloadExtras { qos: Some(qos), ..WorkloadExtras::default() };
    let limited = tortie_model::WorkloadEndpoint { extras: Some(Box::new(extras)), ..pod("cali1", 1) };
    let mut dataplane = start(by_programs());
    dataplane.set_policy_in_force(true, vec![]);
    dataplane.on_update(workload("w", limited, &["a"]));
    let report = apply_until_in_sync(&mut dataplane, &mut kernel(Backend::Nft));
    let field = |problem: &DataplaneProblem| match problem {
        DataplaneProblem::Endpoint { error: EndpointProblem::NotByPrograms(field), .. } => Some(*field),
        _ => None,
    };
    assert_eq!(
        report.problems.iter().filter_map(field).collect::<Vec<_>>(),
        ["qosControls packet rate", "qosControls maximum connections"]
    );
    assert!(report.enforced());
}
