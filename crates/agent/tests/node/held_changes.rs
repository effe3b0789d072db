//! Changes that would cut the connection of the administrator who makes them
//! (`--confirm-host-changes`).

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tortie_lab::netns::Namespace;

use super::agent::Node;
use super::connections::{Open, serve, until};
use crate::{CLUSTER, FRIEND};

const HOST: &str = "
apiVersion: projectcalico.org/v3
kind: HostEndpoint
metadata: {name: uplink, labels: {role: host}}
spec: {node: n1, interfaceName: uplink}
";

/// Returns a policy by which the host endpoint accepts this port.
fn policy(port: u16) -> String {
    format!(
        "# Who gets in.\napiVersion: projectcalico.org/v3\nkind: GlobalNetworkPolicy\nmetadata: {{name: hosts}}\nspec: {{selector: role \
         == 'host', types: [Ingress], ingress: [{{action: Allow, protocol: TCP, destination: {{ports: [{port}]}}}}]}}\n"
    )
}

/// Returns a node that is managed by TCP port 22 through its uplink, and the namespace of its
/// administrator.
fn managed() -> (Node, Namespace) {
    let mut node = Node::new("nft", CLUSTER);
    let admin = Namespace::new().unwrap();
    node.shell(&format!(
        "ip link add uplink type veth peer name eth0 netns {}; ip addr add 192.0.2.1/24 dev uplink; ip link set uplink up",
        admin.path().display()
    ));
    admin.shell("ip addr add 192.0.2.7/24 dev eth0; ip link set eth0 up").unwrap();
    serve(node.namespace(), &[22], &[]);
    node.set("FELIX_FAILSAFEINBOUNDHOSTPORTS", "none");
    node.give(&["--confirm-host-changes"]);
    (node, admin)
}

fn gets_in(admin: &Namespace) -> bool {
    let address: SocketAddr = "192.0.2.1:22".parse().unwrap();
    admin.run(|| TcpStream::connect_timeout(&address, Duration::from_secs(2))).unwrap().is_ok()
}

/// Returns the report on the waiting change.
fn waiting(node: &Node) -> Value {
    let state = node.state().display().to_string();
    let output = node.ask(&["confirm", "--status", "-o", "json", "--state-dir", &state]);
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

fn confirm(node: &Node) {
    let state = node.state().display().to_string();
    until("it is confirmed", node, || {
        let output = node.ask(&["confirm", "--state-dir", &state]);
        let is_busy = String::from_utf8_lossy(&output.stderr).contains("the agent is busy");
        assert!(is_busy || output.status.success(), "{output:?}");
        output.status.success().then_some(())
    });
}

const PATIENCE: Duration = Duration::from_secs(30);
const HELD: &str = "held back until `tortie confirm` comes";

tortie_lab::kernel_test! {
    fn a_change_that_cuts_the_administrator_waits_through_a_kill_until_it_is_confirmed() {
        let (mut node, admin) = managed();
        node.write("host.yaml", HOST);
        node.write("policy.yaml", &policy(22));
        node.start();
        let mut open = Open::tcp(&admin, "192.0.2.1", 22).unwrap();
        assert!(open.answers(PATIENCE));

        node.write("policy.yaml", &policy(443));
        node.write("friend.yaml", FRIEND);
        node.until("the pods' change is in force", |state| state.contains("10.65.9.9"));
        node.until_readiness("503", |answer| answer.contains(HELD));
        assert!(open.answers(PATIENCE) && gets_in(&admin), "{}", node.kernel_state());
        let held = &waiting(&node)["host_changes"];
        let object = "policy GlobalNetworkPolicy/hosts";
        assert_eq!(held["objects"], serde_json::json!([object]), "{held}");
        assert!(held["places"][object].as_str().unwrap().ends_with("/policy.yaml:2:1"), "{held}");
        assert!(held["connections"][0].as_str().unwrap().starts_with("192.0.2.7:"), "{held}");
        let status = node.ask(&["status"]);
        assert_eq!(status.status.code(), Some(3));
        assert!(String::from_utf8_lossy(&status.stdout).contains(object), "{status:?}");
        assert_eq!(node.metric("tortie_held_changes"), 1.0);

        node.stop(Signal::KILL);
        node.spawn();
        node.until_readiness("503", |answer| answer.contains(HELD));
        assert!(open.answers(PATIENCE) && gets_in(&admin), "{}", node.kernel_state());

        confirm(&node);
        node.stop(Signal::KILL);
        // A program that the agent was about to start may keep its sockets open for a moment;
        // connections to them end with it.
        assert_eq!(node.get(9099, "/liveness"), "");
        node.start();
        until("no new connection is accepted", &node, || (!gets_in(&admin)).then_some(()));
        assert!(open.answers(PATIENCE), "a policy of this kind does not cut established connections");
        assert_eq!(node.metric("tortie_held_changes"), 0.0);
        let none = node.ask(&["confirm", "--state-dir", &node.state().display().to_string()]);
        assert_eq!(none.status.code(), Some(1), "{none:?}");
        node.stop(Signal::TERM);
    }

    fn a_host_endpoint_waits_at_the_first_start_for_as_long_as_its_administrator_is_connected() {
        let (mut node, admin) = managed();
        let mut open = Open::tcp(&admin, "192.0.2.1", 22).unwrap();
        node.write("host.yaml", HOST);
        node.spawn();
        node.until_readiness("503", |answer| answer.contains(HELD));
        assert!(open.answers(PATIENCE) && gets_in(&admin));
        assert_eq!(waiting(&node)["host_changes"]["unprotected"], serde_json::json!(["host endpoint n1/uplink"]));
        assert!(node.log().contains("does NOT PROTECT this host"), "{}", node.log());
        drop(open);
        node.until_ready("");
        until("no new connection is accepted", &node, || (!gets_in(&admin)).then_some(()));
        node.stop(Signal::TERM);
    }
}
