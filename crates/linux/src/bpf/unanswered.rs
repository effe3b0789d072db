//! Policies and tiers that reject packets, which eBPF programs drop without an answer.

use std::collections::{BTreeMap, BTreeSet};

use tortie_dataplane::ProgramProblem;
use tortie_model::desired::{DesiredUpdate, TierPolicies};
use tortie_model::{
    DenyAction, HostEndpointName, Policy, PolicyId, RuleAction, TierDefaultAction, TierName, WorkloadEndpointId,
};

/// Objects of the desired state that reject packets; at most one entry for each policy and
/// endpoint.
#[derive(Debug, Default)]
pub(super) struct Unanswered {
    policies: BTreeSet<PolicyId>,
    /// Rejecting tiers of each endpoint that has some.
    workloads: BTreeMap<WorkloadEndpointId, BTreeSet<TierName>>,
    hosts: BTreeMap<HostEndpointName, BTreeSet<TierName>>,
}

impl Unanswered {
    pub(super) fn on_update(&mut self, update: &DesiredUpdate) {
        match update {
            DesiredUpdate::Policy(id, policy) if is_rejecting(id, &policy.source) => {
                self.policies.insert(id.clone());
            }
            DesiredUpdate::Policy(id, _) | DesiredUpdate::PolicyRemove(id) => {
                self.policies.remove(id);
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

    /// Returns the problem that names one of these objects, and the number of the others.
    pub(super) fn problem(&self) -> Option<ProgramProblem> {
        let tiers: BTreeSet<&TierName> = self.workloads.values().chain(self.hosts.values()).flatten().collect();
        let policies = self.policies.iter().map(|id| format!("policy {id}"));
        let mut names = tiers.iter().map(|tier| format!("tier {tier}")).chain(policies);
        let first = names.next()?;
        let others = match names.count() {
            0 => String::new(),
            count => format!(" and {count} more"),
        };
        Some(ProgramProblem {
            object: DenyAction::ANNOTATION.to_owned(),
            why: format!("eBPF programs drop packets without an answer that are to be rejected: {first}{others}"),
            is_degraded: false,
        })
    }
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
    use tortie_model::desired::{HostEndpointState, Policy, Rules, WorkloadEndpointState};
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
        let mut unanswered = Unanswered::default();
        let mut after = |update: DesiredUpdate| {
            unanswered.on_update(&update);
            unanswered.problem().map(|problem| {
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
}
