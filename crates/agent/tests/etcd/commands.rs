//! Commands for single resources: find them by kind, namespace and labels, create, replace, patch
//! and label them.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tortie_lab::etcd::EtcdOptions;

use super::{World, bad, good, text};

const POLICIES: &str = "
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: web, namespace: shop, labels: {team: a, stage: prod}}
spec: {order: 10, selector: app == 'web', types: [Ingress], ingress: [{action: Allow}]}
---
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: db, namespace: shop, labels: {team: b}}
spec: {order: 20, selector: app == 'db', types: [Ingress]}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkSet
metadata: {name: office}
spec: {nets: [192.0.2.0/24]}
";

fn world() -> World {
    let world = World::new(EtcdOptions::default());
    good(&world.tortie_reading(&["apply", "-f", "-"], POLICIES));
    world
}

impl World {
    /// Returns the spec of a policy.
    fn spec(&self, name: &str) -> Value {
        self.kept(&format!("networkpolicies/shop/{name}"))["spec"].clone()
    }

    fn labels(&self, name: &str) -> Value {
        let mut labels = self.kept(&format!("networkpolicies/shop/{name}"))["metadata"]["labels"].clone();
        if let Some(labels) = labels.as_object_mut() {
            labels.shift_remove("projectcalico.org/tier");
        }
        labels
    }
}

#[test]
fn resources_are_found_by_kind_namespace_name_and_labels() {
    let world = world();
    let names = |args: &[&str]| {
        let output = world.tortie(&[&["get"], args, &["-o", "name"]].concat());
        good(&output).lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let (web, db) = ("networkpolicy.projectcalico.org/web", "networkpolicy.projectcalico.org/db");
    assert_eq!(names(&["np", "-n", "shop"]), [db, web]);
    for (selector, expected) in [
        ("team=a", &[web][..]),
        ("team!=a", &[db]),
        ("team in (a,b),stage", &[web]),
        ("!stage", &[db]),
        ("team == 'a' || has(team)", &[db, web]),
        ("projectcalico.org/tier=default", &[db, web]),
    ] {
        assert_eq!(names(&["networkpolicies.projectcalico.org", "-A", "-l", selector]), expected, "{selector}");
    }
    assert_eq!(names(&["np", "web", "db", "-n", "shop"]), [web, db]);
    assert_eq!(names(&[web, "gnetsets/office", "-n", "shop"]), [web, "globalnetworkset.projectcalico.org/office"]);

    let wide = world.tortie(&["get", "np/db", "-n", "shop", "-o", "wide"]);
    let titles: Vec<&str> = good(&wide).lines().next().unwrap().split_whitespace().collect();
    let expected = ["NAMESPACE", "NAME", "TIER", "ORDER", "SELECTOR", "TYPES", "SERVICEACCOUNTS", "CREATED", "LABELS"];
    assert_eq!(titles, expected);
    assert_eq!(
        good(&world.tortie(&["get", "np/db", "gnetsets/office", "-n", "shop"])),
        "NAMESPACE   NAME   TIER      ORDER   SELECTOR\nshop        db     default   20      app == 'db'\n\nNAME     NETS\noffice   192.0.2.0/24\n"
    );
    let both = world.tortie(&["get", "np", "web", "none", "-n", "shop", "-o", "json"]);
    assert_eq!(bad(&both), "tortie: NetworkPolicy/shop/none does not exist\n");
    let both: Value = serde_json::from_slice(&both.stdout).unwrap();
    assert_eq!(both["items"].as_array().map(Vec::len), Some(1));
}

/// Starts `tortie get` with a watch.
fn watch(world: &World, args: &[&str]) -> (Child, BufReader<ChildStdout>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tortie"));
    command.arg("get").args(args).args(&world.options);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    (child, out)
}

fn lines(out: &mut BufReader<ChildStdout>, count: usize) -> String {
    let mut text = String::new();
    for _ in 0..count {
        assert!(out.read_line(&mut text).unwrap() > 0, "the output has ended: {text}");
    }
    text
}

#[test]
fn a_watch_shows_the_resources_and_each_change() {
    let world = world();
    let change = |args: &[&str]| drop(good(&world.tortie(&[args, &["-n", "shop"]].concat())).to_owned());
    let (mut all, mut rows) = watch(&world, &["np", "-A", "-w"]);
    let (mut labelled, mut names) = watch(&world, &["np", "-n", "shop", "-l", "team=b", "-w", "-o", "name"]);
    assert_eq!(
        lines(&mut rows, 3),
        "NAMESPACE   NAME   TIER      ORDER   SELECTOR\n\
         shop        db     default   20      app == 'db'\n\
         shop        web    default   10      app == 'web'\n"
    );
    assert_eq!(lines(&mut names, 1), "networkpolicy.projectcalico.org/db\n");
    change(&["patch", "np", "web", "-p", "{spec: {order: 11}}"]);
    assert_eq!(lines(&mut rows, 1), "shop        web    default   11      app == 'web'\n");
    change(&["label", "np", "db", "team=c", "--overwrite"]);
    change(&["label", "np", "db", "team=b", "--overwrite"]);
    change(&["delete", "np", "db"]);
    assert_eq!(lines(&mut rows, 3), "shop        db     default   20      app == 'db'\n".repeat(3));
    assert_eq!(lines(&mut names, 3), "networkpolicy.projectcalico.org/db\n".repeat(3));

    // Ctrl-C ends one, and the end of its reader the other, at the next change.
    kill_process(Pid::from_child(&labelled), Signal::INT).unwrap();
    assert_eq!(labelled.wait().unwrap().signal(), Some(Signal::INT.as_raw()));
    drop(rows);
    change(&["patch", "np", "web", "-p", "{spec: {order: 12}}"]);
    assert!(all.wait().unwrap().success());

    let (mut only, mut rows) = watch(&world, &["np", "-n", "shop", "--watch-only", "--no-headers"]);
    let first = std::thread::spawn(move || lines(&mut rows, 1));
    let mut order = 12;
    while !first.is_finished() {
        order += 1;
        change(&["patch", "np", "web", "-p", &format!("{{spec: {{order: {order}}}}}")]);
    }
    let row = first.join().unwrap();
    assert!(row.starts_with("shop   web   default   ") && !row.contains(" 12 "), "{row}");
    only.kill().unwrap();
    only.wait().unwrap();
    let missing = world.tortie(&["get", "np", "db", "-n", "shop", "-w"]);
    assert_eq!(bad(&missing), "tortie: NetworkPolicy/shop/db does not exist\n");
    assert_eq!(world.tortie(&["get", "np,gnp", "-w"]).status.code(), Some(2));
}

#[cfg(feature = "kubernetes")]
const IPAM: &str = "/calico/ipam/v2";

/// Writes a pool, and a block of node n1 with an address of pod shop/web.
#[cfg(feature = "kubernetes")]
fn with_addresses(world: &World) {
    let resources = "
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: pods}
spec: {cidr: 10.65.0.0/24}
---
apiVersion: projectcalico.org/v3
kind: WorkloadEndpoint
metadata: {namespace: shop}
spec: {orchestrator: k8s, node: n1, pod: web, endpoint: eth0, interfaceName: cali0web, ipNetworks: [10.65.0.0/32]}
";
    good(&world.tortie_reading(&["apply", "-f", "-"], resources));
    let owner = json!({"namespace": "shop", "pod": "web", "node": "n1"});
    let block = json!({"cidr": "10.65.0.0/31", "affinity": "host:n1", "allocations": [0, null], "unallocated": [1],
        "attributes": [{"handle_id": "web", "secondary": owner}]});
    world.etcd.put(&format!("{IPAM}/assignment/ipv4/block/10.65.0.0-31"), &block.to_string()).unwrap();
    world.etcd.put(&format!("{IPAM}/host/n1/ipv4/block/10.65.0.0-31"), r#"{"state": "confirmed"}"#).unwrap();
    world.etcd.put(&format!("{IPAM}/handle/web"), r#"{"block": {"10.65.0.0/31": 1}}"#).unwrap();
}

#[test]
#[cfg(feature = "kubernetes")]
fn the_usage_of_addresses_is_shown_and_checked() {
    let world = World::new(EtcdOptions::default());
    with_addresses(&world);
    assert_eq!(
        good(&world.tortie(&["ipam", "show"])),
        "GROUPING   CIDR           IPS TOTAL   IPS IN USE   IPS RESERVED   IPS FREE\n\
         IP Pool    10.65.0.0/24   256         1 (0%)       0 (0%)         255 (100%)\n"
    );
    let owner = world.tortie(&["ipam", "show", "--ip=10.65.0.0"]);
    assert!(good(&owner).starts_with("IP 10.65.0.0 is in use\nHandle ID: web\n"), "{owner:?}");
    assert_eq!(good(&world.tortie(&["ipam", "show", "--show-borrowed"])).lines().count(), 1);
    let clean = world.tortie(&["ipam", "check"]);
    assert_eq!(good(&clean), "0 problems among 1 allocated addresses in 1 blocks\n");
    world.etcd.put(&format!("{IPAM}/handle/old"), "{}").unwrap();
    let report = world.file_path("report.json");
    let checked = world.tortie(&["ipam", "check", "-o", "json", "--report", &report]);
    assert_eq!(checked.status.code(), Some(1), "{checked:?}");
    let answer: Value = serde_json::from_slice(&checked.stdout).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&std::fs::read(report).unwrap()).unwrap(), answer);
    let problem =
        json!({"problem": "unused-handle", "subject": "old", "detail": "no address is allocated to the handle"});
    assert_eq!(answer["problems"], json!([problem]));
}

#[test]
fn missing_resources_are_reported() {
    let world = world();
    let mut errors = Vec::new();
    for args in [
        &["get", "foo"][..],
        &["get", "gnpp"],
        &["get", "pods"],
        &["get", "np", "-n", "a,b"],
        &["label", "np,gnp", "a=b"],
        &["get", "np/shop/web"],
        &["get", "np"],
        &["get", "np", "-A", "-l", "team=x"],
        &["get", "tiers", "-l", "a=b"],
        &["get", "np", "-A", "-l", "a=b=c"],
        &["get", "knp"],
        &["delete", "np"],
        &["delete", "np/web", "db"],
    ] {
        let output = world.tortie(args);
        assert_eq!(text(&output.stdout), "", "{args:?}");
        // The list is printed once.
        let message = text(&output.stderr);
        let message =
            if args.contains(&"gnpp") { message.lines().take(1).collect() } else { message.trim_end().to_owned() };
        errors.push(format!("$ tortie {}\n{message}\n({})\n", args.join(" "), output.status.code().unwrap()));
    }
    insta::assert_snapshot!(errors.join("\n"));
}

const SETS: &str = "
{apiVersion: projectcalico.org/v3, kind: GlobalNetworkSet, metadata: {name: a}, spec: {nets: [192.0.2.1/32]}}
---
{apiVersion: projectcalico.org/v3, kind: GlobalNetworkSet, metadata: {name: b}, spec: {nets: [192.0.2.2/32]}}
---
{apiVersion: projectcalico.org/v3, kind: GlobalNetworkSet, metadata: {name: c}, spec: {nets: [192.0.2.3/32]}}
";

#[test]
fn one_resource_that_cannot_be_written_prevents_all_writes() {
    let world = World::new(EtcdOptions::default());
    let refused = |command: &str, text: &str| bad(&world.tortie_reading(&[command, "-f", "-"], text)).to_owned();
    let sets = || ["a", "b", "c"].map(|name| !world.kept(&format!("globalnetworksets/{name}")).is_null());
    let info = SETS
        .replace("kind: GlobalNetworkSet, metadata: {name: b}", "kind: ClusterInformation, metadata: {name: default}");
    let printed = refused("apply", &info.replace("nets: [192.0.2.2/32]", ""));
    let errors = "stdin:4:1: ClusterInformation/default: is kept by the cluster itself and cannot be written\n\
                  tortie: nothing has been changed\n";
    assert_eq!((&*printed, sets()), (errors, [false; 3]));
    assert_eq!(world.kept("tiers/default"), Value::Null, "built-in tiers are not written either");

    let printed = refused("delete", SETS);
    assert_eq!(printed.matches(" does not exist\n").count(), 3, "each is named: {printed}");
    good(&world.tortie_reading(&["apply", "-f", "-"], SETS.split("---").nth(1).unwrap()));
    assert!(refused("create", SETS).contains("stdin:4:1: GlobalNetworkSet/b exists already\ntortie: nothing has"));
    assert_eq!(sets(), [false, true, false]);
    assert_eq!(refused("delete", SETS).matches(" does not exist\n").count(), 2);
    assert_eq!(sets(), [false, true, false]);
    let skipping = world.tortie_reading(&["create", "--skip-exists", "-f", "-"], SETS);
    let words = "GlobalNetworkSet/a created\nGlobalNetworkSet/b skipped\nGlobalNetworkSet/c created\n";
    assert_eq!((good(&skipping), sets()), (words, [true; 3]));

    // A stale version.
    let stale =
        SETS.replace("metadata: {name: c}", "metadata: {name: c, resourceVersion: \"1\"}").replace("/32", "/31");
    for command in ["apply", "replace", "delete"] {
        let printed = refused(command, &stale);
        assert!(printed.contains("stdin:6:1: GlobalNetworkSet/c has been changed meanwhile: "), "{printed}");
        assert!(printed.ends_with("tortie: nothing has been changed\n"), "{printed}");
    }
    assert_eq!(world.kept("globalnetworksets/a")["spec"]["nets"], json!(["192.0.2.1/32"]));

    let labels = ["label", "gnetsets", "a", "none", "b", "x=y"];
    assert!(bad(&world.tortie(&labels)).ends_with("none does not exist\ntortie: nothing has been changed\n"));
    assert_eq!(world.kept("globalnetworksets/a")["metadata"]["labels"], Value::Null);
}

#[test]
fn unreadable_resources_are_deleted_among_others() {
    let world = world();
    let path = "/calico/resources/v3/projectcalico.org/globalnetworksets/torn";
    world.etcd.put(path, "{").unwrap();
    let deleted = world.tortie(&["delete", "gnetsets", "torn", "office"]);
    assert_eq!(good(&deleted), "GlobalNetworkSet/torn deleted\nGlobalNetworkSet/office deleted\n");
    assert_eq!(world.etcd.get(path).unwrap(), "");
}

#[test]
fn options_of_kubectl_and_calicoctl_are_understood() {
    let world = world();
    let file = world.file("policies.yaml", POLICIES);
    let folder = world.file_path("");
    let named = "networkpolicy.projectcalico.org/web\nnetworkpolicy.projectcalico.org/db\nglobalnetworkset.projectcalico.org/office\n";
    assert_eq!(good(&world.tortie(&["apply", "-R", "-f", &folder, "-o", "name"])), named);
    assert_eq!(good(&world.tortie(&["apply", "-f", &file, "--dry-run", "-o", "name"])), named);
    let shown = world.tortie(&["get", "np,gnetsets", "-n", "shop"]);
    assert_eq!(
        good(&shown),
        "NAMESPACE   NAME                                  TIER      ORDER   SELECTOR\n\
         shop        networkpolicy.projectcalico.org/db    default   20      app == 'db'\n\
         shop        networkpolicy.projectcalico.org/web   default   10      app == 'web'\n\n\
         NAME                                        NETS\n\
         globalnetworkset.projectcalico.org/office   192.0.2.0/24\n"
    );
    let shown = world.tortie(&["get", "np", "db", "-n", "shop", "--no-headers", "--show-labels"]);
    assert_eq!(good(&shown), "shop   db   default   20   app == 'db'   team=b,projectcalico.org/tier=default\n");
    let all = world.tortie(&["get", "all", "-A", "-o", "json"]);
    let all: Value = serde_json::from_str(good(&all)).unwrap();
    let kinds: Vec<&str> = all["items"].as_array().unwrap().iter().filter_map(|item| item["kind"].as_str()).collect();
    assert!(
        ["ClusterInformation", "GlobalNetworkSet", "NetworkPolicy", "Tier"].iter().all(|kind| kinds.contains(kind))
    );
    assert!(text(&world.tortie(&["get", "ipamconfig"]).stderr).contains("there is no IPAMConfiguration"));
    assert_eq!(world.tortie(&["get", "np,gnp", "web"]).status.code(), Some(2));
    for option in ["--ignore-not-found", "--ignore-not-found=true", "--skip-not-exists"] {
        assert_eq!(good(&world.tortie(&["delete", "gnetsets", "none", option])), "");
    }
    assert!(bad(&world.tortie(&["delete", "gnetsets", "none", "--ignore-not-found=false"])).contains("not exist"));
}

#[test]
fn label_values_that_yaml_reads_as_booleans_stay_text() {
    let world = world();
    let labelled = world.tortie(&["label", "np", "web", "a=n", "b=yes", "c=false", "d=1", "-n", "shop"]);
    assert_eq!(good(&labelled), "NetworkPolicy/shop/web labeled\n");
    let labels = json!({"a": "n", "b": "yes", "c": "false", "d": "1", "stage": "prod", "team": "a"});
    assert_eq!(world.labels("web"), labels, "as calicoctl stores them");
    let shown = world.tortie(&["get", "np", "web", "-n", "shop", "-o", "yaml"]);
    assert!(good(&shown).contains("    a: \"n\"\n    b: \"yes\"\n"), "{shown:?}");
    assert_eq!(good(&world.tortie_reading(&["apply", "-f", "-"], good(&shown))), "NetworkPolicy/shop/web unchanged\n");
}

#[test]
fn the_objects_of_a_datastore_are_validated() {
    let world = world();
    let wrong = r#"{"kind":"GlobalNetworkPolicy","apiVersion":"projectcalico.org/v3","metadata":{"name":"wrong"},
        "spec":{"selector":"all(","types":["Ingress"]}}"#;
    world.etcd.put("/calico/resources/v3/projectcalico.org/globalnetworkpolicies/wrong", wrong).unwrap();
    let endpoint = "
apiVersion: projectcalico.org/v3
kind: WorkloadEndpoint
metadata: {name: n1-k8s-web-eth0, namespace: shop, labels: {app: web}}
spec: {orchestrator: k8s, node: n1, pod: web, endpoint: eth0, interfaceName: cali0web, ipNetworks: [10.65.0.2/32], profiles: [none]}
";
    good(&world.tortie_reading(&["apply", "-f", "-"], endpoint));
    let url = world.etcd.url();
    let checked = world.tortie(&["check"]);
    let printed = bad(&checked);
    let lines: Vec<&str> = printed.lines().collect();
    assert!(lines[0].starts_with("GlobalNetworkPolicy/wrong: spec.selector: "), "{printed}");
    let unselected = "NetworkPolicy/shop/db: selects no endpoint in the datastore (warning) [selects-nothing]";
    assert!(lines.contains(&unselected), "{printed}");
    assert!(printed.contains("profile `none` is not in the datastore: "), "{printed}");
    assert!(printed.ends_with(&format!("1 error, 2 warnings in {url}\n")), "{printed}");
    let json = world.tortie(&["check", "-o", "json", "--allow", "selects-nothing,profile-absent"]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    let expected = json!({"resource": "GlobalNetworkPolicy/wrong", "file": null, "line": null});
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&json[0][name], value, "{json}");
    }
    let both = world.tortie(&["check", "."]);
    assert_eq!(both.status.code(), Some(2), "{both:?}");
}

#[test]
fn an_endpoint_without_a_name_has_the_one_of_its_spec() {
    let world = World::new(EtcdOptions::default());
    let endpoint = "
apiVersion: projectcalico.org/v3
kind: WorkloadEndpoint
metadata: {namespace: shop}
spec: {orchestrator: k8s, node: n1, pod: web-1, endpoint: eth0, interfaceName: cali0web, ipNetworks: [10.65.0.2/32]}
";
    let word = |word: &str| format!("WorkloadEndpoint/shop/n1-k8s-web--1-eth0 {word}\n");
    assert_eq!(good(&world.tortie_reading(&["apply", "-f", "-"], endpoint)), word("created"));
    assert_eq!(good(&world.tortie_reading(&["apply", "-f", "-"], endpoint)), word("unchanged"));
    let shown = world.tortie_reading(&["get", "-f", "-", "-o", "name"], endpoint);
    assert_eq!(good(&shown), "workloadendpoint.projectcalico.org/n1-k8s-web--1-eth0\n");
    good(&world.tortie_reading(&["delete", "-f", "-", "-o", "name"], endpoint));
    let unnamed = world.tortie_reading(&["apply", "-f", "-"], &endpoint.replace("web-1", "web-"));
    assert!(
        bad(&unnamed).starts_with("stdin:4:11: WorkloadEndpoint/shop: metadata.name: is required\n"),
        "{unnamed:?}"
    );
}

#[test]
fn deleted_resources_are_not_recreated_from_an_old_version() {
    let world = world();
    let shown = good(&world.tortie(&["get", "np", "web", "-n", "shop", "-o", "yaml"])).to_owned();
    good(&world.tortie(&["delete", "np", "web", "-n", "shop"]));
    for args in [&["apply"][..], &["apply", "--dry-run"], &["replace"]] {
        let output = world.tortie_reading(&[args, &["-f", "-"]].concat(), &shown);
        let message = bad(&output);
        let version = message.split("version ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
        insta::allow_duplicates! {
            insta::assert_snapshot!(message.replace(version, "N"), @"stdin:1:1: NetworkPolicy/shop/web does not exist any more, and version N of it was to be replaced; to create it, apply it without metadata.resourceVersion");
        }
    }
    assert_eq!(world.spec("web"), Value::Null);
    let confirmed = world
        .tortie_reading(&["apply", "--confirm", "1m", "--state-dir", &world.file_path("state"), "-f", "-"], &shown);
    assert!(bad(&confirmed).ends_with("tortie: nothing has been changed\n"), "{confirmed:?}");
    let again = shown.lines().filter(|line| !line.contains("resourceVersion")).map(|line| format!("{line}\n"));
    let again = world.tortie_reading(&["apply", "-f", "-"], &again.collect::<String>());
    assert_eq!(good(&again), "NetworkPolicy/shop/web created\n");
}

#[test]
fn resources_are_created_once_and_replaced_where_they_are() {
    let world = World::new(EtcdOptions::default());
    let write = |args: &[&str]| world.tortie_reading(&[args, &["-f", "-"]].concat(), POLICIES);
    let words = |word: &str| {
        let keys = ["NetworkPolicy/shop/web", "NetworkPolicy/shop/db", "GlobalNetworkSet/office"];
        keys.map(|key| format!("{key} {word}\n")).concat()
    };
    assert!(bad(&write(&["replace"])).contains("stdin:2:1: NetworkPolicy/shop/web does not exist\n"));
    assert_eq!(good(&write(&["create", "--dry-run"])), words("created (dry run)"));
    assert_eq!((world.spec("web"), world.kept("tiers/default")), (Value::Null, Value::Null));
    assert_eq!(good(&write(&["create"])), words("created"));
    for args in [&["create"][..], &["create", "--dry-run=server"]] {
        let again = write(args);
        assert!(bad(&again).contains("stdin:2:1: NetworkPolicy/shop/web exists already\n"), "{again:?}");
    }
    assert_eq!(good(&write(&["replace"])), words("unchanged"));
    let other = POLICIES.replace("order: 10", "order: 11");
    let replaced = world.tortie_reading(&["replace", "-f", "-", "--dry-run", "-o", "json"], &other);
    let replaced: Value = serde_json::from_str(good(&replaced)).unwrap();
    assert_eq!(
        (&replaced["dry_run"], &replaced["resources"][0]),
        (&json!(true), &json!({"resource": "NetworkPolicy/shop/web", "outcome": "replaced"}))
    );
    assert_eq!(world.spec("web")["order"], 10);
    let replaced = world.tortie_reading(&["replace", "-f", "-"], &other);
    assert!(good(&replaced).starts_with("NetworkPolicy/shop/web replaced\nNetworkPolicy/shop/db unchanged\n"));
    assert_eq!(world.spec("web")["order"], 11);
    let shown = good(&world.tortie(&["get", "np", "db", "-n", "shop", "-o", "yaml"])).to_owned();
    let versioned = world.tortie_reading(&["create", "-f", "-"], &shown);
    assert!(bad(&versioned).contains("metadata.resourceVersion: a new resource has no version"));
}

#[test]
fn a_part_of_a_resource_is_changed() {
    let world = world();
    let patch = |args: &[&str]| world.tortie(&[&["patch"], args, &["-n", "shop"]].concat());
    let before = world.spec("web");
    assert_eq!(
        good(&patch(&["np", "web", "-p", "{spec: {order: 11}}", "--dry-run"])),
        "NetworkPolicy/shop/web patched (dry run)\n"
    );
    assert_eq!(world.spec("web"), before);
    assert_eq!(good(&patch(&["np", "web", "-p", "{spec: {order: 11}}"])), "NetworkPolicy/shop/web patched\n");
    assert_eq!(good(&patch(&["np/web", "-p", r#"{"spec": {"order": 11}}"#])), "NetworkPolicy/shop/web unchanged\n");
    let mut expected = before;
    expected["order"] = json!(11);
    assert_eq!(world.spec("web"), expected);
    let file = world.file("patch.yaml", "spec:\n  ingress: null\n  types: [Egress]\n");
    assert_eq!(
        good(&patch(&["np", "web", "db", "--type", "merge", "--patch-file", &file])),
        "NetworkPolicy/shop/web patched\nNetworkPolicy/shop/db patched\n"
    );
    assert_eq!((&world.spec("web")["types"], &world.spec("web")["ingress"]), (&json!(["Egress"]), &Value::Null));

    for (args, code, why) in [
        (&["np", "none", "-p", "{}"][..], 1, "tortie: NetworkPolicy/shop/none does not exist\n"),
        (
            &["np", "web", "-p", "{spec: {ordr: 1}}"],
            1,
            "NetworkPolicy/shop/web: spec.ordr: is not a known field; is `order` meant?\n",
        ),
        (&["np", "web", "-p", "{metadata: {name: x}}"], 1, "metadata.name: cannot be changed"),
        (&["np", "web", "-p", "{metadata: {resourceVersion: '1'}}"], 1, "and version 1 was to be changed"),
        (&["np", "web", "-p", "[1]"], 2, "--patch: the patch must be a mapping"),
        (&["np", "web", "-p", "{a: [1"], 2, "--patch: 1:"),
        (&["np", "-p", "{}"], 2, "which NetworkPolicy? Give its name"),
        (&["np", "web", "--type", "strategic", "-p", "{}"], 2, "there are no strategic merges"),
        (&["np", "web", "--type", "json", "-p", "[]"], 2, "JSON patches are not understood"),
        (&["np", "web"], 2, "--patch <PATCH>"),
    ] {
        let output = patch(args);
        assert!(output.status.code() == Some(code) && text(&output.stderr).contains(why), "{args:?}: {output:?}");
    }
    let versioned = world.tortie(&["get", "np", "web", "-n", "shop", "-o", "json"]);
    let versioned: Value = serde_json::from_str(good(&versioned)).unwrap();
    let version = &versioned["metadata"]["resourceVersion"];
    let patched = json!({"metadata": {"resourceVersion": version}, "spec": {"order": 12}}).to_string();
    assert_eq!(good(&patch(&["np", "web", "-p", &patched])), "NetworkPolicy/shop/web patched\n");
}

#[test]
fn labels_are_changed() {
    let world = world();
    let label = |args: &[&str]| world.tortie(&[&["label", "np"], args, &["-n", "shop"]].concat());
    assert_eq!(
        good(&label(&["web", "db", "tested=yes"])),
        "NetworkPolicy/shop/web labeled\nNetworkPolicy/shop/db labeled\n"
    );
    assert_eq!(world.labels("db"), json!({"team": "b", "tested": "yes"}));
    assert_eq!(good(&label(&["web", "tested=yes"])), "NetworkPolicy/shop/web unchanged\n");
    let refused = label(&["web", "team=b"]);
    assert_eq!(
        bad(&refused),
        "tortie: NetworkPolicy/shop/web: metadata.labels: team is `a` already; --overwrite makes it `b`\n"
    );
    let dry = ["web", "team=b", "stage-", "--overwrite", "--dry-run"];
    assert_eq!(good(&label(&dry)), "NetworkPolicy/shop/web labeled (dry run)\n");
    assert_eq!(world.labels("web"), json!({"team": "a", "stage": "prod", "tested": "yes"}));
    assert_eq!(good(&label(&dry[..4])), "NetworkPolicy/shop/web labeled\n");
    assert_eq!(good(&label(&["web", "tested-"])), "NetworkPolicy/shop/web unlabeled\n");
    assert_eq!(world.labels("web"), json!({"team": "b"}));
    assert_eq!(world.spec("web")["order"], 10, "the rest stays");
    let wrong = label(&["web", "a b=c"]);
    assert!(bad(&wrong).contains("metadata.labels"), "{wrong:?}");
    assert_eq!(label(&["web"]).status.code(), Some(2));
}

#[test]
fn deletions_and_staged_policies_can_be_tried_first() {
    let world = world();
    let file = world.file("policies.yaml", POLICIES);
    let expected = "GlobalNetworkSet/office deleted (dry run)\nNetworkPolicy/shop/db deleted (dry run)\n\
                    NetworkPolicy/shop/web deleted (dry run)\n";
    assert_eq!(good(&world.tortie(&["delete", "-f", &file, "--dry-run"])), expected);
    let missing = world.tortie(&["delete", "np", "web", "none", "-n", "shop", "--dry-run"]);
    assert_eq!(bad(&missing), "tortie: NetworkPolicy/shop/none does not exist\n");
    assert_eq!(text(&missing.stdout), "NetworkPolicy/shop/web deleted (dry run)\n");
    assert!(world.tortie(&["delete", "tier", "default", "--dry-run"]).status.code() == Some(1));
    let staged = POLICIES.replace("kind: Net", "kind: StagedNet").replace("order: 10", "order: 11");
    good(&world.tortie_reading(&["apply", "-f", "-"], &staged));
    assert_eq!(
        good(&world.tortie(&["staged", "commit", "shop/web", "--dry-run"])),
        "NetworkPolicy/shop/web updated (dry run)\nStagedNetworkPolicy/shop/web deleted (dry run)\n"
    );
    assert_eq!(world.spec("web")["order"], 10);
    let both = world.tortie(&["apply", "-f", &file, "--dry-run", "--confirm", "1m"]);
    assert_eq!(both.status.code(), Some(2));
}

#[test]
fn writes_are_validated_without_a_datastore() {
    let tortie = |args: &[&str], text: &str| {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tortie"))
            // No server listens on this port.
            .args([args, &["--dry-run=client", "--datastore", "etcd://127.0.0.1:1"]].concat())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    };
    let nowhere = |args: &[&str], text: &str| tortie(&[args, &["-f", "-"]].concat(), text);
    let expected = "NetworkPolicy/shop/web valid (dry run)\nNetworkPolicy/shop/db valid (dry run)\n\
                    GlobalNetworkSet/office valid (dry run)\n";
    for command in ["apply", "create", "replace"] {
        assert_eq!(good(&nowhere(&[command], POLICIES)), expected);
    }
    let whole = nowhere(&["apply", "-o", "json"], POLICIES);
    let whole: Value = serde_json::from_str(good(&whole)).unwrap();
    assert_eq!(
        (&whole["dry_run"], &whole["resources"][2]),
        (&json!(true), &json!({"resource": "GlobalNetworkSet/office", "outcome": "valid"}))
    );
    let wrong = nowhere(&["apply"], &POLICIES.replace("order: 20", "ordr: 20"));
    assert!(bad(&wrong).starts_with("stdin:10:8: NetworkPolicy/shop/db: spec.ordr: "), "{wrong:?}");
    assert_eq!(text(&wrong.stdout), "");
    // The results of these depend on the datastore.
    for args in [
        &["patch", "np", "web", "-p", "{}"][..],
        &["label", "np", "web", "a=b"],
        &["delete", "np", "web"],
        &["staged", "commit", "shop/web"],
    ] {
        let refused = tortie(args, "");
        assert!(refused.status.code() == Some(2), "{args:?}: {refused:?}");
        assert!(text(&refused.stderr).contains("--dry-run=client only validates files"), "{refused:?}");
    }
}

#[test]
fn several_resources_are_labelled_and_deleted_by_labels() {
    let world = world();
    let tortie = |args: &[&str]| world.tortie(&[args, &["-n", "shop"]].concat());
    assert_eq!(good(&tortie(&["label", "np", "-l", "team in (a)", "seen=yes"])), "NetworkPolicy/shop/web labeled\n");
    assert_eq!(world.labels("db"), json!({"team": "b"}));
    let both = "NetworkPolicy/shop/db labeled\nNetworkPolicy/shop/web labeled\n";
    assert_eq!(good(&tortie(&["label", "np", "--all", "checked=yes"])), both);
    assert_eq!(world.labels("db"), json!({"team": "b", "checked": "yes"}));
    let everywhere = world.tortie(&["label", "np", "-A", "-l", "seen", "seen-"]);
    assert_eq!(good(&everywhere), "NetworkPolicy/shop/web unlabeled\n");
    // Selectors also match labels that `get` adds.
    let tier = tortie(&["delete", "np", "-l", "projectcalico.org/tier=default", "--dry-run"]);
    assert_eq!(good(&tier), "NetworkPolicy/shop/db deleted (dry run)\nNetworkPolicy/shop/web deleted (dry run)\n");
    assert_eq!(good(&tortie(&["delete", "np", "-l", "team=a"])), "NetworkPolicy/shop/web deleted\n");
    assert_eq!((world.spec("web"), &world.spec("db")["order"]), (Value::Null, &json!(20)));

    let none = tortie(&["delete", "np", "-l", "team=a"]);
    assert_eq!((none.status.code(), text(&none.stdout)), (Some(0), ""));
    let why =
        "tortie: there is no NetworkPolicy with such labels in namespace shop; -A shows those of all namespaces\n";
    assert_eq!(text(&none.stderr), why);
    for (args, why) in [
        (&["delete", "np", "db", "-l", "team=b"][..], "and names are given"),
        (&["delete", "np/db", "--all"], "and names are given"),
        (&["label", "np", "db", "a=b", "--all"], "and names are given"),
        (&["delete", "np", "-l", ""], "the selector is empty; --all means all"),
        (&["delete", "np", "--all", "-l", "a"], "cannot be used with"),
        (&["delete", "-f", "-", "--all"], "and files are given"),
    ] {
        let refused = tortie(args);
        assert!(refused.status.code() == Some(2) && text(&refused.stderr).contains(why), "{args:?}: {refused:?}");
    }
    assert_eq!(world.tortie(&["delete", "np", "db", "-A"]).status.code(), Some(2));
    assert_eq!(world.spec("db")["order"], 20);
    assert_eq!(good(&tortie(&["delete", "np", "--all"])), "NetworkPolicy/shop/db deleted\n");
}

#[test]
fn resources_that_files_name_are_shown_as_stored() {
    let world = world();
    let changed = POLICIES.replace("order: 10", "order: 99") + "---\n" + POLICIES.rsplit("---").next().unwrap();
    let file = world.file("policies.yaml", &changed);
    let shown = world.tortie(&["get", "-f", &file, "-o", "json"]);
    let shown: Value = serde_json::from_str(good(&shown)).unwrap();
    let items = shown["items"].as_array().unwrap();
    let names: Vec<&str> = items.iter().filter_map(|item| item["metadata"]["name"].as_str()).collect();
    assert_eq!((names, &items[0]["spec"]["order"]), (vec!["web", "db", "office"], &json!(10)));
    good(&world.tortie(&["delete", "gnetsets", "office"]));
    let missing = world.tortie(&["get", "-o", "name", "-f", &file]);
    assert_eq!(bad(&missing), "tortie: GlobalNetworkSet/office does not exist\n");
    assert_eq!(text(&missing.stdout), "networkpolicy.projectcalico.org/web\nnetworkpolicy.projectcalico.org/db\n");
    let unknown = world.tortie_reading(&["get", "-f", "-"], "{apiVersion: v1, kind: Namespace, metadata: {name: a}}");
    assert!(bad(&unknown).contains("it belongs in Kubernetes") && !bad(&unknown).contains("changed"), "{unknown:?}");
    assert_eq!(world.tortie(&["get", "np", "-f", &file]).status.code(), Some(2));
    assert_eq!(world.tortie(&["get", "-A", "-f", &file]).status.code(), Some(2));
}

#[test]
fn lists_without_a_kind_are_applied_and_booleans_for_calicoctl_need_quotes() {
    let world = World::new(EtcdOptions::default());
    let yaml = "
- apiVersion: projectcalico.org/v3
  kind: GlobalNetworkSet
  metadata: {name: a, labels: {x: \"n\"}}
- apiVersion: projectcalico.org/v3
  kind: IPPoolList
  items: [{metadata: {name: p}, spec: {cidr: 10.0.0.0/24, natOutgoing: yes, blockSize: 26}}]
";
    let applied = world.tortie_reading(&["apply", "-f", "-"], yaml);
    assert_eq!(good(&applied), "GlobalNetworkSet/a created\nIPPool/p created\n");
    assert_eq!(world.kept("globalnetworksets/a")["metadata"]["labels"]["x"], "n");
    assert_eq!(world.kept("ippools/p")["spec"]["natOutgoing"], true);
    let json = json!([{"apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkSet", "metadata": {"name": "b"}}]);
    let file = world.file("list.json", &json.to_string());
    assert_eq!(good(&world.tortie(&["apply", "-f", &file])), "GlobalNetworkSet/b created\n");
    for (yaml, place) in [
        (yaml.replace("\"n\"", "n"), "stdin:4:35: GlobalNetworkSet/a: metadata.labels.x: must be text"),
        (
            "apiVersion: projectcalico.org/v3\nkind: KubeControllersConfiguration\nmetadata: {name: default}\nspec: \
             {healthChecks: off}\n"
                .to_owned(),
            "stdin:4:22: KubeControllersConfiguration/default: spec.healthChecks: must be text",
        ),
    ] {
        let refused = world.tortie_reading(&["apply", "-f", "-"], &yaml);
        assert!(bad(&refused).contains(place), "{refused:?}");
    }
    let built_in = "profile.projectcalico.org/projectcalico-default-allow\n";
    assert_eq!(good(&world.tortie(&["get", "profiles", "-o", "name"])), built_in);
}

#[test]
fn kubernetes_resources_are_refused_with_their_place() {
    let world = World::new(EtcdOptions::default());
    let objects = "
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: a, namespace: b}, spec: {podSelector: {}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: a}}
---
{apiVersion: v1, kind: Pod, metadata: {name: a}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}}
---
{apiVersion: example.org/v1, kind: Gadget, metadata: {name: a}}
";
    insta::assert_snapshot!(bad(&world.tortie_reading(&["apply", "-f", "-"], objects)));
}
