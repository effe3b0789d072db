//! Rules hit by logged packets.

use std::collections::VecDeque;
use std::sync::Arc;

use ahash::{AHashMap, AHashSet};
use tortie_evaluate::DecidedBy;
use tortie_model::desired::{self, DesiredUpdate, Rules, TierPolicies};
use tortie_model::{Direction, PolicyId, ProfileName, RuleAction, TierName};
use tortie_rules::names::policy_id_text;
use tortie_rules::{OwnerKind, PrefixParts, PrefixVerdict, end_of_tier_prefix, rule_prefix};

/// Number of removed policies that are kept, because packets that met them may not have been read
/// yet.
const REMEMBERED: usize = 1000;
/// Length from which on a prefix is truncated, so that it can be read only with a table of names.
const CUT: usize = 63;
/// Upper bound of the length of a prefix before the owner's name.
const LONGEST_HEAD: usize = 24;

/// A rule, or the end of a list of rules, that decided about a packet or passed it on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hit {
    /// At the source (egress) or at the destination (ingress).
    pub direction: Direction,
    /// The verdict.
    pub verdict: PrefixVerdict,
    /// The rule or end of rules.
    pub decided_by: DecidedBy,
}

/// Reports whether a change defines rules, or the policies, profiles and tiers of an endpoint.
#[must_use]
pub fn names_rules(update: &DesiredUpdate) -> bool {
    matches!(
        update,
        DesiredUpdate::Policy(..)
            | DesiredUpdate::PolicyRemove(_)
            | DesiredUpdate::Profile(..)
            | DesiredUpdate::ProfileRemove(_)
            | DesiredUpdate::WorkloadEndpoint(..)
            | DesiredUpdate::HostEndpoint(..)
    )
}

/// Meaning of log prefixes on this node.
#[derive(Debug, Default)]
pub(crate) struct Hits {
    /// Policies by the text of their ids.
    policies: AHashMap<Box<str>, (PolicyId, TierName)>,
    /// Removed policies, oldest first.
    gone: VecDeque<Box<str>>,
    /// Hits with names too long for a prefix, by truncated prefix.
    cut: AHashMap<Box<str>, Arc<Hit>>,
    tiers: AHashSet<TierName>,
    /// Cache of prefixes read before.
    read: AHashMap<Box<str>, Arc<Hit>>,
}

impl Hits {
    pub(crate) fn on_desired(&mut self, update: &DesiredUpdate) {
        match update {
            DesiredUpdate::Policy(id, policy) => self.set_policy(id, policy),
            DesiredUpdate::PolicyRemove(id) => self.remove_policy(id),
            DesiredUpdate::Profile(name, profile) => self.set_profile(name, profile),
            DesiredUpdate::WorkloadEndpoint(_, state) => self.set_tiers(&state.tiers),
            DesiredUpdate::HostEndpoint(_, state) => {
                self.set_tiers(&state.tiers);
                self.set_tiers(&state.forward_tiers);
            }
            _ => {}
        }
    }

    /// Returns the hit of a prefix; `None` if the prefix is unknown.
    pub(crate) fn read(&mut self, prefix: &str) -> Option<Arc<Hit>> {
        if let Some(known) = self.read.get(prefix).or_else(|| self.cut.get(prefix)) {
            return Some(Arc::clone(known));
        }
        let hit = Arc::new(self.parse(prefix)?);
        self.read.insert(prefix.into(), Arc::clone(&hit));
        Some(hit)
    }

    fn parse(&self, prefix: &str) -> Option<Hit> {
        match PrefixParts::read(prefix)? {
            PrefixParts::Rule { verdict, kind: OwnerKind::Policy, direction, index, owner } => {
                let (policy, tier) = self.policies.get(owner)?.clone();
                Some(Hit { direction, verdict, decided_by: DecidedBy::PolicyRule { tier, policy, index } })
            }
            PrefixParts::Rule { verdict, kind: OwnerKind::Profile, direction, index, owner } => {
                let profile = ProfileName::new(owner);
                Some(Hit { direction, verdict, decided_by: DecidedBy::ProfileRule { profile, index } })
            }
            PrefixParts::EndOfTier { verdict, direction, tier } => {
                Some(Hit { direction, verdict, decided_by: DecidedBy::EndOfTier { tier: TierName::new(tier) } })
            }
            PrefixParts::NoProfile { direction } => {
                Some(Hit { direction, verdict: PrefixVerdict::Deny, decided_by: DecidedBy::EndOfProfiles })
            }
        }
    }

    fn set_policy(&mut self, id: &PolicyId, policy: &desired::Policy) {
        if id.kind.is_staged() {
            return;
        }
        let text = policy_id_text(id);
        let tier = &policy.source.tier;
        let known = self.policies.insert(text.as_str().into(), (id.clone(), tier.clone()));
        self.gone.retain(|gone| **gone != *text);
        if known.is_some_and(|(_, before)| before != *tier) {
            // Cached hits name the old tier.
            self.read.clear();
        }
        let decided_by = |index| DecidedBy::PolicyRule { tier: tier.clone(), policy: id.clone(), index };
        self.set_cut(OwnerKind::Policy, &text, [&policy.inbound, &policy.outbound], decided_by);
    }

    fn remove_policy(&mut self, id: &PolicyId) {
        let text: Box<str> = policy_id_text(id).into();
        if !self.policies.contains_key(&text) || self.gone.contains(&text) {
            return;
        }
        self.gone.push_back(text);
        if self.gone.len() > REMEMBERED
            && let Some(oldest) = self.gone.pop_front()
            && let Some((id, _)) = self.policies.remove(&oldest)
        {
            let is_of =
                |hit: &Arc<Hit>| matches!(&hit.decided_by, DecidedBy::PolicyRule { policy, .. } if *policy == id);
            self.read.retain(|_, hit| !is_of(hit));
            self.cut.retain(|_, hit| !is_of(hit));
        }
    }

    fn set_profile(&mut self, name: &ProfileName, profile: &desired::Profile) {
        let decided_by = |index| DecidedBy::ProfileRule { profile: name.clone(), index };
        self.set_cut(OwnerKind::Profile, name.as_str(), [&profile.inbound, &profile.outbound], decided_by);
    }

    /// Records the prefixes of all rules of an owner whose name may be too long.
    fn set_cut(
        &mut self,
        kind: OwnerKind,
        owner: &str,
        [inbound, outbound]: [&Rules; 2],
        decided_by: impl Fn(usize) -> DecidedBy,
    ) {
        if owner.len() + LONGEST_HEAD < CUT {
            return;
        }
        for (direction, rules) in [(Direction::Ingress, inbound), (Direction::Egress, outbound)] {
            for (index, rule) in rules.iter().enumerate() {
                let verdict = match rule.rule.action {
                    RuleAction::Allow | RuleAction::Unspecified => PrefixVerdict::Allow,
                    RuleAction::Deny => PrefixVerdict::Deny,
                    RuleAction::NextTier => PrefixVerdict::Pass,
                    RuleAction::Log => continue,
                };
                let prefix = rule_prefix(verdict, kind, direction, index, owner);
                if prefix.len() >= CUT {
                    let hit = Hit { direction, verdict, decided_by: decided_by(index) };
                    self.cut.insert(prefix.into(), Arc::new(hit));
                }
            }
        }
    }

    fn set_tiers(&mut self, tiers: &[TierPolicies]) {
        for TierPolicies { name, .. } in tiers {
            if name.as_str().len() + LONGEST_HEAD < CUT || !self.tiers.insert(name.clone()) {
                continue;
            }
            for direction in [Direction::Ingress, Direction::Egress] {
                for verdict in [PrefixVerdict::Deny, PrefixVerdict::Pass] {
                    let prefix = end_of_tier_prefix(verdict, direction, name);
                    let decided_by = DecidedBy::EndOfTier { tier: name.clone() };
                    self.cut.insert(prefix.into(), Arc::new(Hit { direction, verdict, decided_by }));
                }
            }
        }
    }
}
