//! Answers of a running agent on its socket.

use std::fs;
use std::process::Output;

use rustix::process::Signal;
use serde_json::Value;
use tortie_lab::pods::{LabHost, interface_name};

use super::agent::Node;
use crate::CLUSTER;

/// Returns the answer once the engine is not busy.
pub(super) fn output_of(node: &Node, args: &[&str]) -> String {
    let is_busy = |output: &Output| {
        [&output.stdout, &output.stderr].into_iter().any(|text| {
            let text = String::from_utf8_lossy(text);
            text.contains("the agent is busy")
                || text.contains("\"engine\": null")
                || text.contains("engine       busy")
        })
    };
    let mut output = node.ask(args);
    for _ in 0..10 {
        if !is_busy(&output) {
            break;
        }
        output = node.ask(args);
    }
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

pub(super) fn json(node: &Node, args: &[&str]) -> Value {
    serde_json::from_str(&output_of(node, &[args, &["--output", "json"]].concat())).unwrap()
}

tortie_lab::kernel_test! {
    fn an_agent_reports_its_status_and_the_enforced_objects() {
        let mut node = Node::new("nft", CLUSTER);
        let web = interface_name(&LabHost::pod("shop", "web")).unwrap();
        node.shell(&format!("ip link add {web} type veth peer name peer; ip link set {web} up; ip link set peer up"));
        node.start();
        let status = json(&node, &["status"]);
        assert_eq!(status["ready"], true, "{status}");
        assert_eq!(status["node"], "n1");
        assert_eq!(status["engine"]["datastore_state"], "in sync");
        assert_eq!(status["engine"]["workload_endpoints"], 1);
        assert_eq!(status["engine"]["last_apply"]["complete"], true);
        assert!(output_of(&node, &["status"]).starts_with("n1: ready\n"));

        node.until("the endpoint is up", |_| json(&node, &["show", "endpoints"])["endpoints"][0]["status"] == "up");
        let policies = output_of(&node, &["show", "policies", "shop/web"]);
        assert_eq!(
            policies,
            format!(
                "workload endpoint shop/web on {web}, up\n  ingress\n    tier default, then deny\n      \
                 KubernetesNetworkPolicy/shop/from-friends\n  profiles: kns.shop\n"
            )
        );
        assert_eq!(output_of(&node, &["show", "policies", "10.65.0.2"]), policies);
        assert_eq!(output_of(&node, &["show", "policies", &web]), policies);

        let policy = &json(&node, &["show", "policy", "shop/from-friends"])["policies"][0];
        assert_eq!(policy["endpoints"], serde_json::json!(["shop/web"]));
        let chain = policy["ingress_chain"].as_str().unwrap();
        assert!(node.kernel_state().contains(&format!("-A {chain} ")), "{chain}");
        let counted = policy["counters"].as_array().unwrap();
        let families: Vec<_> = counted.iter().map(|rule| (rule["chain"] == chain, &rule["ip_version"])).collect();
        assert_eq!(families, [(true, &4.into()), (true, &6.into())], "{counted:?}");

        let sets = json(&node, &["show", "sets"]);
        let sets = sets["ip_sets"].as_array().unwrap();
        let ports = sets.iter().find(|set| set["type"] == "hash:ip,port").unwrap();
        let ports = json(&node, &["show", "sets", ports["id"].as_str().unwrap()]);
        assert_eq!(
            ports["ip_sets"][0]["members"],
            serde_json::json!(["10.65.0.2,tcp:80", "fd00:65::2,tcp:80"]),
            "{ports}"
        );

        let unknown = node.ask(&["show", "policies", "shop/nobody"]);
        assert_eq!(unknown.status.code(), Some(1));
        assert_eq!(String::from_utf8_lossy(&unknown.stderr), "tortie: this node has no endpoint `shop/nobody`\n");
        node.stop(Signal::TERM);
        assert!(!node.socket().exists());
        assert_eq!(node.ask(&["status"]).status.code(), Some(1));
    }

    fn parameters_are_shown_with_the_overridden_values() {
        let mut node = Node::new("nft", CLUSTER);
        node.write(
            "parameters.yaml",
            "apiVersion: projectcalico.org/v3\nkind: FelixConfiguration\nmetadata: {name: default}\n\
             spec: {iptablesBackend: Legacy, routeRefreshInterval: 17s}\n",
        );
        node.start();
        let parameter = |name: &str| json(&node, &["config", name])["parameters"][0].clone();
        let backend = parameter("iptablesbackend");
        assert_eq!((&backend["value"], &backend["source"]), (&"nft".into(), &"environment variable".into()));
        assert_eq!(
            backend["overridden"],
            serde_json::json!([{"source": "datastore (global)", "value": "Legacy"}]),
        );
        assert_eq!(parameter("RouteRefreshInterval")["source"], "datastore (global)");
        assert_eq!(parameter("BPFLogLevel")["used"], false);
        let set = output_of(&node, &["config", "--set"]);
        assert!(set.lines().any(|line| line.starts_with("RouteRefreshInterval")), "{set}");
        assert!(!set.contains("BPFLogLevel"), "{set}");
        assert_eq!(node.ask(&["config", "IptableBackend"]).status.code(), Some(2));
    }

    fn an_invalid_needed_parameter_of_the_datastore_leaves_the_last_valid_value_in_force() {
        let mut node = Node::new("nft", CLUSTER);
        let write = |node: &Node, mode: &str| {
            let head = "apiVersion: projectcalico.org/v3\nkind: FelixConfiguration\nmetadata: {name: default}\n";
            node.write("parameters.yaml", &format!("{head}spec: {{chainInsertMode: {mode}}}\n"));
        };
        let value = |node: &Node| json(node, &["config", "ChainInsertMode"])["parameters"][0]["value"].clone();
        let is_reported = |node: &Node, instead: &str| {
            let status = json(node, &["status"]);
            let problems = status["engine"]["input_problems"].as_array().unwrap();
            let place = "ChainInsertMode (spec.chainInsertMode of FelixConfiguration/default): `sideways`";
            problems.iter().filter_map(|each| each.as_str()).any(|each| each.contains(place) && each.ends_with(instead))
        };
        write(&node, "sideways");
        node.start();
        assert_eq!(value(&node), "insert");
        assert!(is_reported(&node, "the default is used: insert"));
        write(&node, "Append");
        node.until("the valid value is in force", |_| value(&node) == "Append");
        write(&node, "sideways");
        node.until("the invalid value is reported", |_| {
            is_reported(&node, "the last valid value stays in force: Append")
        });
        assert_eq!(value(&node), "Append");
        assert_eq!(json(&node, &["status"])["engine"]["session"], 2, "the engine does not start again");
    }

    fn datastore_problems_are_reported_and_a_killed_agent_can_be_replaced() {
        let mut node = Node::new("nft", CLUSTER);
        node.start();
        node.signal(Signal::KILL);
        node.wait();
        assert!(node.socket().exists(), "no process removed the socket");
        node.start();
        assert!(node.ask(&["status"]).status.success());
        fs::rename(node.manifests(), node.folder().join("elsewhere")).unwrap();
        node.until("the agent reports that it cannot read its datastore", |_| {
            json(&node, &["status"])["engine"]["datastore_unavailable"].is_string()
        });
        node.until("the status shows for how long", |_| {
            json(&node, &["status"])["engine"]["datastore_unavailable_seconds"].as_u64() >= Some(1)
        });
        // The state in force is still available.
        assert_eq!(json(&node, &["show", "endpoints"])["endpoints"][0]["name"], "shop/web");
        fs::rename(node.folder().join("elsewhere"), node.manifests()).unwrap();
        node.until("the agent reports that it can read its datastore again", |_| {
            json(&node, &["status"])["engine"]["datastore_unavailable"].is_null()
        });
    }
}
