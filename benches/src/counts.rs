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
    /// Members that joined sets sent before.
    pub joined: usize,
    /// Members that left sets sent before.
    pub left: usize,
    /// Policies.
    pub policies: usize,
    /// Workload endpoints.
    pub endpoints: usize,
    /// Mentions of a policy in an endpoint's lists, ingress and egress apart.
    pub references: usize,
    /// Routes.
    pub routes: usize,
    /// Ends of VXLAN tunnels.
    pub vteps: usize,
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
