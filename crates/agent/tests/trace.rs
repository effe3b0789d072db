//! `tortie trace`, as its users run it.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test that runs the program")]

use std::fs;
use std::io::Write;
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
metadata: {namespace: shop, name: web, labels: {app: web}}
spec: {nodeName: n1, containers: [{name: c}]}
status: {phase: Running, podIPs: [{ip: 10.0.1.2}, {ip: "fd00::1:2"}]}
---
apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: db, labels: {app: db}}
spec: {nodeName: n2, containers: [{name: c}]}
status: {phase: Running, podIPs: [{ip: 10.0.2.2}]}
---
apiVersion: v1
kind: Node
metadata: {name: n1, annotations: {projectcalico.org/IPv4Address: 192.168.0.1/24}}
status: {addresses: [{type: InternalIP, address: 192.168.0.1}]}
---
apiVersion: v1
kind: Node
metadata: {name: n2, annotations: {projectcalico.org/IPv4Address: 192.168.0.2/24}}
status: {addresses: [{type: InternalIP, address: 192.168.0.2}]}
"#;

/// The rule in line 9 allows two peers, and the one in line 11 allows one.
const POLICY: &str = r#"
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: shop, name: db}
spec:
  podSelector: {matchLabels: {app: db}}
  policyTypes: [Ingress]
  ingress:
    - from: [{podSelector: {matchLabels: {app: cache}}}, {podSelector: {matchLabels: {app: proxy}}}]
      ports: [{port: 5432}]
    - from: [{podSelector: {matchLabels: {app: web}}}]
      ports: [{port: 5432}]
"#;

struct Cluster(TempDir);

impl Cluster {
    fn new(files: &[(&str, &str)]) -> Self {
        let folder = TempDir::new().unwrap();
        for (name, text) in [("cluster.yaml", CLUSTER)].iter().chain(files) {
            fs::write(folder.path().join(name), text).unwrap();
        }
        Self(folder)
    }

    fn trace(&self, args: &[&str], input: &str) -> Output {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tortie"))
            .args(["trace", "--datastore", &format!("file:{}", self.0.path().display())])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Invalid questions end the program before it reads.
        drop(child.stdin.take().unwrap().write_all(input.as_bytes()));
        child.wait_with_output().unwrap()
    }

    /// Returns the exit code and the output, without the name of the folder.
    fn ask(&self, args: &[&str]) -> (i32, String) {
        let output = self.trace(args, "");
        let printed = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.code().unwrap(), printed.replace(&format!("{}/", self.0.path().display()), ""))
    }

    fn json(&self, args: &[&str]) -> Value {
        let output = self.trace(&[args, &["-o", "json"]].concat(), "");
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

const WEB_TO_DB: [&str; 4] = ["--from", "shop/web", "--to", "shop/db"];

fn web_to_db(more: &[&'static str]) -> Vec<&'static str> {
    [&WEB_TO_DB[..], more].concat()
}

/// Two backends of which one is behind a policy.
const SERVICE: &str = r#"
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: store}
spec: {type: ClusterIP, clusterIP: 10.96.0.5, clusterIPs: [10.96.0.5], ports: [{name: sql, port: 80}, {name: other, port: 81}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: store-1, labels: {kubernetes.io/service-name: store}}
addressType: IPv4
endpoints: [{addresses: [10.0.2.2]}, {addresses: [192.0.2.9]}]
ports: [{name: sql, port: 5432}, {name: other, port: 9}]
"#;

#[test]
fn a_service_is_asked_about_by_its_backends() {
    let cluster = Cluster::new(&[("policy.yaml", POLICY), ("service.yaml", SERVICE)]);
    let to =
        |place: &'static str, port: &'static str| cluster.ask(&["--from", "shop/web", "--to", place, "--port", port]);
    let (code, printed) = to("service:shop/store", "80");
    assert_eq!(code, 0, "{printed}");
    assert!(
        printed.starts_with("allowed to all 2 backends of service shop/store 80\n10.0.2.2 5432\n  allowed\n"),
        "{printed}"
    );
    assert_eq!(to("10.96.0.5", "80"), (0, printed), "by its address");
    let (code, printed) = to("service:shop/store", "81");
    assert_eq!(code, 3);
    assert!(
        printed
            .starts_with("denied at 1 of 2 backends of service shop/store 81\n10.0.2.2 9\n  denied at shop/db on n2"),
        "{printed}"
    );
    assert!(to("service:shop/store", "82").1.contains("service shop/store has no port 82"));
    assert!(to("service:shop/nothing", "80").1.contains("there is no service shop/nothing"));
    assert!(to("service:store", "80").1.contains("service:NAMESPACE/NAME"));
    let from = cluster.ask(&["--from", "service:shop/store", "--to", "shop/web", "--port", "80"]);
    assert!(from.1.contains("no connection comes from service"), "{from:?}");

    let question = r#"{"from": "shop/web", "to": "service:shop/store", "port": 81}"#;
    let answer = cluster.trace(&["--batch"], question);
    let answer: Value = serde_json::from_slice(&answer.stdout).unwrap();
    assert_eq!((&answer["verdict"], &answer["backends"], &answer["denied"]), (&json!("deny"), &json!(2), &json!(1)));
    assert_eq!((&answer["end"], &answer["tier"]), (&json!("ingress"), &json!("default")));
    let whole = cluster.trace(&["--from", "shop/web", "--to", "service:shop/store", "--port", "81", "-o", "json"], "");
    let whole: Value = serde_json::from_slice(&whole.stdout).unwrap();
    assert_eq!(whole["backends"][0]["address"], "10.0.2.2");
    assert_eq!(whole["backends"][1]["verdict"], "allow");
}

/// A Service with addresses of every kind, whose backend accepts one node.
const REACHED: &str = r#"
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: store}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.5
  clusterIPs: [10.96.0.5]
  externalIPs: [198.51.100.5]
  ports: [{name: sql, port: 80, nodePort: 30080}]
status: {loadBalancer: {ingress: [{ip: 203.0.113.5}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: store-1, labels: {kubernetes.io/service-name: store}}
addressType: IPv4
endpoints: [{addresses: [10.0.2.2]}]
ports: [{name: sql, port: 5432}]
---
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: only-n1, namespace: shop}
spec: {selector: app == 'db', ingress: [{action: Allow, source: {nets: [192.168.0.1/32]}}]}
---
apiVersion: projectcalico.org/v3
kind: HostEndpoint
metadata: {name: n1-all, labels: {host: n1}}
spec: {node: n1, interfaceName: "*", expectedIPs: [192.168.0.1]}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: node-ports}
spec:
  selector: host == 'n1'
  preDNAT: true
  applyOnForward: true
  types: [Ingress]
  ingress: [{action: Deny, protocol: TCP, source: {nets: [192.0.2.66/32]}, destination: {ports: [30080]}}]
"#;

#[test]
fn a_service_is_asked_about_by_each_of_its_addresses() {
    let cluster = Cluster::new(&[("reached.yaml", REACHED)]);
    let ask = |from: &str, to: &str, port: &str| cluster.ask(&["--from", from, "--to", to, "--port", port]);
    for address in ["10.96.0.5", "198.51.100.5", "203.0.113.5"] {
        let (code, printed) = ask("192.0.2.9", address, "80");
        assert_eq!(code, 3, "{printed}");
        assert!(
            printed.starts_with("denied at 1 of 1 backends of service shop/store 80\n10.0.2.2 5432\n"),
            "{printed}"
        );
        assert!(ask("192.0.2.9", address, "81").1.contains("service shop/store has no port 81"));
    }
    // By a node port of another node, the packet comes from that node.
    for to in ["192.168.0.1", "node:n1"] {
        let (code, printed) = ask("192.0.2.9", to, "30080");
        assert_eq!(code, 0, "{printed}");
        assert!(printed.starts_with("allowed to all 1 backends of service shop/store 80\n"), "{printed}");
        assert!(
            printed.contains("allowed at shop/db on n2, ingress, by NetworkPolicy/shop/only-n1, ingress rule 0"),
            "{printed}"
        );
        // The node's verdict before the translation counts.
        let (code, printed) = ask("192.0.2.66", to, "30080");
        assert_eq!(code, 3, "{printed}");
        let by =
            "denied at host endpoint n1-all (before destination NAT) on n1, ingress, by GlobalNetworkPolicy/node-ports";
        assert!(printed.contains(by), "{printed}");
    }
    assert_eq!(ask("192.0.2.9", "192.168.0.2", "30080").0, 3, "by a port of its own node it comes as it is");
    let (_, printed) = ask("192.0.2.9", "192.168.0.1", "30081");
    assert!(!printed.contains("service"), "{printed}");
}

#[test]
fn connections_stay_on_the_node_if_the_traffic_policy_is_local() {
    let service = REACHED.replacen(
        "  externalIPs",
        "  externalTrafficPolicy: Local\n  internalTrafficPolicy: Local\n  externalIPs",
        1,
    );
    let alias = "---\napiVersion: v1\nkind: Service\nmetadata: {namespace: shop, name: alias}\n\
                 spec: {type: ExternalName, externalName: example.com}\n";
    let cluster = Cluster::new(&[("reached.yaml", &service), ("alias.yaml", alias)]);
    let ask = |from: &str, to: &str, port: &str| cluster.ask(&["--from", from, "--to", to, "--port", port]);
    let (code, printed) = ask("192.0.2.9", "node:n1", "30080");
    assert_eq!(code, 1, "{printed}");
    assert!(printed.contains("no IPv4 endpoint on node n1 for port 80"), "{printed}");
    assert!(printed.contains("externalTrafficPolicy is Local"), "{printed}");
    let (code, printed) = ask("pod:shop/web", "service:shop/store", "80");
    assert_eq!(code, 1, "{printed}");
    assert!(printed.contains("internalTrafficPolicy is Local"), "{printed}");
    // The node of the endpoint leaves the source as it is, which no policy allows.
    let (code, printed) = ask("192.0.2.9", "192.168.0.2", "30080");
    assert_eq!(code, 3, "{printed}");
    assert!(!printed.contains(", from "), "{printed}");
    assert!(ask("shop/web", "service:shop/alias", "80").1.contains("is an alias of a DNS name"));
}

#[test]
fn a_network_set_and_a_service_are_asked_about_by_pairs() {
    let cluster = Cluster::new(&[("partners.yaml", PARTNERS), ("reached.yaml", REACHED)]);
    let open = "apiVersion: projectcalico.org/v3\nkind: NetworkPolicy\nmetadata: {name: open, namespace: shop}\nspec: {selector: \
                app == 'db', ingress: [{action: Allow, source: {nets: [192.0.2.64/27]}}]}\n";
    fs::write(cluster.0.path().join("open.yaml"), open).unwrap();
    for to in ["service:shop/store", "10.96.0.5"] {
        let whole = cluster.json(&["--from", "networkset:partners", "--to", to, "--port", "80"]);
        assert_eq!((&whole["networkSet"], &whole["service"]), (&json!("partners"), &json!("shop/store")), "{whole}");
        let pairs: Vec<_> = whole["pairs"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|pair| pair["address"] == "10.0.2.2")
            .map(|pair| (pair["network"].as_str().unwrap(), pair["verdict"].as_str().unwrap()))
            .collect();
        let expected = [("192.0.2.0/24", "deny"), ("192.0.2.64/27", "allow"), ("198.51.100.0/24", "deny")];
        assert_eq!(pairs, expected, "{whole}");
    }
}

const PARTNERS: &str = r#"
apiVersion: projectcalico.org/v3
kind: GlobalNetworkSet
metadata: {name: partners, labels: {role: partner}}
spec: {nets: [192.0.2.0/24, 198.51.100.0/24]}
---
apiVersion: projectcalico.org/v3
kind: NetworkSet
metadata: {name: banned, namespace: shop}
spec: {nets: [192.0.2.64/26]}
---
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec:
  selector: app == 'web'
  ingress:
    - {action: Deny, source: {nets: [192.0.2.64/27]}}
    - {action: Allow, source: {selector: role == 'partner', namespaceSelector: global()}}
---
apiVersion: projectcalico.org/v3
kind: HostEndpoint
metadata: {name: n1-eth0, labels: {host: n1}}
spec: {node: n1, interfaceName: eth0}
---
apiVersion: projectcalico.org/v3
kind: HostEndpoint
metadata: {name: n1-eth1}
spec: {node: n1, interfaceName: eth1}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: nodes}
spec: {selector: host == 'n1', ingress: [{action: Allow}]}
"#;

#[test]
fn a_network_set_is_traced_by_the_networks_that_policies_distinguish() {
    let cluster = Cluster::new(&[("partners.yaml", PARTNERS)]);
    let (code, printed) = cluster.ask(&["--from", "networkset:partners", "--to", "shop/web", "--port", "80"]);
    assert_eq!(code, 3, "{printed}");
    // Addresses that no policy bans are allowed as the rest of their network.
    let lines: Vec<&str> = printed.lines().skip(1).filter(|line| !line.contains(" at ")).collect();
    assert_eq!(lines, ["192.0.2.0/24", "  allowed", "192.0.2.64/27", "198.51.100.0/24", "  allowed"], "{printed}");
    assert!(printed.starts_with("denied for 1 of 3 networks of network set partners\n"), "{printed}");
    assert!(printed.contains("192.0.2.64/27\n  denied at shop/web on n1, ingress, by "), "{printed}");
    let whole = cluster.json(&["--from", "networkset:shop/banned", "--to", "shop/web", "--port", "80"]);
    assert_eq!(
        (&whole["networkSet"], &whole["networks"][0]["network"]),
        (&json!("shop/banned"), &json!("192.0.2.64/26"))
    );
    assert_eq!((&whole["networks"][0]["verdict"], &whole["networks"][1]["verdict"]), (&json!("allow"), &json!("deny")));
    assert_eq!(cluster.ask(&["--from", "shop/web", "--to", "networkset:partners", "--port", "80"]).0, 0);
    let complaint = |from: &str, to: &str| cluster.ask(&["--from", from, "--to", to, "--port", "80"]).1;
    assert!(complaint("networkset:partners", "networkset:shop/banned").contains("neither end"));
    assert!(complaint("networkset:none", "shop/web").contains("from: there is no network set none"));
}

#[test]
fn a_host_endpoint_is_asked_about_by_its_name() {
    let cluster = Cluster::new(&[("partners.yaml", PARTNERS)]);
    let to = |place: &str| cluster.ask(&["--from", "192.0.2.1", "--to", place, "--port", "80"]);
    let (code, printed) = to("hostendpoint:n1-eth0");
    assert_eq!(code, 0, "{printed}");
    assert!(
        printed.contains("allowed at host endpoint n1-eth0 on n1, ingress") && !printed.contains("eth1"),
        "{printed}"
    );
    let (code, printed) = to("hostendpoint:n1-eth1");
    assert_eq!(code, 3, "{printed}");
    assert!(printed.starts_with("denied at host endpoint n1-eth1 on n1, ingress"), "{printed}");
    assert!(to("hostendpoint:n9").1.contains("to: there is no host endpoint n9"));
    let from = cluster.ask(&["--from", "hostendpoint:n1-eth0", "--to", "shop/db", "--port", "80"]);
    assert!(from.1.starts_with("denied at host endpoint n1-eth0 on n1, egress"), "{from:?}");
}

#[test]
fn the_answer_comes_first_and_names_the_line() {
    let cluster = Cluster::new(&[("policy.yaml", POLICY)]);
    let allowed = "allowed\n  \
        allowed at shop/web on n1, egress, by profile kns.shop, egress rule 0: cluster.yaml:2:1\n  \
        allowed at shop/db on n2, ingress, by KubernetesNetworkPolicy/shop/db, ingress rule 2: policy.yaml:11:7\n";
    assert_eq!(cluster.ask(&web_to_db(&["--port", "5432"])), (0, allowed.to_owned()));
    let denied = "denied at shop/db on n2, ingress, by the end of tier default: its policies apply, and no rule of them matches\n";
    assert_eq!(cluster.ask(&web_to_db(&["--port", "5433"])), (3, denied.to_owned()));
    let on_n1 = web_to_db(&["--port", "5433", "--node", "n1"]);
    assert_eq!(cluster.ask(&on_n1).0, 0, "the node of the source lets it pass");
}

#[test]
fn verbose_answers_list_every_evaluated_rule() {
    let cluster = Cluster::new(&[("policy.yaml", POLICY)]);
    let (code, printed) = cluster.ask(&web_to_db(&["--port", "5432", "-v"]));
    assert_eq!(code, 0);
    for line in [
        "    tier default: KubernetesNetworkPolicy/shop/db: allow (policy.yaml:2:1)",
        "      rule 2, allow: matches (policy.yaml:11:7)",
        "    profile kns.shop: allow (cluster.yaml:2:1)",
        "    endpoint: cluster.yaml:6:1",
        "    endpoint: cluster.yaml:12:1",
    ] {
        assert!(printed.lines().any(|found| found == line), "{line}\n{printed}");
    }
    assert!(printed.contains("rule 0, allow: the source is not selected by "), "{printed}");
    assert_eq!(printed.matches("(policy.yaml:9:7)").count(), 2, "{printed}");

    let answer = cluster.json(&web_to_db(&["--port", "5433"]));
    assert_eq!(
        (&answer["verdict"], &answer["end"], &answer["tier"]),
        (&json!("deny"), &json!("ingress"), &json!("default"))
    );
    let rules = &answer["legs"][1]["steps"][0]["policy"]["rules"];
    assert_eq!(rules[2]["why"], "it is for other destination ports");
    assert_eq!(
        answer["legs"][1]["steps"][1],
        json!({"endOfTier": {"tier": "default", "says": "deny", "position": null}})
    );
}

#[test]
fn tiers_and_host_endpoints_are_shown_with_their_positions() {
    let tier = r"
apiVersion: projectcalico.org/v3
kind: Tier
metadata: {name: ops}
spec: {order: 1}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: ops.hosts}
spec: {tier: ops, selector: host == 'n1', types: [Ingress]}
";
    let cluster = Cluster::new(&[("tier.yaml", tier), ("partners.yaml", PARTNERS)]);
    let question = ["--from", "192.0.2.1", "--to", "hostendpoint:n1-eth0", "--port", "80"];
    let (code, printed) = cluster.ask(&question);
    assert_eq!(code, 3, "{printed}");
    assert!(printed.ends_with("no rule of them matches: tier.yaml:2:1\n"), "{printed}");
    let whole = cluster.json(&question);
    let position = |value: &Value, end: &str| value.as_str().is_some_and(|place| place.ends_with(end));
    let leg = whole["legs"].as_array().unwrap().last().unwrap();
    assert!(position(&whole["position"], "tier.yaml:2:1"), "{whole}");
    assert!(position(&leg["endpointPosition"], "partners.yaml:21:1"), "{whole}");
}

#[test]
fn a_batch_answers_line_by_line() {
    let cluster = Cluster::new(&[("policy.yaml", POLICY)]);
    let questions = r#"{"from": "shop/web", "to": "shop/db", "port": 5432, "protocol": "TCP", "family": 4}

{"from": "10.0.1.2", "to": "10.0.2.2", "port": 5433}
{"from": "shop/web", "to": "shop/db", "port": 5432, "family": 6}
{"from": "shop/wep", "to": "shop/db", "port": 5432}
{"from": "198.51.100.1", "to": "198.51.100.2", "port": 1}
nonsense
{"from": "shop/web", "to": "shop/db", "protocol": "icmp", "icmp_type": 8, "icmp_code": 0}
"#;
    let output = cluster.trace(&["--batch"], questions);
    assert!(output.status.success());
    let answers: Vec<Value> =
        String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(answers.len(), 7);
    assert_eq!(answers[6]["verdict"], "deny");
    let parts = |answer: &Value| ["verdict", "end", "policy", "rule", "tier"].map(|part| answer[part].clone());
    let policy = "KubernetesNetworkPolicy/shop/db";
    assert_eq!(parts(&answers[0]), [json!("allow"), json!("ingress"), json!(policy), json!(2), json!("default")]);
    assert_eq!(parts(&answers[1]), [json!("deny"), json!("ingress"), json!(null), json!(null), json!("default")]);
    assert_eq!(answers[2], json!({"error": "to: shop/db has no IPv6 address"}));
    assert_eq!(answers[3], json!({"error": "from: there is no pod shop/wep that has an address; is shop/web meant?"}));
    assert_eq!(answers[4], json!({"error": "neither end of the connection is in the cluster"}));
    assert!(answers[5]["error"].is_string());
}

/// A staged policy is shown with its verdict, and has no effect.
#[test]
fn staged_policies_are_shown_without_effect() {
    let staged = r"
apiVersion: projectcalico.org/v3
kind: StagedGlobalNetworkPolicy
metadata: {name: closed}
spec: {selector: app == 'db', types: [Ingress], ingress: [{action: Deny}]}
";
    let cluster = Cluster::new(&[("staged.yaml", staged)]);
    let (code, printed) = cluster.ask(&web_to_db(&["--port", "5432", "-v"]));
    assert_eq!(code, 0, "{printed}");
    let shown = "    tier default: StagedGlobalNetworkPolicy/closed, staged: deny (staged.yaml:2:1)\n";
    assert!(printed.contains(shown), "{printed}");
    let pending = "with all staged policies in force: denied at shop/db on n2, ingress, by StagedGlobalNetworkPolicy/closed, \
                   ingress rule 0: staged.yaml:5:59\n";
    assert!(printed.ends_with(pending), "{printed}");
    let whole = cluster.json(&web_to_db(&["--port", "5432"]));
    assert_eq!((&whole["verdict"], &whole["pending"]["verdict"]), (&json!("allow"), &json!("deny")), "{whole}");
    assert_eq!(whole["pending"]["policy"], "StagedGlobalNetworkPolicy/closed");
    assert_eq!(Cluster::new(&[]).json(&web_to_db(&["--port", "5432"]))["pending"], json!(null));
}

/// Parameters come from the datastore, and may differ from node to node.
#[test]
fn connections_to_a_node_depend_on_its_parameters() {
    let config = r"
apiVersion: projectcalico.org/v3
kind: FelixConfiguration
metadata: {name: node.n1}
spec: {defaultEndpointToHostAction: Accept}
";
    let to_node = ["--from", "shop/web", "--to", "node:n1", "--port", "22"];
    assert_eq!(Cluster::new(&[]).ask(&to_node).0, 3);
    assert_eq!(Cluster::new(&[("config.yaml", config)]).ask(&to_node).0, 0);
    let from_db = ["--from", "shop/db", "--to", "192.168.0.2", "--port", "22"];
    let (code, printed) = Cluster::new(&[("config.yaml", config)]).ask(&from_db);
    assert_eq!((code, &*printed), (3, "denied at shop/db to its node on n2, egress, by DefaultEndpointToHostAction\n"));
}

/// Errors in the input are reported, and the rest decides. Of two files with one policy the first
/// one counts.
#[test]
fn answers_match_the_enforced_state() {
    let open = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {namespace: shop, name: db}\n\
        spec: {podSelector: {}, ingress: [{}]}\n";
    let cluster = Cluster::new(&[("a.yaml", open), ("b.yaml", POLICY), ("c.yaml", "kind: [\n")]);
    let (code, printed) = cluster.ask(&web_to_db(&["--port", "1"]));
    assert_eq!(code, 0, "{printed}");
    assert!(printed.contains("by KubernetesNetworkPolicy/shop/db, ingress rule 0: a.yaml:4:"), "{printed}");
    assert!(printed.contains("b.yaml:2:1: ") && printed.contains("c.yaml:"), "{printed}");
}

#[test]
fn wrong_questions_end_with_their_own_codes() {
    let cluster = Cluster::new(&[]);
    for (args, code, printed) in [
        (&["--from", "shop/web"][..], 2, "--to"),
        (&WEB_TO_DB[..], 2, "port: TCP needs one"),
        (&["--from", "a/b", "--to", "shop/db", "--port", "1"], 1, "from: there is no pod a/b"),
        (&["--from", "node:n9", "--to", "shop/db", "--port", "1"], 1, "the datastore has no IPv4 address of node n9"),
        (
            &["--from", "shop/web", "--to", "shop/db", "--port", "1", "--icmp-type", "8"],
            2,
            "--icmp-type and --icmp-code are for",
        ),
    ] {
        let (found, text) = cluster.ask(args);
        assert!(found == code && text.contains(printed), "{args:?}: {found} {text}");
    }
}

#[test]
fn tables_show_the_cell_of_the_answer() {
    let cluster = Cluster::new(&[("policy.yaml", POLICY)]);
    let question = ["--from", "shop/web", "--to", "shop/db", "--port", "5432"];
    let (code, text) = cluster.ask(&[&question[..], &["--tables"]].concat());
    assert_eq!(code, 0, "{text}");
    let lines: Vec<&str> = text.lines().collect();
    let at = lines.iter().position(|line| line.starts_with("  allowed at shop/db on n2, ingress")).unwrap();
    assert!(lines[at + 1].starts_with("    table: group 1 (ingress), "), "{text}");
    assert!(
        lines[at + 1].ends_with("column 1 (TCP 5432): allow by KubernetesNetworkPolicy/shop/db, ingress rule 2"),
        "{text}"
    );
    assert!(lines[at + 2].contains("peer: class 2 (10.0.1.2/32)"), "{text}");

    let (code, text) = cluster.ask(&[&question[..4], &["--port", "80", "--tables", "-o", "json"]].concat());
    assert_eq!(code, 3, "{text}");
    let answer: Value = serde_json::from_str(&text).unwrap();
    let table = &answer["legs"][1]["table"];
    assert_eq!((&table["verdict"], &table["agrees"]), (&json!("deny"), &json!(true)), "{answer}");
    assert_eq!(table["column"], json!({"number": 2, "is": "everything but TCP 5432"}), "{answer}");
    let (_, text) = cluster.ask(&[&question[..], &["-o", "json"]].concat());
    assert!(!text.contains("\"table\""), "it was not asked for: {text}");
}

/// The rule in line 8 denies by address, and the one in line 9 allows by name.
const NAMES: &str = "
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {namespace: shop, name: names}
spec:
  selector: app == 'web'
  egress:
    - {action: Deny, destination: {nets: [203.0.113.0/24]}}
    - {action: Allow, protocol: TCP, destination: {domains: ['*.example.com'], ports: [443]}}
";

#[test]
fn names_of_the_destination_decide_as_far_as_they_are_known() {
    let cluster = Cluster::new(&[("names.yaml", NAMES)]);
    let ask = |args: &[&str]| {
        let all = [&["--from", "shop/web", "--socket", "/nonexistent/agent.sock"], args].concat();
        cluster.ask(&all)
    };
    let by_address = "NetworkPolicy/shop/names, egress rule 0: names.yaml:8:7";
    let by_name = "NetworkPolicy/shop/names, egress rule 1: names.yaml:9:7";
    let end = "the end of tier default: its policies apply, and no rule of them matches";
    let at = "at shop/web on n1, egress, by";
    let named = ["--to", "domain:api.EXAMPLE.com.", "--port", "443"];
    for (args, code, expected) in [
        (
            named.to_vec(),
            5,
            format!(
                "depends on the address of the destination\n  if this rule matches the address: denied {at} {by_address}\n  \
                 if not: allowed {at} {by_name}\n"
            ),
        ),
        ([&named[..], &["--address", "192.0.2.7"]].concat(), 0, format!("allowed\n  allowed {at} {by_name}\n")),
        ([&named[..], &["--address", "203.0.113.7"]].concat(), 3, format!("denied {at} {by_address}\n")),
        (vec!["--to", "domain:example.com", "--port", "443"], 3, format!("denied {at} {end}\n")),
        (
            vec!["--to", "192.0.2.7", "--port", "443"],
            5,
            format!(
                "depends on the names that the source has resolved\n  \
                 if it has resolved a name of this rule to the destination: allowed {at} {by_name}\n  \
                 if not: denied {at} {end}\n"
            ),
        ),
        (vec!["--to", "192.0.2.7", "--port", "80"], 3, format!("denied {at} {end}\n")),
        (vec!["--to", "203.0.113.7", "--port", "443"], 3, format!("denied {at} {by_address}\n")),
        (vec!["--to", "domain:*.x.io", "--port", "443"], 2, "tortie: to: `*.x.io`: ".to_owned()),
        (
            vec!["--to", "192.0.2.7", "--address", "192.0.2.7", "--port", "443"],
            2,
            "tortie: address: it is for a destination domain:NAME\n".to_owned(),
        ),
    ] {
        let (found, printed) = ask(&args);
        assert!(found == code && printed.starts_with(&expected), "{args:?}: {found}\n{printed}\n{expected}");
        assert!(code == 2 || printed == expected, "{args:?}: {printed}");
    }
    let verbose = ask(&[&named[..], &["--address", "192.0.2.7", "-v"]].concat()).1;
    assert!(verbose.contains("rule 1, allow: matches by name"), "{verbose}");
    let verbose = ask(&[&named[..], &["-v"]].concat()).1;
    assert!(verbose.contains("rule 0, deny: it matches by address, and needs --address"), "{verbose}");
}

#[test]
fn a_verdict_that_depends_on_names_has_both_answers_as_json() {
    let cluster = Cluster::new(&[("names.yaml", NAMES)]);
    let socket = ["--socket", "/nonexistent/agent.sock"];
    let whole = cluster.json(&[&socket[..], &["--from", "shop/web", "--to", "192.0.2.7", "--port", "443"]].concat());
    assert_eq!((&whole["verdict"], &whole["dependsOn"]), (&json!("depends"), &json!("names")));
    assert_eq!((&whole["tier"], &whole["rule"]), (&json!("default"), &Value::Null));
    let alternative = &whole["alternative"];
    assert_eq!((&alternative["verdict"], &alternative["rule"]), (&json!("allow"), &json!(1)));
    let steps = whole["legs"][0]["steps"].as_array().unwrap();
    let rules = &steps.iter().find_map(|step| step.get("policy")).unwrap()["rules"];
    assert_eq!((&rules[1]["matched"], &rules[1]["byName"]), (&json!(false), &json!(true)));

    let lines = [
        json!({"from": "shop/web", "to": "192.0.2.7", "port": 443}),
        json!({"from": "shop/web", "to": "domain:a.example.com", "address": "192.0.2.7", "port": 443}),
        json!({"from": "domain:a.example.com", "to": "shop/web", "port": 443}),
    ];
    let input: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let output = cluster.trace(&[&socket[..], &["--batch"]].concat(), &input);
    let answers: Vec<Value> =
        String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&answers[0]["verdict"], &answers[1]["verdict"]), (&json!("depends"), &json!("allow")));
    assert_eq!(answers[1].get("alternative"), None);
    assert_eq!(answers[2]["error"], "from: no connection comes from a domain name; use an address");
}
