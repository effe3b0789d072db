use super::*;
use tortie_datastore::pending_change::PendingSummary;
use tortie_node::engine::inspect::LastApply;
use tortie_node::host_changes::HeldChanges;
use tortie_node::local_api::{Component, Counters};

#[test]
fn only_problems_are_listed() {
    let component =
        |name: &str, ready, detail: &str| Component { name: name.into(), live: true, ready, detail: detail.into() };
    let mut status = Status {
        version: "1.2.3".into(),
        pid: 7,
        node: "n1".into(),
        datastore: "file:/etc/tortie".into(),
        dataplane: "internal".into(),
        uptime_seconds: 7_300,
        live: true,
        ready: false,
        components: vec![
            component("CalculationGraph", true, ""),
            component("InternalDataplaneMainLoop", false, "chain is missing"),
        ],
        counters: Counters {
            updates: 12,
            event_to_kernel_mean_ms: Some(4.25),
            event_to_kernel_last_ms: Some(3.0),
            event_to_kernel_p50_ms: Some(2.5),
            event_to_kernel_p90_ms: Some(7.0),
            event_to_kernel_p99_ms: Some(11.25),
            waiting_for_engine: 7,
            ..Counters::default()
        },
        pending_change: Some(PendingSummary {
            by: "ada".into(),
            state: "waiting".into(),
            seconds_left: 42,
            resources: vec!["Tier/platform".into(), "NetworkPolicy/shop/web".into()],
        }),
        engine: Some(EngineStatus {
            session: 2,
            datastore_state: "in sync".into(),
            datastore_unavailable: Some("etcd: 10.0.0.1:2379: connection refused".into()),
            datastore_unavailable_seconds: Some(150),
            dataplane_problems: vec!["chain cali-x is missing".into()],
            last_apply: Some(LastApply { seconds_ago: 3.0, took_ms: 20.5, complete: false }),
            policies: 3,
            enforced_by: "programs".into(),
            waiting_for_kernel: 2,
            held_changes: Some(HeldChanges {
                since: "2026-11-23T19:48:59Z".into(),
                connections: vec!["198.51.100.7:54321 to port 22 by eth0".into()],
                objects: vec!["policy GlobalNetworkPolicy/hosts".into()],
                ..HeldChanges::default()
            }),
            ..EngineStatus::default()
        }),
    };
    insta::assert_snapshot!(text(&status), @r"
    n1: not ready
      agent        tortie 1.2.3, process 7, up 2 h
      datastore    file:/etc/tortie
      dataplane    internal
      InternalDataplaneMainLoop not ready: chain is missing
      changes      12 from the datastore, 4.2 ms to the kernel on average
      latency      3.0 ms to the kernel last; in the last ten minutes 50 % within 2.5 ms, 90 % within 7.0 ms, 99 % within 11.2 ms
      queue        7 changes wait for the engine, 2 for the kernel
      change       Tier/platform, NetworkPolicy/shop/web by ada: is rolled back in 42 s unless `tortie confirm` comes
      engine       in sync, session 2
      enforces     3 policies on 0 workload and 0 host endpoints, 0 IP sets, by eBPF programs
      last apply   3.0 s ago, took 20.5 ms, incomplete
      held back    since 2026-11-23T19:48:59Z: they would cut the connection of 198.51.100.7:54321 to port 22 by eth0
                   policy GlobalNetworkPolicy/hosts
                   `tortie confirm` puts these changes in force, `tortie confirm --status` shows their places
      unavailable  for 2 min: etcd: 10.0.0.1:2379: connection refused
      kernel       chain cali-x is missing
    ");
    status.engine = None;
    status.counters = Counters::default();
    assert!(text(&status).contains("  queue        0 changes wait for the engine\n"), "{}", text(&status));
    assert!(!text(&status).contains("latency"), "nothing has reached the kernel");
    assert!(text(&status).ends_with("  engine       busy\n"));
}
