//! Counts of the messages of a graph.

use tortie_model::desired::{DesiredUpdate, TierList};

/// Numbers of messages and of their contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that Felix sends too: all except [`DesiredUpdate::InSync`].
    pub messages: usize,
    /// IP sets sent in full.
    pub sets: usize,
    /// Members of these sets.
    pub members: usize,
    /// Members added to sets sent before.
    pub joined: usize,
    /// Members removed from sets sent before.
    pub left: usize,
    /// Policies.
    pub policies: usize,
    /// Workload endpoints.
    pub endpoints: usize,
    /// References to a policy in an endpoint's lists, counted separately for ingress and egress.
    pub references: usize,
    /// Routes.
    pub routes: usize,
    /// VXLAN tunnel endpoints.
    pub vteps: usize,
}

impl Counts {
    /// Counts these messages.
    pub fn add(&mut self, updates: &[DesiredUpdate]) {
        for update in updates {
            self.messages += 1;
            match update {
                DesiredUpdate::InSync => self.messages -= 1,
                DesiredUpdate::IpSet(set) => {
                    self.sets += 1;
                    self.members += set.members.len();
                }
                DesiredUpdate::IpSetDelta(delta) => {
                    self.joined += delta.added.len();
                    self.left += delta.removed.len();
                }
                DesiredUpdate::Policy(..) => self.policies += 1,
                DesiredUpdate::WorkloadEndpoint(_, state) => {
                    self.endpoints += 1;
                    self.references += references(&state.tiers);
                }
                DesiredUpdate::Route(..) => self.routes += 1,
                DesiredUpdate::Vtep(..) => self.vteps += 1,
                _ => {}
            }
        }
    }
}

fn references(tiers: &TierList) -> usize {
    tiers.iter().map(|tier| tier.ingress.len() + tier.egress.len()).sum()
}
