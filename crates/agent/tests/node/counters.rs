//! The kernel's counters of rules, as `tortie show` prints them.

use std::net::UdpSocket;
use std::time::Duration;

use serde_json::Value;
use tortie_lab::netns::Namespace;

use super::agent::Node;
use super::connections::{CLUSTER, Open, connect, policy, serve, until};
use super::queries::{json, output_of};

const WEB: &str = "KubernetesNetworkPolicy/shop/web";

/// A policy for the same pods, whose rule is merged with that of the other policy with
/// `NFTablesLayout=Fast`.
const ADMIN: &str = "KubernetesNetworkPolicy/shop/admin";

/// Returns a node on which the client has reached port 80 of the web server and was refused UDP.
fn after_packets(settings: &[(&'static str, &'static str)]) -> (Node, [Namespace; 2]) {
    let mut node = Node::new("nft", CLUSTER);
    node.write("policy.yaml", &policy(&[80], &[]));
    node.write("admin.yaml", &policy(&[8080], &[]).replace("{name: web,", "{name: admin,"));
    settings.iter().for_each(|(name, value)| node.set(name, value));
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

tortie_lab::kernel_test! {
    fn ebpf_programs_count_the_decisions_of_each_rule() {
        let (node, _pods) = after_packets(&[("FELIX_BPFENABLED", "true"), ("FELIX_FLOWLOGSLOCALREPORTER", "Enabled")]);
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
        // Policy is evaluated for the first packet of a connection only, in each attempt.
        assert!(packets(rule) > 0 && rule["bytes"].as_u64() >= Some(packets(rule) * 40), "{rule}");
        let profile = found(&counted["decisions"], |entry| entry["profile"] == "kns.shop");
        assert_eq!((&profile["direction"], packets(profile) > packets(rule)), (&"egress".into(), true), "{profile}");

        let policy = &json(&node, &["show", "policy", WEB])["policies"][0];
        assert_eq!(policy["decisions"], serde_json::json!([rule]));
        assert!(policy["ingress_chain"].is_null(), "{policy:#}");
        assert_eq!(json(&node, &["status"])["engine"]["enforced_by"], "programs");
        let is_there = |flow: &Value, verdict: &str, protocol: &str, decided: &Value| {
            let is_of_rule = flow["ingress"].as_array().unwrap().last().is_some_and(|last| {
                decided.as_object().unwrap().iter().all(|(name, value)| last[name] == *value)
            });
            flow["verdict"] == verdict && flow["protocol"] == protocol && is_of_rule
        };
        until("the allowed and the denied connection are reported with their rules", &node, || {
            let flows = json(&node, &["flows"]);
            let flows = flows["flows"].as_array().unwrap();
            let allowed = serde_json::json!({"verdict": "allow", "policy": WEB, "rule": 0});
            let denied = serde_json::json!({"verdict": "deny", "tier": "default", "policy": null});
            let has = |verdict, protocol, decided| flows.iter().any(|flow| is_there(flow, verdict, protocol, decided));
            (has("allow", "TCP", &allowed) && has("deny", "UDP", &denied)).then_some(())
        });
        until("the last hit is reported", &node, || {
            let policy = &json(&node, &["show", "policy", WEB])["policies"][0];
            policy["last_hit"]["hits"].as_u64().filter(|hits| *hits > 0)
        });
        let text = output_of(&node, &["show", "counters"]);
        assert!(text.lines().any(|line| line.starts_with("ingress") && line.ends_with(&format!("{WEB} rule 0"))), "{text}");
        let text = output_of(&node, &["show", "policy", WEB]);
        assert!(text.contains("DIRECTION") && text.contains("allow"), "{text}");
    }

    fn rules_that_log_write_lines_of_the_agent_where_programs_decide() {
        let mut node = Node::new("nft", CLUSTER);
        let calico = |rules: &str| {
            format!(
                "apiVersion: projectcalico.org/v3\nkind: NetworkPolicy\nmetadata: {{name: web, namespace: shop}}\nspec: \
                 {{selector: app == 'web', types: [Ingress], ingress: [{rules}]}}\n"
            )
        };
        let (log, allow) = ("{action: Log, protocol: TCP}", "{action: Allow, protocol: TCP}");
        node.write("policy.yaml", &calico(&format!("{log}, {allow}")));
        node.set("FELIX_BPFENABLED", "true");
        node.set("FELIX_LOGPREFIX", "seen %p");
        node.set("FELIX_LOGACTIONRATELIMIT", "1/hour");
        node.set("FELIX_LOGACTIONRATELIMITBURST", "2");
        let (web, client) = (connect(&node, "web", 2), connect(&node, "client", 3));
        serve(&web, &[80], &[]);
        node.start();
        let open = || {
            until("the web server answers", &node, || {
                Open::tcp(&client, "10.65.0.2", 80)?.answers(Duration::from_secs(5)).then_some(())
            });
        };
        let lines = || node.log().lines().filter(|line| line.contains("seen shop/web")).count();
        open();
        until("a line is written", &node, || (lines() > 0).then_some(()));
        let log = node.log();
        let line = log.lines().find(|line| line.contains("seen shop/web")).unwrap();
        for part in ["10.65.0.3", "10.65.0.2", "80", "TCP", "rule", "ingress", "allow", "NetworkPolicy/shop/web"] {
            assert!(line.contains(part), "{part}: {line}");
        }
        (0..4).for_each(|_| open());
        until("another line is written", &node, || (lines() == 2).then_some(()));
        // This does not enable the report of flows.
        assert!(!node.ask(&["flows"]).status.success());
        // Without the rule nothing is logged; with it, packets are logged again.
        node.write("policy.yaml", &calico(allow));
        until("nothing is logged", &node, || {
            let shown = json(&node, &["show", "policy", "NetworkPolicy/shop/web"]);
            (shown["policies"][0]["ingress_rules"] == 1).then_some(())
        });
        open();
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(lines(), 2);
    }

    fn rules_of_chains_count_their_matches() {
        let (node, _pods) = after_packets(&[]);
        let counted = json(&node, &["show", "counters"]);
        assert!(counted["decisions"].is_null(), "{counted:#}");
        let policy = found(&counted["policies"], |policy| policy["id"] == WEB);
        let is_of_tcp = |rule: &Value| rule["rule"].as_str().unwrap().contains("-p tcp");
        assert!(packets(found(&policy["counters"], is_of_tcp)) > 0, "{policy:#}");
        assert!(policy.get("decisions").is_none(), "{policy:#}");
        let text = output_of(&node, &["show", "counters"]);
        assert!(text.contains(&format!("{WEB}\n")) && text.contains("-p tcp"), "{text}");
    }

    fn nftables_rules_count_and_name_the_rules_that_share_a_counter() {
        for layout in ["Felix", "Fast"] {
            let (node, [_, client]) = after_packets(&[("FELIX_NFTABLESMODE", "Enabled"), ("FELIX_NFTABLESLAYOUT", layout)]);
            let counted = json(&node, &["show", "counters"]);
            assert!(counted["decisions"].is_null(), "{counted:#}");
            let rule_of = |counted: &Value, policy: &str| {
                let policy = found(&counted["policies"], |entry| entry["id"] == policy);
                found(&policy["counters"], |rule| rule["rule"].as_str().unwrap().contains("tcp dport")).clone()
            };
            let (web, admin) = (rule_of(&counted, WEB), rule_of(&counted, ADMIN));
            assert!(packets(&web) > 0 && web["bytes"].as_u64() >= Some(packets(&web) * 40), "{web:#}");
            // The kernel's own listing.
            let listed = node.shell("PATH=/usr/sbin:/sbin:/usr/bin:/bin nft list table ip calico");
            let line = format!("counter packets {} bytes {}", web["packets"], web["bytes"]);
            let of_port = |text: &str| text.contains("tcp dport") && text.contains("80") && text.contains(&line);
            assert!(listed.lines().any(of_port), "{web:#}\n{listed}");

            let (own, other) = (format!("{WEB} ingress 0"), format!("{ADMIN} ingress 0"));
            let policy = &json(&node, &["show", "policy", WEB])["policies"][0];
            let text = output_of(&node, &["show", "counters"]);
            if layout == "Felix" {
                assert_eq!(packets(&admin), 0, "{admin:#}");
                assert_eq!((&web["counts_for"], &web["counted_together"]), (&serde_json::json!([own]), &1.into()));
                let chain = policy["ingress_chain"].as_str().unwrap();
                assert!(listed.contains(&format!("chain {chain} {{")) && web["chain"] == chain, "{policy:#}");
                assert!(!text.contains(" and "), "{text}");
            } else {
                // One rule allows both ports, so that its packets count for both policies.
                assert_eq!(packets(&admin), packets(&web), "{admin:#}");
                assert_eq!((&web["counts_for"], &web["counted_together"]), (&serde_json::json!([own, other]), &2.into()));
                assert_eq!(admin["counts_for"], serde_json::json!([other, own]));
                assert!(policy["ingress_chain"].is_null(), "its rules stand in the chain of the group: {policy:#}");
                assert!(text.contains(&format!("ingress 0 and {other}")), "{text}");
            }
            let before = packets(&web);
            until("one more connection is counted", &node, || Open::tcp(&client, "10.65.0.2", 80));
            let now = rule_of(&json(&node, &["show", "counters"]), WEB);
            assert!(packets(&now) > before, "{now:#}");
        }
    }
}
