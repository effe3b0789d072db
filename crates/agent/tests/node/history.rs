//! Earlier states of the manifests, and rollbacks to them.

use std::fs;
use std::process::{Command, Output};

use rustix::process::Signal;
use serde_json::Value;

use super::agent::Node;
use crate::{CLUSTER, FRIEND};

fn tortie(node: &Node, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tortie")).args(args).arg("--state-dir").arg(node.state()).output().unwrap()
}

fn good(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Returns the number of states.
fn states(node: &Node) -> usize {
    let output = tortie(node, &["history", "-o", "json"]);
    let whole: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    whole["states"].as_array().map_or(0, Vec::len)
}

fn until_there_are(node: &Node, number: usize) {
    node.until("the state is known", |_| states(node) == number);
}

tortie_lab::kernel_test! {
    fn manifests_go_back_to_an_earlier_state_and_the_kernel_follows() {
        let mut node = Node::new("nft", CLUSTER);
        let none = tortie(&node, &["history"]);
        assert!(!none.status.success());
        assert!(String::from_utf8_lossy(&none.stderr).contains("no history is kept below "), "{none:?}");
        node.start();
        until_there_are(&node, 1);
        let before = node.kernel_state();
        node.write("friend.yaml", FRIEND);
        node.until("the friend is allowed", |state| state.contains("10.65.9.9"));
        until_there_are(&node, 2);

        let table = good(&tortie(&node, &["history"]));
        let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["STATE", "TIME", "FILES", "OBJECTS"]);
        assert_eq!((lines[1][0], &lines[1][2..]), ("2", &["+1", "+1"][..]), "{table}");
        assert_eq!((lines[2][0], &lines[2][2..]), ("1", &["first", "known"][..]), "{table}");
        let diff = good(&tortie(&node, &["history", "2"]));
        assert!(diff.contains("\n  + Pod/shop/friend\n--- /dev/null\n+++ "), "{diff}");
        assert!(diff.contains("\n+metadata: {name: friend, namespace: shop, labels: {friend: 'yes'}}\n"), "{diff}");

        let planned = good(&tortie(&node, &["rollback", "1", "--dry-run"]));
        assert!(planned.contains("\n+++ /dev/null\n") && node.manifests().join("friend.yaml").exists(), "{planned}");
        let removed = good(&tortie(&node, &["rollback", "1"]));
        assert_eq!(removed, format!("removed {}\n", node.manifests().join("friend.yaml").display()));
        node.until("the kernel is as before", |state| state == before);
        until_there_are(&node, 3);
        assert_eq!(good(&tortie(&node, &["rollback", "1"])), "everything is as in state 1\n");

        // A rollback can be reverted by the state that it has created.
        good(&tortie(&node, &["rollback", "2"]));
        node.until("the friend is allowed", |state| state.contains("10.65.9.9"));
        until_there_are(&node, 4);

        // A change while no agent runs is unknown until an agent runs again.
        node.stop(Signal::TERM);
        node.write("friend.yaml", &FRIEND.replace("10.65.9.9", "10.65.9.8"));
        let refused = tortie(&node, &["rollback", "1"]);
        assert_eq!(refused.status.code(), Some(1));
        let why = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(why.contains("friend.yaml: has content that the history does not have\n"), "{why}");
        assert!(why.ends_with("tortie: nothing has been changed; --force rolls back and discards that content\n"), "{why}");
        node.start();
        until_there_are(&node, 5);
        let removed = good(&tortie(&node, &["rollback", "1"]));
        assert!(removed.starts_with("removed "), "{removed}");
        node.until("the kernel is as before", |state| state == before);

        let elsewhere = fs::canonicalize("/tmp").unwrap();
        let other = tortie(&node, &["history", "--datastore", &format!("file:{}", elsewhere.display())]);
        assert!(String::from_utf8_lossy(&other.stderr).contains("no history of /tmp is kept"), "{other:?}");
        let etcd = tortie(&node, &["history", "--datastore", "fanout://127.0.0.1:1"]);
        assert!(!etcd.status.success());
    }
}
