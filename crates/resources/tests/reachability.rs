//! Recorded Kubernetes policy cases: the converted objects yield the reachability that other
//! projects have measured.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::IpAddr;

use serde::Deserialize;
use serde_json::{Value as Json, json};
use tortie_model::{NamedProtocol, Protocol};

mod model;

use model::Model;

#[derive(Deserialize)]
struct Case {
    name: String,
    cluster: Cluster,
    steps: Vec<Step>,
}

#[derive(Clone, Deserialize)]
struct Cluster {
    namespaces: Vec<Namespace>,
    pods: Vec<Pod>,
}

#[derive(Clone, Deserialize)]
struct Namespace {
    name: String,
    labels: Json,
}

#[derive(Clone, Deserialize)]
struct Pod {
    namespace: String,
    name: String,
    labels: Json,
    ip: IpAddr,
    ports: Json,
}

#[derive(Deserialize)]
struct Step {
    cluster: Option<Cluster>,
    policies: Vec<Json>,
    pods: Vec<String>,
    /// For each protocol and port a row for each source, with a letter for each destination.
    matrix: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    contested: Vec<(String, String, String, u16)>,
}

fn cases() -> Vec<Case> {
    let packed: [&[u8]; 3] = [
        include_bytes!("../../../testdata/oracle/k8s_cases.jsonl.gz"),
        include_bytes!("../../../testdata/oracle/k8s_e2e_cases.jsonl.gz"),
        include_bytes!("../../../testdata/oracle/admin_cases.jsonl.gz"),
    ];
    let mut cases = Vec::new();
    for packed in packed {
        let mut text = String::new();
        flate2::read::GzDecoder::new(packed).read_to_string(&mut text).expect("gzip");
        cases.extend(text.lines().map(|line| serde_json::from_str::<Case>(line).expect("a case")));
    }
    cases
}

fn manifest(cluster: &Cluster, policies: &[Json]) -> String {
    let mut items = policies.to_vec();
    for namespace in &cluster.namespaces {
        let metadata = json!({"name": namespace.name, "labels": namespace.labels});
        items.push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}));
    }
    for pod in &cluster.pods {
        items.push(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": pod.name, "namespace": pod.namespace, "labels": pod.labels},
            "spec": {"nodeName": "node", "containers": [{"ports": pod.ports}]},
            "status": {"podIPs": [{"ip": pod.ip}]},
        }));
    }
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

#[test]
fn reachabilities_are_those_recorded() {
    let mut checked = 0;
    let cases = cases();
    assert!(cases.len() > 300);
    for case in cases {
        for (number, step) in case.steps.iter().enumerate() {
            let cluster = step.cluster.as_ref().unwrap_or(&case.cluster);
            let model = Model::read(&manifest(cluster, &step.policies));
            let address = |name: &str| {
                let pod = cluster.pods.iter().find(|pod| format!("{}/{}", pod.namespace, pod.name) == name);
                pod.expect("a pod of the cluster").ip
            };
            for (service, rows) in &step.matrix {
                let (protocol, port) = service.split_once('/').expect("protocol and port");
                let named = NamedProtocol::from_name(protocol).expect("a protocol");
                let port: u16 = port.parse().expect("a port");
                for (from, row) in step.pods.iter().zip(rows) {
                    for (to, letter) in step.pods.iter().zip(row.chars()) {
                        let expected = match letter {
                            '.' => (true, true),
                            'I' => (true, false),
                            'E' => (false, true),
                            'B' => (false, false),
                            _ => continue,
                        };
                        let contested =
                            step.contested.iter().any(|(a, b, p, n)| (a, b, &**p, *n) == (from, to, protocol, port));
                        if contested {
                            continue;
                        }
                        let found = model.allows(address(from), address(to), Protocol::Named(named), port);
                        assert_eq!(found, expected, "{} step {number}: {from} to {to} {service}", case.name);
                        checked += 1;
                    }
                }
            }
        }
    }
    assert!(checked > 100_000, "{checked}");
}
