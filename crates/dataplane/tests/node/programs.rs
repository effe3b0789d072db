//! Policy that eBPF programs enforce, which another component manages.

use std::collections::BTreeSet;
use std::sync::Arc;

use tortie_dataplane::fake::{FakeKernel, Writes};
use tortie_dataplane::{Dataplane, DataplaneConfig, DataplaneProblem, EndpointStatus};
use tortie_iptables::{Backend, Table};
use tortie_model::desired::DesiredUpdate;
use tortie_model::{Family, IpPool, QosControls, WorkloadExtras};
use tortie_nftables::Command;
use tortie_rules::PolicyBackend;

use crate::common::{
    apply_until_in_sync, cidr, config, dataplane, host, host_endpoint, kernel, pod, policy, profile, set, texts, up,
    workload, workload_id,
};
use crate::nftables::by_nftables;

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

fn beside_nftables() -> DataplaneConfig {
    let mut config = by_nftables();
    config.rules.policy_backend = PolicyBackend::Programs;
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

/// Returns the lines of an nftables table.
fn dump(kernel: &FakeKernel, family: Family) -> Vec<String> {
    kernel.netfilter.nftables[&family].dump()
}

/// Returns the layers of an nftables table that have chains.
fn layers(kernel: &FakeKernel, family: Family) -> BTreeSet<String> {
    let table = dump(kernel, family);
    let chains = table.iter().filter(|line| line.starts_with("add chain"));
    chains.filter_map(|line| Some(line.split(' ').nth(4)?.split_once('-')?.0.to_owned())).collect()
}

fn transactions(kernel: &FakeKernel) -> usize {
    kernel.netfilter.nftables.values().map(|table| table.transactions.len()).sum()
}

fn with_dscp(value: u8) -> tortie_model::WorkloadEndpoint {
    let qos = QosControls { dscp: Some(value), ..QosControls::default() };
    let extras = WorkloadExtras { qos: Some(qos), ..WorkloadExtras::default() };
    tortie_model::WorkloadEndpoint { extras: Some(Box::new(extras)), ..pod("cali1", 1) }
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

    again.on_update(workload("w", with_dscp(10), &["a"]));
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
fn without_iptables_an_nftables_table_has_what_features_need() {
    let mut kernel = bare_kernel();
    let mut dataplane = start(beside_nftables());
    let (nat, both) = (["nat".to_owned()].into(), ["mangle".to_owned(), "nat".to_owned()].into());
    dataplane.on_update(pool("10.65.0.0/16", true));
    apply_until_in_sync(&mut dataplane, &mut kernel);
    assert_eq!(transactions(&kernel), 0, "no program filters packets yet");

    dataplane.set_policy_in_force(true, vec![]);
    for _ in 0..2 {
        let report = apply_until_in_sync(&mut dataplane, &mut kernel);
        assert!(report.is_complete(), "{:?}", report.problems);
        assert_eq!((layers(&kernel, Family::V4), dump(&kernel, Family::V6)), (BTreeSet::clone(&nat), vec![]));
        let table = dump(&kernel, Family::V4);
        let has = |text: &str| table.iter().any(|line| line.contains(text));
        assert!(has("nat-cali-nat-outgoing") && has("masquerade"), "{table:#?}");
        assert!(has("cali40masq-ipam-pools { 10.65.0.0/16 }"), "{table:#?}");
        assert!(!has("abc") && !has("add map") && !has("cali1"), "nothing of policy: {table:#?}");

        dataplane.on_update(workload("w", with_dscp(10), &["a"]));
        assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());
        assert_eq!(layers(&kernel, Family::V4), both);
        dataplane.on_update(workload("w", pod("cali1", 1), &["a"]));
        assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());
        assert_eq!(dump(&kernel, Family::V4), table);

        // A restart has nothing to write.
        let before = transactions(&kernel);
        let mut again = start(beside_nftables());
        again.set_policy_in_force(true, vec![]);
        again.on_update(pool("10.65.0.0/16", true));
        assert!(apply_until_in_sync(&mut again, &mut kernel).is_complete());
        assert_eq!(transactions(&kernel), before);

        dataplane.on_update(DesiredUpdate::IpPoolRemove(cidr("10.65.0.0/16")));
        assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());
        assert_eq!(dump(&kernel, Family::V4), [""; 0]);
        dataplane.on_update(pool("10.65.0.0/16", true));
    }
}

#[test]
fn a_failing_nftables_table_leaves_policy_in_force() {
    let mut kernel = bare_kernel();
    let mut dataplane = start(beside_nftables());
    dataplane.set_policy_in_force(true, vec![]);
    dataplane.on_update(pool("10.65.0.0/16", true));
    kernel.netfilter.nftables.get_mut(&Family::V4).expect("it has both").failures = 100;
    let report = dataplane.apply(&mut kernel);
    assert_eq!(texts(&report.problems), ["cannot write table ip calico: injected failure"]);
    assert!(report.enforced() && report.unenforced.is_empty());
    assert_eq!(status(&dataplane), Some(EndpointStatus::Up));
    kernel.netfilter.nftables.get_mut(&Family::V4).expect("it has both").failures = 0;
    assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());
}

#[test]
fn an_nftables_table_that_enforced_policy_keeps_what_features_need_once_programs_do() {
    for masquerade in [false, true] {
        let mut kernel = bare_kernel();
        let mut former = by_nftables();
        former.ip_sets.installed = false;
        let mut former = start(former);
        former.on_update(pool("10.65.0.0/16", masquerade));
        assert!(apply_until_in_sync(&mut former, &mut kernel).is_complete());
        let in_force = Family::ALL.map(|family| dump(&kernel, family));
        assert_eq!(layers(&kernel, Family::V4).len(), 4);

        let mut programs = start(beside_nftables());
        programs.on_update(pool("10.65.0.0/16", masquerade));
        for _ in 0..3 {
            assert!(!apply_until_in_sync(&mut programs, &mut kernel).enforced());
            assert_eq!(Family::ALL.map(|family| dump(&kernel, family)), in_force);
        }
        programs.set_policy_in_force(true, vec![]);
        assert!(apply_until_in_sync(&mut programs, &mut kernel).is_complete());
        let expected = if masquerade { ["nat".to_owned()].into() } else { BTreeSet::new() };
        assert_eq!(layers(&kernel, Family::V4), expected);
        let table = dump(&kernel, Family::V4);
        assert!(table.is_empty() != masquerade && !table.iter().any(|line| line.contains("add map")), "{table:#?}");
        assert_eq!(dump(&kernel, Family::V6), [""; 0]);
    }
}

#[test]
fn chains_and_sets_in_iptables_go_once_nftables_and_programs_replace_them() {
    for by_chains in [false, true] {
        let mut kernel = kernel(Backend::Nft);
        let mut before = start(if by_chains { config(Backend::Nft) } else { by_programs() });
        before.on_update(pool("10.65.0.0/16", true));
        before.set_policy_in_force(true, vec![]);
        assert!(apply_until_in_sync(&mut before, &mut kernel).is_complete());
        let left = tables_of_ours(&kernel);
        assert!(left.contains(&Table::Nat) && !kernel.netfilter.sets.names().is_empty());

        let mut config = beside_nftables();
        config.iptables.sweep = Family::ALL.map(|family| (family, Backend::Nft)).into();
        config.ip_sets.installed = true;
        let mut dataplane = start(config);
        dataplane.on_update(pool("10.65.0.0/16", true));
        apply_until_in_sync(&mut dataplane, &mut kernel);
        assert_eq!(tables_of_ours(&kernel), left);

        dataplane.set_policy_in_force(true, vec![]);
        let report = apply_until_in_sync(&mut dataplane, &mut kernel);
        assert!(report.is_complete(), "{:?}", report.problems);
        assert_eq!((tables_of_ours(&kernel), kernel.netfilter.sets.names()), (vec![], vec![]));
        assert_eq!(layers(&kernel, Family::V4), ["nat".to_owned()].into());
    }
}

#[test]
fn chains_beside_programs_limit_packets_and_connections() {
    let qos = QosControls { ingress_packet_rate: 10, egress_max_connections: 5, ..QosControls::default() };
    let extras = WorkloadExtras { qos: Some(qos), ..WorkloadExtras::default() };
    let limited = || tortie_model::WorkloadEndpoint { extras: Some(Box::new(extras.clone())), ..pod("cali1", 1) };
    for config in [beside_nftables(), by_programs()] {
        let is_in_nftables = config.nftables.is_some();
        let mut kernel = if is_in_nftables { bare_kernel() } else { kernel(Backend::Nft) };
        let mut dataplane = start(config);
        dataplane.set_policy_in_force(true, vec![]);
        let shown = |kernel: &FakeKernel| match is_in_nftables {
            true => dump(kernel, Family::V6).join("\n"),
            false => kernel.netfilter.tables_v6.saved(Table::Filter),
        };
        for _ in 0..2 {
            dataplane.on_update(workload("w", limited(), &["a"]));
            let report = apply_until_in_sync(&mut dataplane, &mut kernel);
            assert!(report.is_complete(), "{:?}", report.problems);
            let text = shown(&kernel);
            for part in
                ["cali-tw-cali1", "Drop packets over ingress", "cali-fw-cali1", "Reject connections over egress"]
            {
                assert!(text.contains(part), "{text}");
            }
            assert!(!text.contains("cali-pi-") && !text.contains("all hosts"), "{text}");

            dataplane.on_update(workload("w", pod("cali1", 1), &["a"]));
            assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());
            assert!(!shown(&kernel).contains("cali"), "{}", shown(&kernel));
        }
    }
}

/// A missing limit is no reason to drop packets.
#[test]
fn a_limit_that_the_kernel_refuses_is_named_and_packets_pass() {
    let qos = QosControls { ingress_packet_rate: 10, ..QosControls::default() };
    let extras = WorkloadExtras { qos: Some(qos), ..WorkloadExtras::default() };
    let limited = tortie_model::WorkloadEndpoint { extras: Some(Box::new(extras)), ..pod("cali1", 1) };
    let mut kernel = bare_kernel();
    let is_limit =
        |command: &Command| matches!(command, Command::AddRule { rule, .. } if rule.shown.text.contains("limit"));
    for table in kernel.netfilter.nftables.values_mut() {
        table.refuse = Some(Arc::new(move |command| is_limit(command).then(|| "no such module".to_owned())));
    }
    let mut dataplane = start(beside_nftables());
    dataplane.set_policy_in_force(true, vec![]);
    dataplane.on_update(workload("w", limited, &["a"]));
    let report = apply_until_in_sync(&mut dataplane, &mut kernel);
    assert!(report.enforced() && report.problems.len() == 2, "{:?}", report.problems);
    assert!(report.problems.iter().all(DataplaneProblem::is_of_chains), "{:?}", report.problems);
    // Policy is in force, though the chain of its interface is not.
    assert!(!report.statuses.iter().any(|change| format!("{change:?}").contains("Error")), "{:?}", report.statuses);
    assert!(texts(&report.problems).iter().all(|text| text.contains("default/w")), "{:?}", texts(&report.problems));
    let table = dump(&kernel, Family::V4);
    assert!(table.iter().any(|line| line.starts_with("add chain ip calico filter-cali-tw-cali1")), "{table:#?}");
    assert!(!table.iter().any(|line| line.ends_with("drop")), "{table:#?}");
}
