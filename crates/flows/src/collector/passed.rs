//! What passed a packet on, where only the decision about it was logged.

use std::sync::Arc;

use tortie_evaluate::{DecidedBy, Explanation, Layer, Packet};
use tortie_model::Direction;
use tortie_model::desired::TierPolicies;
use tortie_rules::Verdict;

use super::asked::{hit_of, tiers};
use super::{Collector, policies};
use crate::hits::Hit;

const LAYERS: [Layer; 4] = [Layer::Untracked, Layer::PreDnat, Layer::Normal, Layer::Forward];

impl Collector {
    /// What passed a packet on to what decided about it, in order. Nothing, if policies have changed since so that something else
    /// would decide.
    pub(super) fn passed_before(&self, hit: &Hit, packet: &Packet, at_workload: bool) -> Vec<Arc<Hit>> {
        let direction = hit.direction;
        if at_workload {
            let address = if direction == Direction::Ingress { packet.destination() } else { packet.source() };
            let ids = self.evaluator.workloads_with_address(address);
            return ids
                .iter()
                .filter(|id| self.evaluator.workload_endpoint(id).is_some_and(|state| may_pass_to(&state.tiers, hit)))
                .find_map(|id| passed(self.evaluator.explain_workload(id, direction, packet).ok()?, hit))
                .unwrap_or_default();
        }
        let hosts = self.evaluator.host_endpoints();
        let layers = hosts.flat_map(|(name, state)| LAYERS.map(|layer| (name, layer, tiers(state, layer))));
        layers
            .filter(|(.., tiers)| may_pass_to(tiers, hit))
            .find_map(|(name, layer, _)| passed(self.evaluator.explain_host(name, layer, direction, packet).ok()?, hit))
            .unwrap_or_default()
    }
}

/// Whether a tier before the one that decided could have passed something on.
fn may_pass_to(tiers: &[TierPolicies], hit: &Hit) -> bool {
    let first = tiers.iter().find(|tier| policies(tier, hit.direction).any(|policy| !policy.kind.is_staged()));
    first.is_some_and(|first| match &hit.decided_by {
        DecidedBy::PolicyRule { tier, .. } | DecidedBy::EndOfTier { tier } => first.name != *tier,
        _ => true,
    })
}

/// What passed on, if this ends with what decided.
fn passed(explanation: Explanation, decided: &Hit) -> Option<Vec<Arc<Hit>>> {
    let steps = explanation.steps.into_iter().filter_map(|step| hit_of(step, decided.direction));
    let mut hits: Vec<Hit> = steps.collect();
    let last = hits.pop()?;
    let passes = hits.iter().all(|hit| hit.verdict == Verdict::Pass);
    (last == *decided && passes).then(|| hits.into_iter().map(Arc::new).collect())
}
