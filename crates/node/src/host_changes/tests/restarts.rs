//! Knowledge after a restart and a reboot.

use std::fs;

use sha2::{Digest as _, Sha256};
use tortie_model::Hostname;

use super::fixture::*;
use crate::host_changes::HostChanges;

const SSH: &str = "policy GlobalNetworkPolicy/ssh";

fn governed() -> Node {
    Node::start(&[ADMIN], &[("cluster", CLUSTER), ("host", HOST), ("ssh", &policy("ssh", &allow(22)))])
}

#[test]
fn held_changes_and_their_start_survive_a_restart() {
    let mut node = governed();
    node.write("ssh", &policy("ssh", &allow(443)));
    let before = node.changes.held().unwrap();
    node.restart();
    assert_eq!(node.changes.held(), Some(before));
    assert!(node.admits() && node.has_host_endpoint());
    // The connection was closed while the agent was down.
    node.connect(&[]);
    node.restart();
    assert!(node.held().is_empty() && !node.admits());
}

#[test]
fn a_reboot_is_not_the_end_of_a_connection_that_counts() {
    let mut node = governed();
    node.write("ssh", &policy("ssh", &allow(443)));
    node.reboot(&[]);
    assert_eq!(node.held(), [SSH]);
    node.later();
    node.reboot(&[]);
    assert_eq!(node.held(), [SSH]);
    assert!(node.admits(), "he can come back");
    node.connect(&["198.51.100.7:60000"]);
    node.later();
    node.connect(&[]);
    node.later();
    assert_eq!(node.held(), [SSH]);
    node.confirm().unwrap();
    node.turn();
    assert!(node.held().is_empty() && !node.admits());
    node.reboot(&[]);
    assert!(node.held().is_empty() && !node.admits());
}

#[test]
fn confirmations_survive_an_immediate_restart() {
    let mut node = governed();
    node.write("ssh", &policy("ssh", &allow(443)));
    node.confirm().unwrap();
    // It is killed before anything is enforced.
    node.restart();
    assert!(node.held().is_empty() && !node.admits());
    assert_eq!(node.dataplane, node.plain());
}

#[test]
fn changes_made_while_the_agent_was_down_are_evaluated() {
    let mut node = governed();
    for (file, text) in [
        ("ssh", None),
        ("ssh", Some(policy("ssh", &allow(443)))),
        ("new", Some(policy_with("new", "{action: Deny}", "order: 1"))),
    ] {
        let before = node.files.clone();
        match &text {
            Some(text) => drop(node.files.insert(file.into(), text.clone())),
            None => drop(node.files.remove(file)),
        }
        node.restart();
        assert_eq!(node.held(), [format!("policy GlobalNetworkPolicy/{file}")], "{text:?}");
        assert!(node.admits());
        node.files = before;
        node.restart();
        assert!(node.held().is_empty());
    }
}

#[test]
fn changes_reverted_while_the_agent_is_down_are_discarded() {
    let mut node = governed();
    node.write("ssh", &policy("ssh", &allow(443)));
    node.files.insert("ssh".into(), policy("ssh", &allow(22)));
    node.reboot(&[]);
    assert!(node.held().is_empty() && node.admits());
    node.connect(&[]);
    node.write("ssh", &policy("ssh", &allow(443)));
    assert!(node.held().is_empty(), "the connection from before the reboot counts no more");
}

#[test]
fn a_torn_record_is_as_none() {
    let mut node = governed();
    node.write("ssh", &policy("ssh", &allow(443)));
    let folder = node.state.path().join("host-changes");
    let place = fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
    let bytes = fs::read(&place).unwrap();
    fs::write(&place, &bytes[..bytes.len() / 2]).unwrap();
    let (lines, _guard) = tortie_telemetry::logging::capture();
    node.restart();
    assert_eq!(lines.containing("the record of the objects that governed this host is ignored").len(), 1);
    let held = node.changes.held().unwrap();
    assert_eq!(held.unprotected, ["host endpoint n1/eth0"]);
    assert_eq!(lines.containing("does NOT PROTECT this host").len(), 1);
    assert!(node.admits());
    // It is written anew.
    node.restart();
    assert!(lines.containing("is ignored").len() == 1 && !node.held().is_empty());
}

#[test]
fn changes_held_by_an_earlier_version_stay_held() {
    let mut node = governed();
    node.write("ssh", &policy("ssh", &allow(443)));
    let before = node.changes.held().unwrap();
    let place = fs::read_dir(node.state.path().join("host-changes")).unwrap().next().unwrap().unwrap().path();
    let text = fs::read_to_string(&place).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let [_, header, objects @ .., _] = &lines[..] else { panic!("{text}") };
    let body = header.replacen('{', &format!("{{\"objects\":[{}],", objects.join(",")), 1);
    let digest: String = Sha256::digest(&body).iter().map(|byte| format!("{byte:02x}")).collect();
    fs::write(&place, format!("tortie-host-changes 1\n{digest}\n{body}")).unwrap();
    node.restart();
    assert_eq!(node.changes.held(), Some(before));
    assert!(node.admits() && node.has_host_endpoint());
    assert!(fs::read_to_string(&place).unwrap().starts_with("tortie-journal 1 host-changes\n"));
    node.confirm().unwrap();
    node.restart();
    assert!(node.held().is_empty() && !node.admits());
}

#[test]
fn an_unwritable_state_directory_is_reported_and_tolerated() {
    let mut node = governed();
    let folder = node.state.path().join("host-changes");
    fs::remove_dir_all(&folder).unwrap();
    fs::write(&folder, "").unwrap();
    let (lines, _guard) = tortie_telemetry::logging::capture();
    node.write("ssh", &policy("ssh", &allow(443)));
    node.later();
    assert_eq!(node.held(), [SSH]);
    assert_eq!(lines.containing("a restart will not know").len(), 1);
}

#[test]
fn tier_and_profile_changes_made_while_the_agent_was_down_are_evaluated() {
    let tier = |action: &str| {
        format!(
            "apiVersion: projectcalico.org/v3\nkind: Tier\nmetadata: {{name: first}}\nspec: {{order: 5, defaultAction: \
             {action}}}\n"
        )
    };
    let profile = |action: &str| {
        format!(
            "apiVersion: projectcalico.org/v3\nkind: Profile\nmetadata: {{name: open}}\nspec: {{ingress: [{{action: \
             {action}}}]}}\n"
        )
    };
    let files = [
        ("host", HOST.replace("interfaceName: eth0", "interfaceName: eth0, profiles: [open]")),
        ("web", policy_with("first.web", &allow(443), "tier: first")),
        ("tier", tier("Pass")),
        ("profile", profile("Allow")),
    ];
    let mut node = Node::start(&[ADMIN], &files.each_ref().map(|(path, text)| (*path, text.as_str())));
    assert!(node.held().is_empty() && node.admits());
    for (file, text, held) in
        [("tier", tier("Deny"), "tier first"), ("profile", profile("Deny"), "rules of profile open")]
    {
        let before = node.files.insert(file.into(), text).unwrap();
        node.restart();
        assert_eq!(node.held(), [held]);
        assert!(node.admits());
        node.files.insert(file.into(), before);
        node.restart();
        assert!(node.held().is_empty());
    }
}

#[test]
fn a_run_without_the_flag_discards_the_record() {
    let mut node = governed();
    node.write("ssh", &policy("ssh", &allow(443)));
    HostChanges::remove_record(&Hostname::new("n1"), node.state.path(), "file:/etc/tortie");
    node.restart();
    // The former policy is not recorded any more, and without the host endpoint the current one
    // cuts no connection.
    assert_eq!(node.held(), ["host endpoint n1/eth0"]);
    assert!(!node.has_host_endpoint());
}
