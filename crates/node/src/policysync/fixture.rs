//! Updates of an engine, for tests.

use std::sync::Arc;

use tortie_model::desired::{
    DesiredUpdate, IpSetDelta, IpSetType, IpSetUpdate, Members, Policy, Profile, RuleSets, Rules, TierPolicies,
    WorkloadEndpointState,
};
use tortie_model::{
    Cidr, IpSetId, Labels, NamespacedName, PolicyId, PolicyKind, ProfileName, Rule, RuleAction, TierName,
    WorkloadEndpoint, WorkloadEndpointId,
};

pub(super) fn pod(name: &str) -> WorkloadEndpointId {
    WorkloadEndpointId { orchestrator: "k8s".into(), workload: format!("shop/{name}").into(), endpoint: "eth0".into() }
}

pub(super) fn policy_id(name: &str) -> PolicyId {
    PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", name)
}

pub(super) fn nets(numbers: impl IntoIterator<Item = u32>) -> Members {
    let mut nets: Vec<Cidr> =
        numbers.into_iter().map(|number| Cidr::host(std::net::Ipv4Addr::from(0x0a00_0000 + number).into())).collect();
    nets.sort_unstable();
    Members::Nets(nets)
}

pub(super) fn set(id: &str, members: impl IntoIterator<Item = u32>) -> DesiredUpdate {
    DesiredUpdate::IpSet(IpSetUpdate { id: IpSetId::new(id), set_type: IpSetType::Net, members: nets(members) })
}

pub(super) fn delta(
    id: &str,
    added: impl IntoIterator<Item = u32>,
    removed: impl IntoIterator<Item = u32>,
) -> DesiredUpdate {
    DesiredUpdate::IpSetDelta(IpSetDelta { id: IpSetId::new(id), added: nets(added), removed: nets(removed) })
}

/// One rule for each set, from which packets come, with this action.
fn rules(sets: &[&str], action: RuleAction) -> Rules {
    let rules = vec![Rule::new(action); sets.len()];
    let refer = |id: &&str| RuleSets { src: [IpSetId::new(*id)].into_iter().collect(), ..RuleSets::default() };
    Rules::new(rules.into(), sets.iter().map(refer).collect()).unwrap()
}

pub(super) fn policy_value(sets: &[&str], action: RuleAction) -> Policy {
    let (inbound, outbound) = (rules(sets, action), Rules::default());
    Policy { source: Arc::default(), selector: "all()".into(), inbound, outbound }
}

pub(super) fn policy(name: &str, sets: &[&str], action: RuleAction) -> DesiredUpdate {
    DesiredUpdate::Policy(policy_id(name), policy_value(sets, action).into())
}

pub(super) fn profile(name: &str, sets: &[&str]) -> DesiredUpdate {
    let (inbound, outbound) = (Rules::default(), rules(sets, RuleAction::Allow));
    DesiredUpdate::Profile(ProfileName::new(name), Profile { inbound, outbound }.into())
}

pub(super) fn endpoint(name: &str, policies: &[&str], profiles: &[&str]) -> DesiredUpdate {
    let tier = TierPolicies {
        name: TierName::default_tier(),
        default_action: None,
        ingress: policies.iter().map(|name| policy_id(name)).collect(),
        egress: policies.iter().take(1).map(|name| policy_id(name)).collect(),
    };
    let profiles = profiles.iter().map(|name| ProfileName::new(*name)).collect();
    let endpoint = WorkloadEndpoint { profiles, ..WorkloadEndpoint::default() };
    let state = WorkloadEndpointState { endpoint: endpoint.into(), tiers: [tier].into(), computed: None };
    DesiredUpdate::WorkloadEndpoint(pod(name), state)
}

fn labels(value: &str) -> Labels {
    Labels::from_pairs([("app", value)]).unwrap()
}

pub(super) fn service_account(name: &str, label: &str) -> DesiredUpdate {
    DesiredUpdate::ServiceAccount(NamespacedName::new("shop", name), labels(label))
}

pub(super) fn namespace(name: &str, label: &str) -> DesiredUpdate {
    DesiredUpdate::Namespace(name.into(), labels(label))
}
