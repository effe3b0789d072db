use std::collections::BTreeMap;
use std::sync::Arc;

use tortie_model::desired::{self, DesiredUpdate, Rules, WorkloadEndpointState};
use tortie_model::{Direction, Family, PolicyId, ProfileName, RuleAction, WorkloadEndpointId};
use tortie_rules::names::{EndpointChain, endpoint_chain, policy_chain, profile_chain};
use tortie_rules::{Renderer, RulesConfig};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Policy(PolicyId),
    Profile(ProfileName),
    Workload(String),
}

#[derive(Clone, Debug)]
pub(super) struct OwnedChain {
    pub(super) owner: Owner,
    pub(super) direction: Direction,
    /// Rules from which the chain is rendered; empty for workloads.
    rules: Rules,
}

#[derive(Clone, Debug)]
pub(super) struct Owners {
    chains: BTreeMap<String, OwnedChain>,
    renderers: [Renderer; 2],
    family: Family,
}

impl Owners {
    pub(super) fn new(desired: &[DesiredUpdate], config: &RulesConfig, family: Family) -> Self {
        // The agent may have another setting of flow logs than this program.
        let renderers = [false, true].map(|flow_logs| Renderer::new(RulesConfig { flow_logs, ..config.clone() }));
        let mut owners = Self { chains: BTreeMap::new(), renderers, family };
        for update in desired {
            match update {
                DesiredUpdate::Policy(id, policy) => {
                    let rules = [&policy.inbound, &policy.outbound];
                    owners.add(&Owner::Policy(id.clone()), rules, |way| policy_chain(way, id).to_string());
                }
                DesiredUpdate::Profile(name, profile) => {
                    let rules = [&profile.inbound, &profile.outbound];
                    owners.add(&Owner::Profile(name.clone()), rules, |way| profile_chain(way, name).to_string());
                }
                DesiredUpdate::WorkloadEndpoint(id, state) => owners.add_workload(id, state),
                _ => {}
            }
        }
        owners
    }

    /// `rules` has the inbound ones first.
    fn add(&mut self, owner: &Owner, rules: [&Rules; 2], name: impl Fn(Direction) -> String) {
        for (direction, rules) in [Direction::Ingress, Direction::Egress].into_iter().zip(rules) {
            let chain = OwnedChain { owner: owner.clone(), direction, rules: rules.clone() };
            self.chains.insert(name(direction), chain);
        }
    }

    fn add_workload(&mut self, id: &WorkloadEndpointId, state: &WorkloadEndpointState) {
        // A workload whose interface is unknown has no chains.
        let Some(interface) = state.endpoint.iface else { return };
        let none = Rules::default();
        self.add(&Owner::Workload(id.workload.to_string()), [&none, &none], |direction| {
            let chain = match direction {
                Direction::Ingress => EndpointChain::ToWorkload,
                Direction::Egress => EndpointChain::FromWorkload,
            };
            endpoint_chain(chain, interface.as_str()).to_string()
        });
    }

    pub(super) fn of(&self, chain: &str) -> Option<&OwnedChain> {
        self.chains.get(chain)
    }

    /// Returns the index of the policy or profile rule from which a kernel rule was rendered: the
    /// one at `index` of `length` rules. Returns `None` if the chain was rendered from other rules
    /// than those known here.
    pub(super) fn rule(&self, chain: &OwnedChain, index: usize, length: usize) -> Option<usize> {
        let is_profile = matches!(chain.owner, Owner::Profile(_));
        // The chain of a profile with pass rules begins with a kernel rule that belongs to none of
        // them.
        if index >= length || is_profile && chain.rules.iter().any(|rule| rule.action() == RuleAction::NextTier) {
            return None;
        }
        let has_length = |renderer: &&Renderer| self.length(renderer, chain, 0) == Some(length);
        let renderer = self.renderers.iter().find(has_length)?;
        // The last policy rules' chain ends the whole chain. Finds the last rule that begins at or
        // before `index`.
        let (mut known, mut end) = (0, chain.rules.len());
        while known + 1 < end {
            let middle = usize::midpoint(known, end);
            let begin = length.checked_sub(self.length(renderer, chain, middle)?)?;
            if begin <= index {
                known = middle;
            } else {
                end = middle;
            }
        }
        (known < end).then_some(known)
    }

    /// Returns the length of the chain that is rendered from all rules but the first ones.
    fn length(&self, renderer: &Renderer, chain: &OwnedChain, first: usize) -> Option<usize> {
        let rest = rest(&chain.rules, first)?;
        let (inbound, outbound) = match chain.direction {
            Direction::Ingress => (rest, Rules::default()),
            Direction::Egress => (Rules::default(), rest),
        };
        let chains = match &chain.owner {
            Owner::Policy(id) => {
                let policy = desired::Policy { source: Arc::default(), selector: "all()".into(), inbound, outbound };
                renderer.policy(id, &policy, self.family)?
            }
            Owner::Profile(name) => renderer.profile(name, &desired::Profile { inbound, outbound }, self.family),
            Owner::Workload(_) => return None,
        };
        let rendered = match chain.direction {
            Direction::Ingress => chains.inbound,
            Direction::Egress => chains.outbound,
        };
        // A chain without rules has a comment that names its owner.
        Some(rendered.rules.iter().filter(|rule| rule.action.is_some()).count())
    }
}

fn rest(rules: &Rules, first: usize) -> Option<Rules> {
    let list: Arc<[_]> = rules.iter().skip(first).map(|rule| rule.rule.clone()).collect();
    let sets: Arc<[_]> = rules.sets().iter().skip(first).cloned().collect();
    Rules::new(list, sets).ok()
}

#[cfg(test)]
mod tests;
