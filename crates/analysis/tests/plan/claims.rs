//! A plan names the claims to addresses and interfaces of a change that do not count.
#![allow(clippy::unwrap_used, reason = "an unexpected value fails the test")]

use tortie_analysis::plan::{Finding, Options, Plan, plan};
use tortie_calc::{AddressClaims, GraphConfig};
use tortie_classes::evaluate::Settings;
use tortie_model::{
    AddressSource, Node, Policy, PolicyId, PolicyKind, Rule, RuleAction, Update, Valid, WorkloadEndpoint,
    WorkloadEndpointKey, WorkloadExtras,
};

fn pod(name: &str, interface: &str, source: AddressSource) -> Update {
    pod_on("n1", name, interface, source)
}

fn pod_on(host: &str, name: &str, interface: &str, source: AddressSource) -> Update {
    let extras = WorkloadExtras { address_source: source, ..WorkloadExtras::default() };
    let endpoint = WorkloadEndpoint {
        iface: Some(interface.parse().unwrap()),
        ipv4_nets: ["10.0.0.50/32".parse().unwrap()].into(),
        extras: (extras != WorkloadExtras::default()).then(|| Box::new(extras)),
        ..WorkloadEndpoint::default()
    };
    let key = WorkloadEndpointKey::new(host, "k8s", name, "eth0");
    Update::WorkloadEndpoint(key, Some(Valid::new(endpoint).unwrap()))
}

fn found(claims: AddressClaims, change: Update) -> Vec<String> {
    let options =
        Options::new(GraphConfig { address_claims: claims, ..GraphConfig::new("any".into()) }, Settings::default());
    let plan = plan(vec![pod("prod/db", "cali1", AddressSource::Platform)], vec![change], &options).unwrap();
    ignored(&plan)
}

fn ignored(plan: &Plan) -> Vec<String> {
    let ignored_claims = plan.findings.iter().filter_map(|finding| match finding {
        Finding::ClaimIgnored { endpoint, why } => Some(format!("{endpoint}: {why}")),
        _ => None,
    });
    ignored_claims.collect()
}

#[test]
fn an_ignored_claim_is_reported_with_its_reason() {
    let claim = || pod("dev/a", "cali2", AddressSource::Annotation("cni.projectcalico.org/podIP".into()));
    let ignored_claims = found(AddressClaims::Bounded, claim());
    assert!(
        ignored_claims.len() == 1
            && ignored_claims[0].ends_with("10.0.0.50 is the address of another endpoint, which its status confirms"),
        "{ignored_claims:?}"
    );
    assert!(found(AddressClaims::Any, claim()).is_empty());
}

#[test]
fn both_endpoints_of_a_contest_are_reported() {
    let ignored_claims = found(AddressClaims::Bounded, pod("dev/a", "cali2", AddressSource::Platform));
    let of = |name: &str| {
        ignored_claims.iter().any(|text| {
            text.contains("address 10.0.0.50 is also claimed by") && text.ends_with(&format!("{name}; denied"))
        })
    };
    assert!(ignored_claims.len() == 2 && of("prod/db") && of("dev/a"), "{ignored_claims:?}");
}

/// Returns a policy that allows all ingress of all endpoints.
fn open() -> Update {
    let policy = Policy { inbound: [Rule::new(RuleAction::Allow)].into(), ..Policy::default() };
    let id = PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", "open");
    Update::Policy(id, Some(Valid::new(policy).unwrap()))
}

/// Returns the plan of changes beside `prod/db` of node n1, which has interface `cali1` and an
/// address.
fn beside_db(change: Vec<Update>) -> Plan {
    let options = Options::new(GraphConfig::new("any".into()), Settings::default());
    plan(vec![open(), pod("prod/db", "cali1", AddressSource::Platform)], change, &options).unwrap()
}

#[test]
fn endpoints_of_different_nodes_do_not_contest() {
    for interface in ["cali1", "cali2"] {
        let plan = beside_db(vec![pod_on("n2", "dev/a", interface, AddressSource::Platform)]);
        assert_eq!(ignored(&plan), [""; 0], "{interface}");
        assert!(plan.connections.is_empty(), "{:?}", plan.connections);
        let plan = beside_db(vec![pod_on("n1", "dev/a", interface, AddressSource::Platform)]);
        assert_eq!(ignored(&plan).len(), 2, "{interface}");
        assert!(plan.connections.iter().all(|found| !found.packets.opens) && !plan.connections.is_empty());
    }
}

#[test]
fn a_contest_begins_and_ends_with_the_node_of_the_endpoints() {
    let on = |host| pod_on(host, "dev/a", "cali1", AddressSource::Platform);
    let other = || pod_on("n2", "dev/b", "cali1", AddressSource::Platform);
    let options = Options::new(GraphConfig::new("any".into()), Settings::default());
    let db = || pod("prod/db", "cali1", AddressSource::Platform);
    let gone = |update: &Update| Update::delete(update.key());
    // The endpoint moves to the node of prod/db, and back.
    let moved = plan(vec![open(), db(), on("n2")], vec![gone(&on("n2")), on("n1")], &options).unwrap();
    assert!(ignored(&moved).len() == 2 && moved.connections.iter().all(|found| !found.packets.opens), "{moved:?}");
    assert!(!moved.connections.is_empty());
    let moved = plan(vec![open(), db(), on("n1")], vec![gone(&on("n1")), on("n2")], &options).unwrap();
    assert!(ignored(&moved).is_empty() && moved.connections.iter().all(|found| found.packets.opens), "{moved:?}");
    assert!(!moved.connections.is_empty());
    // A rival on the other node does not affect prod/db.
    let plan = plan(vec![open(), db(), on("n2")], vec![other()], &options).unwrap();
    let ignored_claims = ignored(&plan);
    assert!(
        ignored_claims.len() == 2 && ignored_claims.iter().all(|text| !text.contains("prod/db")),
        "{ignored_claims:?}"
    );
    let touched =
        |found: &tortie_analysis::plan::Connections| found.to.workloads.iter().any(|name| &**name == "prod/db");
    assert!(plan.connections.iter().filter(|found| touched(found)).all(|found| !found.from.workloads.is_empty()));
}

#[test]
fn a_claim_outside_the_networks_of_its_node_has_no_connections() {
    let networks = |node: &str, network: &str| {
        let node_object = Node { pod_networks: [network.parse().unwrap()].into(), ..Node::default() };
        Update::Node(node.into(), Some(Valid::new(node_object).unwrap()))
    };
    let nodes = || vec![networks("n1", "10.0.0.0/24"), networks("n2", "10.0.1.0/24")];
    let options = Options::new(GraphConfig::new("any".into()), Settings::default());
    let claims = |host, address: &str| {
        let source = AddressSource::Annotation("cni.projectcalico.org/podIP".into());
        with_address(pod_on(host, "dev/a", "cali9", source), address)
    };
    let is_of_claim = |found: &tortie_analysis::plan::Connections| {
        found.from.workloads.iter().chain(&*found.to.workloads).any(|name| &**name == "dev/a")
    };
    for (host, address, counts) in
        [("n1", "10.0.0.9/32", true), ("n1", "10.0.1.9/32", false), ("n2", "10.0.1.9/32", true)]
    {
        let db = pod("prod/db", "cali1", AddressSource::Platform);
        let before = [nodes(), vec![open(), db, claims(host, address)]].concat();
        // With default deny, each endpoint that has an address loses its connections.
        let plan = plan(before, vec![Update::delete(open().key())], &options).unwrap();
        let is_cut = plan.connections.iter().any(is_of_claim);
        assert_eq!(is_cut, counts, "{host} {address}: {:?}", plan.connections);
    }
}

fn with_address(update: Update, address: &str) -> Update {
    let Update::WorkloadEndpoint(key, Some(endpoint)) = update else { panic!("not an endpoint: {update:?}") };
    let endpoint =
        WorkloadEndpoint { ipv4_nets: [address.parse().unwrap()].into(), ..WorkloadEndpoint::clone(&endpoint) };
    Update::WorkloadEndpoint(key, Some(Valid::new(endpoint).unwrap()))
}
