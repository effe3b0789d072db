//! Replay of inputs from fuzzing and other notable inputs.

#[path = "../../../fuzz/checks/key_path.rs"]
mod key_path;
#[path = "../../../fuzz/checks/manifest.rs"]
mod manifest;
#[path = "../../../fuzz/checks/v1_value.rs"]
mod v1_value;
#[path = "../../../fuzz/checks/yaml_aliases.rs"]
mod yaml_aliases;

#[expect(clippy::disallowed_methods, reason = "tests read their inputs")]
fn replay(target: &str, check: impl Fn(&[u8])) {
    let directory = format!("{}/../../fuzz/regressions/{target}", env!("CARGO_MANIFEST_DIR"));
    let mut inputs = 0;
    for entry in std::fs::read_dir(directory).expect("committed inputs are readable") {
        let path = entry.expect("committed inputs are readable").path();
        println!("{}", path.display());
        check(&std::fs::read(path).expect("committed inputs are readable"));
        inputs += 1;
    }
    assert!(inputs > 0);
}

#[test]
fn key_path_inputs() {
    replay("key_path", key_path::check);
}

#[test]
fn manifest_inputs() {
    replay("manifest", manifest::check);
}

#[test]
fn v1_value_inputs() {
    replay("v1_value", v1_value::check);
}

#[test]
fn yaml_aliases_inputs() {
    replay("yaml_aliases", yaml_aliases::check);
}

const SEEDS: [&str; 4] = [
    "\0apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p, namespace: ns}\nspec:\n  podSelector:\n    \
     matchExpressions: [{key: a, operator: In, values: [x]}]\n  policyTypes: [Ingress]\n  ingress:\n  - from:\n    - \
     ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}\n    - namespaceSelector: {}\n    ports: [{port: 80, endPort: 90}]\n",
    "\0apiVersion: projectcalico.org/v3\nkind: GlobalNetworkPolicy\nmetadata: {name: p}\nspec:\n  tier: t\n  order: 1.5\n  \
     selector: has(a) && b == 'c'\n  types: [Ingress]\n  ingress:\n  - action: Allow\n    protocol: TCP\n    source: {nets: \
     [10.0.0.0/8], serviceAccounts: {names: [a], selector: all()}, namespaceSelector: x in {'y'}}\n    destination: \
     {ports: [80, '90:91', web], notSelector: has(z)}\n",
    "\0apiVersion: v1\nkind: Pod\nmetadata: {name: p, labels: {a: b}}\nspec: {nodeName: n1, containers: [{ports: [{name: w, \
     containerPort: 80}]}]}\nstatus: {podIPs: [{ip: 10.0.0.1}]}\n---\napiVersion: projectcalico.org/v3\nkind: HostEndpoint\n\
     metadata: {name: h}\nspec: {node: n1, interfaceName: eth0, expectedIPs: [10.0.0.1]}\n",
    "\x01{\"apiVersion\": \"v1\", \"kind\": \"List\", \"items\": [{\"apiVersion\": \"v1\", \"kind\": \"Namespace\", \
     \"metadata\": {\"name\": \"n\", \"labels\": {\"a\": \"\\u0041\"}}}]}",
];

const SPLICES: [&str; 22] = [
    "", " ", "\n", "\n  ", "- ", ": ", "{", "}", "[", "]", "'", "\"", "&a ", "*a", "!!str ", "|\n", "#", "\0", "é",
    "---\n", "null", "-1",
];

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(2000))]

    /// Good manifests with a few bytes replaced.
    #[test]
    fn damaged_manifests(
        seed in 0..SEEDS.len(),
        damage in proptest::collection::vec((0..1000usize, 0..6usize, 0..SPLICES.len()), 1..5),
    ) {
        let mut bytes = SEEDS[seed].as_bytes().to_vec();
        for (at, length, splice) in damage {
            let at = 1 + at % (bytes.len() - 1);
            let end = (at + length).min(bytes.len());
            bytes.splice(at..end, SPLICES[splice].bytes());
        }
        manifest::check(&bytes);
    }
}
