//! Groups of policies that always apply together.
//!
//! Policies with the same selector match the same endpoints, so a run of them gets one chain that
//! all these endpoints share (`felix/rules/endpoints.go`, `felix/dataplane/linux/endpoint_mgr.go`).

use std::sync::Arc;

use tortie_model::desired::TierPolicies;
use tortie_model::{Direction, PolicyId, TierDefaultAction, TierName};
use tortie_netfilter::{Action, Chain, ChainName, Matches, Rule};

use crate::names::{group_chain, policy_chain};
use crate::renderer::Renderer;

/// Neighbouring policies of one tier and direction that have the same selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyGroup {
    direction: Direction,
    policies: Arc<[PolicyId]>,
    chain: ChainName,
}

impl PolicyGroup {
    /// Returns a group of these policies, in order of evaluation.
    #[must_use]
    pub fn new(direction: Direction, selector: &str, policies: impl Into<Arc<[PolicyId]>>) -> Self {
        let policies = policies.into();
        let chain = group_chain(direction, selector, &policies);
        Self { direction, policies, chain }
    }

    /// Splits a tier's policies into groups. `selector_of` returns a policy's selector; a policy
    /// with an unknown selector is alone in its group.
    pub fn of_tier<'a>(
        direction: Direction,
        policies: &'a [PolicyId],
        mut selector_of: impl FnMut(&'a PolicyId) -> Option<&'a str>,
    ) -> Vec<Self> {
        let selectors: Vec<Option<&str>> = policies.iter().map(&mut selector_of).collect();
        let unknown = "";
        let mut rest = policies;
        selectors
            .chunk_by(|a, b| a.is_some() && a == b)
            .map(|run| {
                let (group, after) = rest.split_at(run.len());
                rest = after;
                Self::new(direction, run.first().copied().flatten().unwrap_or(unknown), group)
            })
            .collect()
    }

    /// Returns the direction that the policies govern.
    #[must_use]
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// Returns the policies in order of evaluation, staged ones included.
    #[must_use]
    pub fn policies(&self) -> &[PolicyId] {
        &self.policies
    }

    /// Returns the name of the group's chain, if it needs one.
    #[must_use]
    pub fn chain_name(&self) -> ChainName {
        self.chain
    }

    /// Returns the policies that are programmed: all but the staged ones.
    pub fn enforced(&self) -> impl Iterator<Item = &PolicyId> {
        self.policies.iter().filter(|id| !id.kind.is_staged())
    }

    /// Reports whether endpoints jump to the policies directly: a group of at most one policy needs
    /// no chain.
    #[must_use]
    pub fn is_inlined(&self) -> bool {
        self.enforced().nth(1).is_none()
    }

    /// Returns the chains that an endpoint jumps to for this group.
    pub(crate) fn targets(&self) -> Vec<ChainName> {
        if self.is_inlined() {
            self.enforced().map(|id| policy_chain(self.direction, id)).collect()
        } else {
            vec![self.chain]
        }
    }
}

/// A tier's policies for one endpoint, grouped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierGroups {
    /// The tier.
    pub name: TierName,
    /// Action at its end; `None` (an unknown tier) denies.
    pub default_action: Option<TierDefaultAction>,
    /// Policies for traffic to the endpoint.
    pub ingress: Vec<PolicyGroup>,
    /// Policies for traffic from the endpoint.
    pub egress: Vec<PolicyGroup>,
}

impl TierGroups {
    /// Splits the policies of a tier into groups. `selector_of` returns the selector of a policy; a
    /// policy with an unknown selector is alone in its group.
    #[must_use]
    pub fn of<'a>(tier: &'a TierPolicies, mut selector_of: impl FnMut(&'a PolicyId) -> Option<&'a str>) -> Self {
        Self {
            name: tier.name.clone(),
            default_action: tier.default_action,
            ingress: PolicyGroup::of_tier(Direction::Ingress, &tier.ingress, &mut selector_of),
            egress: PolicyGroup::of_tier(Direction::Egress, &tier.egress, &mut selector_of),
        }
    }

    /// Returns the groups of one direction.
    #[must_use]
    pub fn groups(&self, direction: Direction) -> &[PolicyGroup] {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }
}

impl Renderer {
    /// Returns the chain of a group, the same in every table and family. Other chains jump to it
    /// only if the group is not inlined.
    #[must_use]
    pub fn policy_group(&self, group: &PolicyGroup) -> Chain {
        /// After how many policies the chain looks for a verdict; in between, each jump does.
        const STRIDE: usize = 5;

        if self.config().packet_filter.is_fast() {
            // A packet that returns from a policy has a verdict and skips the other policies of the
            // group.
            let include = |id| Rule::new(Action::Include(policy_chain(group.direction, id)));
            return Chain::new(group.chain, group.enforced().map(include).collect());
        }
        let verdict = self.marks().verdict();
        let mut rules = Vec::new();
        for (i, id) in group.enforced().enumerate() {
            let starts_stride = i % STRIDE == 0;
            if starts_stride && i > 0 {
                rules.push(
                    Rule::when(Matches::new().mark_not_clear(verdict), Action::Return).comment("Return on verdict"),
                );
            }
            let undecided = if starts_stride { Matches::new() } else { Matches::new().mark_clear(verdict) };
            rules.push(Rule::when(undecided, Action::Jump(policy_chain(group.direction, id))));
        }
        Chain::new(group.chain, rules)
    }
}

#[cfg(test)]
mod tests;
