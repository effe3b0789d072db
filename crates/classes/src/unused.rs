//! Rules that decide nothing.

use ahash::AHashSet;
use tortie_evaluate::DecidedBy;
use tortie_model::{Direction, PolicyId, RuleAction};

use crate::compiled::Compiled;

/// Why a rule decides nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Unused {
    /// What it asks for contradicts itself or cannot be enforced, so that no packet matches it.
    NeverMatches,
    /// Other rules decide before it about all packets that match it, or no address that there is matches it.
    NeverDecides,
}

/// A rule of a policy that decides nothing. It may when endpoints or IP sets change.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub struct UnusedRule {
    /// The policy.
    pub policy: PolicyId,
    /// The direction.
    pub direction: Direction,
    /// The rule's place in the list of its direction, counted from 0.
    pub index: usize,
    /// Why.
    pub why: Unused,
}

impl Compiled<'_> {
    /// The rules of policies that govern endpoints and decide nothing about any packet at any of these, in order. Rules that
    /// log or pass are left out, and rules of groups whose tables are too large to be kept.
    #[must_use]
    pub fn unused_rules(&self) -> Vec<UnusedRule> {
        let mut used: AHashSet<(&PolicyId, Direction, usize)> = AHashSet::new();
        for group in self.groups() {
            let Some((direction, Ok(table))) = self.table_of(group) else { continue };
            let (decided, noted) = table.outcomes();
            used.extend(decided.into_iter().filter_map(|by| match by {
                DecidedBy::PolicyRule { policy, index, .. } => Some((policy, direction, *index)),
                _ => None,
            }));
            used.extend(noted.into_iter().map(|noted| (&noted.policy, direction, noted.index)));
        }
        let mut unused = Vec::new();
        for rules in self.classes.owners.policies() {
            let matching: AHashSet<usize> = rules.compiled.iter().map(|rule| rule.index).collect();
            for (index, rule) in rules.rules.iter().enumerate() {
                if matches!(rule.action(), RuleAction::Log | RuleAction::NextTier)
                    || used.contains(&(rules.policy, rules.direction, index))
                {
                    continue;
                }
                let why = if matching.contains(&index) { Unused::NeverDecides } else { Unused::NeverMatches };
                unused.push(UnusedRule { policy: rules.policy.clone(), direction: rules.direction, index, why });
            }
        }
        unused.sort_unstable();
        unused
    }
}
