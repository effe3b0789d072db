//! The API server of Kubernetes as the datastore.
#![cfg(feature = "kubernetes")]
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "the test runs the program")]

#[path = "kubernetes/changes.rs"]
mod changes;
#[path = "kubernetes/commands.rs"]
mod commands;
#[path = "common/guards.rs"]
mod guards;
#[path = "kubernetes/history.rs"]
mod history;
#[path = "kubernetes/world.rs"]
mod world;

use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tortie_lab::apiserver::{ApiServer, Fault, On};
use tortie_lab::manifests::ManifestDir;

fn objects() -> Vec<Value> {
    let pod = |name: &str, node: &str, ip: &str| {
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": "shop", "name": name, "labels": {"app": name}},
            "spec": {"nodeName": node, "serviceAccountName": "default", "containers": [{"name": "c"}]},
            "status": {"phase": "Running", "podIPs": [{"ip": ip}]}})
    };
    let from = json!([{"podSelector": {"matchLabels": {"app": "web"}}}]);
    let policy = json!({"podSelector": {"matchLabels": {"app": "db"}}, "policyTypes": ["Ingress"],
        "ingress": [{"from": from, "ports": [{"port": 5432}]}]});
    let guard = json!({"tier": "Admin", "priority": 1, "subject": {"namespaces": {}},
        "egress": [{"action": "Deny", "to": [{"networks": ["169.254.169.254/32"]}]}]});
    vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"namespace": "shop", "name": "default"}}),
        pod("web", "n2", "10.0.0.1"),
        pod("db", "n1", "10.0.0.2"),
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"namespace": "shop", "name": "db"}, "spec": policy}),
        json!({"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
            "metadata": {"name": "guard"}, "spec": guard}),
    ]
}

fn try_to_render(datastore: &str, timeout: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tortie"))
        .args(["render", "--node", "n1", "--datastore", datastore, "--timeout", timeout])
        .output()
        .expect("the program runs")
}

fn render(datastore: &str) -> String {
    let output = try_to_render(datastore, "60");
    assert!(output.status.success(), "{datastore}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Returns a server with these objects, and the datastore's URL.
fn cluster() -> (ApiServer, String) {
    let server = ApiServer::start().expect("a port");
    server.install_calico("crd.projectcalico.org", "v1");
    server.install_admin();
    objects().into_iter().for_each(|object| server.apply(object));
    let url = format!("kubernetes:{}", server.kubeconfig().display());
    (server, url)
}

#[test]
fn kubernetes_and_a_directory_render_the_same() {
    let (_server, url) = cluster();
    let folder = tempfile::tempdir().expect("a folder");
    ManifestDir::create(folder.path()).expect("a folder").replace(&objects()).expect("written");
    let expected = render(&format!("file:{}", folder.path().display()));
    assert!(expected.contains("guard") && expected.contains("shop/db"), "{expected}");
    assert_eq!(render(&url), expected);
    assert_eq!(render(&format!("{url}?context=test")), expected);
}

#[test]
fn the_variable_of_calico_names_the_api() {
    const V3: &str = "projectcalico.org/v3";
    let (server, url) = cluster();
    server.install_calico("projectcalico.org", "v3");
    for (form, name) in [(CRD, "of-the-storage-form"), (V3, "of-the-written-form")] {
        server.apply(json!({"apiVersion": form, "kind": "GlobalNetworkPolicy", "metadata": {"name": name},
            "spec": {"selector": "app == 'db'"}}));
    }
    for (group, read, other) in [("", "storage", "written"), (CRD, "storage", "written"), (V3, "written", "storage")] {
        let tortie = |args: &[&str]| {
            let mut tortie = Command::new(env!("CARGO_BIN_EXE_tortie"));
            let output = tortie.args(args).args(["--datastore", &url]).env("CALICO_API_GROUP", group).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        let rendered = tortie(&["render", "--node", "n1"]);
        let has = |form: &str| rendered.contains(&format!("of-the-{form}-form"));
        assert!(has(read) && !has(other), "{group}: {rendered}");
        let listed = tortie(&["get", "globalnetworkpolicies"]);
        assert!(listed.contains(read) && !listed.contains(other), "{group}: {listed}");
    }
}

#[test]
fn answers_name_the_versions_of_all_objects_that_decide() {
    let (server, url) = cluster();
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": "db"},
        "spec": {"clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"], "ports": [{"port": 80, "protocol": "TCP"}]}});
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"namespace": "shop", "name": "db-1", "labels": {"kubernetes.io/service-name": "db"}},
        "endpoints": [{"addresses": ["10.0.0.2"], "conditions": {"ready": true}}],
        "ports": [{"port": 5432, "protocol": "TCP"}]});
    server.apply(service);
    server.apply(slice);
    server.apply(json!({"apiVersion": CRD, "kind": "NetworkSet", "metadata": {"namespace": "shop", "name": "office"},
        "spec": {"nets": ["192.0.2.0/24"]}}));
    server.apply(json!({"apiVersion": CRD, "kind": "Tier", "metadata": {"name": "default"},
        "spec": {"order": 1_000_000, "defaultAction": "Deny"}}));
    let version = |api_version: &str, kind: &str, namespace: &str, name: &str| {
        let object = server.get(api_version, kind, namespace, name).unwrap();
        json!(format!("resourceVersion {}", object["metadata"]["resourceVersion"].as_str().unwrap()))
    };
    let trace = |args: &[&str]| {
        let mut tortie = Command::new(env!("CARGO_BIN_EXE_tortie"));
        let output = tortie.args(["trace", "--datastore", &url]).args(args).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let (pod, tier) = (version("v1", "Pod", "shop", "web"), version(CRD, "Tier", "", "default"));
    let namespace = version("v1", "Namespace", "", "shop");
    let whole: Value =
        serde_json::from_str(&trace(&["--from", "shop/web", "--to", "shop/db", "--port", "80", "-o", "json"])).unwrap();
    // Only the guard selects the source; the profile of its namespace allows the packet.
    let first = &whole["legs"][0];
    assert_eq!((&first["endpointPosition"], &first["position"]), (&pod, &namespace), "{whole:#}");
    assert_eq!(whole["legs"][1]["endpointPosition"], version("v1", "Pod", "shop", "db"));
    assert_eq!((&whole["verdict"], &whole["position"]), (&json!("deny"), &tier), "it ends with the tier");
    let printed = trace(&["--from", "shop/web", "--to", "service:shop/db", "--port", "80", "-v"]);
    let service = version("v1", "Service", "shop", "db");
    assert!(printed.contains(&format!("  service: {}\n", service.as_str().unwrap())), "{printed}");
    let text = trace(&["--from", "networkset:shop/office", "--to", "service:shop/db", "--port", "80", "-o", "json"]);
    let whole: Value = serde_json::from_str(&text).unwrap();
    let set = version(CRD, "NetworkSet", "shop", "office");
    assert_eq!((&whole["servicePosition"], &whole["networkSetPosition"]), (&service, &set), "{whole:#}");
}

#[test]
fn a_server_that_is_starting_is_waited_for() {
    let (server, url) = cluster();
    let expected = render(&url);

    server.fail(On::List, "pods", Fault::TooManyRequests(2), 1);
    let begin = Instant::now();
    assert_eq!(render(&url), expected);
    assert!(begin.elapsed() >= Duration::from_secs(2), "the server had asked for that");

    server.partition();
    let rendering = thread::spawn(move || try_to_render(&url, "60"));
    // Long enough for some attempts, if the machine is quick.
    thread::sleep(Duration::from_millis(300));
    server.heal();
    let output = rendering.join().expect("the program runs");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
}

#[test]
fn a_server_that_stays_away_is_given_up_with_the_last_reason() {
    let (server, url) = cluster();
    server.fail(On::List, "pods", Fault::TooManyRequests(1), usize::MAX);
    let output = try_to_render(&url, "1");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{complaint}");
    let last = complaint.lines().last().unwrap_or_default();
    assert!(last.starts_with("tortie: pods: ") && last.contains("(429 TooManyRequests)"), "{complaint}");
    assert!(complaint.contains("; trying again for 1 s\n"), "{complaint}");
    server.partition();
    let output = try_to_render(&url, "1");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && complaint.contains("cannot be reached"), "{complaint}");
}

#[test]
fn permanent_errors_are_not_waited_for() {
    let hopeless = |url: &str, why: &str| {
        let begin = Instant::now();
        let output = try_to_render(url, "600");
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && complaint.contains(why), "{complaint}");
        assert!(begin.elapsed() < Duration::from_secs(60), "{complaint}");
    };
    let (server, url) = cluster();
    // Besides final errors there may be temporary ones.
    server.fail(On::List, "namespaces", Fault::TooManyRequests(30), usize::MAX);
    server.fail(On::List, "pods", Fault::Forbidden, usize::MAX);
    hopeless(&url, "tortie: pods: ");
    server.expire_token();
    hopeless(&url, "(401 Unauthorized)");
    hopeless("kubernetes:/nowhere/kubeconfig", "kubeconfig /nowhere/kubeconfig: ");
    let config = std::fs::read_to_string(server.kubeconfig()).expect("text");
    let no_url = server.files().join("no-url");
    std::fs::write(&no_url, config.replace("http://", "http://:no url:")).expect("written");
    hopeless(&format!("kubernetes:{}", no_url.display()), "no-url: ");
    hopeless("file:/nowhere", "/nowhere");
}

const CRD: &str = "crd.projectcalico.org/v1";

fn staged(kind: &str, name: &str, annotations: &Value, spec: &Value) -> Value {
    let metadata = json!({"namespace": "shop", "name": name, "labels": {"own": "x"}, "annotations": annotations});
    json!({"apiVersion": CRD, "kind": kind, "metadata": metadata, "spec": spec})
}

fn commit(url: &str, args: &[&str]) -> Output {
    let mut tortie = Command::new(env!("CARGO_BIN_EXE_tortie"));
    tortie.args(["staged", "commit", "--datastore", url]).args(args).output().expect("the program runs")
}

/// Returns the changes, as `resource outcome`.
fn committed(url: &str, name: &str) -> Vec<String> {
    let output = commit(url, &[name, "-o", "json"]);
    assert!(output.status.success(), "{output:?}");
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let done = |done: &Value| {
        format!("{} {}", done["resource"].as_str().unwrap_or_default(), done["outcome"].as_str().unwrap_or_default())
    };
    answer["resources"].as_array().expect("a list").iter().map(done).collect()
}

#[test]
fn staged_policies_are_put_in_force() {
    let (server, url) = cluster();
    let kept = json!({"name": "db", "labels": {"team": "a"}, "uid": "1", "creationTimestamp": "2020-01-01T00:00:00Z"});
    let kept = json!({"projectcalico.org/metadata": kept.to_string(), "note": "n"});
    let spec = json!({"order": 7, "selector": "app == 'db'", "types": ["Ingress"], "stagedAction": "Set"});
    server.apply(staged("StagedNetworkPolicy", "default.db", &kept, &spec));
    assert_eq!(committed(&url, "shop/db"), ["NetworkPolicy/shop/db created", "StagedNetworkPolicy/shop/db deleted"]);
    let policy = server.get(CRD, "NetworkPolicy", "shop", "db").expect("the policy");
    assert_eq!(policy["spec"], json!({"order": 7, "selector": "app == 'db'", "types": ["Ingress"], "tier": "default"}));
    let stored = policy["metadata"]["annotations"]["projectcalico.org/metadata"].as_str().expect("text");
    let stored: Value = serde_json::from_str(stored).expect("JSON");
    let labels = json!({"own": "x", "team": "a", "projectcalico.org/tier": "default"});
    assert_eq!(
        (&stored["name"], &stored["labels"], &stored["annotations"]),
        (&json!("db"), &labels, &json!({"note": "n"}))
    );
    assert_ne!(stored["creationTimestamp"], "2020-01-01T00:00:00Z", "fields of the staged object only are left out");
    assert!(server.get(CRD, "StagedNetworkPolicy", "shop", "default.db").is_none());

    // An existing policy is replaced under its existing name, and stays the same object.
    server.delete(CRD, "NetworkPolicy", "shop", "db");
    let older = json!({"projectcalico.org/metadata": "{}"});
    server.apply(staged("NetworkPolicy", "default.db", &older, &json!({"order": 1, "selector": "all()"})));
    let uid = server.get(CRD, "NetworkPolicy", "shop", "default.db").expect("the policy")["metadata"]["uid"].clone();
    server.apply(staged("StagedNetworkPolicy", "db", &json!({}), &json!({"order": 8, "selector": "all()"})));
    assert_eq!(committed(&url, "shop/db"), ["NetworkPolicy/shop/db updated", "StagedNetworkPolicy/shop/db deleted"]);
    let policy = server.get(CRD, "NetworkPolicy", "shop", "default.db").expect("the policy");
    assert_eq!((&policy["spec"]["order"], &policy["metadata"]["uid"]), (&json!(8), &uid));

    // A staged policy with this action deletes the enforced one.
    server.apply(staged("StagedNetworkPolicy", "default.db", &kept, &json!({"stagedAction": "Delete"})));
    assert_eq!(committed(&url, "shop/db"), ["NetworkPolicy/shop/db deleted", "StagedNetworkPolicy/shop/db deleted"]);
    assert!(server.get(CRD, "NetworkPolicy", "shop", "default.db").is_none());

    let spec =
        json!({"stagedAction": "Set", "podSelector": {"matchLabels": {"app": "db"}}, "policyTypes": ["Ingress"]});
    server.apply(staged("StagedKubernetesNetworkPolicy", "db", &json!({}), &spec));
    let name = "StagedKubernetesNetworkPolicy/shop/db";
    let done = ["KubernetesNetworkPolicy/shop/db updated".to_owned(), format!("{name} deleted")];
    assert_eq!(committed(&url, name), done);
    let policy = server.get("networking.k8s.io/v1", "NetworkPolicy", "shop", "db").expect("the policy");
    assert_eq!(policy["spec"], json!({"podSelector": {"matchLabels": {"app": "db"}}, "policyTypes": ["Ingress"]}));
    assert_eq!(policy["metadata"]["labels"]["own"], "x");
}

#[test]
fn staged_policies_that_cannot_be_enforced_change_nothing() {
    let (server, url) = cluster();
    server.apply(staged("StagedNetworkPolicy", "db", &json!({}), &json!({"stagedAction": "Learn"})));
    for (args, code, why) in [
        (&["shop/db"][..], 1, "its stagedAction is Learn"),
        (&["shop/other"], 1, "StagedNetworkPolicy/shop/other does not exist"),
        (&["shop/db", "--write"], 2, "--write is for a directory"),
        (&["shop/db/x/y"], 2, "NAMESPACE/NAME"),
    ] {
        let output = commit(&url, args);
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(code) && printed.contains(why), "{args:?}: {output:?}");
    }
    assert!(server.get(CRD, "NetworkPolicy", "shop", "db").is_none());
    // A staged policy that remains is reported, since its rules are in force by then.
    server.apply(staged("StagedNetworkPolicy", "db", &json!({}), &json!({"selector": "all()"})));
    server.fail(On::Write, "stagednetworkpolicies", Fault::Forbidden, 1);
    let output = commit(&url, &["shop/db", "-o", "json"]);
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let (done, error) = (&answer["resources"], &answer["errors"][0]["resource"]);
    assert_eq!((output.status.code(), error), (Some(1), &json!("StagedNetworkPolicy/shop/db")), "{output:?}");
    assert_eq!(*done, json!([{ "resource": "NetworkPolicy/shop/db", "outcome": "created" }]));
    assert!(server.get(CRD, "StagedNetworkPolicy", "shop", "db").is_some());
}

#[test]
fn a_directory_is_only_written_if_that_loses_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("staged.yaml");
    let url = format!("file:{}", folder.path().display());
    let text = "apiVersion: projectcalico.org/v3\nkind: StagedNetworkPolicy\nmetadata: {name: db, namespace: shop}\n\
                spec: {stagedAction: Set, selector: all(), types: [Ingress]}\n";
    std::fs::write(&file, text).expect("written");
    let enforced = "apiVersion: projectcalico.org/v3\nkind: NetworkPolicy\nmetadata:\n  name: db\n  namespace: shop\n\
                    spec:\n  selector: \"all()\"\n  types:\n";
    let output = commit(&url, &["shop/db"]);
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).starts_with(enforced), "{output:?}");
    assert_eq!(std::fs::read_to_string(&file).expect("read"), text, "it is only printed");

    let refused = |why: &str| {
        let before = std::fs::read_to_string(&file).expect("read");
        let output = commit(&url, &["shop/db", "--write"]);
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && printed.contains(why), "{output:?}");
        assert_eq!(std::fs::read_to_string(&file).expect("read"), before);
    };
    std::fs::write(&file, format!("# Why.\n{text}")).expect("written");
    refused("line 1 may have a comment");
    std::fs::write(&file, format!("{text}---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: shop}}\n"))
        .expect("written");
    refused("has 2 objects");
    std::fs::write(&file, text).expect("written");
    let other = folder.path().join("other.yaml");
    std::fs::write(&other, enforced.replace("types:\n", "types: []\n")).expect("written");
    refused("other.yaml as well");
    std::fs::remove_file(other).expect("removed");

    let output = commit(&url, &["shop/db", "--write"]);
    assert!(output.status.success(), "{output:?}");
    assert!(std::fs::read_to_string(&file).expect("read").starts_with(enforced));
    let names: Vec<_> =
        std::fs::read_dir(folder.path()).expect("read").map(|entry| entry.expect("read").file_name()).collect();
    assert_eq!(names, ["staged.yaml"]);
}
