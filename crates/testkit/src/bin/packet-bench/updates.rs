//! The policy as what a node is told: for a host endpoint, in the direction of its test runs.

use tortie_model::desired::{
    DesiredUpdate, HostEndpointState, IpSetType, IpSetUpdate, Members, Policy as DesiredPolicy, RuleSets, Rules,
    TierPolicies,
};
use tortie_model::{Cidr, HostEndpoint, PolicyId, PolicyKind, PortSpec, Protocol, Rule, RuleAction, TierName};

use crate::policy::{Peers, Policy};

/// The port that the last rule admits after the first edit; no rule had it before.
const EDITED_PORT: u16 = 50_000;

/// All of it.
pub(crate) fn of(policy: Policy) -> Vec<DesiredUpdate> {
    let mut updates = Vec::new();
    if policy.peers == Peers::Sets {
        updates.extend((0..policy.rules).map(|rule| {
            let members = Members::Nets(policy.members(rule).map(|member| Cidr::host(member.into())).collect());
            DesiredUpdate::IpSet(IpSetUpdate { id: set(rule).as_str().into(), set_type: IpSetType::Net, members })
        }));
    }
    updates.push(with_port_of_last(policy, policy.admitted(policy.rules - 1).1));
    let tier = TierPolicies {
        name: TierName::default_tier(),
        default_action: None,
        ingress: [].into(),
        egress: [id()].into(),
    };
    let endpoint = HostEndpoint { iface: Some("lo".into()), ..HostEndpoint::default() };
    let state = HostEndpointState { endpoint: endpoint.into(), tiers: [tier].into(), ..HostEndpointState::default() };
    updates.extend([DesiredUpdate::HostEndpoint("bench".into(), state), DesiredUpdate::InSync]);
    updates
}

/// The policy after so many edits.
pub(crate) fn edited(policy: Policy, edits: u16) -> DesiredUpdate {
    with_port_of_last(policy, EDITED_PORT + edits)
}

fn with_port_of_last(policy: Policy, last: u16) -> DesiredUpdate {
    let (mut rules, mut sets) = (Vec::new(), Vec::new());
    for number in 0..policy.rules {
        let (address, port) = policy.admitted(number);
        let mut rule = Rule { action: RuleAction::Allow, protocol: Some(Protocol::UDP), ..Rule::default() };
        let mut of_rule = RuleSets::default();
        match policy.peers {
            Peers::Networks => rule.destination.nets = [Cidr::host(address.into())].into_iter().collect(),
            Peers::Sets => of_rule.dst = [set(number).as_str().into()].into_iter().collect(),
        }
        let port = if number + 1 == policy.rules { last } else { port };
        rule.destination.ports = [PortSpec::single(port)].into();
        rules.push(rule);
        sets.push(of_rule);
    }
    let outbound = Rules::new(rules.into(), sets.into()).unwrap_or_default();
    let policy = DesiredPolicy {
        source: std::sync::Arc::default(),
        selector: "all()".into(),
        inbound: Rules::default(),
        outbound,
    };
    DesiredUpdate::Policy(id(), policy.into())
}

fn id() -> PolicyId {
    PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", "many-rules")
}

fn set(rule: u16) -> String {
    format!("s:{rule}")
}
