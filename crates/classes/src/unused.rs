//! Rules without effect.

use std::borrow::Cow;
use std::collections::BTreeSet;

use ahash::AHashSet;
use tortie_evaluate::DecidedBy;
use tortie_model::{Direction, PolicyId, TierName};

use crate::classes::Classes;
use crate::compiled::Compiled;
use crate::inhabited::Inhabited;
use crate::program::GroupKey;

/// Why a rule has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Unused {
    /// Its conditions contradict each other or cannot be enforced, so that no packet matches it.
    NeverMatches,
    /// Other rules decide before it about all packets that match it, or no address matches it.
    NeverDecides,
}

/// A policy rule that decides nothing, passes nothing on and logs nothing. That may change with
/// endpoints or IP sets.
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

/// Rules and policies without effect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnusedPolicies {
    /// The rules without effect, in order.
    pub rules: Vec<UnusedRule>,
    /// The policies that govern endpoints and have rules, none of them with an effect, and without
    /// which no tier would lose the denial at its end. Without these policies, all verdicts stay
    /// the same.
    pub policies: BTreeSet<PolicyId>,
}

/// Rules and policies that apply to some packet.
#[derive(Default)]
struct Used<'a> {
    rules: AHashSet<(&'a PolicyId, Direction, usize)>,
    /// The policies that are the only one of a tier which denies at its end.
    denying: AHashSet<&'a PolicyId>,
}

impl Compiled<'_> {
    /// Returns the rules of policies that govern endpoints and have no effect on any packet at any
    /// of these, in order: see [`Self::unused`].
    #[must_use]
    pub fn unused_rules(&self) -> Vec<UnusedRule> {
        self.unused().rules
    }

    /// Returns the rules without effect of policies that govern endpoints: no packet that reaches
    /// such a rule matches it, be it to decide, to pass or to log. In groups whose tables are too
    /// large to be kept, all rules that can match count as used. Failsafe ports, and the checks on
    /// all workloads before their policies, are not considered.
    #[must_use]
    pub fn unused(&self) -> UnusedPolicies {
        // Tables leave out rules that only log. So these are compiled here once, in a copy.
        let mut classes = Cow::Borrowed(self.classes);
        if classes.owners.has_logs() {
            let classes = classes.to_mut();
            classes.owners.compile_logs();
            classes.flush();
        }
        classes.unused()
    }
}

impl Classes {
    fn unused(&self) -> UnusedPolicies {
        let used = self.used();
        let mut unused = UnusedPolicies::default();
        let mut busy: AHashSet<&PolicyId> = used.denying;
        for rules in self.owners.policies() {
            let matching: AHashSet<usize> = rules.compiled.iter().map(|rule| rule.index).collect();
            for index in 0..rules.rules.len() {
                unused.policies.insert(rules.policy.clone());
                if used.rules.contains(&(rules.policy, rules.direction, index)) {
                    busy.insert(rules.policy);
                    continue;
                }
                let why = if matching.contains(&index) { Unused::NeverDecides } else { Unused::NeverMatches };
                let (policy, direction) = (rules.policy.clone(), rules.direction);
                unused.rules.push(UnusedRule { policy, direction, index, why });
            }
        }
        unused.policies.retain(|policy| !busy.contains(policy));
        unused.rules.sort_unstable();
        unused
    }

    fn used(&self) -> Used<'_> {
        let inhabited = Inhabited::new(&self.addresses);
        let mut used = Used::default();
        for group in self.groups.iter() {
            let (Some(key), Some(Ok(table))) = (self.groups.key(group), self.groups.table(group)) else { continue };
            let reached = table.reached(&self.addresses, &inhabited);
            for by in reached.decided {
                match by {
                    DecidedBy::PolicyRule { policy, index, .. } => {
                        used.rules.insert((policy, key.direction, *index));
                    }
                    DecidedBy::EndOfTier { tier } => used.denying.extend(only_policy(key, tier)),
                    _ => {}
                }
            }
            used.rules.extend(reached.noted.iter().map(|noted| (&noted.policy, key.direction, noted.index)));
            used.rules.extend(reached.passing.iter().map(|rule| (&rule.policy, key.direction, rule.index)));
        }
        used
    }
}

/// Returns the only enforced policy of a tier; `None` if it has several.
fn only_policy<'a>(key: &'a GroupKey, tier: &TierName) -> Option<&'a PolicyId> {
    let tier = key.tiers.iter().find(|other| other.name == *tier)?;
    let mut enforced = tier.policies.iter().filter(|policy| !policy.kind.is_staged());
    enforced.next().filter(|_| enforced.next().is_none())
}
