//! Policy of a node, as text.
#![allow(clippy::unwrap_used, reason = "a failed conversion fails the test")]

use std::sync::Arc;

use tortie_ebpf::classes::evaluate::{DecidedBy, Layer, Packet, Verdict};
use tortie_ebpf::{Description, EndpointName, NodeSettings};
use tortie_model::desired::{
    DesiredUpdate, HostEndpointState, Policy, RuleSets, Rules, TierPolicies, WorkloadEndpointState,
};
use tortie_model::{
    Cidr, Direction, HostEndpoint, HostEndpointName, PolicyId, PolicyKind, PortSpec, Protocol, Rule, RuleAction,
    TierName, WorkloadEndpoint, WorkloadEndpointId,
};

/// A rule matches IPv4 addresses, so that IPv6 addresses have a separate row at this end.
const GROUP: &str = "\
group 1: ingress of workload endpoint k8s/shop/web/eth0
  own rows
    1: all IPv4 addresses
    2: all IPv6 addresses
  rows
    1: class 2
    2: all other addresses
  columns
    1: TCP 0-79, TCP 81-65535
    2: TCP 80
    3: everything but TCP
  source ports
    1: 53
    2: none, 0-52, 54-65535
  cells
    own row 1, row 1, column 1, source ports 1: deny: NetworkPolicy/shop/web rule 1
    own row 1, row 1, column 1-2, source ports 2: deny: NetworkPolicy/shop/web rule 1
    own row 1, row 1, column 2, source ports 1: allow: NetworkPolicy/shop/web rule 0
    own row 1, row 1, column 3, source ports 1: deny: end of tier default
    own row 1, row 1, column 3, source ports 2: deny: end of tier default
    own row 1, row 2, column 1-2, source ports 1: deny: NetworkPolicy/shop/web rule 1
    own row 1, row 2, column 1-2, source ports 2: deny: NetworkPolicy/shop/web rule 1
    own row 1, row 2, column 3, source ports 1: deny: end of tier default
    own row 1, row 2, column 3, source ports 2: deny: end of tier default
    own row 2, row 1-2, column 1-2, source ports 1: deny: NetworkPolicy/shop/web rule 1
    own row 2, row 1-2, column 1-2, source ports 2: deny: NetworkPolicy/shop/web rule 1
    own row 2, row 1-2, column 3, source ports 1: deny: end of tier default
    own row 2, row 1-2, column 3, source ports 2: deny: end of tier default
";

fn policy_id(name: &str) -> PolicyId {
    PolicyId::new(PolicyKind::NetworkPolicy, "shop", name)
}

/// A policy that allows TCP from a network and from some ports, and denies all other TCP.
fn policy(name: &str) -> DesiredUpdate {
    let of = |action| Rule { protocol: Some(Protocol::TCP), ..Rule::new(action) };
    let mut allow = of(RuleAction::Allow);
    allow.source.nets = [Cidr::new([10, 9, 0, 0].into(), 16).unwrap()].into();
    allow.source.ports = [PortSpec::single(53)].into();
    allow.destination.ports = [PortSpec::single(80)].into();
    let rules = [allow, of(RuleAction::Deny)];
    let inbound = Rules::new(Arc::new(rules), vec![RuleSets::default(); 2].into()).unwrap();
    let policy = Policy { source: Arc::default(), selector: "all()".into(), inbound, outbound: Rules::default() };
    DesiredUpdate::Policy(policy_id(name), policy.into())
}

fn tier(name: &str) -> TierPolicies {
    let ingress = [policy_id(name)].into();
    TierPolicies { name: TierName::default_tier(), default_action: None, ingress, egress: [].into() }
}

fn id(name: &str) -> WorkloadEndpointId {
    WorkloadEndpointId { orchestrator: "k8s".into(), workload: name.into(), endpoint: "eth0".into() }
}

fn workload(name: &str, interface: &str, policy: &str) -> DesiredUpdate {
    let endpoint = WorkloadEndpoint {
        iface: Some(interface.parse().unwrap()),
        ipv4_nets: [Cidr::host([10, 0, 0, 1].into())].into(),
        ..WorkloadEndpoint::default()
    };
    let state = WorkloadEndpointState { endpoint: endpoint.into(), tiers: [tier(policy)].into(), computed: None };
    DesiredUpdate::WorkloadEndpoint(id(name), state)
}

fn host(name: &str, interface: &str) -> DesiredUpdate {
    let endpoint = HostEndpoint { iface: Some(interface.parse().unwrap()), ..HostEndpoint::default() };
    let tiers: Arc<[TierPolicies]> = [tier("web")].into();
    let state = HostEndpointState {
        endpoint: endpoint.into(),
        untracked_tiers: tiers.clone(),
        tiers,
        ..HostEndpointState::default()
    };
    DesiredUpdate::HostEndpoint(HostEndpointName::new(name), state)
}

fn described(updates: &[DesiredUpdate]) -> Description {
    Description::new(&NodeSettings::default(), updates).unwrap()
}

#[test]
fn cells_are_described_by_rows_columns_and_source_ports() {
    let text = described(&[policy("web"), workload("shop/web", "cali1", "web")]).to_string();
    let group = text.split("\n\n").find(|part| part.starts_with("group 1: ingress")).unwrap();
    assert_eq!(format!("{group}\n"), GROUP);
    assert!(text.contains("\n  2: 10.9.0.0/16\n"), "{text}");
}

#[test]
fn closed_groups_and_endpoints_without_interface_are_described() {
    let text = described(&[
        policy("web"),
        workload("shop/lost", "cali1", "missing"),
        workload("shop/other", "eth7", "web"),
        host("all", "*"),
        host("up", "eth0"),
    ])
    .to_string();
    let closed = "group 1: ingress of workload endpoint k8s/shop/lost/eth0\n  everything is denied: ";
    assert!(text.contains(closed), "{text}");
    // An interface without a workload prefix is a host interface.
    assert!(text.contains("\n  none: workload endpoint k8s/shop/other/eth0\n"), "{text}");
    let of = |interface: &str| {
        let begin = text.split(&format!("\n  {interface}: host endpoint ")).nth(1).unwrap_or_else(|| panic!("{text}"));
        begin.lines().skip(1).take_while(|line| line.starts_with("    ")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(of("eth0").iter().filter(|line| line.contains("untracked")).count(), 2, "{text}");
    assert!(of("all others").iter().all(|line| !line.contains("untracked")), "{text}");
}

#[test]
fn a_packet_is_located_where_its_answer_is() {
    let mut described = described(&[policy("web"), workload("shop/web", "cali1", "web")]);
    let endpoint = EndpointName::Workload(id("shop/web"));
    let mut locate = |source: [u8; 4], from: u16| {
        let packet = Packet::tcp((source.into(), from), ([10, 0, 0, 1].into(), 80)).unwrap();
        described.locate(&endpoint, Layer::Normal, Direction::Ingress, &packet)
    };
    let found = locate([10, 9, 8, 7], 53).unwrap();
    let rule = |index| DecidedBy::PolicyRule { tier: TierName::default_tier(), policy: policy_id("web"), index };
    assert_eq!((found.verdict, found.decided_by), (Verdict::Allow, rule(0)));
    assert_eq!((found.group.number, found.row.number, found.column.number), (1, 1, 2));
    assert_eq!((found.peer_class.number, &*found.peer_class.text), (2, "10.9.0.0/16"));
    assert_eq!(found.source_port.unwrap().text, "53");
    assert_eq!(found.own_row.unwrap().text, "all IPv4 addresses");
    let found = locate([10, 8, 8, 7], 53).unwrap();
    assert_eq!((found.verdict, found.decided_by, found.row.number), (Verdict::Deny, rule(1), 2));
    let nobody = EndpointName::Workload(id("shop/nobody"));
    let packet = Packet::tcp(([10, 9, 8, 7].into(), 53), ([10, 0, 0, 1].into(), 80)).unwrap();
    assert!(described.locate(&nobody, Layer::Normal, Direction::Ingress, &packet).is_none());
}
