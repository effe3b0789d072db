//! Chains of policy groups, shared by all endpoints that use them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tortie_iptables::{ChainName, Table};
use tortie_model::PolicyId;
use tortie_model::desired::TierList;
use tortie_rules::{PolicyGroup, Renderer, TierGroups};

use crate::managers::policies::Policies;
use crate::output::Output;
use crate::report::Owner;

const TABLES: [Table; 3] = [Table::Raw, Table::Mangle, Table::Filter];

/// Groups that have a separate chain, with the number of their users.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    groups: BTreeMap<ChainName, (PolicyGroup, usize)>,
}

/// The groups that one endpoint uses; pass it to [`Groups::exchange`] to release them.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct GroupUse {
    chains: Vec<ChainName>,
}

impl Groups {
    /// Defines the chains of all groups of `tiers`, and removes those of `before` that no endpoint
    /// uses any more.
    #[expect(clippy::expect_used, reason = "the group of a chain stays while an endpoint uses it")]
    pub(crate) fn exchange<'a>(
        &mut self,
        before: GroupUse,
        tiers: impl IntoIterator<Item = &'a TierGroups>,
        renderer: &Renderer,
        output: &mut Output,
    ) -> GroupUse {
        let mut chains = Vec::new();
        for group in tiers.into_iter().flat_map(|tier| tier.ingress.iter().chain(&tier.egress)) {
            if group.is_inlined() {
                continue;
            }
            let name = group.chain_name();
            let (_, users) = self.groups.entry(name).or_insert_with(|| {
                output.update_chain(&TABLES, &Arc::new(renderer.policy_group(group)));
                (group.clone(), 0)
            });
            *users += 1;
            chains.push(name);
        }
        // Last, so that a chain used both before and after stays.
        for name in before.chains {
            let (_, users) = self.groups.get_mut(&name).expect("a chain in use has its group");
            *users -= 1;
            if *users == 0 {
                self.groups.remove(&name);
                output.remove_chain(&TABLES, name);
            }
        }
        GroupUse { chains }
    }

    /// Returns the policies of a group's chain.
    pub(crate) fn chain_owners(&self, chain: ChainName) -> Vec<Owner> {
        let group = self.groups.get(&chain).map(|(group, _)| group);
        group.into_iter().flat_map(|group| group.enforced().cloned().map(Owner::Policy)).collect()
    }
}

/// Splits the tiers of an endpoint into groups.
pub(crate) fn group_tiers(tiers: &TierList, policies: &Policies) -> Vec<TierGroups> {
    tiers.iter().map(|tier| TierGroups::of(tier, |id| policies.selector(id))).collect()
}

/// Reports whether a tier has one of these policies.
pub(crate) fn uses_any(tiers: &TierList, policies: &BTreeSet<PolicyId>) -> bool {
    let ids = tiers.iter().flat_map(|tier| tier.ingress.iter().chain(tier.egress.iter()));
    !policies.is_empty() && ids.into_iter().any(|id| policies.contains(id))
}
