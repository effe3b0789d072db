//! Reconstruction of the rules that a packet met before the decision, if only the decision was
//! logged.

use std::sync::Arc;

use tortie_evaluate::{DecidedBy, Explanation, Layer, Packet, RuleOutcome, RuleStep, Step};
use tortie_model::desired::{self, DesiredUpdate, TierPolicies};
use tortie_model::{Direction, ProfileName, RuleAction};
use tortie_rules::PrefixVerdict;

use super::policy_queries::{hit_of, tiers};
use super::{Collector, policies};
use crate::hits::Hit;

const LAYERS: [Layer; 4] = [Layer::Untracked, Layer::PreDnat, Layer::Normal, Layer::Forward];

impl Collector {
    /// Returns the rules with the action `Log` that a packet matched before the deciding rule, in
    /// order. Empty if policies have changed since, so that another rule would decide.
    #[must_use]
    pub fn log_rules(&self, hit: &Hit, packet: &Packet) -> Vec<DecidedBy> {
        if self.logging.is_empty() {
            return Vec::new();
        }
        let at_workload = self.is_at_workload(hit, packet);
        let steps = self.steps_to(hit, packet, at_workload, |tiers, profiles| {
            let mut policies = tiers.iter().flat_map(|tier| policies(tier, hit.direction));
            policies.any(|policy| self.logging.contains(&Logging::Policy(policy.clone())))
                || profiles.iter().any(|profile| self.logging.contains(&Logging::Profile(profile.clone())))
        });
        let logged = |rules: &[RuleStep]| -> Vec<usize> {
            let matched = |rule: &&RuleStep| rule.action == RuleAction::Log && rule.outcome == RuleOutcome::Matched;
            rules.iter().filter(matched).map(|rule| rule.index).collect()
        };
        let of_step = |step| -> Vec<DecidedBy> {
            match step {
                Step::Policy { tier, policy, rules, staged: false, .. } => {
                    let rule = |index| DecidedBy::PolicyRule { tier: tier.clone(), policy: policy.clone(), index };
                    logged(&rules).into_iter().map(rule).collect()
                }
                Step::Profile { profile, rules, .. } => {
                    let rule = |index| DecidedBy::ProfileRule { profile: profile.clone(), index };
                    logged(&rules).into_iter().map(rule).collect()
                }
                _ => Vec::new(),
            }
        };
        steps.into_iter().flatten().flat_map(of_step).collect()
    }

    /// Returns the rules that passed a packet on to the deciding rule, in order. Empty if policies
    /// have changed since, so that another rule would decide.
    pub(super) fn passed_before(&self, hit: &Hit, packet: &Packet, at_workload: bool) -> Vec<Arc<Hit>> {
        let steps = self.steps_to(hit, packet, at_workload, |tiers, _| may_pass_to(tiers, hit));
        let hits = steps.into_iter().flatten().filter_map(|step| hit_of(step, hit.direction));
        hits.filter(|hit| hit.verdict == PrefixVerdict::Pass).map(Arc::new).collect()
    }

    /// Returns the evaluation steps of the endpoint that gave this decision, if `wanted` accepts
    /// its tiers and profiles.
    fn steps_to(
        &self,
        hit: &Hit,
        packet: &Packet,
        at_workload: bool,
        wanted: impl Fn(&[TierPolicies], &[ProfileName]) -> bool,
    ) -> Option<Vec<Step>> {
        let direction = hit.direction;
        if at_workload {
            let address = if direction == Direction::Ingress { packet.destination() } else { packet.source() };
            return self.evaluator.workloads_with_address(address).iter().find_map(|id| {
                let state = self.evaluator.workload_endpoint(id)?;
                let applies = wanted(&state.tiers, &state.endpoint.profiles);
                applies.then(|| steps_of(self.evaluator.explain_workload(id, direction, packet).ok()?, hit))?
            });
        }
        let hosts = self.evaluator.host_endpoints();
        let mut layers = hosts.flat_map(|(name, state)| LAYERS.map(|layer| (name, state, layer)));
        layers.find_map(|(name, state, layer)| {
            let applies = wanted(tiers(state, layer), &state.endpoint.profiles);
            applies.then(|| steps_of(self.evaluator.explain_host(name, layer, direction, packet).ok()?, hit))?
        })
    }

    /// Records the policies and profiles with `Log` rules.
    pub(super) fn note_logging(&mut self, update: &DesiredUpdate) {
        let logs = |[inbound, outbound]: [&desired::Rules; 2]| {
            inbound.iter().chain(outbound.iter()).any(|rule| rule.rule.action == RuleAction::Log)
        };
        let (owner, logs) = match update {
            DesiredUpdate::Policy(id, policy) => {
                (Logging::Policy(id.clone()), logs([&policy.inbound, &policy.outbound]))
            }
            DesiredUpdate::PolicyRemove(id) => (Logging::Policy(id.clone()), false),
            DesiredUpdate::Profile(name, profile) => {
                (Logging::Profile(name.clone()), logs([&profile.inbound, &profile.outbound]))
            }
            DesiredUpdate::ProfileRemove(name) => (Logging::Profile(name.clone()), false),
            _ => return,
        };
        if logs {
            self.logging.insert(owner);
        } else {
            self.logging.remove(&owner);
        }
    }
}

/// A policy or profile with `Log` rules.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Logging {
    Policy(tortie_model::PolicyId),
    Profile(ProfileName),
}

/// Reports whether a tier before the deciding one could have passed the packet on.
fn may_pass_to(tiers: &[TierPolicies], hit: &Hit) -> bool {
    let first = tiers.iter().find(|tier| policies(tier, hit.direction).any(|policy| !policy.kind.is_staged()));
    first.is_some_and(|first| match &hit.decided_by {
        DecidedBy::PolicyRule { tier, .. } | DecidedBy::EndOfTier { tier } => first.name != *tier,
        _ => true,
    })
}

/// Returns the steps of an evaluation, if they end with the given decision.
fn steps_of(explanation: Explanation, decided: &Hit) -> Option<Vec<Step>> {
    let last = explanation.steps.iter().rev().find_map(|step| hit_of(step.clone(), decided.direction))?;
    (last == *decided).then_some(explanation.steps)
}
