//! While there is a reason not to enforce changes, the policy in force is kept and repaired, and
//! the reason is reported.

use tortie_iptables::Command;

use super::*;

const WORKLOAD: &str = ":cali-tw-cali";

fn cluster_information(spec: &str) -> String {
    format!("apiVersion: projectcalico.org/v3\nkind: ClusterInformation\nmetadata: {{name: default}}\nspec: {spec}\n")
}

fn policy(port: u16) -> String {
    POLICY.replace("policyTypes: [Ingress]", &format!("ingress: [{{ports: [{{port: {port}}}]}}]"))
}

impl Bench {
    fn set_ready(&mut self, ready: bool) {
        self.file("information.yaml", &cluster_information(&format!("{{datastoreReady: {ready}}}")));
    }

    fn has_rule(&mut self, part: &str) -> bool {
        self.kernel().state().contains(part)
    }

    fn readiness(&self) -> (u16, String) {
        let answer = self.health.answer("/readiness");
        (answer.status, answer.body)
    }

    fn assert_not_ready(&self, why: &str) {
        let (status, body) = self.readiness();
        assert!(status == 503 && body.contains(why), "{status} {body}");
        assert_eq!(self.health.answer("/liveness").status, 200);
    }

    /// A node on which a policy that opens this port is in force.
    fn enforcing(port: u16) -> Self {
        let mut bench = Self::new(&[], Unreadable::Exit);
        bench.file("a.yaml", CLUSTER);
        bench.file("b.yaml", &policy(port));
        bench.in_sync();
        bench.run_to_idle();
        assert!(bench.is_ready() && bench.has_rule(&dport(port)), "{}", bench.kernel().state());
        bench
    }
}

fn dport(port: u16) -> String {
    format!("--dports {port} ")
}

const NOT_READY: &str = "the datastore reports that it is not ready";

#[test]
fn a_flag_that_turns_false_and_true_again_holds_changes_back_and_releases_them() {
    let mut bench = Bench::enforcing(80);
    bench.set_ready(false);
    bench.run_to_idle();
    bench.assert_not_ready(NOT_READY);
    let before = bench.kernel().state();
    bench.kernel().reset_writes();
    bench.file("b.yaml", &policy(81));
    bench.without_file("a.yaml");
    bench.run_to_idle();
    assert_eq!(bench.kernel().state(), before);
    assert_eq!(bench.kernel().writes(), tortie_dataplane::fake::Writes::default());
    bench.file("a.yaml", CLUSTER);
    bench.set_ready(true);
    bench.run_to_idle();
    assert!(bench.is_ready() && bench.has_rule(&dport(81)) && !bench.has_rule(&dport(80)));
    bench.file("b.yaml", &policy(82));
    bench.run_to_idle();
    assert!(bench.is_ready() && bench.has_rule(&dport(82)));
}

#[test]
fn changes_with_the_flag_are_held_back_and_changes_with_its_end_are_not() {
    let mut bench = Bench::enforcing(80);
    bench.file("b.yaml", &policy(81));
    bench.set_ready(false);
    bench.run_to_idle();
    assert!(bench.has_rule(&dport(80)) && !bench.has_rule(&dport(81)));
    bench.set_ready(true);
    bench.file("b.yaml", &policy(82));
    bench.run_to_idle();
    assert!(bench.is_ready() && bench.has_rule(&dport(82)));
}

#[test]
fn foreign_changes_are_repaired_while_the_flag_is_false() {
    let mut bench = Bench::enforcing(80);
    bench.set_ready(false);
    bench.run_to_idle();
    let before = bench.kernel().state();
    let flush =
        Command { program: "iptables-nft-restore".into(), args: vec!["--noflush".into()], input: String::new() };
    let tables = &mut bench.kernel().netfilter.tables_v4;
    tables.restore(&flush, "*filter\n-F cali-FORWARD\n-F FORWARD\nCOMMIT\n").unwrap();
    assert_ne!(bench.kernel().state(), before);
    bench.kernel().sleep(Duration::from_secs(600));
    bench.run_to_idle();
    assert_eq!(bench.kernel().state(), before);
    bench.assert_not_ready(NOT_READY);
}

#[test]
fn a_start_with_the_flag_false_tears_nothing_down_and_enforces_when_it_is_true() {
    for first in ["news", "flag"] {
        let left = {
            let mut bench = Bench::enforcing(80);
            bench.kernel().clone()
        };
        let mut bench = Bench::new(&[], Unreadable::Exit);
        *bench.kernel() = left.clone();
        bench.kernel().reset_writes();
        bench.set_ready(false);
        bench.in_sync();
        bench.run_to_idle();
        assert_eq!(bench.kernel().state(), left.state());
        assert_eq!(bench.kernel().writes(), tortie_dataplane::fake::Writes::default());
        bench.assert_not_ready(NOT_READY);
        if first == "news" {
            bench.file("a.yaml", CLUSTER);
            bench.run_to_idle();
            bench.set_ready(true);
        } else {
            bench.set_ready(true);
            bench.file("a.yaml", CLUSTER);
        }
        bench.run_to_idle();
        assert!(bench.is_ready(), "{:?}", bench.readiness());
        assert!(bench.has_rule(WORKLOAD) && !bench.has_rule(&dport(80)));
    }
}

#[test]
fn a_missing_flag_counts_as_true() {
    // Neither the object nor the field.
    Bench::enforcing(80);
    let mut bench = Bench::new(&[], Unreadable::Exit);
    bench.file("information.yaml", &cluster_information("{clusterGUID: abc}"));
    bench.file("a.yaml", CLUSTER);
    bench.in_sync();
    bench.run_to_idle();
    assert!(bench.is_ready());
    // False, and then deleted, with the field or with all of it.
    for end in [Some("{clusterGUID: abc}"), None] {
        bench.set_ready(false);
        bench.file("b.yaml", &policy(81));
        bench.run_to_idle();
        bench.assert_not_ready(NOT_READY);
        assert!(!bench.has_rule(&dport(81)));
        match end {
            Some(spec) => bench.file("information.yaml", &cluster_information(spec)),
            None => bench.without_file("information.yaml"),
        }
        bench.run_to_idle();
        assert!(bench.is_ready() && bench.has_rule(&dport(81)));
        bench.without_file("b.yaml");
        bench.run_to_idle();
        assert!(!bench.has_rule(&dport(81)));
    }
}

#[test]
fn a_flag_that_flips_before_the_datastore_is_in_sync_counts_as_it_stands_then() {
    for last in [true, false] {
        let mut bench = Bench::new(&[], Unreadable::Exit);
        bench.set_ready(last);
        bench.run_to_idle();
        bench.set_ready(!last);
        bench.run_to_idle();
        bench.set_ready(last);
        bench.file("a.yaml", CLUSTER);
        bench.run_to_idle();
        assert!(!bench.has_rule("cali"));
        bench.in_sync();
        bench.run_to_idle();
        assert_eq!((bench.is_ready(), bench.has_rule(WORKLOAD)), (last, last));
    }
}

#[test]
fn after_the_flag_was_false_a_resync_is_waited_for() {
    let mut bench = Bench::enforcing(80);
    bench.set_ready(false);
    bench.run_to_idle();
    bench.feed.begin_resync().unwrap();
    bench.set_ready(true);
    bench.run_to_idle();
    // The source has not yet sent the cluster and its policies.
    bench.assert_not_ready(NOT_READY);
    assert!(bench.has_rule(&dport(80)));
    bench.file("c.yaml", &CLUSTER.replace("10.0.0.1", "10.0.0.2").replace("name: web", "name: api"));
    bench.file("b.yaml", &policy(81));
    bench.run_to_idle();
    assert!(bench.has_rule(&dport(80)) && !bench.has_rule(&dport(81)));
    bench.feed.end_resync().unwrap();
    bench.run_to_idle();
    assert!(bench.is_ready() && bench.has_rule(&dport(81)) && !bench.has_rule(&dport(80)));
}

#[test]
fn a_flag_that_goes_false_in_a_resync_holds_at_once() {
    let mut bench = Bench::enforcing(80);
    bench.feed.begin_resync().unwrap();
    bench.set_ready(false);
    bench.run_to_idle();
    bench.assert_not_ready(NOT_READY);
    // At the end of a resync, objects that were not sent are deleted; these deletions are held
    // back.
    bench.feed.end_resync().unwrap();
    bench.run_to_idle();
    bench.assert_not_ready(NOT_READY);
    assert!(bench.has_rule(&dport(80)) && bench.has_rule(WORKLOAD));
}

#[test]
fn a_parameter_that_changes_while_the_flag_is_false_waits_too() {
    let mut bench = Bench::enforcing(80);
    bench.set_ready(false);
    bench.run_to_idle();
    let felix = "apiVersion: projectcalico.org/v3\nkind: FelixConfiguration\nmetadata: {name: default}\nspec: \
                 {defaultEndpointToHostAction: Accept}\n";
    bench.file("felix.yaml", felix);
    assert!(bench.run_until_idle().is_none());
    bench.set_ready(true);
    let Some(SessionEnd::Reconfigured(update)) = bench.run_until_idle() else { panic!("no new session") };
    assert_eq!(&*update.global["DefaultEndpointToHostAction"], "Accept");
}

#[test]
fn an_unavailable_datastore_does_not_end_the_hold() {
    let mut bench = Bench::enforcing(80);
    bench.set_ready(false);
    bench.feed.unavailable("away").unwrap();
    bench.run_to_idle();
    bench.assert_not_ready(NOT_READY);
    bench.assert_not_ready("away");
    bench.feed.available().unwrap();
    bench.run_to_idle();
    bench.assert_not_ready(NOT_READY);
}

#[test]
fn time_spent_waiting_for_the_flag_is_not_taken_for_slowness() {
    let mut bench = Bench::enforcing(80);
    bench.set_ready(false);
    bench.run_to_idle();
    let count = bench.metrics.lock().main_loop.event_to_kernel.count();
    bench.file("b.yaml", &policy(81));
    bench.run_to_idle();
    bench.set_ready(true);
    bench.run_to_idle();
    assert!(bench.has_rule(&dport(81)));
    let counted = bench.metrics.lock().main_loop.event_to_kernel.count() - count;
    // The end of the hold is an event itself.
    assert!(counted <= 1, "{counted}");
}

/// The cluster as another node would see it.
fn elsewhere() -> String {
    CLUSTER.replace("nodeName: n1", "nodeName: n11")
}

#[test]
fn an_unknown_node_keeps_its_state_and_logs_the_known_names() {
    let (lines, _guard) = tortie_telemetry::logging::capture();
    let left = Bench::enforcing(80).kernel().clone();
    let mut bench = Bench::new(&[], Unreadable::Exit);
    *bench.kernel() = left.clone();
    bench.kernel().reset_writes();
    bench.file("a.yaml", &elsewhere());
    for node in ["worker-1", "n2", "n1x", "worker-2"] {
        bench.file(&format!("{node}.yaml"), &format!("apiVersion: v1\nkind: Node\nmetadata: {{name: {node}}}\n"));
    }
    bench.in_sync();
    bench.run_to_idle();
    let expected = "nothing in the datastore names this node, `n1`: neither a node nor an endpoint; is one of `n11`, `n1x`, `n2` \
                meant?";
    bench.assert_not_ready(expected);
    assert_eq!(lines.containing(expected).len(), 1, "{lines:?}");
    assert_eq!(bench.kernel().state(), left.state());
    assert_eq!(bench.kernel().writes(), tortie_dataplane::fake::Writes::default());
    // Other changes are not enforced either, and not warned of again.
    bench.file("b.yaml", &policy(81));
    bench.without_file("n2.yaml");
    bench.run_to_idle();
    assert_eq!(bench.kernel().state(), left.state());
    bench.assert_not_ready("is one of `n11`, `n1x`, `worker-1` meant?");
    assert_eq!(lines.containing("nothing in the datastore names").len(), 1, "{lines:?}");
    bench.file("a.yaml", CLUSTER);
    bench.run_to_idle();
    assert!(bench.is_ready() && bench.has_rule(&dport(81)), "{:?}", bench.readiness());
    assert_eq!(
        lines.containing("changes are enforced again resolved=nothing in the datastore names").len(),
        1,
        "{lines:?}"
    );
}

#[test]
fn input_that_cannot_be_read_may_name_the_node_and_closes_it() {
    let mut bench = Bench::new(&[], Unreadable::Deny);
    bench.directory = DirState::new(Options::default()).close_unknown();
    bench.file("a.yaml", "kind: [");
    bench.in_sync();
    bench.run_to_idle();
    assert!(bench.has_rule(":cali-FORWARD"));
    bench.assert_not_ready("a.yaml:1:");
    bench.file("a.yaml", CLUSTER);
    bench.run_to_idle();
    assert!(bench.is_ready() && bench.has_rule(WORKLOAD), "{:?}", bench.readiness());
}

#[test]
fn any_object_that_names_the_node_makes_it_known() {
    let calico = |kind: &str, name: &str, spec: &str| {
        format!("apiVersion: projectcalico.org/v3\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {spec}\n")
    };
    for (name, known) in [
        ("apiVersion: v1\nkind: Node\nmetadata: {name: n1}\n".to_owned(), true),
        (calico("Node", "n1", "{}"), true),
        (calico("HostEndpoint", "eth", "{node: n1, interfaceName: eth0}"), true),
        (calico("HostEndpoint", "eth", "{node: n2, interfaceName: eth0}"), false),
        (calico("FelixConfiguration", "node.n1", "{logPrefix: calico-packet}"), true),
        (calico("FelixConfiguration", "default", "{logPrefix: calico-packet}"), false),
        (POLICY.to_owned(), false),
        (String::new(), false),
    ] {
        let mut bench = Bench::new(&[("LogPrefix", "calico-packet")], Unreadable::Exit);
        bench.file("a.yaml", &name);
        bench.in_sync();
        bench.run_to_idle();
        assert_eq!(bench.is_ready(), known, "{name}: {:?}", bench.readiness());
        assert_eq!(bench.has_rule("cali-FORWARD"), known, "{name}");
    }
}

#[test]
fn removal_of_the_last_endpoint_of_a_node_is_enforced() {
    let mut bench = Bench::enforcing(80);
    bench.without_file("a.yaml");
    bench.run_to_idle();
    assert!(bench.is_ready() && !bench.has_rule(WORKLOAD), "{:?}", bench.readiness());
}

#[test]
fn an_unknown_node_is_reported_once_the_datastore_is_ready() {
    let mut bench = Bench::new(&[], Unreadable::Exit);
    bench.file("a.yaml", &elsewhere());
    bench.set_ready(false);
    bench.in_sync();
    bench.run_to_idle();
    bench.assert_not_ready(NOT_READY);
    bench.set_ready(true);
    bench.run_to_idle();
    bench.assert_not_ready("is `n11` meant?");
    assert!(!bench.has_rule("cali"));
}

#[test]
fn a_changed_policy_is_a_line_with_its_name_and_the_first_sync_a_count() {
    let (lines, _guard) = tortie_telemetry::logging::capture();
    let mut bench = Bench::enforcing(80);
    let first = lines.containing("policy is in force");
    assert!(first.len() == 1 && first[0].contains("endpoints=1 policies=1"), "{lines:?}");
    bench.file("b.yaml", &policy(81));
    bench.run_to_idle();
    let changed = lines.containing("the changed policy is in force");
    assert!(changed.len() == 1 && changed[0].contains("shop/deny") && changed[0].contains("took_ms="), "{lines:?}");
    bench.without_file("b.yaml");
    bench.run_to_idle();
    let gone = lines.containing("the policy is no longer in force");
    assert!(gone.len() == 1 && gone[0].contains("shop/deny"), "{lines:?}");
    assert_eq!(lines.containing("olicy").len(), 3, "{lines:?}");
}

#[test]
fn a_host_endpoint_that_allows_nothing_is_warned_of_before_it_is_applied() {
    let (lines, _guard) = tortie_telemetry::logging::capture();
    let mut bench = Bench::new(&[], Unreadable::Exit);
    let endpoint = "apiVersion: projectcalico.org/v3\nkind: HostEndpoint\nmetadata: {name: eth}\nspec: {node: n1, \
                    interfaceName: eth0}\n";
    bench.file("a.yaml", endpoint);
    bench.in_sync();
    bench.run_to_idle();
    let logged = lines.containing("host endpoint eth: no policy allows anything");
    assert!(logged.len() == 1 && logged[0].contains("interface eth0") && logged[0].contains("WARN"), "{lines:?}");
    let all = lines.containing("");
    let place = |part: &str| all.iter().position(|line| line.contains(part)).unwrap();
    assert!(place("no policy allows anything") < place("policy is in force"), "{all:?}");
    bench.run_to_idle();
    assert_eq!(lines.containing("no policy allows anything").len(), 1);
}
