//! All transitions between states.

use super::fixture::*;

/// A node digest host endpoint allows the connection of its administrator, by a policy.
fn governed() -> Node {
    let node = Node::start(&[ADMIN], &[("cluster", CLUSTER), ("host", HOST), ("ssh", &policy("ssh", &allow(22)))]);
    assert!(node.held().is_empty() && node.has_host_endpoint() && node.enforces("ssh"));
    node
}

const SSH: &str = "policy GlobalNetworkPolicy/ssh";
const ENDPOINT: &str = "host endpoint n1/eth0";

/// The same, with a held change that would cut that connection.
fn holding() -> Node {
    let mut node = governed();
    node.write("ssh", &policy("ssh", &allow(443)));
    assert_eq!(node.held(), [SSH]);
    assert!(node.admits());
    node
}

#[test]
fn a_first_start_holds_back_a_host_endpoint_that_would_cut_a_connection_and_nothing_else() {
    let mut node = Node::start(&[ADMIN], &[("cluster", CLUSTER), ("host", HOST), ("pods", PODS)]);
    let held = node.changes.held().unwrap();
    assert_eq!(
        (held.objects.as_slice(), held.unprotected.as_slice()),
        (&[ENDPOINT.to_owned()][..], &[ENDPOINT.to_owned()][..])
    );
    assert_eq!(held.connections, [format!("{ADMIN} to port 22 by eth0")]);
    assert!(node.enforces("pods") && !node.has_host_endpoint() && node.dataplane.in_sync);
    assert!(node.changes.names_node());
    assert_eq!(node.confirm().unwrap().objects, [ENDPOINT]);
    node.turn();
    assert!(node.has_host_endpoint() && !node.admits() && node.held().is_empty());
    assert_eq!(node.dataplane, node.plain());
}

#[test]
fn without_a_connection_nothing_is_held_back() {
    for admins in [&[][..], &["127.0.0.1:5"], &["192.0.2.1:5"]] {
        let node = Node::start(admins, &[("cluster", CLUSTER), ("host", HOST)]);
        assert!(node.held().is_empty() && node.has_host_endpoint(), "{admins:?}");
    }
}

#[test]
fn confirmed_changes_apply_and_are_the_base_of_later_evaluations() {
    let mut node = holding();
    let summary = node.confirm().unwrap();
    assert_eq!(summary.objects, [SSH]);
    node.turn();
    assert!(!node.admits() && node.held().is_empty());
    assert_eq!(node.confirm(), None);
    // The connection is denied already, so this cuts nothing.
    node.write("ssh", &policy("ssh", &allow(80)));
    assert!(node.held().is_empty());
    assert_eq!(node.dataplane, node.plain());
}

#[test]
fn reverted_changes_are_discarded() {
    let mut node = holding();
    node.write("ssh", &policy("ssh", &allow(22)));
    assert!(node.held().is_empty() && node.admits());
    assert_eq!(node.confirm(), None);
    assert_eq!(node.dataplane, node.plain());
}

#[test]
fn a_held_change_that_becomes_harmless_applies() {
    let mut node = holding();
    node.write("ssh", &policy("ssh", &format!("{}, {}", allow(443), allow(22))));
    assert!(node.held().is_empty() && node.admits());
    assert_eq!(node.dataplane, node.plain());
}

#[test]
fn of_several_versions_that_cut_the_last_one_counts() {
    let mut node = holding();
    node.write("ssh", &policy("ssh", &allow(80)));
    assert_eq!(node.held(), [SSH]);
    node.remove("ssh");
    assert_eq!(node.held(), [SSH]);
    assert!(node.admits());
    node.confirm().unwrap();
    node.turn();
    assert!(!node.enforces("ssh") && !node.admits());
}

#[test]
fn an_unseen_version_is_not_confirmed_with_its_predecessor() {
    let mut node = holding();
    node.set("other", Some(&policy_with("other", "{action: Deny}", "order: 1")));
    node.confirm().unwrap();
    node.turn();
    // The confirmed policy denies the administrator's connection already, so this one cuts nothing.
    assert!(node.held().is_empty() && node.enforces("other"));

    let mut node = holding();
    node.set("ssh", Some(&policy("ssh", &allow(80))));
    assert!(node.try_confirm().is_none());
    node.turn();
    assert_eq!(node.held(), [SSH]);
    assert!(node.admits());
}

#[test]
fn when_the_connection_is_closed_the_change_is_put_in_force() {
    let mut node = holding();
    node.later();
    assert_eq!(node.held(), [SSH]);
    node.connect(&[]);
    node.turn();
    assert_eq!(node.held(), [SSH], "it is looked at every few seconds");
    node.later();
    assert!(node.held().is_empty() && !node.admits());
    assert_eq!(node.dataplane, node.plain());
}

#[test]
fn removal_of_a_host_endpoint_releases_its_held_changes() {
    let mut node = holding();
    node.remove("host");
    assert!(node.held().is_empty() && !node.has_host_endpoint());
    assert_eq!(node.dataplane, node.plain());
}

#[test]
fn everything_else_of_the_same_change_is_enforced() {
    let mut node = governed();
    node.set("ssh", Some(&policy("ssh", &allow(443))));
    node.set("pods", Some(PODS));
    node.set("set", Some("apiVersion: projectcalico.org/v3\nkind: GlobalNetworkSet\nmetadata: {name: a}\nspec: {nets: [10.9.0.0/16]}\n"));
    node.turn();
    assert_eq!(node.held(), [SSH]);
    assert!(node.enforces("pods"));
}

#[test]
fn harmless_changes_apply_beside_held_ones() {
    let mut node = holding();
    node.write("web", &policy("web", &allow(443)));
    assert!(node.enforces("web"));
    assert_eq!(node.held(), [SSH]);
    // A change that cuts joins the held ones.
    node.write("none", &policy_with("none", "{action: Deny}", "order: 1"));
    assert_eq!(node.held(), ["policy GlobalNetworkPolicy/none", SSH]);
    node.remove("none");
    assert_eq!(node.held(), [SSH]);
    node.confirm().unwrap();
    node.turn();
    assert_eq!(node.dataplane, node.plain());
}

#[test]
fn a_network_set_by_which_the_administrator_gets_in_is_not_emptied() {
    let set = |net: &str| {
        format!(
            "apiVersion: projectcalico.org/v3\nkind: GlobalNetworkSet\nmetadata: {{name: admins, labels: {{who: admins}}}}\n\
             spec: {{nets: ['{net}']}}\n"
        )
    };
    let rule = "{action: Allow, protocol: TCP, source: {selector: who == 'admins'}, destination: {ports: [22]}}";
    let files = [("host", HOST), ("ssh", &policy("ssh", rule)), ("set", &set("198.51.100.0/24"))];
    let mut node = Node::start(&[ADMIN], &files);
    assert!(node.held().is_empty() && node.admits());
    node.write("set", &set("203.0.113.0/24"));
    assert_eq!(node.held(), ["network set admins"]);
    assert!(node.admits());
    node.restart();
    assert_eq!(node.held(), ["network set admins"], "a restart keeps the earlier set");
    assert!(node.admits());
    node.write("set", &set("198.51.100.7/32"));
    assert!(node.held().is_empty() && node.admits());
}

#[test]
fn failsafe_ports_count_and_are_held_back_themselves() {
    let felix = |ports: &str| {
        format!(
            "apiVersion: projectcalico.org/v3\nkind: FelixConfiguration\nmetadata: {{name: default}}\n\
             spec: {{failsafeInboundHostPorts: [{{protocol: tcp, port: {ports}}}]}}\n"
        )
    };
    let files = [("cluster", CLUSTER), ("host", HOST), ("felix", &felix("22"))];
    let mut node = Node::start(&[ADMIN], &files);
    assert!(node.held().is_empty() && node.admits(), "{:?}", node.changes.held());
    node.write("felix", &felix("443"));
    assert_eq!(node.held(), ["parameter FailsafeInboundHostPorts"]);
    assert!(node.admits());
    node.restart();
    assert_eq!(node.held(), ["parameter FailsafeInboundHostPorts"]);
    node.confirm().unwrap();
    node.turn();
    assert!(!node.admits());
}

#[test]
fn only_host_policy_waits_while_connections_are_unreadable() {
    let mut node = governed();
    node.observer.0.lock().unwrap().0 = Err("no netlink".into());
    node.write("ssh", &policy("ssh", &allow(443)));
    node.write("pods", PODS);
    assert_eq!(node.held(), [SSH]);
    assert_eq!(node.changes.held().unwrap().unknown.as_deref(), Some("no netlink"));
    assert!(node.enforces("pods") && node.admits());
    node.connect(&[]);
    node.later();
    assert!(node.held().is_empty() && !node.admits());

    // Without host endpoints no change is held back.
    let mut node = Node::start(&[], &[("cluster", CLUSTER)]);
    node.observer.0.lock().unwrap().0 = Err("no netlink".into());
    node.write("ssh", &policy("ssh", &allow(443)));
    assert!(node.held().is_empty());
}

#[test]
fn untracked_and_pre_dnat_policies_cut_as_well() {
    for (more, cuts) in [
        ("order: 1, preDNAT: true, applyOnForward: true", true),
        ("order: 1, doNotTrack: true, applyOnForward: true", true),
        ("order: 100", false),
    ] {
        let mut node = governed();
        node.write("deny", &policy_with("deny", "{action: Deny, protocol: TCP}", more));
        assert_eq!(!node.held().is_empty(), cuts, "{more}");
        assert!(node.admits(), "{more}");
    }
    // An untracked connection needs a way out.
    let mut node = governed();
    node.write("in", &policy_with("in", &allow(22), "order: 1, doNotTrack: true, applyOnForward: true"));
    assert_eq!(node.held(), ["policy GlobalNetworkPolicy/in"]);
    let out = "apiVersion: projectcalico.org/v3\nkind: GlobalNetworkPolicy\nmetadata: {name: out}\nspec: {selector: role == 'host', \
               types: [Egress], egress: [{action: Allow, protocol: TCP, source: {ports: [22]}}], doNotTrack: true, \
               applyOnForward: true}\n";
    node.write("out", out);
    assert!(node.held().is_empty(), "{:?}", node.held());
}

#[test]
fn a_new_session_keeps_held_changes() {
    let mut node = holding();
    let since = node.changes.held().unwrap().since;
    node.begin_session();
    assert_eq!(node.held(), [SSH]);
    assert_eq!(node.changes.held().unwrap().since, since);
    assert!(node.admits());
    node.confirm().unwrap();
    node.begin_session();
    assert!(node.held().is_empty() && !node.admits());
}

#[test]
fn of_a_first_start_host_endpoints_alone_are_held_back_and_pods_have_every_policy() {
    let all = policy_with("all", "{action: Deny}", "order: 1").replace("role == 'host'", "all()");
    let node = Node::start(&[ADMIN], &[("cluster", CLUSTER), ("host", HOST), ("all", &all), ("pods", PODS)]);
    assert_eq!(node.held(), [ENDPOINT]);
    assert!(node.enforces("all") && node.enforces("pods"));
}

#[test]
fn a_new_policy_for_everything_is_held_back_for_the_host_alone() {
    let mut node = governed();
    let all = policy_with("all", "{action: Deny}", "order: 1").replace("role == 'host'", "all()");
    let name = ["policy GlobalNetworkPolicy/all"];
    node.write("all", &all);
    assert_eq!(node.held(), name);
    assert!(node.enforces("all") && node.admits());
    node.later();
    node.restart();
    assert_eq!(node.held(), name);
    assert!(node.enforces("all") && node.admits());
    // Another version of an object that has a former version now.
    node.write("all", &all.replace("Deny", "Allow"));
    assert!(node.held().is_empty() && node.admits());
    assert_eq!(node.dataplane, node.plain());
    node.write("all", &all);
    assert_eq!(node.held(), name);
    node.confirm().unwrap();
    node.turn();
    assert!(!node.admits());
    assert_eq!(node.dataplane, node.plain());

    let mut node = governed();
    node.write("all", &all);
    node.remove("all");
    assert!(node.held().is_empty() && !node.enforces("all"));
    assert_eq!(node.dataplane, node.plain());
}
