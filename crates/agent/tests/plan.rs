//! `tortie plan` and `tortie diff`, as their users run them.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test that runs the program")]

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

const CLUSTER: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: web-1, generateName: web-, labels: {app: web}}
spec: {nodeName: n1, containers: [{name: c}]}
status: {phase: Running, podIPs: [{ip: 10.0.1.2}, {ip: "fd00::1:2"}]}
---
apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: web-2, generateName: web-, labels: {app: web}}
spec: {nodeName: n2, containers: [{name: c}]}
status: {phase: Running, podIPs: [{ip: 10.0.2.3}, {ip: "fd00::2:3"}]}
---
apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: db, labels: {app: db}}
spec: {nodeName: n2, containers: [{name: c}]}
status: {phase: Running, podIPs: [{ip: 10.0.2.2}, {ip: "fd00::2:2"}]}
---
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {role: edge}, annotations: {projectcalico.org/IPv4Address: 192.168.0.1/24}}
status: {addresses: [{type: InternalIP, address: 192.168.0.1}]}
"#;

/// Line 9 allows the web servers, and line 11 allows no pod.
const POLICY: &str = r#"
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: shop, name: db}
spec:
  podSelector: {matchLabels: {app: db}}
  policyTypes: [Ingress]
  ingress:
    - from: [{podSelector: {matchLabels: {app: web}}}]
      ports: [{port: 5432}]
    - from: [{podSelector: {matchLabels: {app: cache}}}]
"#;

const HOST: &str = "\
apiVersion: projectcalico.org/v3
kind: HostEndpoint
metadata: {name: edge, labels: {role: edge}}
spec: {node: n1, interfaceName: eth0, expectedIPs: [192.168.0.1]}
";

fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = TempDir::new().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

fn tortie(folder: &Path, arguments: &[&str], input: &str) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_tortie"))
        .args(arguments)
        .current_dir(folder)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    program.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    program.wait_with_output().unwrap()
}

/// Returns the output and the exit code.
fn run(folder: &Path, arguments: &[&str], input: &str) -> (String, i32) {
    let output = tortie(folder, arguments, input);
    let errors = String::from_utf8(output.stderr).unwrap();
    (String::from_utf8(output.stdout).unwrap() + &errors, output.status.code().unwrap())
}

const PLAN: [&str; 5] = ["plan", "--datastore", "file:cluster.yaml", "-f", "-"];

#[test]
fn a_policy_closes_connections_that_it_does_not_allow() {
    let folder = folder(&[("cluster.yaml", CLUSTER), ("policy.yaml", POLICY)]);
    let expected = "\
objects
  + policy KubernetesNetworkPolicy/shop/db
findings
  ! KubernetesNetworkPolicy/shop/db, ingress rule 1 selects nothing that exists: policy.yaml:11:7
connections
  - closed  everything outside -> shop/db: everything
            ingress, by the end of tier default: its policies apply, and no rule of them matches (before: profile kns.shop, ingress rule 0)
  - closed  shop/web-* (2 pods) -> shop/db: everything but IP-in-IP, TCP 5432, UDP 4789
            ingress, by the end of tier default: its policies apply, and no rule of them matches (before: profile kns.shop, ingress rule 0)
programmed on nodes: IP sets: 2 written; policies and profiles: 1 written; endpoints: 1 written
";
    let arguments = ["plan", "--datastore", "file:cluster.yaml", "-f", "policy.yaml"];
    assert_eq!(run(folder.path(), &arguments, ""), (expected.to_owned(), 2));

    // The reverse when the policy is deleted.
    let both = ["plan", "--datastore", "file:.", "--delete", "-f", "policy.yaml"];
    let (text, code) = run(folder.path(), &both, "");
    assert!(text.contains("+ opened  everything outside -> shop/db: everything\n"), "{text}");
    assert!(text.contains("! no policy governs shop/db any more\n"), "{text}");
    assert_eq!(code, 2);
}

#[test]
fn a_policy_for_nodes_closes_their_connections_and_follows_their_labels() {
    let policy = "apiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {name: edge}\nspec:\n  \
                  tier: Admin\n  priority: 1\n  subject: {pods: {podSelector: {matchLabels: {app: db}}}}\n  ingress:\n  - \
                  {action: Deny, from: [{nodes: {matchLabels: {role: edge}}}]}\n";
    let folder = folder(&[("cluster.yaml", CLUSTER), ("policy.yaml", policy)]);
    let change = ["plan", "--datastore", "file:cluster.yaml", "-f", "policy.yaml"];
    let (text, code) = run(folder.path(), &change, "");
    assert_eq!(code, 2);
    assert!(text.contains("  - closed  192.168.0.1/32 (node n1) -> shop/db: everything, IPv4\n"), "{text}");

    let trace = ["trace", "--datastore", "file:.", "--from", "node:n1", "--to", "shop/db", "--port", "80"];
    let (text, code) = run(folder.path(), &trace, "");
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("ClusterNetworkPolicy/edge, ingress rule 0"), "{text}");
    let map = ["map", "--datastore", "file:.", "-o", "dot"];
    let (text, code) = run(folder.path(), &map, "");
    // Nothing connects the node to the pods, so that the picture has the other networks alone.
    assert!(code == 0 && text.contains("elsewhere") && text.contains("in: by peer"), "{text}");

    fs::write(folder.path().join("cluster.yaml"), CLUSTER.replace("role: edge", "role: core")).unwrap();
    assert_eq!(run(folder.path(), &trace, "").1, 0);
}

#[test]
fn everything_is_available_as_json_and_yaml() {
    let folder = folder(&[("cluster.yaml", CLUSTER), ("policy.yaml", POLICY)]);
    let arguments = ["plan", "--datastore", "file:cluster.yaml", "-f", "policy.yaml", "-o", "json"];
    let (text, code) = run(folder.path(), &arguments, "");
    assert_eq!(code, 2);
    let answer: Value = serde_json::from_str(&text).unwrap();
    let web = &answer["connections"][1];
    assert_eq!(web["change"], "closed");
    assert_eq!(web["families"], json!([4, 6]));
    assert_eq!(web["from"]["workloads"], json!(["shop/web-1", "shop/web-2"]));
    assert_eq!(web["to"], json!({"text": "shop/db", "workloads": ["shop/db"], "networks": [], "domains": []}));
    let tcp = web["protocols"].as_array().unwrap().iter().find(|protocol| protocol["protocol"] == 6).unwrap();
    assert_eq!(tcp["ports"], json!([[0, 5431], [5433, 65535]]));
    assert_eq!(web["end"], "ingress");
    assert_eq!(web["before"]["by"], "profile kns.shop, ingress rule 0");
    assert_eq!(answer["connections"][0]["from"]["networks"], json!(["0.0.0.0/0", "::/0"]));
    assert_eq!(answer["findings"][0]["kind"], "rule-selects-nothing");
    assert_eq!(answer["findings"][0]["position"], "policy.yaml:11:7");
    assert_eq!(answer["objects"], json!([{"object": "policy KubernetesNetworkPolicy/shop/db", "change": "added"}]));
    let (text, _) = run(folder.path(), &[&arguments[..6], &["yaml"]].concat(), "");
    assert!(text.contains("kind: rule-selects-nothing"), "{text}");
}

#[test]
fn the_environment_may_name_the_datastore() {
    let folder = folder(&[("cluster.yaml", CLUSTER), ("policy.yaml", POLICY)]);
    for command in [&["plan", "-f", "policy.yaml"][..], &["map", "-o", "dot"], &["show", "pods", "app == 'db'"]] {
        let run = |datastore: Option<&str>| {
            let mut program = Command::new(env!("CARGO_BIN_EXE_tortie"));
            program.args(command).current_dir(folder.path()).env_clear().stdin(Stdio::null());
            program.envs(datastore.map(|datastore| ("TORTIE_DATASTORE", datastore)));
            program.output().unwrap()
        };
        let output = run(Some("file:cluster.yaml"));
        assert!(output.status.code() != Some(1) && !output.stdout.is_empty(), "{command:?}: {output:?}");
        let output = run(None);
        assert!(String::from_utf8_lossy(&output.stderr).contains("--datastore"), "{command:?}: {output:?}");
    }
}

#[test]
fn an_identical_object_changes_nothing() {
    let folder = folder(&[("cluster.yaml", CLUSTER), ("policy.yaml", POLICY)]);
    let same = ["plan", "--datastore", "file:.", "-f", "policy.yaml"];
    assert_eq!(run(folder.path(), &same, ""), ("nothing changes\n".to_owned(), 0));
    let gone = ["plan", "--datastore", "file:cluster.yaml", "--delete", "-f", "policy.yaml"];
    assert_eq!(run(folder.path(), &gone, ""), ("nothing changes\n".to_owned(), 0));
}

#[test]
fn an_invalid_change_is_not_planned() {
    let folder = folder(&[("cluster.yaml", CLUSTER)]);
    let (text, code) = run(folder.path(), &PLAN, &POLICY.replace("port: 5432", "port: 70000"));
    assert!(text.starts_with("stdin:10:"), "{text}");
    assert_eq!(code, 1);
    let (text, code) = run(folder.path(), &["plan", "--datastore", "file:cluster.yaml", "-f", "nowhere"], "");
    assert!(text.contains("nowhere"), "{text}");
    assert_eq!(code, 1);
}

#[test]
fn a_host_endpoint_that_closes_its_management_port_is_named() {
    let folder = folder(&[("cluster.yaml", CLUSTER)]);
    let (text, code) = run(folder.path(), &PLAN, HOST);
    // SSH is a failsafe port; other packets are denied without a policy.
    assert!(!text.contains("no longer accepts"), "{text}");
    assert!(text.contains("- closed  edge, ingress, own traffic, anywhere: "), "{text}");
    assert_eq!(code, 2);
    let (text, _) = run(folder.path(), &[&PLAN[..], &["--management-port", "2222"]].concat(), HOST);
    assert!(text.contains("! host endpoint edge no longer accepts TCP 2222 from anywhere\n"), "{text}");
}

/// Returns a `FelixConfiguration` with these failsafe ports.
fn felix(name: &str, inbound: &str) -> String {
    format!(
        "apiVersion: projectcalico.org/v3\nkind: FelixConfiguration\nmetadata: {{name: {name}}}\n\
         spec: {{failsafeInboundHostPorts: [{inbound}], failsafeOutboundHostPorts: []}}\n---\n"
    )
}

#[test]
fn failsafe_ports_of_a_node_and_changes_of_them_are_heeded() {
    let port = |port: u16| format!("{{protocol: TCP, port: {port}}}");
    let config = format!("{}{}", felix("default", &port(22)), felix("node.n1", &port(2222)));
    let folder = folder(&[("cluster.yaml", CLUSTER), ("felix.yaml", &config), ("host.yaml", HOST)]);
    let plan = |arguments: &[&str], input: &str| {
        run(folder.path(), &[&["plan", "--datastore", "file:.", "-f", "-"][..], arguments].concat(), input)
    };
    // The endpoint is on the node with another failsafe port.
    fs::remove_file(folder.path().join("host.yaml")).unwrap();
    let (text, _) = plan(&[], HOST);
    assert!(text.contains("! host endpoint edge no longer accepts TCP 22 from anywhere\n"), "{text}");
    let (text, _) = plan(&["--management-port", "2222"], HOST);
    assert!(!text.contains("no longer accepts"), "{text}");
    let (text, _) = plan(&[], &HOST.replace("node: n1", "node: n2"));
    assert!(!text.contains("no longer accepts"), "{text}");

    // Without policy, only failsafe ports accept packets, so that a change of them is reported.
    fs::write(folder.path().join("host.yaml"), HOST).unwrap();
    let (text, code) = plan(&["--management-port", "2222"], &felix("node.n1", &port(22)));
    assert!(text.contains("! host endpoint edge no longer accepts TCP 2222 from anywhere\n"), "{text}");
    assert!(text.contains("+ opened  edge, ingress, own traffic, anywhere: TCP 22\n"), "{text}");
    assert_eq!(code, 2);
    let (text, _) = plan(&[], &felix("default", &port(80)));
    assert!(!text.contains("edge"), "{text}");
}

#[test]
fn tunnel_parameters_of_single_nodes_are_respected() {
    let own = |spec: &str| {
        format!(
            "apiVersion: projectcalico.org/v3\nkind: FelixConfiguration\nmetadata: {{name: node.n1}}\nspec: {{{spec}}}\n"
        )
    };
    let folder = folder(&[("cluster.yaml", CLUSTER)]);
    let (text, _) = run(folder.path(), &PLAN, &own("allowVXLANPacketsFromWorkloads: true"));
    let opened: Vec<&str> = text.lines().filter(|line| line.contains(" -> ")).collect();
    assert_eq!(opened, ["  + opened  shop/web-1 -> anywhere: UDP 4789"], "{text}");
    let (text, _) = run(folder.path(), &PLAN, &own("allowIPIPPacketsFromWorkloads: true"));
    assert!(text.contains("+ opened  shop/web-1 -> anywhere: IP-in-IP\n"), "{text}");

    // If the port differs before the change, a policy closes other packets.
    fs::write(folder.path().join("felix.yaml"), own("vxlanPort: 4790")).unwrap();
    let (text, _) = run(folder.path(), &["plan", "--datastore", "file:.", "-f", "-"], POLICY);
    assert!(text.contains("- closed  shop/web-1 -> shop/db: everything but IP-in-IP, TCP 5432, UDP 4790\n"), "{text}");
    assert!(text.contains("- closed  shop/web-2 -> shop/db: everything but IP-in-IP, TCP 5432, UDP 4789\n"), "{text}");
}

#[test]
fn two_directories_are_compared() {
    let open = POLICY.replace("app: cache", "app: db");
    let before = folder(&[("cluster.yaml", CLUSTER), ("policy.yaml", POLICY)]);
    let after = folder(&[("all.yaml", &format!("{CLUSTER}---{open}"))]);
    let [one, two] = [&before, &after].map(|folder| folder.path().to_str().unwrap());
    let (text, code) = run(before.path(), &["diff", one, two], "");
    // The rule newly allows only the pod itself, which it has always reached.
    assert!(text.contains("no connection opens or closes"), "{text}");
    assert_eq!(code, 2);
    assert_eq!(run(before.path(), &["diff", two, two], ""), ("nothing changes\n".to_owned(), 0));
    let (text, code) = run(before.path(), &["diff", one, &format!("file:{one}/cluster.yaml")], "");
    assert!(text.contains("  - policy KubernetesNetworkPolicy/shop/db\n"), "{text}");
    assert!(text.contains("+ opened"), "{text}");
    assert_eq!(code, 2);
}

/// The same policy in etcd, as the controller writes it.
const POLICY_IN_ETCD: &str = r#"
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {namespace: shop, name: knp.default.db}
spec:
  tier: default
  order: 1000
  selector: projectcalico.org/orchestrator == 'k8s' && app == 'db'
  types: [Ingress]
  ingress:
    - {action: Allow, protocol: TCP, source: {selector: "projectcalico.org/orchestrator == 'k8s' && app == 'web'"}, destination: {ports: [5432]}}
    - {action: Allow, source: {selector: "projectcalico.org/orchestrator == 'k8s' && app == 'cache'"}}
"#;

#[test]
fn a_policy_that_the_controller_has_written_is_the_same() {
    let folder = folder(&[("cluster.yaml", CLUSTER), ("policy.yaml", POLICY_IN_ETCD)]);
    let plan = ["plan", "--datastore", "file:.", "-f", "-"];
    assert_eq!(run(folder.path(), &plan, POLICY), ("nothing changes\n".to_owned(), 0));
    let (text, code) = run(folder.path(), &plan, &POLICY.replace("port: 5432", "port: 5433"));
    assert!(text.starts_with("objects\n  ~ policy NetworkPolicy/shop/knp.default.db\nconnections\n"), "{text}");
    assert!(text.contains("+ opened  shop/web-* (2 pods) -> shop/db: TCP 5433\n"), "{text}");
    assert!(text.contains("ingress, by NetworkPolicy/shop/knp.default.db, ingress rule 0: stdin:9:7\n"), "{text}");
    assert_eq!(code, 2);
    let (text, _) = run(folder.path(), &[&plan[..], &["--delete"]].concat(), POLICY);
    assert!(text.starts_with("objects\n  - policy NetworkPolicy/shop/knp.default.db\n"), "{text}");

    let manifests = self::folder(&[("cluster.yaml", CLUSTER), ("policy.yaml", POLICY)]);
    let [one, two] = [folder.path(), manifests.path()].map(|path| path.to_str().unwrap());
    for (before, after) in [(one, two), (two, one)] {
        assert_eq!(run(folder.path(), &["diff", before, after], ""), ("nothing changes\n".to_owned(), 0));
    }
}

#[test]
fn changes_on_a_node_are_listed_line_by_line() {
    let folder = folder(&[("cluster.yaml", CLUSTER)]);
    let (text, code) = run(folder.path(), &[&PLAN[..], &["--node", "n2"]].concat(), POLICY);
    let (_, node) = text.split_once("on node n2\n").unwrap();
    assert!(node.contains("  ipset IPv4 cali40s:"), "{node}");
    assert!(node.contains("    + 10.0.1.2/32\n") || node.contains("    + 10.0.1.2\n"), "{node}");
    assert!(node.contains("  iptables filter cali-pi-"), "{node}");
    assert!(node.contains(", added\n    + "), "{node}");
    assert!(node.contains("-m multiport --destination-ports 5432"), "{node}");
    assert_eq!(code, 2);

    // Only a rule changes.
    fs::write(folder.path().join("cluster.yaml"), format!("{CLUSTER}---{POLICY}")).unwrap();
    let other = POLICY.replace("port: 5432", "port: 5433");
    let (text, _) = run(folder.path(), &[&PLAN[..], &["--node", "n2", "-o", "json"]].concat(), &other);
    let answer: Value = serde_json::from_str(&text).unwrap();
    let parts = answer["node"]["parts"].as_array().unwrap();
    assert!(!parts.is_empty(), "{text}");
    for part in parts {
        assert_eq!(part["change"], "changed");
        let [added, removed] = ["added", "removed"].map(|way| part[way].as_array().unwrap());
        assert_eq!((added.len(), removed.len()), (1, 1), "{part}");
        assert!(added[0].as_str().unwrap().contains("5433") && removed[0].as_str().unwrap().contains("5432"), "{part}");
    }

    // A node without pods that the policy selects.
    let (text, _) = run(folder.path(), &[&PLAN[..], &["--node", "n1"]].concat(), &other);
    assert!(text.ends_with("on node n1\n  nothing\n"), "{text}");
}

#[test]
fn pull_requests_are_annotated() {
    let folder = folder(&[("cluster.yaml", CLUSTER), ("policy.yaml", POLICY)]);
    let arguments = ["plan", "--datastore", "file:cluster.yaml", "-f", "policy.yaml", "-o", "github"];
    let (text, code) = run(folder.path(), &arguments, "");
    assert!(text.starts_with("::warning file=policy.yaml,line=11,col=7::"), "{text}");
    assert!(text.contains("\n::notice::closed: everything outside -> shop/db: everything, by "), "{text}");
    assert_eq!(code, 2);
}

#[test]
fn annotations_show_traffic_that_host_endpoints_allow() {
    let folder = folder(&[("cluster.yaml", CLUSTER), ("host.yaml", HOST)]);
    let arguments = ["plan", "--datastore", "file:cluster.yaml", "-f", "host.yaml", "-o", "github"];
    let (text, code) = run(folder.path(), &arguments, "");
    assert!(text.contains("::notice::closed: host endpoint edge, ingress, own traffic, anywhere: "), "{text}");
    assert!(text.contains("::notice::closed: host endpoint edge, egress, own traffic, anywhere: "), "{text}");
    assert_eq!(code, 2);

    // The policy of a host endpoint is annotated.
    let policy = "\
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: edge}
spec:
  selector: role == 'edge'
  types: [Ingress]
  ingress:
    - {action: Allow, protocol: TCP, destination: {ports: [80]}}
    - {action: Deny}
";
    let whole = format!("{CLUSTER}---\n{HOST}");
    fs::write(folder.path().join("cluster.yaml"), whole).unwrap();
    fs::write(folder.path().join("policy.yaml"), policy).unwrap();
    let arguments = ["plan", "--datastore", "file:cluster.yaml", "-f", "policy.yaml", "-o", "github"];
    let (text, _) = run(folder.path(), &arguments, "");
    let notice = "::notice file=policy.yaml,line=8,col=7::opened: host endpoint edge, ingress, own traffic, anywhere: TCP 80, by ";
    assert!(text.contains(notice), "{text}");
}

#[test]
fn forwarding_by_host_endpoints_is_part_of_connections() {
    let folder = folder(&[("cluster.yaml", &format!("{CLUSTER}---\n{HOST}"))]);
    let policy = "\
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: edge}
spec: {selector: role == 'edge', applyOnForward: true, types: [Egress], egress: [{action: Allow, protocol: TCP}]}
";
    let note = "policy of host endpoints for forwarded packets applies to connections of pods, too";
    let (text, _) = run(folder.path(), &PLAN, policy);
    assert!(text.contains("- closed  edge, egress, forwarded, anywhere: "), "{text}");
    // Packets between pods may be in a tunnel at this interface.
    let closed = "  - closed  shop/web-1 -> everything outside, but not on the same node: everything but IP-in-IP, TCP";
    assert!(text.contains(closed), "{text}");
    let by = "            egress at the node's host endpoint (forwarded), by the end of tier default: ";
    assert!(text.contains(by), "{text}");
    assert_eq!(text.matches(" -> ").count(), 1, "{text}");
    assert!(text.contains(&format!("\nnote: {note}")), "{text}");
    let (text, _) = run(folder.path(), &[&PLAN[..], &["-o", "json"]].concat(), policy);
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert!(answer["notes"][0].as_str().unwrap().starts_with(note), "{text}");
    let connections = &answer["connections"][0];
    assert_eq!(
        (&connections["nodes"], &connections["hostEndpointLayer"]),
        (&json!("different"), &json!("forwarded")),
        "{connections}"
    );
    let (text, _) = run(folder.path(), &[&PLAN[..], &["-o", "github"]].concat(), policy);
    assert!(
        text.contains("everything outside, but not on the same node: ")
            && text.contains(", at host endpoints (forwarded), by "),
        "{text}"
    );
    let all = HOST.replace("interfaceName: eth0, expectedIPs: [192.168.0.1]", "interfaceName: \"*\"");
    fs::write(folder.path().join("cluster.yaml"), format!("{CLUSTER}---\n{all}")).unwrap();
    let (text, _) = run(folder.path(), &PLAN, policy);
    assert!(text.contains("- closed  shop/web-1 -> shop/db, shop/web-2 (2 pods): "), "{text}");
    // Without such changes there is no note.
    let (text, _) = run(folder.path(), &PLAN, &policy.replace("applyOnForward: true, ", ""));
    assert!(text.contains("own traffic") && !text.contains("note:"), "{text}");
}

/// Returns the findings of `plan` on a policy: their kinds, texts and rules.
fn findings(policy: &str) -> Vec<(String, String, Value)> {
    let folder = folder(&[("cluster.yaml", CLUSTER)]);
    let (text, code) = run(folder.path(), &[&PLAN[..], &["-o", "json"]].concat(), policy);
    assert_eq!(code, 2, "{text}");
    let answer: Value = serde_json::from_str(&text).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let found = answer["findings"].as_array().unwrap().iter();
    found.map(|found| (text(&found["kind"]), text(&found["text"]), found["position"].clone())).collect()
}

fn policy(name: &str, order: u8, selector: &str, ingress: &str) -> String {
    format!(
        "apiVersion: projectcalico.org/v3\nkind: NetworkPolicy\nmetadata: {{namespace: shop, name: {name}}}\n\
         spec: {{order: {order}, selector: \"{selector}\", types: [Ingress], ingress: [{ingress}]}}\n---\n"
    )
}

#[test]
fn a_policy_that_selects_nothing_is_named() {
    let found = findings(&policy("lost", 1, "app == 'nowhere'", "{action: Allow}"));
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].0, "selects-nothing");
    assert_eq!(found[0].1, "NetworkPolicy/shop/lost selects no endpoint");
}

#[test]
fn policies_and_rules_that_others_decide_before_are_named() {
    let first = policy("first", 1, "app == 'db'", "{action: Allow, protocol: TCP}, {action: Pass, protocol: UDP}");
    let second = "{action: Log, protocol: TCP}, {action: Allow, protocol: TCP}, {action: Pass, protocol: UDP}";
    let found = findings(&format!("{first}{}", policy("second", 2, "app == 'db'", second)));
    let kinds: Vec<(&str, &str)> = found.iter().map(|(kind, text, _)| (&**kind, &**text)).collect();
    assert_eq!(kinds, [("shadowed", "NetworkPolicy/shop/second has no effect: others decide before its rules")]);

    // A log rule has an effect, so that only the other rules have none.
    let second = "{action: Log, protocol: SCTP}, {action: Allow, protocol: TCP}, {action: Pass, protocol: UDP}";
    let found = findings(&format!("{first}{}", policy("second", 2, "app == 'db'", second)));
    let kinds: Vec<(&str, &str)> = found.iter().map(|(kind, text, _)| (&**kind, &**text)).collect();
    let no_effect = |index: usize| {
        format!("NetworkPolicy/shop/second, ingress rule {index} has no effect: others decide before it")
    };
    assert_eq!(kinds, [("rule-shadowed", &*no_effect(1)), ("rule-shadowed", &*no_effect(2))]);
    assert_eq!(found[0].2, "stdin:9:102", "{found:?}");

    // The second policy selects other pods as well.
    let found = findings(&format!("{first}{}", policy("second", 2, "all()", second)));
    assert_eq!(found, []);
}

#[test]
fn rules_that_no_packet_matches_are_named() {
    let rules = "{action: Allow, protocol: TCP, notProtocol: TCP}, {action: Allow, protocol: UDP}";
    let found = findings(&policy("odd", 1, "app == 'db'", rules));
    let text = "NetworkPolicy/shop/odd, ingress rule 0 can match no packet";
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((&*found[0].0, &*found[0].1), ("rule-never-matches", text));
}

#[test]
fn a_page_holds_all_of_it_and_needs_no_network() {
    let folder = folder(&[("cluster.yaml", CLUSTER), ("policy.yaml", POLICY)]);
    let arguments = ["plan", "--datastore", "file:cluster.yaml", "-f", "policy.yaml", "-o", "html"];
    let (page, code) = run(folder.path(), &arguments, "");
    assert_eq!(code, 2);
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"), "{page}");
    assert!(page.contains("<b>2</b> closed"), "{page}");
    assert_eq!(page.matches("<tr class=\"closed\">").count(), 2, "{page}");
    assert!(page.contains("shop/web-1\nshop/web-2</pre>"), "{page}");
    assert!(page.contains("everything but IP-in-IP, TCP 5432, UDP 4789"), "{page}");
    assert!(page.contains("<code>policy.yaml:11:7</code>"), "{page}");
    assert!(!page.contains("://"), "{page}");
}

#[test]
fn families_with_different_pods_are_separate_regardless_of_the_name_limit() {
    let pod = |name: &str, last: usize| {
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{namespace: shop, name: {name}}}\n\
             spec: {{nodeName: n1, containers: [{{name: c}}]}}\n\
             status: {{phase: Running, podIPs: [{{ip: 10.0.9.{last}}}, {{ip: \"fd00::9:{last}\"}}]}}\n"
        )
    };
    let pods: String = (0..9).map(|number| pod(&format!("p{number}"), number + 1)).collect();
    let folder = folder(&[("cluster.yaml", &format!("{CLUSTER}{pods}"))]);
    let policy = "\
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {namespace: shop, name: db}
spec:
  selector: app == 'db'
  types: [Ingress]
  ingress:
    - {action: Allow, source: {nets: [10.0.9.8/32, 10.0.9.9/32]}}
    - {action: Allow, source: {nets: ['fd00::9:6/128', 'fd00::9:7/128']}}
";
    let (text, _) = run(folder.path(), &[&PLAN[..], &["-o", "json"]].concat(), policy);
    let answer: Value = serde_json::from_str(&text).unwrap();
    let peers: Vec<(Value, Value)> = answer["connections"]
        .as_array()
        .unwrap()
        .iter()
        .map(|found| (found["families"].clone(), found["from"]["workloads"].clone()))
        .filter(|(_, from)| from != &json!([]))
        .collect();
    let names = |numbers: [usize; 7]| {
        let names = numbers.map(|number| format!("shop/p{number}"));
        json!([&names[..], &["shop/web-1".to_owned(), "shop/web-2".to_owned()]].concat())
    };
    let v4 = (json!([4]), names([0, 1, 2, 3, 4, 5, 6]));
    assert_eq!(peers, [v4, (json!([6]), names([0, 1, 2, 3, 4, 7, 8]))], "{text}");
}

/// Parameters of all nodes.
const FAST: &str = "\
apiVersion: projectcalico.org/v3
kind: FelixConfiguration
metadata:
  name: default
  annotations:
    config.projectcalico.org/NFTablesLayout: Fast
    config.projectcalico.org/PolicyTableGroupMemoryMB: '1'
";

/// Returns a network set with this number of addresses.
fn addresses(count: u32) -> String {
    let nets: String = (0..count).map(|n| format!("10.9.{}.{}/32,", n / 250, n % 250)).collect();
    format!(
        "apiVersion: projectcalico.org/v3\nkind: NetworkSet\nmetadata: {{name: wide, namespace: shop, labels: {{wide: 'yes'}}}}\n\
         spec: {{nets: [{nets}]}}\n"
    )
}

#[test]
fn a_refused_layout_is_reported_at_the_causing_change() {
    let rules: String = (1..=8)
        .map(|port| {
            format!("    - {{action: Allow, protocol: TCP, source: {{selector: wide == 'yes', ports: [{port}]}}}}\n")
        })
        .collect();
    let policy = format!(
        "apiVersion: projectcalico.org/v3\nkind: NetworkPolicy\nmetadata: {{name: wide, namespace: shop}}\n\
         spec:\n  selector: app == 'web'\n  ingress:\n{rules}"
    );
    let cluster = format!("{CLUSTER}---\n{policy}---\n{}", addresses(100));
    let over = |cluster: &str, change: &str| {
        let folder = folder(&[("cluster.yaml", cluster)]);
        let (text, code) = run(folder.path(), &PLAN, change);
        assert_eq!(code, 2, "{text}");
        text.matches(
            "! NetworkPolicy/shop/wide: NFTablesLayout=Fast evaluates rules one after the other: the layout of its chains exceeds \
             the table budget of 1048576 bytes",
        )
        .count()
    };
    // Only a network set changes.
    let fast = format!("{cluster}---\n{FAST}");
    assert_eq!(over(&fast, &addresses(4_000)), 1);
    assert_eq!(over(&fast, &addresses(200)), 0);
    assert_eq!(over(&cluster, &addresses(4_000)), 0);
    // Layouts that were over the bound before the change are not reported.
    let large = format!("{CLUSTER}---\n{policy}---\n{}---\n{FAST}", addresses(4_000));
    assert_eq!(over(&large, &addresses(4_001)), 0);
    // Nodes with another configuration.
    let large = format!("{CLUSTER}---\n{policy}---\n{}", addresses(4_000));
    assert_eq!(over(&large, FAST), 1);
}

#[test]
fn networks_over_the_ebpf_block_limit_are_reported_at_the_causing_change() {
    let programs = "apiVersion: projectcalico.org/v3\nkind: FelixConfiguration\nmetadata:\n  name: default\n  annotations:\n    \
                    config.projectcalico.org/BPFMaxBlocks: '196608'\nspec: {bpfEnabled: true}\n";
    let policy = "apiVersion: projectcalico.org/v3\nkind: NetworkPolicy\nmetadata: {name: wide, namespace: shop}\nspec: {selector: \
                  app == 'web', ingress: [{action: Allow, source: {selector: wide == 'yes'}}]}\n";
    let networks = |count: u32| {
        let bits = |n: u32| n.wrapping_mul(0x9e37_79b1);
        let nets: String = (0..count).map(|n| format!("'2001:db8:{:x}:{n:x}::/96',", bits(n) >> 16)).collect();
        format!(
            "apiVersion: projectcalico.org/v3\nkind: NetworkSet\nmetadata: {{name: wide, namespace: shop, labels: {{wide: 'yes'}}}}\n\
             spec: {{nets: [{nets}]}}\n"
        )
    };
    let over = |before: u32, after: u32| {
        let cluster = format!("{CLUSTER}---\n{programs}---\n{policy}---\n{}", networks(before));
        let folder = folder(&[("cluster.yaml", &cluster)]);
        let (text, code) = run(folder.path(), &PLAN, &networks(after));
        assert_eq!(code, 2, "{text}");
        let problem = "! NetworkPolicy/shop/wide: eBPF programs deny its traffic: its networks exceed the budget of 65536 blocks for \
                    addresses";
        text.matches(problem).count()
    };
    assert_eq!(over(10, 20_000), 1);
    assert_eq!(over(10, 20), 0);
    assert_eq!(over(20_000, 20_001), 0);
}
