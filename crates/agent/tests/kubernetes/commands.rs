//! Single resources created, replaced, patched and labelled.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use super::world::{FORMS, World, bad, good, kubernetes_policy, policy};

impl World {
    /// Runs `tortie` on the server.
    fn change(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tortie"));
        command.args(args).args(["-n", "shop", "--datastore", &self.url()]);
        if args.contains(&"--confirm") {
            command.arg("--state-dir").arg(self.state_dir());
        }
        command.output().unwrap()
    }

    /// Runs `tortie` on the server, without a namespace.
    fn tortie_at(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_tortie")).args(args).args(["--datastore", &self.url()]).output().unwrap()
    }

    fn version(&self, name: &str) -> Value {
        self.server.get(self.form, "NetworkPolicy", "shop", name).unwrap_or_default()["metadata"]["resourceVersion"]
            .clone()
    }
}

#[test]
fn single_resources_are_created_replaced_patched_and_labelled() {
    for form in FORMS {
        let world = World::new(form, "");
        let both = policy("web", 1) + &kubernetes_policy("web", 80);
        let words = |word: &str| format!("NetworkPolicy/shop/web {word}\nKubernetesNetworkPolicy/shop/web {word}\n");
        let missing = world.write(&["replace"], &both);
        assert!(bad(&missing).contains("KubernetesNetworkPolicy/shop/web does not exist"), "{missing:?}");
        assert_eq!(good(&world.write(&["create", "--dry-run"], &both)), words("created (dry run)"));
        assert_eq!((world.order("web"), world.kubernetes("web")), (None, None));
        assert_eq!(good(&world.write(&["create"], &both)), words("created"));
        let again = world.write(&["create"], &both);
        assert!(bad(&again).contains("KubernetesNetworkPolicy/shop/web exists already"), "{again:?}");
        let next = policy("web", 2) + &kubernetes_policy("web", 81);
        assert_eq!(good(&world.write(&["replace", "--dry-run"], &next)), words("replaced (dry run)"));
        assert_eq!(world.order("web"), Some(1));
        assert_eq!(good(&world.write(&["replace"], &next)), words("replaced"));
        assert_eq!(world.order("web"), Some(2));

        let version = world.version("web");
        assert_eq!(
            good(&world.change(&["patch", "np", "web", "-p", "{spec: {order: 3}}", "--dry-run"])),
            "NetworkPolicy/shop/web patched (dry run)\n"
        );
        assert_eq!(world.version("web"), version);
        assert_eq!(
            good(&world.change(&["patch", "np/web", "knp/web", "-p", "{metadata: {labels: {a: b}}}"])),
            words("patched")
        );
        let spec = "{spec: {podSelector: {matchLabels: {app: db}}}}";
        assert_eq!(
            good(&world.change(&["patch", "knp", "web", "-p", spec])),
            "KubernetesNetworkPolicy/shop/web patched\n"
        );
        assert_eq!(world.kubernetes("web").unwrap()["podSelector"], json!({"matchLabels": {"app": "db"}}));
        assert_eq!(world.kubernetes("web").unwrap()["ingress"][0]["ports"][0]["port"], 81);
        assert_eq!(good(&world.change(&["label", "np/web", "knp/web", "a-", "c=d"])), words("labeled"));
        let labelled = world.change(&["get", "np", "-l", "c=d,!a", "-o", "name"]);
        assert_eq!(good(&labelled), "networkpolicy.projectcalico.org/web\n");
        let labelled = world.change(&["get", "knp", "-l", "c=d", "-o", "name"]);
        assert_eq!(good(&labelled), "networkpolicy.networking.k8s.io/web\n");
        assert_eq!(world.order("web"), Some(2), "the rest stays");

        // A dry run reports errors of the server.
        world.server.delete("networking.k8s.io/v1", "NetworkPolicy", "shop", "web");
        let gone = world.change(&["delete", "knp", "web", "--dry-run"]);
        assert!(bad(&gone).contains("does not exist"), "{gone:?}");
    }
}

#[test]
fn deleted_resources_are_not_recreated_from_an_old_version() {
    for form in FORMS {
        let world = World::new(form, &(policy("web", 1) + &kubernetes_policy("web", 80)));
        for kind in ["np", "knp"] {
            let shown = good(&world.change(&["get", kind, "web", "-o", "yaml"])).to_owned();
            good(&world.change(&["delete", kind, "web"]));
            for args in [&["apply"][..], &["apply", "--dry-run"], &["apply", "--confirm", "1m"], &["replace"]] {
                let refused = world.write(args, &shown);
                let printed = bad(&refused);
                assert!(printed.contains("/shop/web does not exist any more, and version "), "{args:?}: {printed}");
            }
        }
        assert_eq!((world.order("web"), world.kubernetes("web")), (None, None), "{form}");
    }
}

#[test]
fn an_unconfirmed_patch_is_rolled_back() {
    let world = World::new(FORMS[0], &policy("web", 1));
    let patched = world.change(&["patch", "np", "web", "-p", "{spec: {order: 7}}", "--confirm", "2s"]);
    assert_eq!((good(&patched), world.order("web")), ("NetworkPolicy/shop/web patched\n", Some(7)));
    world.until("it is rolled back", |world| world.status()["phase"] == "rolled_back");
    assert_eq!(world.order("web"), Some(1));
    good(&world.change(&["label", "np", "web", "a=b", "--confirm", "2s"]));
    world.until("it is rolled back", |world| world.status()["phase"] == "rolled_back");
    let shown = world.change(&["get", "np", "-l", "a=b", "-o", "name"]);
    assert_eq!(good(&shown), "");
    good(&world.write(&["create", "--confirm", "1m"], &policy("new", 1)));
    good(&world.tortie(&["confirm"]));
    assert_eq!(world.order("new"), Some(1));
}

#[test]
fn irreversible_changes_are_refused() {
    for form in FORMS {
        let world = World::new(form, &policy("there", 1));
        world.server.deny("delete", "networkpolicies");
        let refused = world.write(&["apply", "--confirm", "1m"], &(policy("there", 2) + &policy("new", 1)));
        assert_eq!(
            bad(&refused),
            "stdin:6:1: NetworkPolicy/shop/new: it could not be rolled back, as you have no right to delete it; without \
             --confirm, it is done for good\ntortie: nothing has been changed\n"
        );
        assert_eq!((world.order("there"), world.order("new")), (Some(1), None), "{form}");
        assert!(world.status().is_null(), "{}", world.status());
        // The rollback of an update needs only the right to update.
        good(&world.write(&["apply", "--confirm", "1m"], &policy("there", 2)));
        good(&world.tortie(&["confirm"]));
        assert_eq!(good(&world.write(&["apply"], &policy("new", 1))), "NetworkPolicy/shop/new created\n");

        let world = World::new(form, &policy("there", 1));
        world.server.deny("create", "networkpolicies");
        let refused = world.change(&["delete", "np", "there", "--confirm", "1m"]);
        assert!(bad(&refused).contains("you have no right to create it"), "{refused:?}");
        assert_eq!(world.order("there"), Some(1));
    }
}

#[test]
fn a_missing_right_is_found_before_the_first_write() {
    for form in FORMS {
        let world = World::new(form, &policy("there", 1));
        world.server.deny("create", "networkpolicies");
        let refused = world.write(&["apply"], &(policy("there", 2) + &policy("new", 1)));
        assert!(bad(&refused).starts_with("stdin:6:1: "), "{refused:?}");
        assert!(bad(&refused).ends_with("tortie: nothing has been changed\n"), "{refused:?}");
        assert_eq!((world.order("there"), refused.stdout.is_empty()), (Some(1), true), "{form}");
        let all = world.get(&["all", "-A", "-o", "name"]);
        assert_eq!(good(&all), "networkpolicy.projectcalico.org/there\n");
    }
}

#[test]
fn addresses_of_pods_and_services_are_compared_with_ipam() {
    for form in FORMS {
        let pool =
            "apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: pods}\nspec: {cidr: 10.65.0.0/24}\n";
        let world = World::new(form, pool);
        let apply = |kind: &str, name: &str, spec: Value| {
            let metadata = json!({"name": name});
            world.server.apply(json!({"apiVersion": form, "kind": kind, "metadata": metadata, "spec": spec}));
        };
        let attributes = json!([{"handle_id": "web"}, {"handle_id": "lb"}]);
        let block = json!({"cidr": "10.65.0.0/31", "affinity": "host:n1", "allocations": [0, 1], "unallocated": [],
            "attributes": attributes, "strictAffinity": false, "deleted": false});
        apply("IPAMBlock", "10-65-0-0-31", block);
        for handle in ["web", "lb"] {
            let spec = json!({"handleID": handle, "block": {"10.65.0.0/31": 1}, "deleted": false});
            apply("IPAMHandle", handle, spec);
        }
        let status = json!({"podIP": "10.65.0.0", "podIPs": [{"ip": "10.65.0.0"}]});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"nodeName": "n1"}, "status": status});
        world.server.apply(pod);
        let check = || world.tortie_at(&["ipam", "check"]);
        let leaked = "10.65.0.1: is allocated to no known owner by handle lb, and nothing has it [leaked-address]\n\
                      1 problem among 2 allocated addresses in 1 blocks\n";
        let checked = check();
        assert_eq!(
            (String::from_utf8_lossy(&checked.stdout).as_ref(), checked.status.code()),
            (leaked, Some(1)),
            "{form}"
        );
        let status = json!({"loadBalancer": {"ingress": [{"ip": "10.65.0.1"}]}});
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "lb", "namespace": "shop"},
            "spec": {"type": "LoadBalancer"}, "status": status});
        world.server.apply(service);
        assert_eq!(good(&check()), "0 problems among 2 allocated addresses in 1 blocks\n", "{form}");
    }
}

#[test]
fn a_watch_follows_custom_resources() {
    for form in FORMS {
        let world = World::new(form, &policy("web", 1));
        let mut command = Command::new(env!("CARGO_BIN_EXE_tortie"));
        command.args(["get", "np", "-n", "shop", "-w", "--no-headers", "--datastore", &world.url()]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut rows = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut orders = |count| {
            rows.by_ref().take(count).map(|row| row.split_whitespace().nth(3).unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(orders(1), ["1"], "{form}");
        good(&world.change(&["patch", "np", "web", "-p", "{spec: {order: 2}}"]));
        assert_eq!(orders(1), ["2"]);
        good(&world.change(&["delete", "np", "web"]));
        assert_eq!(orders(1), ["2"], "the deleted one");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn kinds_without_a_definition_are_named_and_others_are_shown() {
    for form in FORMS {
        let world = World::new(form, &policy("web", 1));
        let (group, _) = form.split_once('/').unwrap();
        world.server.uninstall(group, "globalnetworksets");
        let set = "apiVersion: projectcalico.org/v3\nkind: GlobalNetworkSet\nmetadata: {name: office}\nspec: {}\n";
        let why = "the datastore has no globalnetworksets: their definition is not installed\n";
        // Nothing is "possibly written".
        assert_eq!(bad(&world.write(&["apply"], set)), format!("stdin:1:1: {why}"), "{form}");
        let shown = world.get(&["np,gnetsets", "-n", "shop", "-o", "name"]);
        assert_eq!(good(&shown), "networkpolicy.projectcalico.org/web\n");
        assert_eq!(String::from_utf8_lossy(&shown.stderr), format!("tortie: {why}"));
        let all = world.get(&["all", "-A", "-o", "name"]);
        assert_eq!((good(&all), all.stderr.len()), ("networkpolicy.projectcalico.org/web\n", 0));
        world.server.uninstall(group, "hostendpoints");
        let both = format!("tortie: {why}tortie: {}", why.replace("globalnetworksets", "hostendpoints"));
        assert_eq!(bad(&world.get(&["gnetsets,hep"])), both);
    }
}

#[test]
fn resources_are_labelled_and_deleted_by_labels() {
    for form in FORMS {
        let world = World::new(form, &(policy("web", 1) + &policy("db", 2) + &kubernetes_policy("web", 80)));
        good(&world.change(&["label", "np", "web", "team=a"]));
        assert_eq!(
            good(&world.change(&["label", "np", "-l", "team=a", "seen=yes"])),
            "NetworkPolicy/shop/web labeled\n"
        );
        assert_eq!(
            good(&world.change(&["label", "knp", "--all", "team=a"])),
            "KubernetesNetworkPolicy/shop/web labeled\n"
        );
        assert_eq!(good(&world.change(&["delete", "np", "-l", "team=a,seen"])), "NetworkPolicy/shop/web deleted\n");
        assert_eq!((world.order("web"), world.order("db")), (None, Some(2)));
        assert!(world.kubernetes("web").is_some());
    }
}

#[test]
fn nodes_are_shown_and_kubernetes_equivalents_are_named() {
    let world = World::new(FORMS[0], "");
    let addresses = json!([{"type": "InternalIP", "address": "192.0.2.1"}]);
    world.server.apply(json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "status": {"addresses": addresses},
    }));
    assert_eq!(good(&world.get(&["nodes", "-o", "name"])), "node.projectcalico.org/n1\n");
    assert_eq!(good(&world.get(&["node", "n1", "-o", "name"])), "node.projectcalico.org/n1\n");
    let refused = world.get(&["profiles"]);
    let why = "Profile is not kept in Kubernetes, which has namespaces and service accounts instead";
    assert!(bad(&refused).contains(why), "{refused:?}");
    assert!(
        bad(&world.get(&["wep", "-A"])).contains("WorkloadEndpoint is not kept in Kubernetes, which has pods instead")
    );
    let written = world.change(&["label", "node", "n1", "a=b"]);
    assert!(bad(&written).contains("which has separate nodes, which are read-only here"), "{written:?}");
}
