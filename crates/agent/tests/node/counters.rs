//! What the kernel counts for rules, as `tortie show` tells it.

use std::net::UdpSocket;
use std::time::Duration;

use serde_json::Value;
use tortie_testkit::netns::Namespace;

use super::agent::Node;
use super::asked::{json, said};
use super::connections::{CLUSTER, Open, connect, policy, serve, until};

const WEB: &str = "KubernetesNetworkPolicy/shop/web";

/// A node on which the client has reached port 80 of the web server and was refused UDP.
fn after_packets(is_by_programs: bool) -> (Node, [Namespace; 2]) {
    let mut node = Node::new("nft", CLUSTER);
    node.write("policy.yaml", &policy(&[80], &[]));
    if is_by_programs {
        node.set("FELIX_BPFENABLED", "true");
        node.set("FELIX_FLOWLOGSLOCALREPORTER", "Enabled");
    }
    let (web, client) = (connect(&node, "web", 2), connect(&node, "client", 3));
    serve(&web, &[80], &[]);
    node.start();
    until("the web server answers", &node, || {
        Open::tcp(&client, "10.65.0.2", 80)?.answers(Duration::from_secs(5)).then_some(())
    });
    let socket = client.run(|| UdpSocket::bind(("0.0.0.0", 0))).unwrap().unwrap();
    socket.send_to(b"x", ("10.65.0.2", 53)).unwrap();
    (node, [web, client])
}

fn found(list: &Value, is_meant: impl Fn(&Value) -> bool) -> &Value {
    let entries = list.as_array().unwrap_or_else(|| panic!("{list:#}"));
    entries.iter().find(|entry| is_meant(entry)).unwrap_or_else(|| panic!("{list:#}"))
}

fn packets(entry: &Value) -> u64 {
    entry["packets"].as_u64().unwrap_or_else(|| panic!("{entry}"))
}

tortie_testkit::kernel_test! {
    fn programs_count_what_each_rule_decides() {
        let (node, _pods) = after_packets(true);
        let denied = |counted: &Value| {
            packets(found(&counted["decisions"], |entry| entry["tier"] == "default" && entry["policy"].is_null()))
        };
        assert!(json(&node, &["status"])["engine"].is_object(), "{}", node.log());
        let counted = until("the datagram is counted", &node, || {
            Some(json(&node, &["show", "counters"])).filter(|counted| denied(counted) > 0)
        });
        assert_eq!(counted["policies"], serde_json::json!([]));
        let rule = found(&counted["decisions"], |entry| entry["policy"] == WEB);
        assert_eq!((&rule["rule"], &rule["direction"], &rule["verdict"]), (&0.into(), &"ingress".into(), &"allow".into()));
        // Of a connection the first packet alone is asked about, in each of the attempts that there were.
        assert!(packets(rule) > 0 && rule["bytes"].as_u64() >= Some(packets(rule) * 40), "{rule}");
        let profile = found(&counted["decisions"], |entry| entry["profile"] == "kns.shop");
        assert_eq!((&profile["direction"], packets(profile) > packets(rule)), (&"egress".into(), true), "{profile}");

        let policy = &json(&node, &["show", "policy", WEB])["policies"][0];
        assert_eq!(policy["decisions"], serde_json::json!([rule]));
        assert!(policy["ingress_chain"].is_null(), "{policy:#}");
        assert_eq!(json(&node, &["status"])["engine"]["enforced_by"], "programs");
        let flows = until("the connection is told", &node, || {
            let output = node.ask(&["flows", "-o", "json"]);
            assert!(String::from_utf8_lossy(&output.stderr).contains("no denied attempts"), "{output:?}");
            let flows: Value = serde_json::from_slice(&output.stdout).unwrap();
            Some(flows).filter(|flows| flows["flows"].as_array().is_some_and(|flows| !flows.is_empty()))
        });
        let is_without_rules = |flow: &Value| flow["verdict"] == "allow" && flow["ingress"] == serde_json::json!([]);
        assert!(flows["flows"].as_array().unwrap().iter().all(is_without_rules), "{flows:#}");
        let text = said(&node, &["show", "counters"]);
        assert!(text.lines().any(|line| line.starts_with("ingress") && line.ends_with(&format!("{WEB} rule 0"))), "{text}");
        let text = said(&node, &["show", "policy", WEB]);
        assert!(text.contains("DIRECTION") && text.contains("allow"), "{text}");
    }

    fn rules_of_chains_count_what_they_match() {
        let (node, _pods) = after_packets(false);
        let counted = json(&node, &["show", "counters"]);
        assert!(counted["decisions"].is_null(), "{counted:#}");
        let policy = found(&counted["policies"], |policy| policy["id"] == WEB);
        let is_of_tcp = |rule: &Value| rule["rule"].as_str().unwrap().contains("-p tcp");
        assert!(packets(found(&policy["counters"], is_of_tcp)) > 0, "{policy:#}");
        assert!(policy.get("decisions").is_none(), "{policy:#}");
        let text = said(&node, &["show", "counters"]);
        assert!(text.starts_with(&format!("{WEB}\n")) && text.contains("-p tcp"), "{text}");
    }
}
