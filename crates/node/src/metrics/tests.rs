use std::time::Instant;

use tortie_calc::Scans;

use super::*;

#[test]
fn felix_names_keep_their_form() {
    let (mut message_batches, now) = (Quantiles::new(), Instant::now());
    [2, 7].into_iter().for_each(|size| message_batches.observe_size(size, now));
    let metrics = Metrics {
        host: "a\"b".into(),
        datastore: DatastoreMetrics { resync_state: 3, ..DatastoreMetrics::default() },
        kernel: KernelMetrics {
            iptables: IptablesCounts { save_calls: 7, ..IptablesCounts::default() },
            tables: vec![TableCounts { ip_version: 4, table: "filter", chains: 12, rules: 34, lines_executed: 56 }],
            ipsets: [("inet", 2), ("inet6", 3)].into(),
            ..KernelMetrics::default()
        },
        dataplane: DataplaneMetrics { message_batches, ..DataplaneMetrics::default() },
        ..Metrics::default()
    };
    let text = metrics.expose();
    for line in [
        "felix_host{host=\"a\\\"b\"} 1",
        "felix_resync_state 3",
        "# TYPE felix_iptables_save_calls counter",
        "felix_iptables_save_calls 7",
        "felix_iptables_rules{ip_version=\"4\",table=\"filter\"} 34",
        "felix_ipsets_calico{ip_version=\"inet6\"} 3",
        "felix_ipsets_total 5",
        "# TYPE felix_int_dataplane_msg_batch_size summary",
        "felix_int_dataplane_msg_batch_size_sum 9",
        "felix_int_dataplane_msg_batch_size_count 2",
        "felix_int_dataplane_iface_msg_batch_size{quantile=\"0.99\"} NaN",
        "felix_int_dataplane_iface_msg_batch_size_count 0",
        "felix_int_dataplane_addr_msg_batch_size_count 0",
        "felix_exec_time_micros_count 0",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
    }
}

#[test]
fn ebpf_usage_is_exposed_where_ebpf_enforces_policy() {
    let stats =
        PolicyStats { blocks: 1, max_blocks: 2, addresses: 3, generation: 4, map_writes: 5, built: 6, repairs: 7 };
    let dataplane = DataplaneMetrics { bpf: Some(stats), ..DataplaneMetrics::default() };
    let text = Metrics { dataplane, ..Metrics::default() }.expose();
    let values: Vec<&str> = text.lines().filter(|line| line.starts_with("tortie_bpf_")).collect();
    let expected = [
        "tortie_bpf_blocks 1",
        "tortie_bpf_blocks_limit 2",
        "tortie_bpf_addresses 3",
        "tortie_bpf_generation 4",
        "tortie_bpf_generations_built 6",
        "tortie_bpf_map_writes 5",
        "tortie_bpf_repairs 7",
    ];
    assert_eq!(values, expected);
    assert!(!Metrics::default().expose().contains("tortie_bpf_"));
}

#[test]
fn buckets_add_up() {
    let mut metrics = Metrics::default();
    metrics.main_loop.event_to_kernel.observe(Duration::from_millis(3));
    metrics.main_loop.event_to_kernel.observe_many(Duration::from_secs(60), 2);
    let text = metrics.expose();
    for line in [
        "tortie_event_to_kernel_seconds_bucket{le=\"0.0025\"} 0",
        "tortie_event_to_kernel_seconds_bucket{le=\"0.005\"} 1",
        "tortie_event_to_kernel_seconds_bucket{le=\"10\"} 1",
        "tortie_event_to_kernel_seconds_bucket{le=\"+Inf\"} 3",
        "tortie_event_to_kernel_seconds_count 3",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
    }
}

#[test]
fn searches_of_the_label_index_have_the_names_of_felix() {
    let mut scans = Scans::default();
    (scans.all, scans.mixed.name) = (1, 99);
    (scans.own.name, scans.own.value, scans.own.values) = (2, 3, 4);
    (scans.inherited.name, scans.inherited.value, scans.inherited.values) = (5, 6, 7);
    let calculation = CalculationMetrics { scans, ..CalculationMetrics::default() };
    let text = Metrics { calculation, ..Metrics::default() }.expose();
    let values: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("felix_label_index_strategy_evals{strategy=")).collect();
    let expected = [
        "\"endpoint-full-scan\"} 1",
        "\"endpoint-label-name\"} 2",
        "\"endpoint-multi-value\"} 4",
        "\"endpoint-single-value\"} 3",
        "\"parent-label-name\"} 5",
        "\"parent-multi-value\"} 7",
        "\"parent-single-value\"} 6",
    ];
    assert_eq!(values, expected);
}

#[test]
fn nftables_tables_are_labelled_and_their_calls_counted_together() {
    let mut v4 = NftablesCounts::default();
    (v4.commits, v4.set_commits, v4.reads, v4.lines, v4.chains, v4.rules) = (5, 2, 3, 40, 84, 281);
    (v4.sets, v4.maps, v4.flow_devices, v4.missing_flow_devices, v4.clobbered) = (28, 2, 4, 1, 7);
    let mut arp = NftablesCounts::default();
    (arp.commits, arp.commit_errors, arp.chains) = (2, 1, 3);
    let kernel = KernelMetrics { nftables: [("4", v4), ("arp", arp)].into(), ..KernelMetrics::default() };
    let text = Metrics { kernel, ..Metrics::default() }.expose();
    for line in [
        "felix_nft_calls 7",
        "felix_nft_errors 1",
        "felix_nft_set_calls 2",
        "felix_nft_list_calls 3",
        "felix_nft_chains{ip_version=\"4\"} 84",
        "felix_nft_chains{ip_version=\"arp\"} 3",
        "felix_nft_rules{ip_version=\"4\"} 281",
        "felix_nft_sets{ip_version=\"inet\"} 28",
        "felix_nft_maps{ip_version=\"inet\"} 2",
        "felix_nft_flowtable_devices{ip_version=\"4\"} 4",
        "felix_nft_flowtable_missing_devices{ip_version=\"4\"} 1",
        "tortie_nft_lines_executed{ip_version=\"4\"} 40",
        "tortie_nft_clobbered{ip_version=\"4\"} 7",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
    }
}

#[test]
fn dns_answers_are_counted_by_reason_once_a_domain_set_is_in_use() {
    let metrics = Metrics::default();
    assert!(!metrics.expose().contains("_dns_"));
    let mut dns = DnsMetrics { held: 3, refused_members: 4, ..DnsMetrics::default() };
    (dns.tally.packets_in, dns.tally.responses, dns.tally.invalid, dns.tally.evicted) = (10, 8, 1, 2);
    (dns.tally.released_programmed, dns.tally.released_timeout, dns.tally.shutdowns) = (5, 6, 7);
    (dns.learned.names, dns.learned.addresses) = (11, 12);
    dns.tally.displaced = 1;
    dns.tally.refused.insert("loopback", 13);
    dns.tally.unlearned.insert("failed", 14);
    *metrics.dns.lock() = Some(dns);
    let text = metrics.expose();
    for line in [
        "felix_dns_resp_packets_in 8",
        "felix_dns_invalid_packets_in 1",
        "felix_dns_packet_nfqueue_monitor_packets_in 10",
        "felix_dns_packet_nfqueue_monitor_hold_time_count 0",
        "felix_dns_packet_nfqueue_monitor_packets_released_programmed 5",
        "felix_dns_packet_nfqueue_monitor_packets_released_timeout 6",
        "felix_dns_packet_nfqueue_monitor_shutdown_count 7",
        "tortie_dns_held 3",
        "tortie_dns_names 11",
        "tortie_dns_addresses 12",
        "tortie_dns_refused_members 4",
        "tortie_dns_evicted_total 2",
        "tortie_dns_displaced_total 1",
        "tortie_dns_namespaces_over_share 0",
        "tortie_dns_refused_total{reason=\"loopback\"} 13",
        "tortie_dns_unlearned_total{reason=\"failed\"} 14",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
    }
}

#[test]
fn names_and_types_are_those_of_felix() {
    let text = Metrics::example().expose();
    let found: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    let original: Vec<&str> = include_str!("../../testdata/metrics/felix.txt").lines().collect();
    assert_eq!(original.len(), 58);
    let missing: Vec<&&str> = original.iter().filter(|line| !found.contains(line)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    // Names of Calico Enterprise, which the open source lacks.
    let is_of_enterprise = |line: &str| line.starts_with("felix_dns_");
    for line in found.iter().filter(|line| line.starts_with("felix_") && !is_of_enterprise(line)) {
        assert!(original.contains(line), "{line} is not the original's");
    }
}
