//! Desired state of the policy, in the direction of its test runs: egress of a host endpoint or of
//! a workload.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tortie_model::desired::{
    DesiredUpdate, HostEndpointState, IpSetType, IpSetUpdate, Members, Policy as DesiredPolicy, RuleSets, Rules,
    TierPolicies, WorkloadEndpointState,
};
use tortie_model::{
    Cidr, Family, HostEndpoint, HostInterface, InterfaceName, PolicyId, PolicyKind, PortSpec, Protocol, Rule,
    RuleAction, TierName, WorkloadEndpoint, WorkloadEndpointId,
};

use crate::policy::{Peers, Policy};
use crate::test_run::PacketPath;

/// Maps an address to a family. With subnets, IPv4 addresses that differ in the last byte only
/// share an IPv6 subnet.
pub(crate) fn address(peers: Peers, family: Family, address: Ipv4Addr) -> IpAddr {
    let shift = if peers == Peers::Subnets { 56 } else { 0 };
    match family {
        Family::V4 => address.into(),
        Family::V6 => Ipv6Addr::from_bits(0xfd00 << 112 | u128::from(address.to_bits()) << shift).into(),
    }
}

/// Port that the last rule allows after the first edit; no rule allows it before.
const EDITED_PORT: u16 = 50_000;

/// Returns all updates.
pub(crate) fn of(policy: Policy, family: Family, path: PacketPath) -> Vec<DesiredUpdate> {
    let mut updates = Vec::new();
    if policy.peers == Peers::Sets {
        updates.extend((0..policy.rules).map(|rule| {
            let members = Members::Nets(
                policy.members(rule).map(|member| Cidr::host(address(policy.peers, family, member))).collect(),
            );
            DesiredUpdate::IpSet(IpSetUpdate { id: set(rule).as_str().into(), set_type: IpSetType::Net, members })
        }));
    }
    updates.push(with_port_of_last(policy, family, policy.admitted(policy.rules - 1).1));
    let tier = TierPolicies {
        name: TierName::default_tier(),
        default_action: None,
        ingress: if path == PacketPath::Forward { [id()].into() } else { [].into() },
        egress: [id()].into(),
    };
    const LOOPBACK: InterfaceName = InterfaceName::from_static("lo");
    let tiers = [tier].into();
    updates.push(match path {
        PacketPath::Output => {
            let endpoint =
                HostEndpoint { iface: Some(HostInterface::Named(LOOPBACK)), ..HostEndpoint::default() }.into();
            let state = HostEndpointState { endpoint, tiers, ..HostEndpointState::default() };
            DesiredUpdate::HostEndpoint("bench".into(), state)
        }
        PacketPath::Input | PacketPath::Forward => {
            let id = WorkloadEndpointId {
                orchestrator: "k8s".into(),
                workload: "bench/server".into(),
                endpoint: "eth0".into(),
            };
            let endpoint = WorkloadEndpoint { iface: Some(LOOPBACK), ..WorkloadEndpoint::default() }.into();
            let state = WorkloadEndpointState { endpoint, tiers, ..WorkloadEndpointState::default() };
            DesiredUpdate::WorkloadEndpoint(id, state)
        }
    });
    updates.push(DesiredUpdate::InSync);
    updates
}

/// Returns the policy after this many edits.
pub(crate) fn edited(policy: Policy, family: Family, edits: u16) -> DesiredUpdate {
    with_port_of_last(policy, family, EDITED_PORT + edits)
}

fn with_port_of_last(policy: Policy, family: Family, last: u16) -> DesiredUpdate {
    let (mut rules, mut sets) = (Vec::new(), Vec::new());
    for number in 0..policy.rules {
        let (admitted, port) = policy.admitted(number);
        let mut rule = Rule { protocol: Some(Protocol::UDP), ..Rule::new(RuleAction::Allow) };
        let mut of_rule = RuleSets::default();
        match policy.peers {
            Peers::Networks | Peers::Subnets => {
                let bits = match family {
                    Family::V4 => policy.prefix(),
                    Family::V6 if policy.peers == Peers::Subnets => 64,
                    Family::V6 => 128,
                };
                let net = Cidr::new(address(policy.peers, family, admitted), bits);
                rule.destination.nets = net.map(Cidr::masked).into_iter().collect();
            }
            Peers::Sets | Peers::SetsOnePort | Peers::SetsPortRange => {
                of_rule.dst = [set(number).as_str().into()].into_iter().collect();
            }
        }
        let port = if number + 1 == policy.rules { last } else { port };
        rule.destination.ports = [PortSpec::single(port)].into();
        rules.push(rule);
        sets.push(of_rule);
    }
    let outbound = Rules::new(rules.into(), sets.into()).expect("rules have their sets");
    // The receiving workload accepts all ingress.
    let any = Rule::new(RuleAction::Allow);
    let inbound = Rules::new([any].into(), [RuleSets::default()].into()).expect("no set is needed");
    DesiredUpdate::Policy(id(), desired(inbound, outbound).into())
}

fn desired(inbound: Rules, outbound: Rules) -> DesiredPolicy {
    DesiredPolicy { source: std::sync::Arc::default(), selector: "all()".into(), inbound, outbound }
}

fn id() -> PolicyId {
    PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", "many-rules")
}

fn set(rule: u16) -> String {
    format!("s:{rule}")
}
