//! Host endpoints that allow nothing.

use std::collections::{BTreeMap, HashSet};

use tortie_model::desired::{DesiredUpdate, HostEndpointState, Rules, TierList};
use tortie_model::{Direction, HostEndpointName, HostInterface, PolicyId, ProfileName, RuleAction, TierDefaultAction};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Source {
    Policy(PolicyId),
    Profile(ProfileName),
}

/// Host endpoints for which no policy or profile allows anything in a direction. They cut off all
/// traffic except failsafe ports and established connections, which their authors may not have
/// expected.
#[derive(Debug, Default)]
pub(super) struct HostCut {
    allowing: HashSet<(Source, Direction)>,
    endpoints: BTreeMap<HostEndpointName, (HostEndpointState, Vec<Direction>)>,
    changed: bool,
}

impl HostCut {
    pub(super) fn on_update(&mut self, update: &DesiredUpdate) {
        match update {
            DesiredUpdate::Policy(id, policy) => {
                self.set_rules(&Source::Policy(id.clone()), Some((&policy.inbound, &policy.outbound)));
            }
            DesiredUpdate::PolicyRemove(id) => self.set_rules(&Source::Policy(id.clone()), None),
            DesiredUpdate::Profile(name, profile) => {
                self.set_rules(&Source::Profile(name.clone()), Some((&profile.inbound, &profile.outbound)));
            }
            DesiredUpdate::ProfileRemove(name) => self.set_rules(&Source::Profile(name.clone()), None),
            DesiredUpdate::HostEndpoint(name, state) => {
                let logged = self.endpoints.remove(name).map(|(_, logged)| logged).unwrap_or_default();
                self.endpoints.insert(name.clone(), (state.clone(), logged));
                self.changed = true;
            }
            DesiredUpdate::HostEndpointRemove(name) => {
                self.endpoints.remove(name);
            }
            _ => {}
        }
    }

    fn set_rules(&mut self, source: &Source, rules: Option<(&Rules, &Rules)>) {
        let allows = |rules: &Rules| {
            rules.iter().any(|rule| matches!(rule.action(), RuleAction::Allow | RuleAction::Unspecified))
        };
        for direction in [Direction::Ingress, Direction::Egress] {
            let allows = rules.is_some_and(|(inbound, outbound)| match direction {
                Direction::Ingress => allows(inbound),
                Direction::Egress => allows(outbound),
            });
            let key = (source.clone(), direction);
            self.changed |= if allows { self.allowing.insert(key) } else { self.allowing.remove(&key) };
        }
    }

    /// Warnings to log before the updates are applied: of each endpoint that cuts traffic off, once
    /// per state.
    pub(super) fn warnings(&mut self) -> Vec<String> {
        if !std::mem::take(&mut self.changed) {
            return Vec::new();
        }
        let allowing = &self.allowing;
        let mut warnings = Vec::new();
        for (name, (state, logged)) in &mut self.endpoints {
            let directions = [Direction::Ingress, Direction::Egress];
            let cut: Vec<Direction> = directions.into_iter().filter(|d| !allows(allowing, state, *d)).collect();
            if !cut.is_empty() && cut != *logged {
                warnings.push(warning(name, state, &cut));
            }
            *logged = cut;
        }
        warnings
    }
}

fn warning(name: &HostEndpointName, state: &HostEndpointState, cut: &[Direction]) -> String {
    let interface = match state.endpoint.iface {
        Some(HostInterface::All) => "all interfaces".to_owned(),
        Some(HostInterface::Named(iface)) => format!("interface {iface}"),
        None => "the interfaces with its addresses".to_owned(),
    };
    let directions = match cut {
        [Direction::Ingress] => "incoming",
        [Direction::Egress] => "outgoing",
        _ => "incoming and outgoing",
    };
    format!(
        "host endpoint {name}: no policy allows anything, so all {directions} traffic of the host on {interface} is cut off, but \
         for failsafe ports and established connections"
    )
}

fn allows(allowing: &HashSet<(Source, Direction)>, state: &HostEndpointState, direction: Direction) -> bool {
    let has = |source: Source| allowing.contains(&(source, direction));
    let tiers_allow = |tiers: &TierList| {
        let mut policies = tiers.iter().flat_map(|tier| match direction {
            Direction::Ingress => tier.ingress.iter(),
            Direction::Egress => tier.egress.iter(),
        });
        policies.any(|id| has(Source::Policy(id.clone())))
    };
    if tiers_allow(&state.tiers) || tiers_allow(&state.untracked_tiers) {
        return true;
    }
    if direction == Direction::Ingress && tiers_allow(&state.pre_dnat_tiers) {
        return true;
    }
    // A tier with policies for this direction decides, unless its default action is pass; profiles
    // come last.
    let governs = |tier: &&tortie_model::desired::TierPolicies| match direction {
        Direction::Ingress => !tier.ingress.is_empty(),
        Direction::Egress => !tier.egress.is_empty(),
    };
    let reaches_profiles =
        state.tiers.iter().filter(governs).all(|tier| tier.default_action == Some(TierDefaultAction::Pass));
    reaches_profiles && state.endpoint.profiles.iter().any(|name| has(Source::Profile(name.clone())))
}

#[cfg(test)]
mod tests;
