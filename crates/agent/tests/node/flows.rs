//! Flows, as the agent reports them.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tortie_lab::netns::Namespace;

use super::agent::Node;
use super::connections::{CLUSTER, Open, connect, policy, serve, until};

const STAGED: &str = "
apiVersion: projectcalico.org/v3
kind: StagedNetworkPolicy
metadata: {name: closed, namespace: shop}
spec: {order: 1, selector: app == 'web', types: [Ingress], ingress: [{action: Deny}]}
";

const HOST: &str = "
apiVersion: projectcalico.org/v3
kind: HostEndpoint
metadata: {name: uplink, labels: {role: host}}
spec: {node: n1, interfaceName: uplink, expectedIPs: [192.0.2.1]}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: hosts}
spec:
  selector: role == 'host'
  types: [Ingress]
  ingress: [{action: Allow, protocol: TCP, destination: {ports: [22]}}, {action: Deny}]
---
apiVersion: projectcalico.org/v3
kind: StagedGlobalNetworkPolicy
metadata: {name: hosts}
spec: {selector: role == 'host', types: [Ingress], ingress: [{action: Deny}]}
";

fn flows(node: &Node, args: &[&str]) -> Vec<Value> {
    let output = node.ask(&[&["flows", "-o", "json"], args].concat());
    assert!(output.status.success(), "{output:?}");
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    answer["flows"].as_array().unwrap().clone()
}

/// Returns the first flow that is reported for these arguments.
fn first(node: &Node, args: &[&str]) -> Value {
    until(&format!("a flow is reported for {args:?}"), node, || flows(node, args).first().cloned())
}

/// Returns a node on which flows are logged by rules of one iptables implementation, or by eBPF
/// programs.
fn node_with(backend: &'static str) -> Node {
    let mut node = Node::new(if backend == "ebpf" { "nft" } else { backend }, CLUSTER);
    node.set("FELIX_BPFENABLED", if backend == "ebpf" { "true" } else { "false" });
    node
}

fn collecting(backend: &'static str) -> (Node, Namespace, Namespace) {
    let mut node = node_with(backend);
    node.write("policy.yaml", &policy(&[80], &[]));
    node.write("staged.yaml", STAGED);
    node.set("FELIX_FLOWLOGSLOCALREPORTER", "Enabled");
    node.shell("sysctl -qw net.netfilter.nf_conntrack_acct=1");
    let (web, client) = (connect(&node, "web", 2), connect(&node, "client", 3));
    serve(&web, &[80, 81], &[]);
    node.start();
    (node, web, client)
}

/// Retries until the server answers.
fn talk(node: &Node, client: &Namespace, port: u16) {
    let patience = Duration::from_secs(5);
    until("the web server answers", node, || Open::tcp(client, "10.65.0.2", port)?.answers(patience).then_some(()));
}

/// Tries to open a denied connection for a moment.
fn knock(client: &Namespace, port: u16) {
    assert!(is_refused(client, Ipv4Addr::new(10, 65, 0, 2), port), "port {port} is open");
}

/// Reports whether there is no answer within a moment.
fn is_refused(client: &Namespace, address: Ipv4Addr, port: u16) -> bool {
    let address = (address, port).into();
    client.run(|| TcpStream::connect_timeout(&address, Duration::from_millis(200))).unwrap().is_err()
}

fn host_endpoint_flows_are_reported(backend: &'static str) {
    let mut node = node_with(backend);
    let admin = Namespace::new().unwrap();
    node.shell(&format!(
        "ip link add uplink type veth peer name eth0 netns {}; ip addr add 192.0.2.1/24 dev uplink; ip link set uplink up",
        admin.path().display()
    ));
    admin.shell("ip addr add 192.0.2.7/24 dev eth0; ip link set eth0 up").unwrap();
    serve(node.namespace(), &[22, 23], &[]);
    node.write("host.yaml", HOST);
    let file = node.folder().join("flows.jsonl");
    for (name, value) in [
        ("FELIX_FLOWLOGSLOCALREPORTER", "Enabled"),
        ("FELIX_FLOWLOGSFILE", file.to_str().unwrap()),
        ("FELIX_FLOWLOGSFLUSHINTERVAL", "1"),
        ("FELIX_FAILSAFEINBOUNDHOSTPORTS", "none"),
    ] {
        node.set(name, value);
    }
    node.shell("sysctl -qw net.netfilter.nf_conntrack_acct=1");
    node.start();
    let manifests = node.manifests().display().to_string();
    let calculated = |port: &str| {
        let datastore = format!("file:{manifests}");
        let question =
            ["trace", "--datastore", &datastore, "--from", "192.0.2.7", "--to", "192.0.2.1", "-o", "json", "--port"];
        let mut trace = Command::new(env!("CARGO_BIN_EXE_tortie"));
        trace.env("FELIX_FAILSAFEINBOUNDHOSTPORTS", "none");
        let output = trace.args(question).arg(port).output().unwrap();
        serde_json::from_slice::<Value>(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
    };
    let patience = Duration::from_secs(5);
    for (port, verdict, rule) in [(22, "allow", 0), (23, "deny", 1)] {
        until("the verdict is that of the policy", &node, || match verdict {
            "allow" => Open::tcp(&admin, "192.0.2.1", port)?.answers(patience).then_some(()),
            _ => is_refused(&admin, Ipv4Addr::new(192, 0, 2, 1), port).then_some(()),
        });
        let flow = first(&node, &["--port", &port.to_string()]);
        assert_eq!((&flow["verdict"], &flow["destination"]["kind"]), (&json!(verdict), &json!("node")), "{flow}");
        let hit = json!([
            { "verdict": verdict, "tier": "default", "policy": "GlobalNetworkPolicy/hosts", "rule": rule }
        ]);
        assert_eq!((&flow["host"], &flow["ingress"]), (&hit, &json!([])), "{flow}");
        let trace = calculated(&port.to_string());
        assert_eq!(
            (&trace["verdict"], &trace["policy"], &trace["rule"]),
            (&json!(verdict), &hit[0]["policy"], &json!(rule))
        );
        // The same policy is staged without its first rule.
        let staged = json!([
            { "policy": "StagedGlobalNetworkPolicy/hosts", "direction": "ingress", "at": "host endpoint", "verdict": "deny" }
        ]);
        assert_eq!(flow["staged"], staged, "{flow}");
        assert_eq!(trace["pending"]["verdict"], "deny", "{trace}");
        let line = until("it is counted in the file", &node, || {
            let text = fs::read_to_string(&file).ok()?;
            let mut lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            lines.find(|line| line["port"] == port && line["attempts"].as_u64() > Some(0))
        });
        assert_eq!((&line["at"], &line["reporter"]), (&json!("host endpoint"), &json!("ingress")), "{line}");
        assert_eq!((&line["destination"]["kind"], &line["policies"]), (&json!("node"), &hit), "{line}");
    }
    let name =
        r#"{direction="ingress",tier="default",policy="GlobalNetworkPolicy/hosts",profile="",rule="0",action="allow"}"#;
    until("the rule is measured", &node, || {
        node.get(9091, "/metrics").contains(&format!("tortie_rule_hits{name}")).then_some(())
    });
    assert!(node.metric(&format!("tortie_rule_hits{name}")) >= 1.0);
    assert!(node.metric(&format!("tortie_rule_last_hit_timestamp_seconds{name}")) > 1e9);
    assert_eq!(node.metric("tortie_other_rules_hits"), 0.0);
    let denied = name.replace(r#"rule="0",action="allow""#, r#"rule="1",action="deny""#);
    let bytes = format!("tortie_rule_bytes{denied}");
    // The rule also denies shorter IPv6 packets, which may have arrived before.
    until("the denial is measured", &node, || {
        (node.get(9091, "/metrics").contains(&bytes) && node.metric(&bytes) >= 60.0).then_some(())
    });
}

tortie_lab::kernel_test! {
    fn connections_are_reported_with_the_deciding_rules() {
        for backend in ["nft", "legacy", "ebpf"] {
            let (node, _web, client) = collecting(backend);
            talk(&node, &client, 80);
            let allowed = first(&node, &["--to", "shop/web", "--port", "80", "--from", "shop/client"]);
            assert_eq!((&allowed["stage"], &allowed["verdict"]), (&json!("started"), &json!("allow")), "{allowed}");
            assert_eq!(allowed["source"]["address"], "10.65.0.3");
            let by_profile = json!([{ "verdict": "allow", "profile": "kns.shop", "rule": 0 }]);
            assert_eq!(allowed["egress"], by_profile, "{allowed}");
            let by_policy = json!([
                { "verdict": "allow", "tier": "default", "policy": "KubernetesNetworkPolicy/shop/web", "rule": 0 }
            ]);
            assert_eq!(allowed["ingress"], by_policy, "{allowed}");
            let staged = json!([{ "policy": "StagedNetworkPolicy/shop/closed", "direction": "ingress", "verdict": "deny" }]);
            assert_eq!(allowed["staged"], staged, "{allowed}");
            assert_eq!(flows(&node, &["--staged", "closed"]).len(), flows(&node, &["--port", "80"]).len());

            knock(&client, 81);
            let denied = first(&node, &["--denied"]);
            assert_eq!((&denied["destination"]["port"], &denied["protocol"]), (&json!(81), &json!("TCP")), "{denied}");
            assert_eq!(denied["ingress"], json!([{ "verdict": "deny", "tier": "default" }]), "{denied}");

            let policy = until("the last hit of the policy is reported", &node, || {
                let output = node.ask(&["show", "policy", "shop/web", "-o", "json"]);
                let answer: Value = serde_json::from_slice(&output.stdout).ok()?;
                let policy = answer["policies"].as_array()?.iter().find(|p| p["staged"] == false)?.clone();
                policy["last_hit"].is_object().then_some(policy)
            });
            assert!(policy["last_hit"]["hits"].as_u64().unwrap() >= 1, "{policy}");
        }
    }

    fn host_endpoint_decisions_are_reported_counted_and_equal_to_the_calculation() {
        ["nft", "ebpf"].into_iter().for_each(host_endpoint_flows_are_reported);
    }

    fn a_follower_receives_flows_at_once() {
        let (node, _web, client) = collecting("nft");
        let mut follower = Command::new(env!("CARGO_BIN_EXE_tortie"))
            .args(["flows", "--follow", "--denied", "-o", "json", "--socket"])
            .arg(node.socket())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
        // The test cannot observe whether the command follows flows already.
        let stop = AtomicBool::new(false);
        let flow: Value = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    knock(&client, 81);
                }
            });
            let line = lines.next().unwrap().unwrap();
            stop.store(true, Ordering::Relaxed);
            serde_json::from_str(&line).unwrap()
        });
        assert_eq!((&flow["verdict"], &flow["destination"]["name"]), (&json!("deny"), &json!("shop/web")), "{flow}");
        follower.kill().unwrap();
        follower.wait().unwrap();
    }

    fn the_end_of_a_connection_reports_both_directions() {
        let (node, _web, client) = collecting("nft");
        talk(&node, &client, 80);
        first(&node, &["--port", "80"]);
        node.shell("conntrack -D -p tcp --dport 80 2>&1");
        let ended = until("the end of the flow is reported", &node, || {
            flows(&node, &["--port", "80"]).into_iter().find(|flow| flow["stage"] == "ended")
        });
        assert!(ended["packets"].as_u64().unwrap() >= 3 && ended["reply_bytes"].as_u64().unwrap() > 100, "{ended}");

        // It becomes a rule of a suggestion; the denied attempt does not.
        knock(&client, 81);
        first(&node, &["--port", "81"]);
        let datastore = format!("file:{}", node.manifests().display());
        let output = node.ask(&["suggest", "--datastore", &datastore, "--all"]);
        let (text, remarks) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{remarks}");
        assert!(text.contains("name: suggest-web\n") && text.contains("- port: 80\n"), "{text}{remarks}");
        assert!(!text.contains("81"), "{text}");
        assert!(remarks.contains("left out: denied by policy:\n") && remarks.contains("TCP 81\n"), "{remarks}");
    }

    fn aggregates_go_to_a_file() {
        let mut node = Node::new("nft", CLUSTER);
        node.write("policy.yaml", &policy(&[80], &[]));
        let file = node.folder().join("logs/flows.jsonl");
        node.set("FELIX_FLOWLOGSFILE", file.to_str().unwrap());
        node.set("FELIX_FLOWLOGSFLUSHINTERVAL", "1");
        node.shell("sysctl -qw net.netfilter.nf_conntrack_acct=1");
        let (web, client) = (connect(&node, "web", 2), connect(&node, "client", 3));
        serve(&web, &[80], &[]);
        node.start();
        for _ in 0..3 {
            talk(&node, &client, 80);
        }
        let total = until("three connections are in the file", &node, || {
            let text = fs::read_to_string(&file).ok()?;
            let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
            let of_client = lines.iter().filter(|line| line["reporter"] == "ingress" && line["source"]["name"] == "client");
            let total: u64 = of_client.filter_map(|line| line["connections_started"].as_u64()).sum();
            (total >= 3).then_some(total)
        });
        assert!(total >= 3);
        node.shell("conntrack -D -p tcp --dport 80 2>&1");
        let evidence = until("the evidence is in the file", &node, || {
            let text = fs::read_to_string(&file).ok()?;
            let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
            let learned = |line: &&Value| line["evidence"]["learned"].as_u64().is_some_and(|count| count > 0);
            lines.iter().find(learned).cloned()
        });
        assert_eq!(evidence["evidence"]["attempts"], 0, "{evidence}");
        assert!(evidence["destination"]["labels"]["app"] == "web", "{evidence}");
        let datastore = format!("file:{}", node.manifests().display());
        let output = node.ask(&["suggest", "--datastore", &datastore, "--all", "--flows", file.to_str().unwrap()]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("- port: 80\n"), "{output:?}");
    }

    fn nothing_is_collected_by_default() {
        let mut node = Node::new("nft", CLUSTER);
        node.start();
        assert!(!node.kernel_state().contains("NFLOG"));
        let output = node.ask(&["flows"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&output.stderr).contains("FlowLogsLocalReporter=Enabled"), "{output:?}");
    }

    /// Run with `cargo test --profile bench -p tortie-agent --test node -- --ignored --nocapture
    /// a_thousand_connections_a_second`.
    #[ignore = "needs an optimized build on a quiet machine for half a minute; other tests assert the reported flows"]
    fn a_thousand_connections_a_second() {
        const PER_SECOND: u32 = 1_000;
        const SECONDS: u32 = 20;
        /// Bound in percent of a processor; several times the usual value, so that only a change of
        /// its order fails.
        const MOST: f64 = 25.0;
        for backend in ["nft", "ebpf"] {
        let mut shares = Vec::new();
        for collects in ["Disabled", "Enabled"] {
            let mut node = node_with(backend);
            node.write("policy.yaml", &policy(&[80], &[]));
            node.write("staged.yaml", STAGED);
            node.set("FELIX_FLOWLOGSLOCALREPORTER", collects);
            node.shell("sysctl -qw net.netfilter.nf_conntrack_acct=1");
            let (web, client) = (connect(&node, "web", 2), connect(&node, "client", 3));
            let listener = web.run(|| TcpListener::bind(("0.0.0.0", 80))).unwrap().unwrap();
            std::thread::spawn(move || listener.incoming().for_each(drop));
            node.start();
            let address: SocketAddr = (Ipv4Addr::new(10, 65, 0, 2), 80).into();
            let patience = Duration::from_secs(5);
            until("the web server answers", &node, || {
                client.run(|| TcpStream::connect_timeout(&address, patience)).unwrap().ok()
            });
            let (begin, used) = (Instant::now(), node.processor_time());
            let opened = client
                .run(|| {
                    (1..=PER_SECOND * SECONDS)
                        .filter(|number| {
                            let due = Duration::from_secs(1) * *number / PER_SECOND;
                            std::thread::sleep(due.saturating_sub(begin.elapsed()));
                            TcpStream::connect_timeout(&address, patience).is_ok()
                        })
                        .count()
                })
                .unwrap();
            let (took, used) = (begin.elapsed(), node.processor_time().saturating_sub(used));
            let share = 100.0 * used.as_secs_f64() / took.as_secs_f64();
            shares.push(share);
            println!("{backend}, flows {collects}: {opened} connections in {took:.1?}, {share:.1} % of a processor");
            if collects == "Enabled" {
                let status = node.ask(&["flows", "-o", "json"]);
                assert!(status.status.success());
            }
        }
        let [without, with] = shares[..] else { panic!("{shares:?}") };
        println!("{backend}: flows cost {:.1} % of a processor at {PER_SECOND} connections a second", with - without);
        assert!(cfg!(debug_assertions) || with - without <= MOST, "{shares:?}");
        }
    }
}
