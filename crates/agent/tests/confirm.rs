//! Changes that are rolled back unless they are confirmed, with a real etcd, real programs and a
//! real kernel.
#![cfg(feature = "etcd")]
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests that run the program on the kernel")]

#[path = "node/agent.rs"]
mod agent;
#[path = "common/guards.rs"]
mod guards;

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use agent::Node;
use rustix::process::{Pid, Signal};
use serde_json::Value;
use tempfile::TempDir;
use tortie_lab::etcd::{Etcd, EtcdOptions};
use tortie_lab::netns::Namespace;

const PATIENCE: Duration = Duration::from_secs(90);

/// An etcd, and a state directory.
struct World {
    etcd: Etcd,
    _folder: TempDir,
    state: PathBuf,
}

impl World {
    fn new(resources: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let state = folder.path().join("state");
        let world = Self { etcd: Etcd::start(EtcdOptions::default()).unwrap(), _folder: folder, state };
        good(&world.write(&["apply"], resources));
        world
    }

    /// Runs `tortie apply` or `delete` with these resources on standard input.
    fn write(&self, args: &[&str], resources: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tortie"));
        command.args(args).args(["--datastore", &self.etcd.url(), "-f", "-"]);
        if args.contains(&"--confirm") {
            command.arg("--state-dir").arg(&self.state).env("SUDO_USER", "ada");
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(resources.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    fn commit(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tortie"));
        command.args(["staged", "commit"]).args(args).args(["--datastore", &self.etcd.url()]);
        command.arg("--state-dir").arg(&self.state).output().unwrap()
    }

    /// Reports whether there is a staged policy.
    fn is_staged(&self, name: &str) -> bool {
        let path = format!("/calico/resources/v3/projectcalico.org/stagednetworkpolicies/shop/{name}");
        !self.etcd.get(&path).unwrap().is_empty()
    }

    fn confirm(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tortie"));
        command.arg("confirm").args(args).arg("--state-dir").arg(&self.state).output().unwrap()
    }

    fn status(&self) -> Value {
        serde_json::from_slice(&self.confirm(&["--status", "-o", "json"]).stdout).unwrap_or_default()
    }

    /// Returns the stored policy; null if there is none.
    fn policy(&self, name: &str) -> Value {
        let path = format!("/calico/resources/v3/projectcalico.org/networkpolicies/shop/{name}");
        serde_json::from_str(&self.etcd.get(&path).unwrap()).unwrap_or_default()
    }

    fn until(&self, condition: &str, done: impl Fn() -> bool) {
        let until = Instant::now() + PATIENCE;
        while !done() {
            assert!(Instant::now() < until, "waiting until {condition}: {}", self.status());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the guard processes that roll a change back.
    fn guards(&self) -> Vec<Pid> {
        guards::guards(&self.state)
    }

    fn kill_guards(&self) {
        guards::kill_guards(&self.state);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        guards::end_guards(&self.state);
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn good(output: &Output) -> &str {
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout)
}

fn bad(output: &Output) -> &str {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    text(&output.stderr)
}

fn policy(name: &str, order: u32) -> String {
    format!(
        "apiVersion: projectcalico.org/v3\nkind: NetworkPolicy\nmetadata: {{name: {name}, namespace: shop}}\nspec: {{order: \
         {order}, selector: all(), types: [Ingress]}}\n---\n"
    )
}

fn staged(name: &str, order: u32, action: &str) -> String {
    let policy = policy(name, order).replace("kind: ", "kind: Staged");
    policy.replace("spec: {", &format!("spec: {{stagedAction: {action}, "))
}

#[test]
fn an_unconfirmed_enforced_staged_policy_is_restored() {
    let world = World::new(&(policy("web", 1) + &staged("web", 7, "Set") + &staged("new", 8, "Set")));
    let committed = world.commit(&["shop/web", "--confirm", "2s"]);
    assert_eq!(good(&committed), "NetworkPolicy/shop/web updated\nStagedNetworkPolicy/shop/web deleted\n");
    world.until("both are as they were", || world.policy("web")["spec"]["order"] == 1 && world.is_staged("web"));
    world.until("that is known", || world.status()["phase"] == "rolled_back");

    good(&world.commit(&["StagedNetworkPolicy/shop/web"]));
    let policy = world.policy("web");
    assert_eq!((&policy["spec"]["order"], &policy["spec"]["stagedAction"]), (&7.into(), &Value::Null), "{policy}");
    assert!(!world.is_staged("web"));
    good(&world.commit(&["shop/new"]));
    assert_eq!(world.policy("new")["kind"], "NetworkPolicy");
    assert!(bad(&world.commit(&["shop/new"])).contains("StagedNetworkPolicy/shop/new"), "it is not staged any more");

    let deletes = "apiVersion: projectcalico.org/v3\nkind: StagedNetworkPolicy\nmetadata: {name: web, namespace: shop}\nspec: \
                   {stagedAction: Delete}\n---\n";
    good(&world.write(&["apply"], &(deletes.to_owned() + &staged("learnt", 1, "Learn"))));
    let committed = world.commit(&["shop/web"]);
    assert_eq!(good(&committed), "NetworkPolicy/shop/web deleted\nStagedNetworkPolicy/shop/web deleted\n");
    assert!(world.policy("web").is_null() && !world.is_staged("web"));
    let refused = world.commit(&["shop/learnt"]);
    assert!(bad(&refused).contains("stagedAction is Learn"), "{refused:?}");
    assert!(world.is_staged("learnt") && world.policy("learnt").is_null());
}

#[test]
fn unconfirmed_changes_are_rolled_back() {
    let world = World::new(&policy("web", 1));
    let before = world.policy("web");
    let made = world.write(&["apply", "--confirm", "2s"], &(policy("web", 2) + &policy("new", 3)));
    assert_eq!(good(&made), "NetworkPolicy/shop/web updated\nNetworkPolicy/shop/new created\n");
    let printed = text(&made.stderr);
    let end = " rolls this back in 2 s unless `tortie confirm` comes\n";
    assert!(printed.starts_with("tortie: process ") && printed.ends_with(end), "{printed}");
    world.until("it is rolled back", || world.policy("web") == before && world.policy("new").is_null());
    world.until("that is known", || world.status()["phase"] == "rolled_back");
    let late = world.confirm(&[]);
    assert_eq!(bad(&late), "tortie: the change was rolled back: it was not confirmed in time\n");
    world.until("the guard is gone", || world.guards().is_empty());

    // A deleted resource is restored unchanged.
    let gone = world.write(&["delete", "--confirm", "2s"], &policy("web", 1));
    assert_eq!(good(&gone), "NetworkPolicy/shop/web deleted\n");
    world.until("it is back", || world.policy("web") == before);
}

#[test]
fn confirmed_changes_stay() {
    let world = World::new(&policy("web", 1));
    assert_eq!(bad(&world.confirm(&[])), "tortie: no change waits to be confirmed\n");
    good(&world.write(&["apply", "--confirm", "1h"], &policy("web", 2)));
    let status = world.status();
    assert_eq!((status["phase"].as_str(), status["by"].as_str()), (Some("waiting"), Some("ada")));
    assert_eq!(status["resources"][0]["resource"], "NetworkPolicy/shop/web");
    assert!(status["seconds_left"].as_u64().is_some_and(|left| (3_500..=3_600).contains(&left)), "{status}");

    let second = world.write(&["apply", "--confirm", "1m"], &policy("other", 1));
    let refusal = bad(&second);
    assert!(refusal.starts_with("tortie: a change by ada waits for 3"), "{refusal}");
    assert!(refusal.ends_with(" s more: NetworkPolicy/shop/web; `tortie confirm` keeps it\n"), "{refusal}");
    assert!(world.policy("other").is_null());

    assert!(good(&world.confirm(&[])).contains("is confirmed since"));
    assert!(good(&world.confirm(&[])).contains("is confirmed since"), "again");
    assert_eq!(world.confirm(&["--status"]).status.code(), Some(1));
    world.until("the guard is gone", || world.guards().is_empty());
    assert_eq!(world.policy("web")["spec"]["order"], 2);
    // A write without changes waits for no confirmation.
    let unchanged = world.write(&["apply", "--confirm", "1h"], &policy("web", 2));
    assert_eq!((good(&unchanged), text(&unchanged.stderr)), ("NetworkPolicy/shop/web unchanged\n", ""));
    assert!(world.guards().is_empty());
}

#[test]
fn foreign_changes_are_left_alone_and_named() {
    let world = World::new(&policy("web", 1));
    good(&world.write(&["apply", "--confirm", "4s"], &(policy("web", 2) + &policy("new", 2))));
    good(&world.write(&["apply"], &policy("new", 9)));
    world.until("it is rolled back", || world.status()["phase"] == "rolled_back");
    assert_eq!((&world.policy("web")["spec"]["order"], &world.policy("new")["spec"]["order"]), (&1.into(), &9.into()));
    let printed = world.confirm(&["--status"]);
    let line = "not rolled back: NetworkPolicy/shop/new: another client has changed it since\n";
    assert!(text(&printed.stdout).ends_with(line), "{printed:?}");
}

#[test]
fn all_is_written_or_nothing() {
    let world = World::new(&policy("web", 1));
    let lost = policy("lost", 1).replace("order:", "tier: nowhere, order:");
    let refused = world.write(&["apply", "--confirm", "1h"], &(policy("web", 2) + &lost));
    assert!(bad(&refused).contains("there is no tier `nowhere`"), "{refused:?}");
    assert!(bad(&refused).ends_with("tortie: nothing has been changed\n"), "{refused:?}");
    assert_eq!(world.policy("web")["spec"]["order"], 1);
    assert!(world.guards().is_empty() && bad(&world.confirm(&[])).contains("no change waits"));
}

#[test]
fn the_next_command_rolls_back_changes_of_killed_processes() {
    let world = World::new(&policy("web", 1));
    good(&world.write(&["apply", "--confirm", "1s"], &policy("web", 2)));
    world.kill_guards();
    assert_eq!(world.policy("web")["spec"]["order"], 2);
    world.until("the time has passed", || world.status()["seconds_left"] == 0);
    let next = world.write(&["apply", "--confirm", "1h"], &policy("other", 1));
    good(&next);
    let printed = "tortie: an earlier change was not confirmed, and has been rolled back now\n";
    assert!(text(&next.stderr).starts_with(printed), "{next:?}");
    assert_eq!(world.policy("web")["spec"]["order"], 1);
}

#[test]
fn the_status_is_true_after_the_guard_was_killed_and_a_rollback_can_be_requested() {
    let world = World::new(&policy("web", 1));
    let made = world.write(&["apply", "--confirm", "3s"], &policy("web", 2));
    let guard = world.guards()[0].as_raw_nonzero();
    assert!(text(&made.stderr).starts_with(&format!("tortie: process {guard} rolls this back in 3 s")), "{made:?}");
    assert_eq!(world.status()["rolled_back_by"], serde_json::json!([{ "process": guard.get(), "kind": "guard" }]));
    assert!(good(&world.confirm(&["--status"])).ends_with(&format!("\nrolled back by process {guard}\n")));

    world.kill_guards();
    let unattended = "no running process rolls it back; `tortie confirm --rollback` does\n";
    world.until("the guard is gone", || world.status()["rolled_back_by"] == serde_json::json!([]));
    assert!(good(&world.confirm(&["--status"])).ends_with(unattended));
    world.until("the time has passed", || world.status()["overdue_since"].is_string());
    let overdue = world.confirm(&["--status"]);
    assert!(good(&overdue).contains(" is overdue since ") && good(&overdue).ends_with(unattended), "{overdue:?}");
    let late = world.confirm(&[]);
    let refusal = "tortie: the change cannot be confirmed any more: it was not confirmed in time; ";
    assert_eq!(bad(&late), refusal.to_owned() + unattended);
    assert_eq!(world.policy("web")["spec"]["order"], 2, "nothing has rolled it back");

    assert!(good(&world.confirm(&["--rollback"])).contains(" was rolled back at "));
    assert_eq!(world.policy("web")["spec"]["order"], 1);
    assert_eq!(bad(&world.confirm(&["--rollback"])), "tortie: no change waits to be confirmed\n");

    // A change need not be overdue.
    good(&world.write(&["apply", "--confirm", "1h"], &policy("web", 3)));
    assert!(good(&world.confirm(&["--rollback"])).contains("an operator requested it"));
    assert_eq!(world.policy("web")["spec"]["order"], 1);
    world.until("the guard ends", || world.guards().is_empty());
}

const SHOP: &str = "
apiVersion: projectcalico.org/v3
kind: WorkloadEndpoint
metadata: {name: n1-k8s-web-eth0, namespace: shop, labels: {app: web}}
spec: {orchestrator: k8s, node: n1, pod: web, endpoint: eth0, interfaceName: cali0web, ipNetworks: [10.65.0.2/32]}
---
apiVersion: projectcalico.org/v3
kind: WorkloadEndpoint
metadata: {name: n1-k8s-client-eth0, namespace: shop, labels: {app: client}}
spec: {orchestrator: k8s, node: n1, pod: client, endpoint: eth0, interfaceName: cali0client, ipNetworks: [10.65.0.3/32]}
---
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec: {selector: app == 'web', ingress: [{action: Allow}]}
---
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: client, namespace: shop}
spec: {selector: app == 'client', egress: [{action: Allow}]}
";

const CUT: &str = "
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec: {selector: app == 'web', ingress: [{action: Deny}]}
";

/// Attaches a workload to the node.
fn attach(node: &Node, name: &str, address: &str) -> Namespace {
    let pod = Namespace::new().unwrap();
    node.shell(&format!(
        "ip link add cali0{name} address ee:ee:ee:ee:ee:ee type veth peer name eth0 netns {}\nip link set cali0{name} up",
        pod.path().display()
    ));
    pod.shell(&format!(
        "ip link set eth0 up\nip address add {address}/32 dev eth0\nip route add 169.254.1.1 dev eth0\n\
         ip neighbour add 169.254.1.1 lladdr ee:ee:ee:ee:ee:ee dev eth0\nip route add default via 169.254.1.1"
    ))
    .unwrap();
    pod
}

tortie_lab::kernel_test! {
    fn an_agent_rolls_back_disconnecting_changes_after_all_processes_were_killed() {
        let mut world = World::new(SHOP);
        let mut node = Node::reading("nft", world.etcd.url());
        world.state = node.state();
        let _link = node.carry(world.etcd.address(0));
        let (web, client) = (attach(&node, "web", "10.65.0.2"), attach(&node, "client", "10.65.0.3"));
        let address: SocketAddr = "10.65.0.2:80".parse().unwrap();
        let _listener = web.run(|| TcpListener::bind(address).unwrap()).unwrap();
        let reaches = || {
            let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(300)).is_ok();
            client.run(connect).unwrap()
        };
        node.start();
        world.until("the client connects", reaches);

        // Only the agent runs.
        good(&world.write(&["apply", "--confirm", "20s"], CUT));
        world.kill_guards();
        world.until("the client is cut off", || !reaches());
        let status: Value = serde_json::from_slice(&node.ask(&["status", "-o", "json"]).stdout).unwrap();
        assert_eq!(status["pending_change"]["state"], "waiting");
        assert_eq!(status["pending_change"]["resources"][0], "NetworkPolicy/shop/web");
        world.until("the agent is named", || world.status()["rolled_back_by"][0]["kind"] == "agent");
        world.until("the client connects again", reaches);
        world.until("it is rolled back", || world.status()["phase"] == "rolled_back");
        assert!(node.log().contains("a change was rolled back"), "{}", node.log());

        // Neither the agent nor a guard runs until the time has passed.
        good(&world.write(&["apply", "--confirm", "20s"], CUT));
        world.until("the client is cut off", || !reaches());
        world.kill_guards();
        node.stop(Signal::KILL);
        world.until("the time has passed", || world.status()["seconds_left"] == 0);
        assert!(!reaches());
        node.start();
        world.until("the client connects again", reaches);
        let status: Value = serde_json::from_slice(&node.ask(&["status", "-o", "json"]).stdout).unwrap();
        assert!(status["pending_change"].is_null(), "{status}");
    }
}

/// Two pods that may exchange anything, and a staged Kubernetes policy for one of them.
const STAGED: &str = "
apiVersion: projectcalico.org/v3
kind: Profile
metadata: {name: open}
spec: {ingress: [{action: Allow}], egress: [{action: Allow}]}
---
apiVersion: projectcalico.org/v3
kind: WorkloadEndpoint
metadata: {name: n1-k8s-web-eth0, namespace: shop, labels: {app: web}}
spec: {orchestrator: k8s, node: n1, pod: web, endpoint: eth0, interfaceName: cali0web, ipNetworks: [10.65.0.2/32], profiles: [open]}
---
apiVersion: projectcalico.org/v3
kind: WorkloadEndpoint
metadata: {name: n1-k8s-client-eth0, namespace: shop, labels: {app: client}}
spec: {orchestrator: k8s, node: n1, pod: client, endpoint: eth0, interfaceName: cali0client, ipNetworks: [10.65.0.3/32], profiles: [open]}
---
apiVersion: projectcalico.org/v3
kind: StagedKubernetesNetworkPolicy
metadata: {name: web, namespace: shop}
spec:
  stagedAction: Set
  podSelector: {matchLabels: {app: web}}
  policyTypes: [Ingress]
  ingress: [{from: [{podSelector: {matchLabels: {app: client}}}], ports: [{port: 80}]}]
";

tortie_lab::kernel_test! {
    fn a_staged_policy_of_kubernetes_reports_denials_and_denies_once_enforced() {
        let world = World::new(STAGED);
        let mut node = Node::reading("nft", world.etcd.url());
        node.set("FELIX_FLOWLOGSLOCALREPORTER", "Enabled");
        node.shell("sysctl -qw net.netfilter.nf_conntrack_acct=1");
        let _link = node.carry(world.etcd.address(0));
        let (web, client) = (attach(&node, "web", "10.65.0.2"), attach(&node, "client", "10.65.0.3"));
        let address = |port: u16| SocketAddr::from(([10, 65, 0, 2], port));
        let _listeners = [80, 81].map(|port| web.run(|| TcpListener::bind(address(port)).unwrap()).unwrap());
        let reaches = |port| {
            let connect = || TcpStream::connect_timeout(&address(port), Duration::from_millis(300)).is_ok();
            client.run(connect).unwrap()
        };
        node.start();
        let flows = |args: &[&str]| {
            let output = node.ask(&[&["flows", "-o", "json"], args].concat());
            let answer: Value = serde_json::from_str(good(&output)).unwrap();
            answer["flows"].as_array().unwrap().clone()
        };
        world.until("the client connects", || reaches(80) && reaches(81));
        assert!(world.policy("knp.default.web").is_null());

        // All allowed flows, with the staged verdicts.
        let staged = |verdict: &str| {
            serde_json::json!([{
                "policy": "StagedKubernetesNetworkPolicy/shop/web", "direction": "ingress", "verdict": verdict,
            }])
        };
        for name in ["web", "shop/web", "StagedKubernetesNetworkPolicy/shop/web"] {
            world.until("connections that the staged policy would deny are reported", || !flows(&["--staged", name]).is_empty());
            for flow in flows(&["--staged", name]) {
                assert_eq!((&flow["verdict"], &flow["destination"]["port"]), (&"allow".into(), &81.into()), "{flow}");
                assert_eq!(flow["staged"], staged("deny"), "{flow}");
            }
        }
        world.until("connections that the staged policy would allow are reported", || !flows(&["--port", "80"]).is_empty());
        assert_eq!(flows(&["--port", "80"])[0]["staged"], staged("allow"));
        assert!(flows(&["--staged", "client"]).is_empty());

        // In force, the policy has the effect that was shown.
        let committed = world.commit(&["StagedKubernetesNetworkPolicy/shop/web"]);
        assert!(good(&committed).contains("NetworkPolicy/shop/knp.default.web created\n"), "{committed:?}");
        world.until("the other port is denied to the client", || !reaches(81));
        assert!(reaches(80));
        world.until("denied connections are reported", || !flows(&["--denied", "--port", "81", "--to", "shop/web"]).is_empty());
        for flow in flows(&["--denied", "--port", "81"]) {
            assert_eq!(flow["staged"], Value::Null, "{flow}");
            assert_eq!(flow["ingress"], serde_json::json!([{ "verdict": "deny", "tier": "default" }]), "{flow}");
        }
        world.until("allowed connections are reported", || !flows(&["--policy", "knp.default.web", "--port", "80"]).is_empty());
    }
}

#[test]
fn writes_are_reported_as_json_on_request() {
    let world = World::new(&policy("web", 1));
    let answer = |output: &Output| serde_json::from_slice::<Value>(&output.stdout).unwrap_or_default();
    let changed = world.write(&["apply", "-o", "json", "--confirm", "60s"], &policy("web", 2));
    let updated = serde_json::json!([{ "resource": "NetworkPolicy/shop/web", "outcome": "updated" }]);
    let printed = answer(&changed);
    assert_eq!((&printed["resources"], &printed["confirm_within_seconds"]), (&updated, &60.into()), "{changed:?}");
    assert!(world.confirm(&[]).status.success());
    let refused = world.write(&["delete", "-o", "json"], &policy("none", 1));
    let printed = answer(&refused);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert_eq!(
        (&printed["resources"], &printed["errors"][0]["resource"]),
        (&serde_json::json!([]), &"NetworkPolicy/shop/none".into())
    );
    let deleted = world.write(&["delete", "-o", "yaml"], &policy("web", 2));
    let text = String::from_utf8(deleted.stdout).unwrap();
    assert!(text.contains("outcome: deleted") && text.contains("resource: NetworkPolicy/shop/web"), "{text}");
}
