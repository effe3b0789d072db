use super::*;

#[test]
fn felix_names_keep_their_form() {
    let metrics = Metrics {
        host: "a\"b".into(),
        resync_state: 3,
        iptables: IptablesCounts { save_calls: 7, ..IptablesCounts::default() },
        tables: vec![TableCounts { ip_version: 4, table: "filter", chains: 12, rules: 34, lines_executed: 56 }],
        ipsets: [("inet", 2), ("inet6", 3)].into(),
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
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
    }
}

#[test]
fn buckets_add_up() {
    let mut metrics = Metrics::default();
    metrics.event_to_kernel.observe(Duration::from_millis(3));
    metrics.event_to_kernel.observe_many(Duration::from_secs(60), 2);
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
