//! Policies and tiers that eBPF programs enforce in part: packets that are to be rejected are
//! dropped without an answer, and rules by domain name are left out.

use std::collections::{BTreeMap, BTreeSet};

use tortie_dataplane::ProgramProblem;
use tortie_model::desired::{DesiredUpdate, TierPolicies};
use tortie_model::{
    DenyAction, HostEndpointName, Policy, PolicyId, RuleAction, TierDefaultAction, TierName, WorkloadEndpointId,
};

/// Objects of the desired state that reject packets or name domains; at most one entry of each
/// kind for each policy and endpoint.
#[derive(Debug, Default)]
pub(super) struct Reduced {
    rejecting: BTreeSet<PolicyId>,
    by_domain: BTreeSet<PolicyId>,
    /// Rejecting tiers of each endpoint that has some.
    workloads: BTreeMap<WorkloadEndpointId, BTreeSet<TierName>>,
    hosts: BTreeMap<HostEndpointName, BTreeSet<TierName>>,
}

impl Reduced {
    pub(super) fn on_update(&mut self, update: &DesiredUpdate) {
        match update {
            DesiredUpdate::Policy(id, policy) => {
                note_if(&mut self.rejecting, id, is_rejecting(id, &policy.source));
                note_if(&mut self.by_domain, id, is_by_domain(id, policy));
            }
            DesiredUpdate::PolicyRemove(id) => {
                self.rejecting.remove(id);
                self.by_domain.remove(id);
            }
            DesiredUpdate::WorkloadEndpoint(id, state) => {
                note(&mut self.workloads, id, rejecting(&[&state.tiers]));
            }
            DesiredUpdate::WorkloadEndpointRemove(id) => {
                self.workloads.remove(id);
            }
            DesiredUpdate::HostEndpoint(name, state) => {
                note(&mut self.hosts, name, rejecting(&[&state.tiers, &state.forward_tiers]));
            }
            DesiredUpdate::HostEndpointRemove(name) => {
                self.hosts.remove(name);
            }
            _ => {}
        }
    }

    /// Returns a problem of each kind, which names one of the objects and the number of the others.
    pub(super) fn problems(&self) -> impl Iterator<Item = ProgramProblem> {
        let tiers: BTreeSet<&TierName> = self.workloads.values().chain(self.hosts.values()).flatten().collect();
        let tiers = tiers.iter().map(|tier| format!("tier {tier}"));
        let policies = |ids: &BTreeSet<PolicyId>| ids.iter().map(|id| format!("policy {id}")).collect::<Vec<_>>();
        let dropped = "eBPF programs drop packets without an answer that are to be rejected";
        let rejecting = named(DenyAction::ANNOTATION, dropped, tiers.chain(policies(&self.rejecting)));
        let left_out = "eBPF programs leave out rules by domain name, which allow nothing";
        let by_domain = named("domains", left_out, policies(&self.by_domain).into_iter());
        rejecting.into_iter().chain(by_domain)
    }
}

fn named(object: &str, why: &str, mut names: impl Iterator<Item = String>) -> Option<ProgramProblem> {
    let first = names.next()?;
    let others = match names.count() {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    Some(ProgramProblem { object: object.to_owned(), why: format!("{why}: {first}{others}"), is_degraded: false })
}

fn note_if(all: &mut BTreeSet<PolicyId>, id: &PolicyId, is_one: bool) {
    if is_one {
        all.insert(id.clone());
    } else {
        all.remove(id);
    }
}

fn is_by_domain(id: &PolicyId, policy: &tortie_model::desired::Policy) -> bool {
    !id.kind.is_staged() && policy.outbound.iter().any(|rule| !rule.sets.dst_domains.is_empty())
}

fn is_rejecting(id: &PolicyId, policy: &Policy) -> bool {
    let mut rules = policy.inbound.iter().chain(&*policy.outbound);
    policy.deny_action == Some(DenyAction::Reject)
        && !id.kind.is_staged()
        && rules.any(|rule| rule.action == RuleAction::Deny)
}

fn note<K: Ord + Clone>(all: &mut BTreeMap<K, BTreeSet<TierName>>, key: &K, tiers: BTreeSet<TierName>) {
    if tiers.is_empty() {
        all.remove(key);
    } else {
        all.insert(key.clone(), tiers);
    }
}

fn rejecting(lists: &[&[TierPolicies]]) -> BTreeSet<TierName> {
    let rejects = Some(TierDefaultAction::DenyWith(DenyAction::Reject));
    lists
        .iter()
        .copied()
        .flatten()
        .filter(|tier| tier.default_action == rejects)
        .map(|tier| tier.name.clone())
        .collect()
}

#[cfg(test)]
mod tests {
    use tortie_model::desired::{HostEndpointState, Policy, RuleSets, Rules, WorkloadEndpointState};
    use tortie_model::{PolicyKind, Rule, TierDefaultAction};

    use super::*;

    fn policy(name: &str, deny_action: Option<DenyAction>) -> DesiredUpdate {
        let source = tortie_model::Policy { deny_action, ..tortie_model::Policy::default() };
        let inbound = [Rule::new(RuleAction::Deny)].into();
        let source = tortie_model::Policy { inbound, ..source };
        let (inbound, outbound) = (Rules::default(), Rules::default());
        let policy = Policy { source: source.into(), selector: "all()".into(), inbound, outbound };
        DesiredUpdate::Policy(PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", name), policy.into())
    }

    fn tier(action: DenyAction) -> TierPolicies {
        let default_action = Some(TierDefaultAction::DenyWith(action));
        TierPolicies { name: "late".into(), default_action, ingress: [].into(), egress: [].into() }
    }

    #[test]
    fn objects_are_named_as_long_as_they_reject() {
        let mut reduced = Reduced::default();
        let mut after = |update: DesiredUpdate| {
            reduced.on_update(&update);
            reduced.problems().next().map(|problem| {
                assert!(!problem.is_degraded);
                problem.why.split_once(": ").unwrap().1.to_owned()
            })
        };
        assert_eq!(after(policy("a", None)), None);
        assert_eq!(after(policy("a", Some(DenyAction::Drop))), None);
        assert_eq!(after(policy("a", Some(DenyAction::Reject))).unwrap(), "policy GlobalNetworkPolicy/a");
        assert_eq!(after(policy("b", Some(DenyAction::Reject))).unwrap(), "policy GlobalNetworkPolicy/a and 1 more");

        let id = WorkloadEndpointId { orchestrator: "k8s".into(), workload: "w".into(), endpoint: "eth0".into() };
        let state = |action| WorkloadEndpointState { tiers: [tier(action)].into(), ..Default::default() };
        let workload = |action| DesiredUpdate::WorkloadEndpoint(id.clone(), state(action));
        let named = "tier late and 2 more";
        assert_eq!(after(workload(DenyAction::Reject)).unwrap(), named);
        let forward_tiers = [tier(DenyAction::Reject)].into();
        let host = HostEndpointState { forward_tiers, ..HostEndpointState::default() };
        assert_eq!(after(DesiredUpdate::HostEndpoint("eth".into(), host)).unwrap(), named, "one tier");
        after(workload(DenyAction::Drop));
        after(policy("b", None));
        assert_eq!(after(DesiredUpdate::WorkloadEndpointRemove(id.clone())).unwrap(), "tier late and 1 more");
        after(DesiredUpdate::HostEndpointRemove("eth".into()));
        let removed = DesiredUpdate::PolicyRemove(PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", "a"));
        assert_eq!(after(removed), None);
    }

    #[test]
    fn policies_by_domain_are_named_as_long_as_they_have_such_rules() {
        let by_domain = |kind, sets: RuleSets| {
            let outbound = Rules::new([Rule::new(RuleAction::Allow)].into(), [sets].into()).unwrap();
            let (source, inbound) = (tortie_model::Policy::default().into(), Rules::default());
            let policy = Policy { source, selector: "all()".into(), inbound, outbound };
            DesiredUpdate::Policy(PolicyId::new(kind, "", "a"), policy.into())
        };
        let names = || RuleSets { dst_domains: ["d:x".into()].into_iter().collect(), ..RuleSets::default() };
        let mut reduced = Reduced::default();
        let mut after = |update: DesiredUpdate| {
            reduced.on_update(&update);
            reduced.problems().map(|problem| problem.why.split_once(": ").unwrap().1.to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(after(by_domain(PolicyKind::StagedGlobalNetworkPolicy, names())), [""; 0]);
        let policy = || PolicyKind::GlobalNetworkPolicy;
        assert_eq!(after(by_domain(policy(), names())), ["policy GlobalNetworkPolicy/a"]);
        assert_eq!(after(by_domain(policy(), RuleSets::default())), [""; 0]);
        after(by_domain(policy(), names()));
        assert_eq!(after(DesiredUpdate::PolicyRemove(PolicyId::new(policy(), "", "a"))), [""; 0]);
    }
}
