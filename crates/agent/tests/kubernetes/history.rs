//! Earlier states of resources in the API server, and rollbacks to them.

use std::process::Output;

use serde_json::{Value, json};

use super::world::{FORMS, World, bad, good, kubernetes_policy, policy};

const TIER: &str = "apiVersion: projectcalico.org/v3\nkind: Tier\nmetadata: {name: platform}\nspec: {order: 5}\n---\n";

impl World {
    fn followed(form: &'static str, resources: &str) -> Self {
        let mut world = Self::new(form, resources);
        world.start();
        world.until_there_are(1);
        world
    }

    fn states(&self) -> usize {
        let output = self.tortie(&["history", "-o", "json"]);
        let whole: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        whole["states"].as_array().map_or(0, Vec::len)
    }

    fn until_there_are(&self, states: usize) {
        self.until("a state is known", |world| world.states() == states);
    }

    fn rollback(&self, args: &[&str]) -> Output {
        self.tortie(&[&["rollback", "--datastore", &self.url()], args].concat())
    }
}

#[test]
fn resources_go_back_to_an_earlier_state_and_forth_again() {
    for form in FORMS {
        let mut world = World::followed(form, &(policy("web", 1) + &kubernetes_policy("web", 80)));
        let in_tier = policy("db", 3).replace("{order:", "{tier: platform, order:");
        world.write(&["apply"], &(policy("web", 2) + TIER + &in_tier + &kubernetes_policy("new", 81)));
        // Objects that controllers and kubelets write are not recorded.
        world.server.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}));
        world.until_there_are(2);

        let table = good(&world.tortie(&["history"])).to_owned();
        let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!((lines[1][0], &lines[1][2..4]), ("2", &["+3", "~1"][..]), "{table}");
        let diff = good(&world.tortie(&["history", "2", "--datastore", &world.url()])).to_owned();
        assert!(diff.contains("--- NetworkPolicy/shop/web\n+++ NetworkPolicy/shop/web\n"), "{diff}");
        assert!(diff.contains("\n-  order: 1\n+  order: 2\n"), "{diff}");
        assert!(
            diff.contains("+++ KubernetesNetworkPolicy/shop/new\n") && diff.contains("\n+kind: NetworkPolicy\n"),
            "{diff}"
        );

        let planned = good(&world.rollback(&["1", "--dry-run"])).to_owned();
        assert!(planned.contains("\n-  order: 2\n+  order: 1\n") && world.order("web") == Some(2), "{planned}");
        let words = [
            "NetworkPolicy/shop/web restored",
            "KubernetesNetworkPolicy/shop/new removed",
            "NetworkPolicy/shop/db removed",
            "Tier/platform removed",
        ];
        assert_eq!(good(&world.rollback(&["1"])).lines().collect::<Vec<_>>(), words, "{form}");
        assert_eq!((world.order("web"), world.order("db"), world.kubernetes("new")), (Some(1), None, None));
        world.until_there_are(3);
        assert_eq!(good(&world.rollback(&["1"])), "everything is as in state 1\n");

        // A rollback can be reverted; an unconfirmed one is rolled back.
        good(&world.rollback(&["2"]));
        assert_eq!((world.order("web"), world.order("db")), (Some(2), Some(3)));
        assert_eq!(world.kubernetes("new").unwrap()["ingress"][0]["ports"][0], json!({"port": 81, "protocol": "TCP"}));
        world.until_there_are(4);
        let answer = world.rollback(&["3", "--confirm", "1s", "-o", "json"]);
        let answer: Value = serde_json::from_slice(&answer.stdout).unwrap();
        assert_eq!(answer["resources"].as_array().map(Vec::len), Some(4), "{answer}");
        world.until("it is rolled back", |world| world.status()["phase"] == "rolled_back");
        assert_eq!((world.order("web"), world.kubernetes("new").is_some()), (Some(2), true));

        // Changes while no agent runs become one state when an agent runs again. Until then a
        // rollback does not discard them silently.
        world.kill_agent();
        let states = world.states();
        good(&world.write(&["apply"], &policy("web", 7)));
        good(&world.write(&["delete"], &kubernetes_policy("web", 80)));
        let refused = world.rollback(&["1"]);
        assert!(
            bad(&refused).contains("NetworkPolicy/shop/web: has content that the history does not have\n"),
            "{refused:?}"
        );
        assert_eq!(world.order("web"), Some(7));
        world.start();
        world.until_there_are(states + 1);
        good(&world.rollback(&["1"]));
        assert_eq!((world.order("web"), world.kubernetes("web").is_some(), world.order("db")), (Some(1), true, None));
    }
}

#[test]
fn a_relist_reveals_deletions() {
    let world = World::followed(FORMS[0], &(policy("web", 1) + &policy("old", 1)));
    world.server.partition();
    world.server.delete(FORMS[0], "NetworkPolicy", "shop", "old");
    // No known resource version can be watched from.
    world.server.restart();
    world.until_there_are(2);
    let diff = good(&world.tortie(&["history", "2"])).to_owned();
    assert!(diff.contains("\n  - NetworkPolicy/shop/old\n") && !diff.contains("NetworkPolicy/shop/web"), "{diff}");
    good(&world.rollback(&["1"]));
    assert_eq!(world.order("old"), Some(1));
    // The log reports an unreachable server once, not for each request of each kind.
    let log = world.log();
    let errors: Vec<&str> = log.lines().filter(|line| line.contains(" ERROR ")).collect();
    assert!(!errors.is_empty() && errors.iter().all(|line| line.contains("the datastore cannot be read")), "{log}");
}

#[test]
fn a_history_is_not_applied_to_another_cluster() {
    let world = World::followed(FORMS[0], &policy("web", 1));
    good(&world.write(&["apply"], &policy("web", 2)));
    world.until_there_are(2);
    let other = World::new(FORMS[0], "");
    let refused = world.tortie(&["rollback", "1", "--datastore", &other.url()]);
    assert!(
        bad(&refused).contains("NetworkPolicy/shop/web: has content that the history does not have\n"),
        "{refused:?}"
    );
    assert!(other.order("web").is_none() && world.order("web") == Some(2));
    // Without a given kubeconfig, the usual one must lead to the server of the history.
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_tortie"))
        .args(["rollback", "1", "--state-dir"])
        .arg(world.state_dir())
        .env("KUBECONFIG", other.server.kubeconfig())
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && printed.contains("the usual kubeconfig leads to"), "{output:?}");
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_tortie"))
        .args(["rollback", "1", "--state-dir"])
        .arg(world.state_dir())
        .env("KUBECONFIG", world.server.kubeconfig())
        .output()
        .unwrap();
    assert_eq!((good(&output), world.order("web")), ("NetworkPolicy/shop/web restored\n", Some(1)));
}

#[test]
fn policies_of_calico_and_kubernetes_of_one_name_are_counted_apart() {
    let world = World::followed(FORMS[1], &(policy("web", 1) + &kubernetes_policy("web", 80)));
    world.write(&["apply"], &(policy("web", 2) + &kubernetes_policy("web", 81)));
    world.until_there_are(2);
    let table = good(&world.tortie(&["history"])).to_owned();
    let line: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!((line[0], &line[2..]), ("2", &["~2", "~2"][..]), "{table}");
    let shown = good(&world.tortie(&["history", "2"])).to_owned();
    let objects: Vec<&str> = shown.lines().filter(|line| line.starts_with("  ")).take(2).collect();
    let expected = ["  ~ NetworkPolicy/shop/web (networking.k8s.io)", "  ~ NetworkPolicy/shop/web (projectcalico.org)"];
    assert_eq!(objects, expected, "{shown}");
}
