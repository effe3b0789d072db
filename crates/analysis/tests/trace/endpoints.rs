//! Endpoints on the way of a connection, by the places of its ends.
#![allow(clippy::unwrap_used, reason = "an unexpected value fails the test")]

use std::net::IpAddr;

use tortie_analysis::trace::{
    Cluster, Connection, ConnectionQuery, DestinationNat, EnforcementPoint, NatSettings, Place, TraceError,
};
use tortie_calc::GraphConfig;
use tortie_datastore::{DirState, FileContent};
use tortie_evaluate::{DecidedBy, EndpointToHost, Layer, Packet, Settings, Verdict};
use tortie_model::{Direction, Update};
use tortie_resources::manifest::Options;

const CLUSTER: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {team: shop}}
---
apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: web, labels: {app: web}}
spec: {nodeName: n1, containers: [{name: c}]}
status: {phase: Running, podIPs: [{ip: 10.0.1.2}, {ip: "fd00::1:2"}]}
---
apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: cache, labels: {app: cache}}
spec: {nodeName: n1, containers: [{name: c}]}
status: {phase: Running, podIPs: [{ip: 10.0.1.3}]}
---
apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: db, labels: {app: db}}
spec: {nodeName: n2, containers: [{name: c}]}
status: {phase: Running, podIPs: [{ip: 10.0.2.2}]}
---
apiVersion: v1
kind: Node
metadata: {name: n1, annotations: {projectcalico.org/IPv4Address: 192.168.0.1/24, projectcalico.org/IPv4VXLANTunnelAddr: 10.0.1.0}}
spec: {podCIDRs: [10.0.1.0/24]}
status: {addresses: [{type: InternalIP, address: 192.168.0.1}]}
---
apiVersion: v1
kind: Node
metadata: {name: n2, annotations: {projectcalico.org/IPv4Address: 192.168.0.2/24}}
spec: {podCIDRs: [10.0.2.0/24]}
status: {addresses: [{type: InternalIP, address: 192.168.0.2}]}
"#;

fn host_endpoint(node: &str, name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: projectcalico.org/v3\nkind: HostEndpoint\nmetadata: {{name: {name}, labels: {{host: {node}}}}}\n\
         spec: {{node: {node}, {spec}}}\n"
    )
}

fn global_policy(name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: projectcalico.org/v3\nkind: GlobalNetworkPolicy\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n"
    )
}

fn cluster_with(settings: Settings, more: &str) -> Cluster {
    let (cluster, problems) = cluster_of(GraphConfig::new("any".into()), settings, more);
    assert_eq!(problems, [""; 0]);
    cluster
}

fn cluster_of(graph: GraphConfig, settings: Settings, more: &str) -> (Cluster, Vec<String>) {
    let mut directory = DirState::new(Options::default());
    let mut cluster = Cluster::new(graph, settings);
    directory.take_updates().into_iter().for_each(|update| cluster.apply(update));
    let text = format!("{CLUSTER}{more}");
    for update in directory.set_file("cluster.yaml".as_ref(), Some(FileContent::Text(&text))) {
        cluster.apply(update);
    }
    let problems = directory.problems().map(|problem| problem.to_string()).collect();
    (cluster, problems)
}

fn ask(cluster: &mut Cluster, from: &str, to: &str, port: u16) -> Result<Connection, TraceError> {
    let (from, to): (IpAddr, IpAddr) = (from.parse().unwrap(), to.parse().unwrap());
    let packet = Packet::tcp((from, 40000), (to, port)).unwrap();
    cluster.connection(&cluster.place_of(from), &cluster.place_of(to), &packet)
}

/// Returns each leg as `node endpoint direction verdict`, in order.
fn way(connection: &Connection) -> Vec<String> {
    let leg = |leg: &tortie_analysis::trace::Leg| {
        let direction = if leg.direction == Direction::Ingress { "in" } else { "out" };
        format!("{} {} {direction} {:?}", leg.node, leg.at, leg.verdict())
    };
    connection.legs.iter().map(leg).collect()
}

const WEB: &str = "10.0.1.2";
const CACHE: &str = "10.0.1.3";
const DB: &str = "10.0.2.2";
const N1: &str = "192.168.0.1";
const N2: &str = "192.168.0.2";
const OUTSIDE: &str = "203.0.113.9";

#[test]
fn addresses_belong_to_pods_nodes_and_tunnels_or_are_outside() {
    let cluster = cluster_with(Settings::default(), "");
    let place = |address: &str| cluster.place_of(address.parse().unwrap());
    assert!(matches!(place("fd00::1:2"), Place::Workload(key) if key.workload() == "shop/web"));
    assert_eq!(place(N1), Place::Node("n1".into()));
    assert_eq!(place("10.0.1.0"), Place::Node("n1".into()));
    assert_eq!(place(OUTSIDE), Place::Outside);
    let mut names: Vec<_> = cluster.workload_names().collect();
    names.sort_unstable();
    assert_eq!(names, ["shop/cache", "shop/db", "shop/web"]);
    assert_eq!(cluster.workloads_named("shop/nobody"), []);
}

#[test]
fn without_host_endpoints_only_workload_policies_are_evaluated() {
    let mut cluster = cluster_with(Settings::default(), "");
    for (from, to, expected) in [
        (WEB, CACHE, &["n1 shop/web out Allow", "n1 shop/cache in Allow"][..]),
        (WEB, DB, &["n1 shop/web out Allow", "n2 shop/db in Allow"]),
        (WEB, WEB, &[]),
        (WEB, N2, &["n1 shop/web out Allow"]),
        (WEB, OUTSIDE, &["n1 shop/web out Allow"]),
        (N1, WEB, &[]),
        (N1, DB, &["n2 shop/db in Allow"]),
        (N1, N1, &[]),
        (N1, N2, &[]),
        (OUTSIDE, DB, &["n2 shop/db in Allow"]),
        (OUTSIDE, N1, &[]),
    ] {
        let connection = ask(&mut cluster, from, to, 80).unwrap();
        assert_eq!(
            (way(&connection), connection.verdict()),
            (expected.iter().map(ToString::to_string).collect(), Verdict::Allow),
            "{from} {to}"
        );
    }
    assert_eq!(ask(&mut cluster, OUTSIDE, "203.0.113.8", 80), Err(TraceError::BothOutside));
}

#[test]
fn a_workload_and_its_own_node() {
    for (action, expected) in [
        (EndpointToHost::Deny, Verdict::Deny),
        (EndpointToHost::Allow, Verdict::Allow),
        (EndpointToHost::Undecided, Verdict::Undecided),
    ] {
        let settings = Settings { endpoint_to_host: action, ..Settings::default() };
        let mut cluster = cluster_with(settings, &host_endpoint("n1", "any", "interfaceName: \"*\""));
        let connection = ask(&mut cluster, WEB, N1, 80).unwrap();
        assert_eq!(way(&connection), [format!("n1 shop/web to its node out {expected:?}")]);
        assert_eq!(connection.verdict(), expected);
    }
}

/// Returns a cluster with host endpoints of both nodes for all interfaces, and a policy for
/// forwarded traffic.
fn with_forward_policy(action: &str) -> Cluster {
    let endpoints =
        ["n1", "n2"].map(|node| host_endpoint(node, &format!("{node}-all"), "interfaceName: \"*\"")).concat();
    let rule = format!("applyOnForward: true, ingress: [{{action: {action}}}], egress: [{{action: {action}}}]");
    let policy = global_policy("hosts", &format!("selector: has(host), {rule}"));
    cluster_with(Settings::default(), &(endpoints + &policy))
}

#[test]
fn host_endpoints_of_all_interfaces_see_packets_forwarded_between_nodes() {
    let mut cluster = with_forward_policy("Deny");
    let connection = ask(&mut cluster, WEB, DB, 80).unwrap();
    let expected = [
        "n1 host endpoint n1-all (forwarded) in Deny",
        "n1 shop/web out Allow",
        "n1 host endpoint n1-all (forwarded) out Deny",
        "n2 host endpoint n2-all (forwarded) in Deny",
        "n2 shop/db in Allow",
        "n2 host endpoint n2-all (forwarded) out Deny",
    ];
    assert_eq!(way(&connection), expected);
    assert_eq!(connection.verdict(), Verdict::Deny);
    let denied = connection.denied_by().unwrap();
    assert!(matches!(&denied.at, EnforcementPoint::Host(name, Layer::Forward) if name.to_string() == "n1-all"));
    assert!(matches!(&denied.explanation.answer.decided_by, DecidedBy::PolicyRule { index: 0, .. }));
    let within = [
        "n1 host endpoint n1-all (forwarded) in Deny",
        "n1 shop/web out Allow",
        "n1 shop/cache in Allow",
        "n1 host endpoint n1-all (forwarded) out Deny",
    ];
    assert_eq!(way(&ask(&mut cluster, WEB, CACHE, 80).unwrap()), within, "interfaces of workloads are included");
    assert_eq!(
        ask(&mut cluster, N1, WEB, 80).unwrap().verdict(),
        Verdict::Allow,
        "no policy applies to packets of a node to its workload"
    );
    assert_eq!(ask(&mut cluster, OUTSIDE, N2, 80).unwrap().verdict(), Verdict::Deny);
    assert_eq!(ask(&mut cluster, N1, OUTSIDE, 80).unwrap().verdict(), Verdict::Deny);
    assert_eq!(ask(&mut with_forward_policy("Allow"), WEB, DB, 80).unwrap().verdict(), Verdict::Allow);
}

#[test]
fn the_host_endpoint_that_expects_the_address_is_evaluated() {
    let endpoints = [
        host_endpoint("n2", "eth0", "interfaceName: eth0, expectedIPs: [192.168.0.2]"),
        host_endpoint("n2", "eth1", "interfaceName: eth1"),
    ];
    let policy = global_policy(
        "ssh",
        "selector: has(host), ingress: [{action: Allow, protocol: TCP, destination: {ports: [22]}}]",
    );
    let mut cluster = cluster_with(Settings::default(), &(endpoints.concat() + &policy));
    let expected = ["n2 host endpoint eth0 in Allow"];
    assert_eq!(way(&ask(&mut cluster, OUTSIDE, N2, 22).unwrap()), expected);
    assert_eq!(ask(&mut cluster, OUTSIDE, N2, 23).unwrap().verdict(), Verdict::Deny);
    // The interface by which the packet reaches the workload is unknown: both host endpoints are
    // evaluated.
    let to_workload = way(&ask(&mut cluster, OUTSIDE, DB, 23).unwrap());
    assert_eq!(to_workload.iter().filter(|leg| leg.contains("(forwarded)")).count(), 2, "{to_workload:?}");
    assert_eq!(way(&ask(&mut cluster, WEB, DB, 23).unwrap()).len(), 2, "tunnels are not looked into");
}

#[test]
fn packets_allowed_by_untracked_policy_skip_other_host_policies() {
    let endpoint = host_endpoint("n2", "uplink", "interfaceName: eth0, expectedIPs: [192.168.0.2]");
    let untracked = |action: &str| {
        let rule = format!("ingress: [{{action: {action}, protocol: TCP, destination: {{ports: [53]}}}}]");
        global_policy("untracked", &format!("selector: has(host), doNotTrack: true, applyOnForward: true, {rule}"))
    };
    let closed = global_policy("closed", "selector: has(host), types: [Ingress]");
    let mut cluster = cluster_with(Settings::default(), &(endpoint.clone() + &untracked("Allow") + &closed));
    assert_eq!(
        way(&ask(&mut cluster, OUTSIDE, N2, 53).unwrap()),
        ["n2 host endpoint uplink (before connection tracking) in Allow"]
    );
    assert_eq!(ask(&mut cluster, OUTSIDE, N2, 54).unwrap().verdict(), Verdict::Deny);
    let mut cluster = cluster_with(Settings::default(), &(endpoint + &untracked("Deny")));
    assert_eq!(
        way(&ask(&mut cluster, OUTSIDE, DB, 53).unwrap())[0],
        "n2 host endpoint uplink (before connection tracking) in Deny"
    );
    // Untracked policy of all interfaces is not enforced.
    let all = host_endpoint("n2", "all", "interfaceName: \"*\", profiles: [projectcalico-default-allow]");
    let mut cluster = cluster_with(Settings::default(), &(all + &untracked("Deny")));
    assert_eq!(way(&ask(&mut cluster, OUTSIDE, N2, 53).unwrap()), ["n2 host endpoint all in Allow"]);
}

#[test]
fn the_first_host_endpoint_of_an_interface_by_name_is_evaluated() {
    let endpoints = [
        host_endpoint("n2", "b-named", "interfaceName: eth0, expectedIPs: [192.168.0.2]"),
        host_endpoint("n2", "a-expecting", "expectedIPs: [192.168.0.2]"),
        host_endpoint("n2", "c-all", "interfaceName: \"*\""),
    ];
    let mut cluster = cluster_with(Settings::default(), &endpoints.concat());
    assert_eq!(way(&ask(&mut cluster, OUTSIDE, N2, 80).unwrap()), ["n2 host endpoint a-expecting in Deny"]);
    let loopback = ["n2 host endpoint c-all out Deny", "n2 host endpoint c-all in Deny"];
    assert_eq!(way(&ask(&mut cluster, N2, N2, 80).unwrap()), loopback);
}

#[test]
fn policy_before_dnat_that_allows_a_packet_spares_it_the_others_of_the_interface() {
    let endpoint = host_endpoint("n2", "all", "interfaceName: \"*\"");
    let early = global_policy(
        "early",
        "selector: has(host), preDNAT: true, applyOnForward: true, ingress: [{action: Allow, protocol: TCP, destination: {ports: [53]}}]",
    );
    let mut cluster = cluster_with(Settings::default(), &(endpoint + &early));
    assert_eq!(
        way(&ask(&mut cluster, OUTSIDE, N2, 53).unwrap()),
        ["n2 host endpoint all (before destination NAT) in Allow"]
    );
    assert_eq!(ask(&mut cluster, OUTSIDE, N2, 54).unwrap().verdict(), Verdict::Deny);
}

const OVERLAY: &str = "---
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: pods}
spec: {cidr: 10.0.0.0/16, vxlanMode: Always, natOutgoing: true}
";

#[test]
fn sources_are_translated_on_the_way() {
    let hosts = [host_endpoint("n2", "uplink", "interfaceName: eth0, expectedIPs: [192.168.0.2]")];
    let mut cluster = cluster_with(Settings::default(), &(OVERLAY.to_owned() + &hosts.concat()));
    let sources = |cluster: &mut Cluster, from, to| -> Vec<String> {
        let legs = ask(cluster, from, to, 80).unwrap().legs;
        legs.iter().map(|leg| format!("{} {}", leg.at, leg.packet.source())).collect()
    };
    assert_eq!(sources(&mut cluster, WEB, N2), ["shop/web 10.0.1.2", "host endpoint uplink 192.168.0.1"]);
    assert_eq!(sources(&mut cluster, WEB, DB), ["shop/web 10.0.1.2", "shop/db 10.0.1.2"]);
    // The address of the tunnel; the packet does not pass the interface of the host endpoint.
    assert_eq!(sources(&mut cluster, N1, DB), ["shop/db 10.0.1.0"]);
    let excluded = NatSettings { excludes_nodes: true, ..NatSettings::default() };
    cluster.set_nat("n1".into(), excluded);
    assert_eq!(sources(&mut cluster, WEB, N2)[1], "host endpoint uplink 10.0.1.2");
}

#[test]
fn a_node_port_is_translated_at_its_node() {
    let hosts = ["n1", "n2"].map(|node| host_endpoint(node, &format!("{node}-all"), "interfaceName: \"*\"")).concat();
    let early = global_policy(
        "early",
        "selector: has(host), preDNAT: true, applyOnForward: true, ingress: [{action: Deny, protocol: TCP, destination: {ports: [30080]}}]",
    );
    let mut cluster = cluster_with(Settings::default(), &(OVERLAY.to_owned() + &hosts + &early));
    let packet = |to: &str, port| Packet::tcp((OUTSIDE.parse().unwrap(), 40000), (to.parse().unwrap(), port)).unwrap();
    let nat = DestinationNat { entering: packet(N1, 30080), node: Some("n1".into()), replaces_source: true };
    let to = cluster.place_of(DB.parse().unwrap());
    let connection =
        cluster.evaluate(&ConnectionQuery::new(Place::Outside, to, packet(DB, 80)).translated(nat)).unwrap();
    assert_eq!(way(&connection)[0], "n1 host endpoint n1-all (before destination NAT) in Deny");
    let last = connection.legs.last().unwrap();
    assert_eq!((last.at.to_string(), last.packet.source().to_string()), ("shop/db".to_owned(), "10.0.1.0".to_owned()));
}

#[test]
fn a_cluster_that_changes_answers_as_a_new_one() {
    let policy = |action: &str| {
        let rule = format!("ingress: [{{action: {action}, source: {{selector: app == 'web'}}}}]");
        global_policy("db", &format!("selector: app == 'db', {rule}"))
    };
    let mut cluster = cluster_with(Settings::default(), "");
    assert_eq!(ask(&mut cluster, CACHE, DB, 80).unwrap().verdict(), Verdict::Allow);
    let mut last = Vec::new();
    for (more, web, cache) in [
        (policy("Allow"), Verdict::Allow, Verdict::Deny),
        (policy("Deny"), Verdict::Deny, Verdict::Deny),
        (String::new(), Verdict::Allow, Verdict::Allow),
    ] {
        let now: Vec<Update> = cluster_with(Settings::default(), &more).objects().cloned().collect();
        let is_gone = |update: &&Update| !now.iter().any(|other| other.key() == update.key());
        for gone in last.iter().filter(is_gone).map(Update::key).map(Update::delete).collect::<Vec<_>>() {
            cluster.apply(gone);
        }
        now.iter().for_each(|update| cluster.apply(update.clone()));
        last = now;
        assert_eq!(ask(&mut cluster, WEB, DB, 80).unwrap().verdict(), web, "{more}");
        assert_eq!(ask(&mut cluster, CACHE, DB, 80).unwrap().verdict(), cache, "{more}");
    }
    // A deleted object has no place any more.
    let (db, web) = (cluster.place_of(DB.parse().unwrap()), cluster.place_of(WEB.parse().unwrap()));
    let Place::Workload(key) = &db else { panic!("{db:?}") };
    cluster.apply(Update::WorkloadEndpoint(key.clone(), None));
    assert_eq!(cluster.place_of(DB.parse().unwrap()), Place::Outside);
    assert_eq!(cluster.workloads_named("shop/db"), []);
    let packet = Packet::tcp((WEB.parse().unwrap(), 1), (DB.parse().unwrap(), 2)).unwrap();
    assert!(matches!(cluster.connection(&web, &db, &packet), Err(TraceError::Missing(_))));
    assert!(matches!(cluster.connection(&db, &db, &packet), Err(TraceError::Missing(_))));
}

#[test]
fn a_rule_with_an_http_match_opens_its_ports_only_if_a_proxy_enforces_the_match() {
    let rule = "{action: Allow, protocol: TCP, destination: {ports: [80]}, http: {methods: [GET]}}";
    let policy = global_policy("web", &format!("selector: app == 'web', ingress: [{rule}]"));
    for http_by_proxy in [false, true] {
        let graph = GraphConfig { http_by_proxy, ..GraphConfig::new("any".into()) };
        let (mut cluster, problems) = cluster_of(graph, Settings::default(), &policy);
        assert!(problems.len() == 1 && problems[0].contains("nothing enforces a match on HTTP"), "{problems:?}");
        let mut allows = |port| ask(&mut cluster, "10.0.2.2", "10.0.1.2", port).unwrap().verdict() == Verdict::Allow;
        assert_eq!([allows(80), allows(81)], [http_by_proxy, false]);
    }
}
