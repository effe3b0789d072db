//! The agent on a real kernel, in separate namespaces.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test that runs the program on the kernel")]

mod node {
    pub(super) mod agent;
    mod by_address;
    mod claims;
    mod connections;
    mod counters;
    mod domains;
    mod edits;
    mod ending;
    mod flows;
    mod heartbeats;
    mod held_changes;
    mod history;
    mod input;
    mod live;
    mod migration;
    mod nftables;
    mod opening;
    mod programs;
    mod queries;
    mod reachability;
    mod refusals;
    mod surroundings;
    mod take_over;
    mod translation;
}

use std::fs;
use std::time::Duration;

use node::agent::Node;
use rustix::process::{Pid, Signal, kill_process};

const CLUSTER: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {nodeName: n1, containers: [{name: c, image: i, ports: [{name: http, containerPort: 80}]}]}
status: {phase: Running, podIPs: [{ip: 10.65.0.2}, {ip: 'fd00:65::2'}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: from-friends, namespace: shop}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress: [{from: [{podSelector: {matchLabels: {friend: 'yes'}}}], ports: [{port: http}]}]
";

const FRIEND: &str = "
apiVersion: v1
kind: Pod
metadata: {name: friend, namespace: shop, labels: {friend: 'yes'}}
spec: {nodeName: elsewhere, containers: [{name: c, image: i}]}
status: {phase: Running, podIPs: [{ip: 10.65.9.9}]}
";

tortie_lab::kernel_test! {
    fn a_restart_writes_nothing_and_foreign_rules_survive() {
        for backend in ["nft", "legacy"] {
            let mut node = Node::new(backend, CLUSTER);
            node.shell(&format!("iptables-{backend} -A FORWARD -s 192.0.2.1 -j DROP"));
            node.shell(&format!("iptables-{backend} -N KUBE-SOMETHING"));
            node.shell("ipset create mine hash:ip");
            node.start();
            let before = node.kernel_state();
            assert!(before.contains("-A FORWARD -s 192.0.2.1") && before.contains("KUBE-SOMETHING"), "{before}");
            assert!(before.contains("cali-pi-"), "{before}");
            node.stop(Signal::TERM);
            assert_eq!(node.kernel_state(), before, "stopping must leave everything in force");
            let generation = node.ruleset_generation();
            node.start();
            assert_eq!(node.kernel_state(), before);
            assert_eq!(node.ruleset_generation(), generation, "{backend}: a transaction of a restart, or a probe");
            for counter in ["felix_iptables_restore_calls", "felix_ipset_lines_executed"] {
                assert_eq!(node.metric(counter), 0.0, "{backend}: {counter} after a restart");
            }
            node.stop(Signal::TERM);
            node.cleanup();
            let after = node.kernel_state();
            assert!(!after.contains("cali") && after.contains("-A FORWARD -s 192.0.2.1"), "{after}");
            assert!(after.contains("mine"), "{after}");
        }
    }

    /// A third of the memory of a large node is the room in huge pages otherwise.
    fn the_agent_has_no_huge_pages() {
        let mut node = Node::new("nft", CLUSTER);
        node.start();
        let status = fs::read_to_string(format!("/proc/{}/status", node.process())).unwrap();
        assert!(status.contains("THP_enabled:\t0"), "{status}");
    }

    fn clobbered_rules_are_repaired() {
        for backend in ["nft", "legacy"] {
            let mut node = Node::new(backend, CLUSTER);
            node.start();
            let good = node.kernel_state();
            node.shell(&format!("iptables-{backend} -F FORWARD"));
            node.shell(&format!("iptables-{backend} -F cali-from-wl-dispatch"));
            node.shell(&format!("ip6tables-{backend} -t raw -D PREROUTING 1"));
            // Any change makes the agent read before it writes; without one, the periodic checks
            // find the difference as well.
            node.write("friend.yaml", FRIEND);
            node.until("the friend is allowed and the damage is repaired", |state| {
                state.contains("10.65.9.9") && good.lines().filter(|line| line.starts_with("-A")).all(|l| state.contains(l))
            });
        }
    }

    fn damage_is_found_without_any_change() {
        let mut node = Node::new("nft", CLUSTER);
        node.start();
        let good = node.kernel_state();
        node.shell("iptables-nft -F cali-from-wl-dispatch");
        assert_ne!(node.kernel_state(), good);
        node.until("the damage is repaired", |state| state == good);
    }

    fn killed_at_any_time_the_next_start_converges() {
        let mut node = Node::new("nft", CLUSTER);
        node.start();
        let good = node.kernel_state();
        node.stop(Signal::TERM);
        node.cleanup();
        for delay in [5, 15, 30, 45, 60, 80, 100, 130] {
            node.spawn();
            std::thread::sleep(Duration::from_millis(delay));
            node.stop(Signal::KILL);
        }
        node.start();
        assert_eq!(node.kernel_state(), good);
    }

    fn an_edit_is_enforced_and_an_invalid_one_keeps_the_last_valid_version() {
        let mut node = Node::new("nft", CLUSTER);
        node.start();
        assert!(!node.kernel_state().contains("10.65.9.9"));
        node.write("friend.yaml", FRIEND);
        node.until("the friend is allowed", |state| state.contains("10.65.9.9"));
        let good = node.kernel_state();
        node.write("cluster.yaml", &CLUSTER.replace("friend: 'yes'}}}]", "friend: ['yes']}}}]"));
        node.until_ready("cluster.yaml:17:");
        assert_eq!(node.kernel_state(), good);
        fs::remove_file(node.manifests().join("friend.yaml")).unwrap();
        node.until("the friend is gone", |state| !state.contains("10.65.9.9"));
    }

    fn a_parameter_of_the_datastore_takes_effect_while_running() {
        let mut node = Node::new("nft", CLUSTER);
        node.start();
        let felix = "apiVersion: projectcalico.org/v3\nkind: FelixConfiguration\nmetadata: {name: default}\nspec: \
                     {iptablesFilterDenyAction: Reject}\n";
        node.write("felix.yaml", felix);
        node.until("denied packets are rejected", |state| state.contains("Unknown interface\" -j REJECT"));
        // The kernel has no REJECT outside of the filter table.
        node.until("spoofed packets are still dropped", |state| {
            state.contains("--validmark --invert -j DROP")
        });
        assert_eq!(node.metric("tortie_dataplane_problems"), 0.0, "{}", node.log());
        node.until_ready("");
        fs::remove_file(node.manifests().join("felix.yaml")).unwrap();
        node.until("denied packets are dropped again", |state| state.contains("Unknown interface\" -j DROP"));
    }

    fn the_datastore_can_move_the_metrics() {
        let mut node = Node::new("nft", CLUSTER);
        node.start();
        let felix = "apiVersion: projectcalico.org/v3\nkind: FelixConfiguration\nmetadata: {name: default}\nspec: \
                     {prometheusMetricsPort: 9191}\n";
        node.write("felix.yaml", felix);
        node.until("metrics are at the new place only", |_| {
            node.get(9191, "/metrics").contains("felix_host{host=\"n1\"} 1") && node.get(9091, "/metrics").is_empty()
        });
        node.until_ready("");
    }

    fn pools_with_outgoing_nat_are_masqueraded_while_they_exist() {
        let mut node = Node::new("nft", CLUSTER);
        node.start();
        assert!(!node.kernel_state().contains("MASQUERADE"));
        let pool = "apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: pods}\nspec: {cidr: 10.65.0.0/16, \
                    natOutgoing: true}\n";
        node.write("pool.yaml", pool);
        node.until("packets that leave the pool are masqueraded", |state| {
            state.contains("-m set --match-set cali40masq-ipam-pools src -m set ! --match-set cali40network-ip-pools dst")
                && state.contains("-j MASQUERADE")
                && state.contains("add cali40masq-ipam-pools 10.65.0.0/16")
        });
        node.write("pool.yaml", &pool.replace("natOutgoing: true", "natOutgoing: false"));
        node.until("nothing is masqueraded", |state| {
            !state.contains("MASQUERADE") && state.contains("add cali40network-ip-pools 10.65.0.0/16")
        });
    }

    fn a_datastore_that_is_not_ready_keeps_the_enforced_state() {
        let information = |ready| {
            format!("apiVersion: projectcalico.org/v3\nkind: ClusterInformation\nmetadata: {{name: default}}\nspec: \
                     {{datastoreReady: {ready}}}\n")
        };
        for driven in [false, true] {
            let mut node = Node::new("nft", CLUSTER);
            if driven {
                node.drive();
            }
            node.start();
            node.write("information.yaml", &information(false));
            node.until_readiness("503", |answer| answer.contains("the datastore reports that it is not ready"));
            let good = node.kernel_state();
            node.write("friend.yaml", FRIEND);
            node.shell("iptables-nft -F cali-from-wl-dispatch");
            node.until("the damage is repaired", |state| state == good);
            assert!(node.get(9099, "/liveness").contains("200"));
            // A start changes nothing either: no state is removed, and no new policy enforced.
            node.stop(Signal::TERM);
            node.spawn();
            node.until_readiness("503", |answer| answer.contains("the datastore reports that it is not ready"));
            assert_eq!(node.kernel_state(), good);
            node.write("information.yaml", &information(true));
            node.until("the friend is allowed", |state| state.contains("10.65.9.9"));
            node.until_ready("");
        }
    }

    fn an_unknown_node_keeps_its_state() {
        let mut node = Node::new("nft", CLUSTER);
        node.start();
        let good = node.kernel_state();
        node.stop(Signal::TERM);
        node.write("cluster.yaml", &CLUSTER.replace("nodeName: n1", "nodeName: node-1"));
        node.spawn();
        node.until_readiness("503", |answer| answer.contains("names this node, `n1`") && answer.contains("`node-1` meant?"));
        assert!(node.get(9099, "/liveness").contains("200"));
        assert_eq!(node.kernel_state(), good);
        node.write("cluster.yaml", CLUSTER);
        node.write("friend.yaml", FRIEND);
        node.until("the friend is allowed", |state| state.contains("10.65.9.9"));
        node.until_ready("");
        fs::remove_file(node.manifests().join("cluster.yaml")).unwrap();
        node.until("the last endpoint is gone", |state| !state.contains("cali-tw-"));
    }

    fn log_lines_are_json_if_wanted() {
        let mut node = Node::new("nft", CLUSTER);
        node.start();
        node.stop(Signal::TERM);
        let log = node.log();
        assert!(log.lines().count() > 2, "{log}");
        let first = log.lines().find(|line| line.contains("\"starting\"")).unwrap();
        let first: serde_json::Value = serde_json::from_str(first).unwrap();
        assert_eq!((first["message"].as_str(), first["node"].as_str()), (Some("starting"), Some("n1")), "{first}");
        let field_contains = |field: &str, part: &str| first[field].as_str().is_some_and(|text| text.contains(part));
        assert!(field_contains("dataplane", "nft, IPv4, IPv6") && field_contains("datastore", "file:/") && field_contains("parameters", "HealthEnabled=true"), "{first}");
        for line in log.lines() {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            assert!(line["timestamp"].is_string() && line["level"].is_string() && line["message"].is_string(), "{line}");
        }
    }

    fn input_that_cannot_be_used_stops_the_start_if_that_is_wanted() {
        let mut node = Node::new("nft", &CLUSTER.replace("matchLabels: {app: web}", "matchLabels: 7"));
        node.give(&["--unreadable", "exit"]);
        node.spawn();
        assert_eq!(node.wait().code(), Some(1));
        assert!(node.log().contains("NetworkPolicy/shop/from-friends"), "{}", node.log());
        assert!(!node.kernel_state().contains("cali"));
        // The error that ends the program is a log line like the others.
        let last: serde_json::Value = serde_json::from_str(node.log().lines().last().unwrap()).unwrap();
        assert_eq!(last["level"], "ERROR", "{last}");
    }

    fn an_agent_with_a_driver_equals_an_agent_alone() {
        for backend in ["nft", "legacy"] {
            let mut node = Node::new(backend, CLUSTER);
            node.start();
            let alone = node.kernel_state();
            assert!(alone.contains("cali-pi-"), "{alone}");
            node.stop(Signal::TERM);
            node.drive();
            node.start();
            assert_eq!(node.kernel_state(), alone);
            assert!(node.log().contains("restores=0 set_lines=0"), "{backend}: {}", node.log());
            node.write("friend.yaml", FRIEND);
            node.until("the friend is allowed", |state| state.contains("10.65.9.9"));
            node.stop(Signal::TERM);
            assert!(!is_alive(node.driver()), "{}", node.log());
            assert!(node.kernel_state().contains("10.65.9.9"), "stopping must leave everything in force");
            node.cleanup();
            fs::remove_file(node.manifests().join("friend.yaml")).unwrap();
            node.start();
            // An object that is missing at the start may be about to return, and stays in force for
            // a while.
            node.until("the friend is gone", |state| state == alone);
        }
    }

    fn when_one_half_is_killed_the_other_ends_and_the_next_start_converges() {
        let mut node = Node::new("nft", CLUSTER);
        node.drive();
        node.start();
        let good = node.kernel_state();
        kill_process(node.driver(), Signal::KILL).unwrap();
        assert_eq!(node.wait().code(), Some(1));
        assert!(node.log().contains("has ended (signal: 9"), "{}", node.log());
        assert_eq!(node.kernel_state(), good);
        node.start();
        assert_eq!(node.kernel_state(), good);
        let driver = node.driver();
        node.stop(Signal::KILL);
        node.until("the driver has ended, too", |_| !is_alive(driver));
        assert_eq!(node.kernel_state(), good);
        node.write("friend.yaml", FRIEND);
        node.start();
        assert!(node.kernel_state().contains("10.65.9.9"));
        fs::remove_file(node.manifests().join("friend.yaml")).unwrap();
        node.until("the friend is gone", |state| state == good);
    }

    fn a_parameter_of_the_datastore_begins_a_new_driver() {
        let mut node = Node::new("nft", CLUSTER);
        node.drive();
        node.start();
        let driver = node.driver();
        let felix = "apiVersion: projectcalico.org/v3\nkind: FelixConfiguration\nmetadata: {name: default}\nspec: \
                     {iptablesFilterDenyAction: Reject}\n";
        node.write("felix.yaml", felix);
        node.until("denied packets are rejected", |state| state.contains("Unknown interface\" -j REJECT"));
        assert!(node.driver() != driver && !is_alive(driver));
    }
}

/// Reports whether a process runs; a zombie does not.
fn is_alive(process: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
}
