//! Parts of the desired state that verdict tables do not have.

use std::sync::Arc;

use ahash::AHashMap;
use tortie_model::desired::{DesiredUpdate, Policy, TierPolicies};
use tortie_model::{IpSetId, PolicyId, WorkloadEndpointId};

/// Parts of the desired state that verdict tables do not have.
#[derive(Clone, Default)]
pub(crate) struct PolicyState {
    /// The policies that govern endpoints.
    pub(crate) policies: AHashMap<PolicyId, Arc<Policy>>,
    /// Number of members, by IP set.
    pub(crate) set_sizes: AHashMap<IpSetId, usize>,
    /// Whether a policy that is enforced governs each workload.
    pub(crate) has_policy: AHashMap<WorkloadEndpointId, bool>,
}

impl PolicyState {
    #[expect(clippy::expect_used, reason = "the graph sends a set before its changes, and removes members of it only")]
    pub(crate) fn note(&mut self, update: &DesiredUpdate) {
        match update {
            DesiredUpdate::Policy(id, policy) => drop(self.policies.insert(id.clone(), policy.clone())),
            DesiredUpdate::PolicyRemove(id) => drop(self.policies.remove(id)),
            DesiredUpdate::IpSet(set) => drop(self.set_sizes.insert(set.id.clone(), set.members.len())),
            DesiredUpdate::IpSetDelta(delta) => {
                let size = self.set_sizes.get_mut(&delta.id).expect("the set was sent");
                *size =
                    (*size + delta.added.len()).checked_sub(delta.removed.len()).expect("removed members were sent");
            }
            DesiredUpdate::IpSetRemove(id) => drop(self.set_sizes.remove(id)),
            DesiredUpdate::WorkloadEndpoint(id, state) => {
                self.has_policy.insert(id.clone(), state.tiers.iter().any(is_enforced));
            }
            DesiredUpdate::WorkloadEndpointRemove(id) => drop(self.has_policy.remove(id)),
            _ => {}
        }
    }
}

fn is_enforced(tier: &TierPolicies) -> bool {
    tier.ingress.iter().chain(tier.egress.iter()).any(|policy| !policy.kind.is_staged())
}
