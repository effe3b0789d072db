//! Whose the chains are that a packet passes.

use std::collections::BTreeMap;
use std::sync::Arc;

use tortie_model::desired::{self, DesiredUpdate, Rules, WorkloadEndpointState};
use tortie_model::{Direction, Family, PolicyId, ProfileName, WorkloadEndpointId};
use tortie_rules::names::{EndpointChain, endpoint_chain, policy_chain, profile_chain};
use tortie_rules::{PolicyChains, Renderer, RulesConfig};

/// Whose a chain is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Policy(PolicyId),
    Profile(ProfileName),
    Workload(String),
}

/// A chain of an object.
#[derive(Clone, Debug)]
pub(super) struct OwnedChain {
    pub(super) owner: Owner,
    pub(super) direction: Direction,
    /// Where each rule of the policy begins in the chain, and how long that is, as far as it can be told: without what flow
    /// logs need, and with it.
    places: Vec<(Vec<usize>, usize)>,
}

impl OwnedChain {
    /// Which rule of the policy a rule of the kernel's chain was made from, of which there are `length`.
    pub(super) fn rule(&self, index: usize, length: usize) -> Option<usize> {
        // If there is none, it was made from other rules than those that are known here.
        let (begins, _) = self.places.iter().find(|(_, expected)| *expected == length && index < length)?;
        begins.partition_point(|begin| *begin <= index).checked_sub(1)
    }
}

/// The chains of all policies, profiles and workloads of a node.
#[derive(Clone, Debug, Default)]
pub(super) struct Owners {
    chains: BTreeMap<String, OwnedChain>,
}

impl Owners {
    pub(super) fn new(desired: &[DesiredUpdate], config: &RulesConfig, family: Family) -> Self {
        // The agent may be told otherwise than this program.
        let renderers = [false, true].map(|flow_logs| Renderer::new(RulesConfig { flow_logs, ..config.clone() }));
        let mut owners = Self::default();
        for update in desired {
            match update {
                DesiredUpdate::Policy(id, policy) => owners.add_policy(id, policy, &renderers, family),
                DesiredUpdate::Profile(name, profile) => owners.add_profile(name, profile, &renderers, family),
                DesiredUpdate::WorkloadEndpoint(id, state) => owners.add_workload(id, state),
                _ => {}
            }
        }
        owners
    }

    fn add_workload(&mut self, id: &WorkloadEndpointId, state: &WorkloadEndpointState) {
        let Some(interface) = state.endpoint.iface.as_ref() else { return };
        for (chain, direction) in
            [(EndpointChain::ToWorkload, Direction::Ingress), (EndpointChain::FromWorkload, Direction::Egress)]
        {
            let name = endpoint_chain(chain, interface.as_str()).to_string();
            let owner = Owner::Workload(id.workload.to_string());
            self.chains.insert(name, OwnedChain { owner, direction, places: Vec::new() });
        }
    }

    fn add_policy(&mut self, id: &PolicyId, policy: &desired::Policy, renderers: &[Renderer], family: Family) {
        let render = |renderer: &Renderer, inbound: Rules, outbound: Rules| {
            renderer.policy(id, &desired::Policy { inbound, outbound, ..policy.clone() }, family)
        };
        for (direction, rules) in [(Direction::Ingress, &policy.inbound), (Direction::Egress, &policy.outbound)] {
            let places = renderers.iter().filter_map(|renderer| {
                places(rules, direction, |inbound, outbound| render(renderer, inbound, outbound))
            });
            let (owner, places) = (Owner::Policy(id.clone()), places.collect());
            let name = policy_chain(direction, id).to_string();
            self.chains.insert(name, OwnedChain { owner, direction, places });
        }
    }

    fn add_profile(&mut self, name: &ProfileName, profile: &desired::Profile, renderers: &[Renderer], family: Family) {
        for (direction, rules) in [(Direction::Ingress, &profile.inbound), (Direction::Egress, &profile.outbound)] {
            let places = renderers.iter().filter_map(|renderer| {
                places(rules, direction, |inbound, outbound| {
                    Some(renderer.profile(name, &desired::Profile { inbound, outbound }, family))
                })
            });
            let (owner, places) = (Owner::Profile(name.clone()), places.collect());
            let chain = profile_chain(direction, name).to_string();
            self.chains.insert(chain, OwnedChain { owner, direction, places });
        }
    }

    /// Whose a chain is.
    pub(super) fn of(&self, chain: &str) -> Option<&OwnedChain> {
        self.chains.get(chain)
    }
}

/// Where each rule begins in its chain, and how long that is: a chain of the last rules alone is the end of the whole.
fn places(
    rules: &Rules,
    direction: Direction,
    render: impl Fn(Rules, Rules) -> Option<PolicyChains>,
) -> Option<(Vec<usize>, usize)> {
    let length = |from: usize| -> Option<usize> {
        let chain = match direction {
            Direction::Ingress => render(rest(rules, from)?, Rules::default())?.inbound,
            Direction::Egress => render(Rules::default(), rest(rules, from)?)?.outbound,
        };
        // A chain without rules still says whose it is.
        Some(chain.rules.iter().filter(|rule| rule.action.is_some()).count())
    };
    let whole = length(0)?;
    let begins = (0..rules.len()).map(|from| whole.checked_sub(length(from)?)).collect::<Option<Vec<usize>>>()?;
    // Rules that pass make a profile begin with one more.
    let is_sorted = begins.is_sorted() && begins.first().is_none_or(|first| *first == 0);
    is_sorted.then_some((begins, whole))
}

fn rest(rules: &Rules, from: usize) -> Option<Rules> {
    let list: Arc<[_]> = rules.iter().skip(from).map(|rule| rule.rule.clone()).collect();
    let sets: Arc<[_]> = rules.sets().iter().skip(from).cloned().collect();
    Rules::new(list, sets)
}

#[cfg(test)]
mod tests;
