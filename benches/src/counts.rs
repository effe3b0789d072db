//! What a graph has sent, counted.

use tortie_model::desired::{DesiredUpdate, TierList};

/// Numbers of messages and of what is in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that the original sends as well, which is all but [`DesiredUpdate::InSync`].
    pub messages: usize,
    /// IP sets sent in full.
    pub sets: usize,
    /// Members of these.
    pub members: usize,
    /// Policies.
    pub policies: usize,
    /// Workload endpoints.
    pub endpoints: usize,
    /// Mentions of a policy in an endpoint's lists, ingress and egress apart.
    pub references: usize,
}

impl Counts {
    /// Counts these messages in.
    pub fn add(&mut self, updates: &[DesiredUpdate]) {
        for update in updates {
            self.messages += 1;
            match update {
                DesiredUpdate::InSync => self.messages -= 1,
                DesiredUpdate::IpSet(set) => {
                    self.sets += 1;
                    self.members += set.members.len();
                }
                DesiredUpdate::Policy(..) => self.policies += 1,
                DesiredUpdate::WorkloadEndpoint(_, state) => {
                    self.endpoints += 1;
                    self.references += references(&state.tiers);
                }
                _ => {}
            }
        }
    }
}

fn references(tiers: &TierList) -> usize {
    tiers.iter().map(|tier| tier.ingress.len() + tier.egress.len()).sum()
}
