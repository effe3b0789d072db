//! Changes of resources in the API server, both final ones and ones that are rolled back unless
//! they are confirmed.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tortie_lab::apiserver::{Fault, On};

use super::world::{FORMS, World, bad, good, kubernetes_policy, policy};

const TIER: &str = "apiVersion: projectcalico.org/v3\nkind: Tier\nmetadata: {name: platform}\nspec: {order: 5}\n---\n";
const SET: &str = "apiVersion: projectcalico.org/v3\nkind: GlobalNetworkSet\nmetadata: {name: office, labels: {a: b}}\nspec: \
                   {nets: [192.0.2.0/24]}\n---\n";
const GUARD: &str = "apiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {name: guard}\nspec: \
                     {tier: Admin, priority: 1, subject: {namespaces: {}}, egress: [{action: Deny, to: [{networks: \
                     [192.0.2.0/24]}]}]}\n---\n";

#[test]
fn resources_are_applied_shown_and_deleted() {
    for form in FORMS {
        let world = World::new(form, "");
        let in_tier = policy("db", 3).replace("{order:", "{tier: platform, order:");
        let all = in_tier + TIER + &policy("web", 1) + SET + GUARD + &kubernetes_policy("web", 80);
        let words = |word: &str| {
            let names = ["Tier/platform", "NetworkPolicy/shop/db", "NetworkPolicy/shop/web", "GlobalNetworkSet/office"];
            let own = ["KubernetesClusterNetworkPolicy/guard", "KubernetesNetworkPolicy/shop/web"];
            names.iter().chain(&own).map(|name| format!("{name} {word}\n")).collect::<String>()
        };
        assert_eq!(good(&world.write(&["apply"], &all)), words("created"), "{form}");
        // Defaults that the server has filled in are no difference.
        assert_eq!(good(&world.write(&["apply"], &all)), words("unchanged"), "{form}");
        let whole = world.write(&["apply", "--confirm", "1h"], &all);
        assert_eq!((good(&whole), whole.stderr.len()), (&*words("unchanged"), 0), "{form}");
        assert!(world.guards().is_empty());

        let object = world.server.get(form, "GlobalNetworkSet", "", "office").unwrap();
        let labels = match form {
            "crd.projectcalico.org/v1" => {
                let kept = object["metadata"]["annotations"]["projectcalico.org/metadata"].as_str().unwrap();
                serde_json::from_str::<Value>(kept).unwrap()["labels"].clone()
            }
            _ => object["metadata"]["labels"].clone(),
        };
        assert_eq!(labels, json!({"a": "b"}), "{object}");
        assert_eq!(world.kubernetes("web").unwrap()["policyTypes"], json!(["Ingress"]));

        // The output of `get` can be applied again, until another client changes the resource.
        for (kind, name) in [("np", "web"), ("knp", "web")] {
            let shown = good(&world.get(&[kind, name, "-n", "shop", "-o", "yaml"])).to_owned();
            assert!(good(&world.write(&["apply"], &shown)).ends_with(" unchanged\n"), "{shown}");
            let edited = shown.replace("order: 1", "order: 2").replace("port: 80", "port: 81");
            assert!(good(&world.write(&["apply"], &edited)).ends_with(" updated\n"), "{shown}");
            let refused = world.write(&["apply"], &shown);
            assert!(bad(&refused).contains("has been changed meanwhile"), "{refused:?}");
        }
        assert_eq!(
            (world.order("web"), world.kubernetes("web").unwrap()["ingress"][0]["ports"][0]["port"].as_u64()),
            (Some(2), Some(81))
        );
        let refused = world.write(&["delete"], TIER);
        assert!(bad(&refused).contains("is not empty: NetworkPolicy/shop/db is in it"), "{refused:?}");
        let deleted = world.write(&["delete", "-o", "json"], &(all + ""));
        let answer: Value = serde_json::from_slice(&deleted.stdout).unwrap();
        assert_eq!(
            (deleted.status.success(), answer["resources"].as_array().map(Vec::len)),
            (true, Some(6)),
            "{answer}"
        );
        assert!(world.order("web").is_none() && world.kubernetes("web").is_none(), "{form}");
    }
}

#[test]
fn writes_of_foreign_resources_are_refused() {
    let world = World::new(FORMS[0], "");
    let profile = "apiVersion: projectcalico.org/v3\nkind: Profile\nmetadata: {name: p}\nspec: {}\n---\n";
    let refused = world.write(&["apply"], profile);
    assert!(
        bad(&refused).contains("Profile is not kept in Kubernetes, which has namespaces and service accounts instead"),
        "{refused:?}"
    );
    let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n---\n";
    let refused = world.write(&["apply"], &(policy("web", 1) + namespace));
    assert!(
        bad(&refused).contains("kind: Namespace of v1 is not kept in this datastore; `kubectl apply` writes it"),
        "{refused:?}"
    );
    assert!(world.order("web").is_none());
    let lost = policy("lost", 1).replace("{order:", "{tier: nowhere, order:");
    assert!(bad(&world.write(&["apply"], &lost)).contains("there is no tier `nowhere`"));
}

/// Older releases put the tier before the name of the object, and other clients than Calico's may
/// have written labels.
#[test]
fn a_policy_is_found_under_the_name_that_older_releases_gave_it() {
    let world = World::new(FORMS[0], "");
    let metadata = json!({"name": "default.web", "namespace": "shop", "labels": {"own": "x", "other": "y"},
        "annotations": {"projectcalico.org/metadata": "{}", "note": "n"}});
    let spec = json!({"order": 1, "selector": "all()", "types": ["Ingress"]});
    world.server.apply(json!({"apiVersion": FORMS[0], "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}));
    let before = world.server.get(FORMS[0], "NetworkPolicy", "shop", "default.web").unwrap();
    let labelled = policy("web", 2).replace("namespace: shop}", "namespace: shop, labels: {own: x}}");
    assert_eq!(good(&world.write(&["apply", "--confirm", "2s"], &labelled)), "NetworkPolicy/shop/web updated\n");
    let changed = world.server.get(FORMS[0], "NetworkPolicy", "shop", "default.web").unwrap();
    assert_eq!((&changed["spec"]["order"], &changed["metadata"]["uid"]), (&json!(2), &before["metadata"]["uid"]));
    assert_eq!(
        (&changed["metadata"]["labels"]["own"], &changed["metadata"]["labels"]["other"]),
        (&json!("x"), &Value::Null)
    );
    assert!(world.server.get(FORMS[0], "NetworkPolicy", "shop", "web").is_none(), "there is one object");
    world.until("it is rolled back", |world| world.status()["phase"] == "rolled_back");
    let back = world.server.get(FORMS[0], "NetworkPolicy", "shop", "default.web").unwrap();
    assert_eq!(back["spec"]["order"], 1);
    let shown = world.get(&["np", "web", "-n", "shop", "-o", "json"]);
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(
        (&shown["metadata"]["labels"]["other"], &shown["metadata"]["annotations"]["note"]),
        (&json!("y"), &json!("n"))
    );
}

#[test]
fn unconfirmed_changes_are_rolled_back() {
    for form in FORMS {
        let world = World::new(form, &(policy("web", 1) + &kubernetes_policy("web", 80) + &policy("old", 5)));
        let before = world.kubernetes("web");
        let change = policy("web", 2) + &kubernetes_policy("web", 81) + &kubernetes_policy("new", 82) + TIER;
        let made = world.write(&["apply", "--confirm", "3s"], &change);
        assert_eq!(good(&made).lines().count(), 4);
        let printed = String::from_utf8_lossy(&made.stderr).into_owned();
        assert!(printed.ends_with(" rolls this back in 3 s unless `tortie confirm` comes\n"), "{printed}");
        assert_eq!((world.order("web"), world.kubernetes("new").is_some()), (Some(2), true));
        // A controller writes the status of a resource meanwhile, which does not count as a change.
        let mut tier = world.server.get(form, "Tier", "", "platform").unwrap();
        tier["status"] = json!({"conditions": []});
        world.server.apply(tier);
        world.until("it is rolled back", |world| world.status()["phase"] == "rolled_back");
        assert_eq!(world.status()["kept"], json!([]), "{form}");
        assert_eq!((world.order("web"), world.kubernetes("web"), world.kubernetes("new")), (Some(1), before, None));
        assert!(world.server.get(form, "Tier", "", "platform").is_none());
        world.until("the guard is gone", |world| world.guards().is_empty());

        // Deleted resources are restored.
        good(&world.write(&["delete", "--confirm", "1s"], &(policy("old", 5) + &kubernetes_policy("web", 80))));
        world.until("it is back", |world| world.status()["phase"] == "rolled_back");
        assert_eq!(world.order("old"), Some(5));
        assert_eq!(world.kubernetes("web").unwrap()["ingress"][0]["ports"][0]["port"], 80);
    }
}

#[test]
fn confirmed_changes_stay() {
    let world = World::new(FORMS[1], &policy("web", 1));
    let made =
        world.write(&["apply", "--confirm", "1h", "-o", "json"], &(policy("web", 2) + &kubernetes_policy("new", 1)));
    let answer: Value = serde_json::from_slice(&made.stdout).unwrap();
    let resources = json!([{ "resource": "NetworkPolicy/shop/web", "outcome": "updated" },
        { "resource": "KubernetesNetworkPolicy/shop/new", "outcome": "created" }]);
    assert_eq!((&answer["resources"], &answer["confirm_within_seconds"]), (&resources, &json!(3600)), "{made:?}");
    let status = world.status();
    assert_eq!((status["phase"].as_str(), status["by"].as_str()), (Some("waiting"), Some("ada")), "{status}");
    let second = world.write(&["apply", "--confirm", "1m"], &policy("other", 1));
    assert!(bad(&second).starts_with("tortie: a change by ada waits for "), "{second:?}");
    assert!(good(&world.tortie(&["confirm"])).contains("is confirmed since"));
    world.until("the guard is gone", |world| world.guards().is_empty());
    assert_eq!((world.order("web"), world.kubernetes("new").is_some()), (Some(2), true));
}

#[test]
fn foreign_changes_are_left_alone_and_named() {
    let world = World::new(FORMS[0], &(policy("web", 1) + &kubernetes_policy("web", 80)));
    let change = policy("web", 2) + &policy("new", 2) + &kubernetes_policy("web", 81);
    good(&world.write(&["apply", "--confirm", "4s"], &change));
    let mut theirs = world.server.get("networking.k8s.io/v1", "NetworkPolicy", "shop", "web").unwrap();
    theirs["spec"]["podSelector"] = json!({"matchLabels": {"app": "web"}});
    world.server.apply(theirs);
    good(&world.write(&["apply"], &policy("new", 9)));
    world.until("it is rolled back", |world| world.status()["phase"] == "rolled_back");
    assert_eq!((world.order("web"), world.order("new")), (Some(1), Some(9)));
    assert_eq!(world.kubernetes("web").unwrap()["podSelector"]["matchLabels"]["app"], "web");
    let kept: Vec<Value> =
        world.status()["kept"].as_array().unwrap().iter().map(|kept| kept["resource"].clone()).collect();
    assert_eq!(kept, ["KubernetesNetworkPolicy/shop/web", "NetworkPolicy/shop/new"]);
}

#[test]
fn refused_writes_change_nothing() {
    let world = World::new(FORMS[0], &policy("web", 1));
    // The server checks all writes before any is made.
    let change = policy("web", 2) + SET;
    for (fault, why) in [(Fault::Forbidden, "403 Forbidden"), (Fault::Invalid, "does not accept it")] {
        // The first request reads the set, which does not exist.
        world.server.fail(On::Object, "globalnetworksets", Fault::Slow(Duration::ZERO), 2);
        world.server.fail(On::Object, "globalnetworksets", fault, 1);
        let refused = world.write(&["apply", "--confirm", "1h"], &change);
        assert!(bad(&refused).contains(why), "{refused:?}");
        assert!(bad(&refused).ends_with("tortie: nothing has been changed\n"), "{refused:?}");
        assert_eq!((world.order("web"), world.server.faults_left()), (Some(1), 0));
        assert!(world.guards().is_empty() && bad(&world.tortie(&["confirm"])).contains("no change waits"));
    }
    // A server that refuses a write after it accepted the check.
    for fault in [Fault::Forbidden, Fault::Internal, Fault::Hangup, Fault::DropInside] {
        world.server.fail(On::Write, "globalnetworksets", fault, 1);
        let refused = world.write(&["apply", "--confirm", "1h"], &change);
        assert!(bad(&refused).contains("; nothing is changed: "), "{fault:?}: {refused:?}");
        assert_eq!((world.order("web"), world.server.faults_left()), (Some(1), 0), "{fault:?}");
        assert!(world.server.get(FORMS[0], "GlobalNetworkSet", "", "office").is_none(), "{fault:?}");
    }
    // Another client writes first.
    world.server.fail(On::Write, "globalnetworksets", Fault::Slow(Duration::from_secs(2)), 1);
    let begun = world.begin(&["apply", "--confirm", "1h"], &(SET.to_owned() + &policy("web", 3)));
    world.until("the first one is being written", |world| world.server.faults_left() == 0);
    good(&world.write(&["apply"], &policy("web", 7)));
    let refused = begun.wait_with_output().unwrap();
    assert!(bad(&refused).contains("NetworkPolicy/shop/web has been changed meanwhile"), "{refused:?}");
    assert_eq!(world.order("web"), Some(7));
    assert!(world.server.get(FORMS[0], "GlobalNetworkSet", "", "office").is_none(), "it is rolled back");
}

#[test]
fn failed_rollbacks_are_named_and_delay_nothing() {
    let world = World::new(FORMS[0], &(policy("web", 1) + &policy("gone", 1)));
    good(&world.write(&["delete", "--confirm", "2s"], &(policy("web", 1) + &policy("gone", 1))));
    // The resource that was deleted last is restored first.
    world.server.fail(On::Write, "networkpolicies", Fault::NoNamespace, 1);
    world.until("the rest is back", |world| world.status()["phase"] == "rolled_back");
    let kept = world.status()["kept"].clone();
    assert_eq!(kept.as_array().map(Vec::len), Some(1), "{kept}");
    assert!(kept[0]["why"].as_str().unwrap().contains("namespaces \"shop\" not found"), "{kept}");
    assert_eq!([world.order("web"), world.order("gone")].iter().flatten().count(), 1);
}

#[test]
fn the_next_command_rolls_back_changes_of_killed_processes() {
    let mut world = World::new(FORMS[0], &policy("web", 1));
    // The command is killed between two writes, and the guard remains.
    let begin = |world: &World| {
        world.server.fail(On::Write, "globalnetworksets", Fault::Slow(Duration::from_secs(600)), 1);
        let change = policy("web", 2) + SET;
        let begun = world.begin(&["apply", "--confirm", "1h"], &change);
        world.until("the first is written and the second begun", |world| world.server.faults_left() == 0);
        assert_eq!(world.order("web"), Some(2));
        begun
    };
    let mut begun = begin(&world);
    begun.kill().unwrap();
    begun.wait().unwrap();
    world.until("the guard has rolled it back", |world| world.status()["phase"] == "rolled_back");
    assert_eq!((world.order("web"), &world.status()["why"]), (Some(1), &json!("the program that made it was killed")));

    // The guard is killed first. An agent that starts afterwards, as after a restart of the
    // machine, rolls back.
    let mut begun = begin(&world);
    world.kill_guards();
    begun.kill().unwrap();
    begun.wait().unwrap();
    assert_eq!(world.status()["phase"], "applying");
    world.start();
    world.until("the agent has rolled it back", |world| world.status()["phase"] == "rolled_back");
    assert_eq!(world.order("web"), Some(1));
    world.kill_agent();

    // All processes are killed while the change waits, and the server is unreachable when the time
    // has passed.
    good(&world.write(&["apply", "--confirm", "1s"], &policy("web", 3)));
    world.kill_guards();
    world.until("the time has passed", |world| world.status()["seconds_left"] == 0);
    world.server.partition();
    let next = world.write(&["apply", "--confirm", "1h"], &policy("other", 1));
    bad(&next);
    world.start();
    world.until("the agent tries", |world| world.status()["phase"] == "rolling_back");
    world.server.heal();
    world.until("the agent has rolled it back", |world| world.status()["phase"] == "rolled_back");
    assert_eq!((world.order("web"), world.order("other")), (Some(1), None));
}

#[test]
fn a_change_is_not_rolled_back_in_another_cluster() {
    let world = World::new(FORMS[0], &policy("web", 1));
    let other = World::new(FORMS[0], &policy("web", 2));
    let (config, token) = (world.server.kubeconfig(), world.server.files().join("token"));
    let (right, wrong) = (fs::read(&config).unwrap(), fs::read(other.server.kubeconfig()).unwrap());
    assert!(token.exists());
    good(&world.write(&["apply", "--confirm", "1s"], &policy("web", 2)));
    fs::write(&config, wrong).unwrap();
    world.until("the time has passed", |world| world.status()["phase"] == "rolling_back");
    let next = world.write(&["apply", "--confirm", "1h"], &policy("web", 9));
    let printed = bad(&next);
    assert!(printed.contains("the kubeconfig leads to") || printed.contains("at this moment"), "{printed}");
    assert_eq!((other.order("web"), world.order("web")), (Some(2), Some(2)));
    fs::write(&config, right).unwrap();
    world.until("it is rolled back", |world| world.status()["phase"] == "rolled_back");
    assert_eq!((other.order("web"), world.order("web")), (Some(2), Some(1)));
}

#[test]
fn unconfirmed_enforced_staged_policies_are_restored() {
    for form in FORMS {
        let staged =
            policy("web", 7).replace("kind: ", "kind: Staged").replace("spec: {", "spec: {stagedAction: Set, ");
        let world = World::new(form, &(policy("web", 1) + &staged));
        let mut commit = Command::new(env!("CARGO_BIN_EXE_tortie"));
        commit.args(["staged", "commit", "shop/web", "--confirm", "2s", "--datastore", &world.url(), "--state-dir"]);
        let committed = commit.arg(world.state_dir()).stdin(Stdio::null()).output().unwrap();
        assert_eq!(good(&committed), "NetworkPolicy/shop/web updated\nStagedNetworkPolicy/shop/web deleted\n");
        assert_eq!(world.order("web"), Some(7));
        world.until("both are as they were", |world| world.status()["phase"] == "rolled_back");
        assert_eq!((world.order("web"), &world.status()["kept"]), (Some(1), &json!([])));
        let staged = world.server.get(form, "StagedNetworkPolicy", "shop", "web").unwrap();
        assert_eq!(staged["spec"]["order"], 7);
    }
}
