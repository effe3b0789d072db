//! The API server of Kubernetes as the datastore of the program.
#![allow(clippy::disallowed_methods, reason = "the test runs the program")]

use std::process::Command;

use serde_json::{Value, json};
use tortie_testkit::apiserver::ApiServer;
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

fn render(datastore: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_tortie"))
        .args(["render", "--node", "n1", "--datastore", datastore])
        .output()
        .expect("the program runs");
    assert!(output.status.success(), "{datastore}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn what_is_rendered_is_what_a_directory_of_the_same_objects_gives() {
    let server = ApiServer::start().expect("a port");
    server.install_calico("crd.projectcalico.org", "v1");
    server.install_admin();
    objects().into_iter().for_each(|object| server.apply(object));
    let folder = tempfile::tempdir().expect("a folder");
    ManifestDir::create(folder.path()).expect("a folder").replace(&objects()).expect("written");
    let expected = render(&format!("file:{}", folder.path().display()));
    assert!(expected.contains("guard") && expected.contains("shop/db"), "{expected}");
    let kubeconfig = server.kubeconfig();
    assert_eq!(render(&format!("kubernetes:{}", kubeconfig.display())), expected);
    assert_eq!(render(&format!("kubernetes:{}?context=test", kubeconfig.display())), expected);
}
