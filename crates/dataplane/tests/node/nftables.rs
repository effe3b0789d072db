//! nftables in place of iptables and IP sets.

use std::sync::Arc;
use std::time::Duration;

use tortie_dataplane::fake::FakeKernel;
use tortie_dataplane::{Clock, Dataplane, DataplaneConfig, InterfaceFilter, NftablesConfig, RulesetEvent};
use tortie_iptables::{Backend, Table};
use tortie_model::desired::DesiredUpdate;
use tortie_model::{Family, QosControls};
use tortie_nftables::{Command, TableId};
use tortie_rules::PacketFilter;

use crate::common::{apply_until_in_sync, config, kernel, pod, policy, profile, up, workload};

pub(crate) fn by_nftables() -> DataplaneConfig {
    let mut config = config(Backend::Nft);
    config.rules.packet_filter = PacketFilter::Nftables(tortie_rules::NftablesConfig::default());
    config.nftables = Some(NftablesConfig::default());
    config
}

fn start() -> (Dataplane, FakeKernel) {
    let mut dataplane = Dataplane::new(by_nftables());
    for update in [profile("kns.default"), policy("a", "all()", None), workload("w", pod("cali1", 1), &["a"])] {
        dataplane.on_update(update);
    }
    dataplane.on_link(up("cali1", 7));
    dataplane.on_update(DesiredUpdate::InSync);
    dataplane.on_links_in_sync();
    let mut kernel = kernel(Backend::Nft);
    assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());
    (dataplane, kernel)
}

fn dump(kernel: &FakeKernel) -> Vec<String> {
    kernel.netfilter.nftables.values().flat_map(tortie_nftables::fake::FakeKernel::dump).collect()
}

/// Returns the number of table readings so far.
fn reads(dataplane: &Dataplane) -> u64 {
    dataplane.stats().nftables.iter().map(|(_, stats)| stats.reads).sum()
}

#[test]
fn all_objects_are_in_one_table_of_each_family() {
    let (_, kernel) = start();
    let dump = dump(&kernel);
    for table in ["ip calico", "ip6 calico"] {
        assert!(dump.iter().any(|line| line.contains(&format!("{table} filter-cali-tw-cali1"))), "{dump:#?}");
    }
    assert!(kernel.netfilter.sets.names().is_empty());
    assert!(!kernel.netfilter.tables_v4.saved(Table::Filter).contains("cali-"));
}

#[test]
fn a_table_deleted_by_another_process_is_restored_on_the_notification() {
    let (mut dataplane, mut kernel) = start();
    let before = dump(&kernel);
    dataplane.on_ruleset(RulesetEvent::Restarted);
    kernel.sleep(Duration::from_secs(1));
    assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());

    let v4 = TableId::calico(Family::V4);
    kernel.netfilter.nftables.insert(Family::V4, tortie_nftables::fake::FakeKernel::new(v4));
    let without_notification = dump(&kernel);
    kernel.sleep(Duration::from_secs(1));
    assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());
    assert_eq!(dump(&kernel), without_notification, "the table was not read");

    dataplane.on_ruleset(RulesetEvent::Transactions(1));
    assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());
    assert_eq!(dump(&kernel), before);
}

#[test]
fn notifications_of_own_transactions_cause_no_reads() {
    let (mut dataplane, mut kernel) = start();
    dataplane.on_ruleset(RulesetEvent::Restarted);
    kernel.sleep(Duration::from_secs(1));
    assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());
    let before = reads(&dataplane);

    dataplane.on_update(policy("a", "b == 'c'", None));
    dataplane.on_update(workload("v", pod("cali2", 2), &["a"]));
    assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());
    dataplane.on_ruleset(RulesetEvent::Transactions(2));
    kernel.sleep(Duration::from_secs(1));
    assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());
    assert_eq!(reads(&dataplane), before, "one transaction of each family");
}

#[test]
fn repeated_foreign_writes_cause_two_reads_a_second() {
    let (mut dataplane, mut kernel) = start();
    dataplane.on_ruleset(RulesetEvent::Restarted);
    let before = reads(&dataplane);
    for transaction in 1..=100 {
        dataplane.on_ruleset(RulesetEvent::Transactions(transaction));
        kernel.sleep(Duration::from_millis(50));
        dataplane.apply(&mut kernel);
    }
    let read = (reads(&dataplane) - before) / 2;
    assert!((8..=11).contains(&read), "{read} in five seconds");
}

fn offloading(hosts: InterfaceFilter) -> DataplaneConfig {
    let mut config = by_nftables();
    config.rules.packet_filter =
        PacketFilter::Nftables(tortie_rules::NftablesConfig { offload_flows: true, ..Default::default() });
    config.nftables = Some(NftablesConfig { flow_interfaces: hosts, ..NftablesConfig::default() });
    config
}

fn lines(kernel: &FakeKernel, text: &str) -> Vec<String> {
    dump(kernel).into_iter().filter(|line| line.starts_with("add ") && line.contains(text)).collect()
}

#[test]
fn connections_are_offloaded_between_interfaces_that_are_up() {
    let mut dataplane = Dataplane::new(offloading(InterfaceFilter::new(|name| name.starts_with("eth"))));
    for update in [profile("kns.default"), workload("w", pod("cali1", 1), &[]), workload("v", pod("cali2", 2), &[])] {
        dataplane.on_update(update);
    }
    ["cali1", "eth0", "wlan0"].into_iter().zip(7..).for_each(|(name, index)| dataplane.on_link(up(name, index)));
    dataplane.on_update(DesiredUpdate::InSync);
    dataplane.on_links_in_sync();
    let mut kernel = kernel(Backend::Nft);
    let devices = |kernel: &FakeKernel| {
        let [v4, v6] = &lines(kernel, "flowtable")[..] else { panic!("{:?}", lines(kernel, "flowtable")) };
        assert_eq!(v4.replace("ip ", "ip6 "), *v6);
        v4.split("devices = ").nth(1).unwrap().to_owned()
    };
    assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());
    assert_eq!(devices(&kernel), "{ cali1, eth0 } ; }");
    let rules = lines(&kernel, "flow offload @calico");
    assert!(rules.len() == 2 && rules[0].contains("ip saddr != @cali40no-flow-offload"), "{rules:?}");

    // An interface vanishes right after its event; the dataplane retries, and adds it to the flow
    // table once it exists.
    for table in kernel.netfilter.nftables.values_mut() {
        table.missing_devices.insert("cali2".parse().unwrap());
    }
    dataplane.on_link(up("cali2", 12));
    dataplane.on_link(up("eth1", 13));
    let report = apply_until_in_sync(&mut dataplane, &mut kernel);
    assert_eq!(devices(&kernel), "{ cali1, eth0, eth1 } ; }");
    assert!(report.next.is_some_and(|next| next <= Duration::from_secs(5)), "{report:?}");
    assert!(lines(&kernel, "flow offload @calico").len() == 2, "the rule does not suffer from it");
    let missing = |dataplane: &Dataplane| {
        dataplane.stats().nftables.iter().map(|(_, stats)| stats.missing_flow_devices).sum::<usize>()
    };
    assert_eq!(missing(&dataplane), 2);
    kernel.netfilter.nftables.values_mut().for_each(|table| table.missing_devices.clear());
    kernel.sleep(Duration::from_secs(5));
    apply_until_in_sync(&mut dataplane, &mut kernel);
    assert_eq!((devices(&kernel).as_str(), missing(&dataplane)), ("{ cali1, cali2, eth0, eth1 } ; }", 0));

    // A deleted interface leaves the flow table by itself, and may come back with another index.
    let before = kernel.netfilter.nftables[&Family::V4].transactions.len();
    dataplane.on_link(tortie_dataplane::LinkEvent::Gone { name: "cali2".parse().unwrap() });
    apply_until_in_sync(&mut dataplane, &mut kernel);
    dataplane.on_link(up("cali2", 22));
    apply_until_in_sync(&mut dataplane, &mut kernel);
    let made: String =
        kernel.netfilter.nftables[&Family::V4].transactions[before..].iter().map(ToString::to_string).collect();
    assert_eq!(made, "add flowtable ip calico calico { hook ingress priority filter ; devices = { cali2 } ; }\n");
}

/// A dataplane with one pod and its interface, in sync.
fn with_a_pod(config: DataplaneConfig) -> Dataplane {
    let mut dataplane = Dataplane::new(config);
    dataplane.on_update(profile("kns.default"));
    dataplane.on_update(workload("w", pod("cali1", 1), &[]));
    dataplane.on_link(up("cali1", 7));
    dataplane.on_update(DesiredUpdate::InSync);
    dataplane.on_links_in_sync();
    dataplane
}

#[test]
fn flows_of_endpoints_that_need_chains_are_not_offloaded() {
    let mut dataplane = with_a_pod(offloading(InterfaceFilter::default()));
    let limits = |change: fn(&mut QosControls)| {
        let mut endpoint = pod("cali1", 1);
        let mut qos = QosControls::default();
        change(&mut qos);
        endpoint.extras.get_or_insert_default().qos = Some(qos);
        workload("w", endpoint, &[])
    };
    let mut kernel = kernel(Backend::Nft);
    apply_until_in_sync(&mut dataplane, &mut kernel);
    let kept = |kernel: &FakeKernel| {
        lines(kernel, "add element").into_iter().filter(|it| it.contains("no-flow-offload")).count()
    };
    assert_eq!(kept(&kernel), 0);
    for (change, is_kept) in [
        ((|qos| qos.ingress_packet_rate = 10) as fn(&mut QosControls), true),
        (|qos| qos.egress_max_connections = 5, true),
        (|qos| qos.dscp = Some(20), true),
        (|qos| qos.ingress_bandwidth = 1_000_000, false),
    ] {
        dataplane.on_update(limits(change));
        apply_until_in_sync(&mut dataplane, &mut kernel);
        assert_eq!(kept(&kernel) > 0, is_kept);
    }
}

#[test]
fn a_kernel_without_flow_tables_has_all_other_rules() {
    let mut dataplane = Dataplane::new(offloading(InterfaceFilter::default()));
    dataplane.on_update(workload("w", pod("cali1", 1), &[]));
    dataplane.on_link(up("cali1", 7));
    dataplane.on_update(DesiredUpdate::InSync);
    dataplane.on_links_in_sync();
    let mut kernel = kernel(Backend::Nft);
    for table in kernel.netfilter.nftables.values_mut() {
        table.refuse = Some(Arc::new(|command| {
            matches!(command, Command::AddFlowTable { .. }).then(|| "Operation not supported".to_owned())
        }));
    }
    for _ in 0..5 {
        dataplane.apply(&mut kernel);
        kernel.sleep(Duration::from_secs(2));
    }
    assert_eq!((lines(&kernel, "flowtable"), lines(&kernel, "flow offload")), (Vec::new(), Vec::new()));
    assert!(lines(&kernel, "add rule ip calico filter-cali-FORWARD").len() > 3);
}

#[test]
fn arp_replies_for_own_addresses_are_dropped_with_any_backend() {
    for mut config in [by_nftables(), config(Backend::Nft)] {
        config.arp = Some(None);
        let mut dataplane = with_a_pod(config);
        let mut kernel = kernel(Backend::Nft);
        apply_until_in_sync(&mut dataplane, &mut kernel);
        let shown = kernel.netfilter.arp.dump().join("\n");
        for text in [
            "add rule arp calico-arp filter-cali-arp-cali1 oifname cali1 arp operation reply arp saddr ip 10.65.0.1 counter drop",
            "add element arp calico-arp filter-cali-arp-dispatch { cali1 : goto filter-cali-arp-cali1 }",
        ] {
            assert!(shown.contains(text), "{text} is not in\n{shown}");
        }
        dataplane.on_update(DesiredUpdate::WorkloadEndpointRemove(crate::common::workload_id("w")));
        apply_until_in_sync(&mut dataplane, &mut kernel);
        assert!(!kernel.netfilter.arp.dump().join("\n").contains("cali1"));
        // A failure to write the ARP table does not affect the rest.
        kernel.netfilter.arp.failures = 100;
        dataplane.on_update(workload("w", pod("cali1", 1), &[]));
        let report = dataplane.apply(&mut kernel);
        assert!(report.enforced() && !report.problems.is_empty(), "{report:?}");
        assert!(report.problems.iter().all(|problem| !problem.is_degraded()), "{:?}", report.problems);
    }
}
