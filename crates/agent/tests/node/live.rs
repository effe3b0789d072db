//! Verdicts of the kernel on a connection, as `tortie trace --live` prints them.

use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tortie_lab::netns::Namespace;

use super::agent::Node;
use super::connections::{CLUSTER, Open, connect, policy, serve, until};

const BACKENDS: [&str; 2] = ["nft", "legacy"];

/// TCP packets may leave the client only to ports 80 and 81.
const EGRESS: &str = "
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: out, namespace: shop}
spec:
  selector: app == 'client'
  types: [Egress]
  egress:
    - {action: Allow, protocol: UDP}
    - {action: Allow, protocol: ICMP}
    - {action: Allow, protocol: TCP, destination: {ports: [80, 81]}}
    - {action: Deny, protocol: TCP, destination: {ports: [82]}}
";

const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: store}
spec: {type: ClusterIP, clusterIP: 10.96.0.5, clusterIPs: [10.96.0.5], ports: [{name: http, port: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: store-1, labels: {kubernetes.io/service-name: store}}
addressType: IPv4
endpoints: [{addresses: [10.65.0.2]}]
ports: [{name: http, port: 80}]
";

/// A process in a pod, through which its network namespace is found.
struct Process(Child);

impl Process {
    fn start(pod: &Namespace) -> Self {
        Self(pod.spawn(Command::new("sleep").arg("1000").stdin(Stdio::null()).stdout(Stdio::null())).unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Shop {
    node: Node,
    client: Namespace,
    _web: Namespace,
    _processes: [Process; 2],
    before: String,
}

impl Shop {
    fn new(backend: &'static str) -> Self {
        Self::with(backend, |_| {})
    }

    fn with(backend: &'static str, set: impl FnOnce(&mut Node)) -> Self {
        let mut node = Node::new(backend, &with_ipv6());
        set(&mut node);
        node.write("policy.yaml", &policy(&[80], &[53]));
        node.write("egress.yaml", EGRESS);
        node.write("service.yaml", SERVICE);
        node.shell("sysctl -qw net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0");
        let (web, client) = (connect(&node, "web", 2), connect(&node, "client", 3));
        for (pod, last) in [(&web, 2), (&client, 3)] {
            pod.shell(&format!(
                "ip addr add fd00:65::{last}/128 dev eth0 nodad; ip neigh add fe80::1 lladdr ee:ee:ee:ee:ee:ee dev eth0; \
                 ip route add default via fe80::1 dev eth0"
            ))
            .unwrap();
        }
        let processes = [Process::start(&web), Process::start(&client)];
        serve(&web, &[80, 81], &[53]);
        node.start();
        let before = left(&node);
        let shop = Self { node, client, _web: web, _processes: processes, before };
        until("the web server answers", &shop.node, || {
            Open::tcp(&shop.client, "10.65.0.2", 80)?.answers(Duration::from_secs(5)).then_some(())
        });
        shop
    }

    fn start(&self, args: &[&str]) -> Child {
        self.node.run(&[&["trace", "--live", "--from", "shop/client"], args].concat())
    }

    /// Returns the exit code and the output.
    fn trace(&self, args: &[&str]) -> (i32, String) {
        text(&self.start(args).wait_with_output().unwrap())
    }

    fn json(&self, args: &[&str]) -> (i32, Value) {
        let output = self.start(&[args, &["-o", "json"]].concat()).wait_with_output().unwrap();
        let answer = serde_json::from_slice(&output.stdout);
        (output.status.code().unwrap(), answer.unwrap_or_else(|error| panic!("{error}: {output:?}")))
    }

    /// Asserts that a run has left nothing behind.
    fn assert_nothing_is_left(&self) {
        assert_eq!(left(&self.node), self.before);
    }

    /// Starts a program that waits for the flow, and returns it once the kernel traces the flow.
    fn watching(&self) -> Child {
        let child = self.start(&["--to", "shop/web", "--port", "80", "--watch", "--wait", "60", "-o", "json"]);
        until("the flow is traced", &self.node, || left(&self.node).contains("tortie-trace-").then_some(()));
        child
    }
}

fn with_ipv6() -> String {
    [2, 3].into_iter().fold(CLUSTER.to_owned(), |cluster, last| {
        let address = format!("{{ip: 10.65.0.{last}}}");
        cluster.replace(&address, &format!("{address}, {{ip: 'fd00:65::{last}'}}"))
    })
}

fn text(output: &Output) -> (i32, String) {
    let printed = [&*output.stdout, &output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8_lossy(&printed).into_owned())
}

/// Returns the state that a run could leave behind.
fn left(node: &Node) -> String {
    node.shell(
        "nft list tables | grep tortie || true; cat /proc/sys/net/netfilter/nf_log/2 /proc/sys/net/netfilter/nf_log/10",
    )
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap(), signal).unwrap();
}

/// Returns the steps of an answer's first packet in policy chains, as `chain: owner`.
fn of_policies(live: &Value) -> Vec<String> {
    let steps = live["packets"][0]["steps"].as_array().unwrap().iter();
    let steps = steps.filter(|step| step["event"] == "rule");
    let owned = steps.filter_map(|step| Some(format!("{}: {}", step["chain"].as_str()?, step["belongs_to"].as_str()?)));
    let mut owned: Vec<String> = owned.filter(|step| step.starts_with("cali-p")).collect();
    owned.dedup();
    owned
}

tortie_lab::kernel_test! {
    fn a_probe_shows_each_rule_that_it_passes() {
        for backend in BACKENDS {
            let shop = Shop::new(backend);
            let (code, answer) = shop.json(&["--to", "shop/web", "--port", "80"]);
            let live = &answer["live"];
            assert_eq!((code, &live["agreement"], &live["probe"]), (0, &json!("agree"), &json!("answered")), "{answer:#}");
            assert_eq!(answer["verdict"], "allow");
            let (packets, first) = (live["packets"].as_array().unwrap(), &live["packets"][0]);
            assert_eq!((&first["tcp_flags"], &first["verdict"]), (&json!("SYN"), &json!("allow")), "{live:#}");
            assert_eq!(
                of_policies(live),
                [
                    "cali-po-np/shop/out: NetworkPolicy/shop/out, egress rule 2",
                    "cali-pi-knp/shop/web: KubernetesNetworkPolicy/shop/web, ingress rule 0",
                ],
                "{backend}: {live:#}"
            );
            let steps = first["steps"].as_array().unwrap();
            let rules: Vec<&Value> = steps.iter().filter(|step| step["event"] == "rule").collect();
            assert!(rules.iter().all(|step| step["backend"] == backend), "{live:#}");
            let order: Vec<&str> = steps.iter().filter_map(|step| step["chain"].as_str()).collect();
            let at = |chain| order.iter().position(|of| *of == chain).unwrap_or_else(|| panic!("{chain}: {order:?}"));
            assert!(at("PREROUTING") < at("cali-FORWARD") && at("cali-FORWARD") < at("POSTROUTING"), "{order:?}");
            assert!(rules.iter().all(|step| step["packets"].as_u64().is_some_and(|packets| packets > 0)), "{live:#}");
            let answered = packets.iter().find(|packet| packet["answer"] == true).unwrap();
            assert_eq!((&answered["tcp_flags"], &answered["verdict"]), (&json!("SYN ACK"), &json!("allow")));
            shop.assert_nothing_is_left();

            let (code, printed) = shop.trace(&["--to", "shop/web", "--port", "80"]);
            assert!(code == 0 && printed.starts_with("allowed\n") && printed.ends_with("kernel and calculation agree\n"), "{printed}");
        }
    }

    fn the_last_step_of_a_packet_is_shown() {
        for backend in BACKENDS {
            let shop = Shop::new(backend);
            for (port, ends_in, owner) in [("81", "cali-tw-", None), ("82", "cali-po-", Some("egress rule 3")), ("83", "cali-fw-", None)] {
                let (code, answer) = shop.json(&["--to", "shop/web", "--port", port]);
                let live = &answer["live"];
                assert_eq!((code, &live["agreement"], &live["probe"]), (3, &json!("agree"), &json!("no answer")), "{answer:#}");
                let first = &live["packets"][0];
                let end = &first["steps"][usize::try_from(first["ended_in_step"].as_u64().unwrap()).unwrap()];
                assert!(end["chain"].as_str().unwrap().starts_with(ends_in), "{backend} {port}: {end:#}");
                assert!(end["rule"].as_str().unwrap().contains("DROP"), "{end:#}");
                let belongs = end["belongs_to"].as_str().unwrap();
                assert!(owner.is_none_or(|owner| belongs.contains(owner)), "{belongs}");
            }
            shop.assert_nothing_is_left();
        }
    }

    fn drops_by_ebpf_programs_are_shown_from_their_counters() {
        let shop = Shop::with("nft", |node| node.set("FELIX_BPFENABLED", "true"));
        let socket = shop.node.socket();
        let ask = |port: &str| shop.json(&["--to", "shop/web", "--port", port, "--socket", socket.to_str().unwrap()]);
        for (port, direction, by) in [
            ("81", "ingress", "end of tier default"),
            ("82", "egress", "NetworkPolicy/shop/out rule 3"),
            ("83", "egress", "end of tier default"),
        ] {
            let (code, answer) = ask(port);
            let live = &answer["live"];
            assert_eq!((code, &live["agreement"], &live["probe"]), (3, &json!("agree"), &json!("no answer")), "{answer:#}");
            let counted = live["programs"]["counted"].as_array().unwrap_or_else(|| panic!("{answer:#}"));
            let is_meant = |decision: &&Value| decision["verdict"] == "deny" && decision["decided_by"] == by;
            let denied = counted.iter().find(is_meant).unwrap_or_else(|| panic!("{answer:#}"));
            assert!(denied["direction"] == direction && denied["packets"].as_u64() > Some(0), "{denied:#}");
        }
        let (code, answer) = ask("80");
        let live = &answer["live"];
        assert_eq!((code, &live["agreement"], &live["probe"]), (0, &json!("agree"), &json!("answered")), "{answer:#}");

        // Without an answer of the agent, the output says that eBPF programs may have dropped the
        // packet.
        let nowhere = ["--to", "shop/web", "--port", "81", "--socket", "/nowhere"];
        shop.node.write("felix.yaml", "apiVersion: projectcalico.org/v3\nkind: FelixConfiguration\nmetadata: {name: default}\nspec: \
            {bpfEnabled: true}\n");
        let (code, printed) = shop.trace(&nowhere);
        assert!(code == 3 && printed.contains("eBPF programs enforce policy here, and their counters are unknown"), "{code} {printed}");
        assert!(printed.contains("gone where eBPF programs enforce policy"), "{printed}");
        shop.assert_nothing_is_left();
    }

    fn ipv6_is_traced_as_well() {
        for backend in BACKENDS {
            let shop = Shop::new(backend);
            let (code, answer) = shop.json(&["--to", "shop/web", "--port", "80", "--ipv6"]);
            let live = &answer["live"];
            // No server listens there.
            let refused = json!("refused: Connection refused (os error 111)");
            assert_eq!((code, &live["agreement"], &live["probe"]), (0, &json!("agree"), &refused), "{answer:#}");
            assert_eq!(of_policies(live).len(), 2, "{live:#}");
            let (code, answer) = shop.json(&["--to", "shop/web", "--port", "81", "--ipv6"]);
            assert_eq!((code, &answer["live"]["agreement"]), (3, &json!("agree")), "{answer:#}");
            shop.assert_nothing_is_left();
        }
    }

    fn packets_of_and_to_the_node_itself_are_traced() {
        for backend in BACKENDS {
            let shop = Shop::new(backend);
            let node = "apiVersion: v1\nkind: Node\nmetadata: {name: n1, annotations: {projectcalico.org/IPv4Address: \
                192.168.0.1/24}}\nstatus: {addresses: [{type: InternalIP, address: 192.168.0.1}]}\n";
            shop.node.write("node.yaml", node);
            shop.node.shell("ip addr add 192.168.0.1/32 dev lo");
            let (code, answer) = shop.json(&["--to", "node:n1", "--port", "80"]);
            assert_eq!((code, &answer["live"]["agreement"]), (3, &json!("agree")), "{answer:#}");
            let first = &answer["live"]["packets"][0];
            assert!(first["out_interface"].is_null() && first["verdict"] == "deny", "{answer:#}");

            let from_node = shop.node.run(&["trace", "--live", "--from", "node:n1", "--to", "shop/web", "--port", "80", "-o", "json"]);
            let output = from_node.wait_with_output().unwrap();
            let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error} {output:?}"));
            let live = &answer["live"];
            assert_eq!((output.status.code(), &live["agreement"]), (Some(0), &json!("agree")), "{answer:#}");
            assert_eq!(live["probe"], "answered", "{answer:#}");
            assert!(live["packets"][0]["in_interface"].is_null(), "{answer:#}");
        }
    }

    fn other_protocols_are_probed_without_data() {
        let shop = Shop::new("nft");
        let (code, answer) = shop.json(&["--to", "shop/web", "--port", "53", "--protocol", "udp"]);
        assert_eq!((code, &answer["live"]["agreement"]), (0, &json!("agree")), "{answer:#}");
        let (code, answer) = shop.json(&["--to", "shop/web", "--protocol", "icmp"]);
        assert_eq!((code, &answer["live"]["agreement"]), (3, &json!("agree")), "{answer:#}");
        let (code, answer) = shop.json(&["--to", "shop/web", "--port", "7", "--protocol", "sctp"]);
        assert_eq!((code, &answer["live"]["agreement"]), (3, &json!("agree")), "{answer:#}");
    }

    fn a_connection_to_a_service_is_followed_to_its_backend() {
        for backend in BACKENDS {
            let shop = Shop::new(backend);
            let rule = "-t nat -A PREROUTING -d 10.96.0.5/32 -p tcp --dport 8080 -j DNAT --to-destination 10.65.0.2:80";
            shop.node.shell(&format!("iptables-{backend} {rule}"));
            let (code, answer) = shop.json(&["--to", "service:shop/store", "--port", "8080"]);
            let live = &answer["live"];
            assert_eq!((code, &live["agreement"], &live["probe"]), (0, &json!("agree"), &json!("answered")), "{answer:#}");
            let at_last = live["packets"][0]["at_last"].as_str().unwrap();
            assert!(at_last.ends_with("-> 10.65.0.2:80"), "{live:#}");
        }
    }

    fn a_rule_of_others_that_drops_is_a_disagreement() {
        for backend in BACKENDS {
            let shop = Shop::new(backend);
            shop.node.shell(&format!("iptables-{backend} -t mangle -I FORWARD -p tcp --dport 80 -j DROP"));
            let (code, printed) = shop.trace(&["--to", "shop/web", "--port", "80"]);
            let expected = "kernel and calculation DISAGREE: the kernel drops a packet that policy allows, in table mangle, chain FORWARD\n";
            assert!(code == 4 && printed.ends_with(expected), "{code} {printed}");
            assert!(printed.contains("-p tcp -m tcp --dport 80 -j DROP <- it ends here"), "{printed}");
        }
    }

    fn unenforced_policy_is_a_disagreement() {
        for backend in BACKENDS {
            let mut shop = Shop::new(backend);
            shop.node.stop(Signal::TERM);
            shop.node.shell(&format!("iptables-{backend} -I FORWARD -p tcp --dport 81 -j ACCEPT"));
            let (code, printed) = shop.trace(&["--to", "shop/web", "--port", "81"]);
            let expected = "kernel and calculation DISAGREE: the kernel allows a packet that shop/web denies, by the end of tier default";
            assert!(code == 4 && printed.contains(expected), "{code} {printed}");

            let earlier = "apiVersion: projectcalico.org/v3\nkind: NetworkPolicy\nmetadata: {name: first, namespace: shop}\n\
                spec: {order: 1, selector: app == 'web', types: [Ingress], ingress: [{action: Allow}]}\n";
            shop.node.write("first.yaml", earlier);
            let (code, printed) = shop.trace(&["--to", "shop/web", "--port", "80"]);
            let expected = "KubernetesNetworkPolicy/shop/web, ingress rule 0 decides at shop/web in the kernel, and by the \
                calculation NetworkPolicy/shop/first, ingress rule 0";
            assert!(code == 4 && printed.contains(expected), "{code} {printed}");
        }
    }

    fn both_implementations_are_traced_in_order() {
        let shop = Shop::new("nft");
        shop.node.shell("iptables-legacy -t mangle -A FORWARD -p tcp --dport 80 -m comment --comment mine -j ACCEPT");
        let (code, answer) = shop.json(&["--to", "shop/web", "--port", "80"]);
        assert_eq!((code, &answer["live"]["agreement"]), (0, &json!("agree")), "{answer:#}");
        let steps = answer["live"]["packets"][0]["steps"].as_array().unwrap();
        let rules: Vec<&Value> = steps.iter().filter(|step| step["event"] == "rule").collect();
        let mine = rules.iter().position(|step| step["backend"] == "legacy").unwrap();
        assert!(rules[mine]["rule"].as_str().unwrap().contains("--comment mine"), "{answer:#}");
        assert!(rules[mine]["packets"].as_u64().is_some_and(|packets| packets > 0), "{answer:#}");
        let chain = |at: usize| rules[at]["chain"].as_str().unwrap();
        assert_eq!(chain(mine + 1), "FORWARD", "the filter table follows: {answer:#}");
        assert_eq!(rules[mine - 1]["table"], "nat", "{answer:#}");
        shop.assert_nothing_is_left();
    }

    fn missing_rights_are_reported_first() {
        let shop = Shop::new("nft");
        let program = env!("CARGO_BIN_EXE_tortie");
        let datastore = shop.node.manifests();
        for (capability, name) in [("net_admin", "CAP_NET_ADMIN"), ("sys_admin", "CAP_SYS_ADMIN"), ("sys_ptrace", "CAP_SYS_PTRACE")] {
            let printed = shop.node.shell(&format!(
                "setpriv --bounding-set -{capability} --inh-caps -{capability} {program} trace --live --from shop/client --to \
                 shop/web --port 80 --node n1 --datastore file:{} 2>&1 || true",
                datastore.display()
            ));
            assert!(printed.contains(&format!("`tortie trace --live` needs {name}")), "{printed}");
        }
        shop.assert_nothing_is_left();
    }

    fn native_nftables_rules_are_traced() {
        let shop = Shop::new("nft");
        shop.node.shell(
            "nft add table inet filter; nft add chain inet filter fw '{ type filter hook forward priority -10; }'; \
             nft add rule inet filter fw tcp dport 80 counter drop",
        );
        let (code, printed) = shop.trace(&["--to", "shop/web", "--port", "80"]);
        assert!(code == 4 && printed.contains("in table filter, chain fw"), "{printed}");
        assert!(printed.contains("tcp dport 80 counter packets") && printed.contains("drop <- it ends here"), "{printed}");
    }

    fn the_real_flow_is_waited_for() {
        for backend in BACKENDS {
            let shop = Shop::new(backend);
            let watching = shop.watching();
            let mut open = until("a connection", &shop.node, || Open::tcp(&shop.client, "10.65.0.2", 80));
            let output = watching.wait_with_output().unwrap();
            let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error} {output:?}"));
            assert_eq!((output.status.code(), &answer["live"]["agreement"]), (Some(0), &json!("agree")), "{answer:#}");
            assert!(answer["live"]["probe"].is_null());
            shop.assert_nothing_is_left();

            // Policy is not evaluated again for an existing connection.
            let watching = shop.watching();
            assert!(open.answers(Duration::from_secs(5)));
            let output = watching.wait_with_output().unwrap();
            let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(answer["live"]["agreement"], "not compared", "{answer:#}");
            assert!(answer["live"]["why"].as_str().unwrap().contains("from before the trace"), "{answer:#}");
        }
    }

    fn a_signal_leaves_nothing_behind() {
        for backend in BACKENDS {
            let shop = Shop::new(backend);
            for ending in [Signal::INT, Signal::TERM] {
                let watching = shop.watching();
                signal(&watching, ending);
                let (code, printed) = text(&watching.wait_with_output().unwrap());
                assert!(code == 1 && printed.contains("ended by a signal"), "{printed}");
                shop.assert_nothing_is_left();
            }
            let watching = shop.watching();
            signal(&watching, Signal::KILL);
            watching.wait_with_output().unwrap();
            until("a killed trace leaves nothing in the kernel", &shop.node, || (left(&shop.node) == shop.before).then_some(()));
            assert_eq!(shop.json(&["--to", "shop/web", "--port", "80"]).0, 0, "and the next one works");
            shop.assert_nothing_is_left();
        }
    }

    fn traces_that_this_node_cannot_answer_are_refused() {
        let shop = Shop::new("nft");
        let cluster = with_ipv6();
        let other = cluster.replace("nodeName: n1", "nodeName: n2");
        let (code, printed) = shop.trace(&["--to", "shop/web", "--port", "80", "--watch", "--wait", "0"]);
        assert!(code == 1 && printed.contains("no packet of TCP 10.65.0.3 -> 10.65.0.2:80 came within 0 s"), "{printed}");
        shop.node.write("cluster.yaml", &other);
        let (code, printed) = shop.trace(&["--to", "shop/web", "--port", "80"]);
        assert!(code == 1 && printed.contains("neither end is on this node, n1, but on n2"), "{printed}");
        let first = cluster.find("---\napiVersion: v1\nkind: Pod").unwrap();
        let (head, pods) = cluster.split_at(first);
        shop.node.write("cluster.yaml", &format!("{head}{}", pods.replacen("nodeName: n1", "nodeName: n2", 1)));
        let (_, printed) = shop.trace(&["--to", "shop/web", "--port", "80"]);
        assert!(printed.contains("the other end is on n2") && printed.contains("tortie trace --live --watch --datastore file:"), "{printed}");
        let last = cluster.rfind("nodeName: n1").unwrap();
        let (head, client) = cluster.split_at(last);
        shop.node.write("cluster.yaml", &format!("{head}{}", client.replacen("nodeName: n1", "nodeName: n2", 1)));
        let (code, printed) = shop.trace(&["--to", "shop/web", "--port", "80", "--wait", "0"]);
        assert!(code == 1 && printed.contains("; to send a probe, run this on n2 now: tortie trace --live --datastore file:"), "{printed}");
        assert!(printed.contains("came within 0 s"), "{printed}");
        shop.assert_nothing_is_left();
    }
}
