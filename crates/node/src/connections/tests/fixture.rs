//! A node with two workloads for tests: `10.0.0.1`, which may do anything, and `10.0.0.2`, which is
//! reached by TCP 8080.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use tortie_evaluate::{Evaluator, FailsafePort, Settings};
use tortie_linux::netlink::{Connection, Flow, Tuple};
use tortie_model::desired::{
    DesiredUpdate, HostEndpointState, Policy, Profile, RuleSets, Rules, TierList, TierPolicies, WorkloadEndpointState,
};
use tortie_model::{
    Cidr, EntityMatch, HostEndpoint, PolicyId, PolicyKind, PortSpec, ProfileName, Protocol, Rule, RuleAction, TierName,
    WorkloadEndpoint, WorkloadEndpointId,
};

use crate::connections::evaluation::NodeAddresses;
use crate::connections::worker::CutterMessage;

pub(in crate::connections) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn rules(rules: Vec<Rule>) -> Rules {
    let sets = vec![RuleSets::default(); rules.len()];
    Rules::new(rules.into(), sets.into()).unwrap()
}

fn allow_tcp(port: u16) -> Rule {
    Rule {
        protocol: Some(Protocol::TCP),
        destination: EntityMatch { ports: [PortSpec::single(port)].into(), ..EntityMatch::default() },
        ..Rule::new(RuleAction::Allow)
    }
}

/// A policy that allows connections to TCP ports, in and out.
pub(in crate::connections) fn policy(name: &str, ports: &[u16]) -> DesiredUpdate {
    let all = || rules(ports.iter().copied().map(allow_tcp).collect());
    let policy = Policy { source: Arc::default(), selector: "all()".into(), inbound: all(), outbound: all() };
    DesiredUpdate::Policy(policy_id(name), policy.into())
}

/// A policy that allows outgoing TCP connections to a port of addresses with names of the set
/// `d:x`, or at members of `dst` as well.
pub(in crate::connections) fn policy_by_name(name: &str, port: u16, dst: &[&str]) -> DesiredUpdate {
    let ids = |ids: &[&str]| ids.iter().map(|id| (*id).into()).collect();
    let sets = RuleSets { dst: ids(dst), dst_domains: ids(&["d:x"]), ..RuleSets::default() };
    let outbound = Rules::new([allow_tcp(port)].into(), [sets].into()).unwrap();
    let policy = Policy { source: Arc::default(), selector: "all()".into(), inbound: Rules::default(), outbound };
    DesiredUpdate::Policy(policy_id(name), policy.into())
}

fn policy_id(name: &str) -> PolicyId {
    PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", name)
}

pub(in crate::connections) fn tier(ingress: &[&str], egress: &[&str]) -> TierList {
    let ids = |names: &[&str]| names.iter().map(|name| policy_id(name)).collect();
    let tier = TierPolicies {
        name: TierName::default_tier(),
        default_action: None,
        ingress: ids(ingress),
        egress: ids(egress),
    };
    [tier].into()
}

pub(in crate::connections) fn workload(name: &str, address: &str, tiers: TierList) -> DesiredUpdate {
    let id = WorkloadEndpointId { orchestrator: "k8s".into(), workload: name.into(), endpoint: "eth0".into() };
    let endpoint = WorkloadEndpoint {
        ipv4_nets: [Cidr::host(ip(address))].into_iter().collect(),
        profiles: [ProfileName::new("open")].into(),
        ..WorkloadEndpoint::default()
    };
    let state = WorkloadEndpointState { endpoint: endpoint.into(), tiers, computed: None };
    DesiredUpdate::WorkloadEndpoint(id, state)
}

/// A host endpoint with the policies `host` (traffic of the host), `forward` (forwarded traffic),
/// and `pre-dnat` (incoming traffic).
pub(in crate::connections) fn host_endpoint(interface: &str) -> DesiredUpdate {
    let state = HostEndpointState {
        endpoint: HostEndpoint { iface: Some(interface.parse().unwrap()), ..HostEndpoint::default() }.into(),
        tiers: tier(&["host"], &["host"]),
        forward_tiers: tier(&["forward"], &["forward"]),
        ..HostEndpointState::default()
    };
    DesiredUpdate::HostEndpoint(format!("hep-{interface}").as_str().into(), state)
}

/// Updates that describe the node: `10.0.0.1`, open, and `10.0.0.2`, with the ingress policy
/// `server`.
pub(in crate::connections) fn updates() -> Vec<DesiredUpdate> {
    let open = || rules(vec![Rule::new(RuleAction::Allow)]);
    let profile = Profile { inbound: open(), outbound: open() };
    vec![
        DesiredUpdate::Profile(ProfileName::new("open"), profile.into()),
        policy("server", &[8080]),
        workload("shop/client", "10.0.0.1", [].into()),
        workload("shop/server", "10.0.0.2", tier(&["server"], &[])),
    ]
}

pub(in crate::connections) fn evaluator(updates: &[DesiredUpdate]) -> Evaluator {
    let ssh = FailsafePort { protocol: Protocol::TCP, port: 22, net: None };
    let mut evaluator = Evaluator::new(Settings { failsafe_inbound: vec![ssh], ..Settings::default() });
    updates.iter().for_each(|update| evaluator.apply(update).unwrap());
    evaluator
}

/// That the node is as [`updates`] make it, but for this change.
pub(in crate::connections) fn desired(change: DesiredUpdate) -> CutterMessage {
    CutterMessage::Desired(Box::new(evaluator(&[updates(), vec![change]].concat()).state().clone()))
}

/// The node has `192.0.2.1` on `eth0` and `198.51.100.1` on `eth1`.
pub(in crate::connections) fn node_addresses() -> NodeAddresses {
    let at = |name: &str, address| (name.parse().unwrap(), BTreeSet::from([ip(address)]));
    let addresses = [at("lo", "127.0.0.1"), at("eth0", "192.0.2.1"), at("eth1", "198.51.100.1")];
    NodeAddresses { addresses: BTreeMap::from(addresses), ..NodeAddresses::default() }
}

/// A TCP connection without NAT.
pub(in crate::connections) fn tcp(source: &str, destination: (&str, u16)) -> Connection {
    translated(source, destination, destination)
}

/// A TCP connection to an address, answered by another.
pub(in crate::connections) fn translated(source: &str, to: (&str, u16), answers: (&str, u16)) -> Connection {
    let tuple = |source: (IpAddr, u16), destination: (IpAddr, u16)| Tuple {
        source: source.0,
        destination: destination.0,
        protocol: 6,
        flow: Flow::Ports { source: source.1, destination: destination.1 },
    };
    let client = (ip(source), 40_000);
    Connection {
        original: tuple(client, (ip(to.0), to.1)),
        reply: tuple((ip(answers.0), answers.1), client),
        id: 7,
        zone: 0,
    }
}
