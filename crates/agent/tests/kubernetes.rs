//! The API server of Kubernetes as the datastore of the program.
#![allow(clippy::disallowed_methods, reason = "the test runs the program")]

use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tortie_testkit::apiserver::{ApiServer, Fault, On};
use tortie_testkit::manifests::ManifestDir;

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

/// A server with these objects, and the datastore's URL.
fn cluster() -> (ApiServer, String) {
    let server = ApiServer::start().expect("a port");
    server.install_calico("crd.projectcalico.org", "v1");
    server.install_admin();
    objects().into_iter().for_each(|object| server.apply(object));
    let url = format!("kubernetes:{}", server.kubeconfig().display());
    (server, url)
}

#[test]
fn what_is_rendered_is_what_a_directory_of_the_same_objects_gives() {
    let (_server, url) = cluster();
    let folder = tempfile::tempdir().expect("a folder");
    ManifestDir::create(folder.path()).expect("a folder").replace(&objects()).expect("written");
    let expected = render(&format!("file:{}", folder.path().display()));
    assert!(expected.contains("guard") && expected.contains("shop/db"), "{expected}");
    assert_eq!(render(&url), expected);
    assert_eq!(render(&format!("{url}?context=test")), expected);
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
fn what_lasts_is_not_waited_for() {
    let hopeless = |url: &str, why: &str| {
        let begin = Instant::now();
        let output = try_to_render(url, "600");
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && complaint.contains(why), "{complaint}");
        assert!(begin.elapsed() < Duration::from_secs(60), "{complaint}");
    };
    let (server, url) = cluster();
    // There may be others, which would pass.
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
