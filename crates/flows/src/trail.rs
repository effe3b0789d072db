//! Deciding rules of a connection at one end.

use std::sync::Arc;

use smallvec::SmallVec;
use tortie_evaluate::DecidedBy;
use tortie_model::{Direction, TierName};
use tortie_rules::PrefixVerdict;

use crate::hits::Hit;

/// Deciding rules of a connection at one end: those that passed it on, in order, and the final
/// decision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Trail {
    hits: SmallVec<[Arc<Hit>; 2]>,
}

/// Returns the tier of a hit; `None` for profiles. Each tier decides once, and so do the profiles.
fn tier(hit: &Hit) -> Option<&TierName> {
    match &hit.decided_by {
        DecidedBy::PolicyRule { tier, .. } | DecidedBy::EndOfTier { tier } => Some(tier),
        _ => None,
    }
}

impl Trail {
    /// Iterates over all hits, in order.
    pub fn hits(&self) -> impl Iterator<Item = &Hit> {
        self.hits.iter().map(|hit| &**hit)
    }

    /// Returns the final decision; `None` if it is unknown.
    #[must_use]
    pub fn decision(&self) -> Option<&Hit> {
        self.hits.last().map(|hit| &**hit).filter(|hit| hit.verdict != PrefixVerdict::Pass)
    }

    /// Reports whether the trail ends in a denial.
    #[must_use]
    pub fn denies(&self) -> bool {
        self.decision().is_some_and(|hit| hit.verdict == PrefixVerdict::Deny)
    }

    /// Reports whether there is no hit.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hits.is_empty()
    }

    /// Returns the hits in one direction, in order.
    #[must_use]
    pub(crate) fn of(&self, direction: Direction) -> Self {
        Self { hits: self.hits.iter().filter(|hit| hit.direction == direction).cloned().collect() }
    }

    pub(crate) fn last(&self) -> Option<&Arc<Hit>> {
        self.hits.last()
    }

    /// Adds a hit. Returns whether it contradicts the trail. A repeated packet hits the same rules
    /// again. Host endpoints decide in both directions about forwarded traffic: each tier then
    /// decides once per direction.
    pub(crate) fn add(&mut self, hit: Arc<Hit>) -> bool {
        let is_of_direction = |known: &Arc<Hit>| known.direction == hit.direction;
        let is_of_tier = |known: &Arc<Hit>| is_of_direction(known) && tier(known) == tier(&hit);
        if let Some(at) = self.hits.iter().position(is_of_tier) {
            if self.hits.get(at) == Some(&hit) {
                return false;
            }
            self.hits.truncate(at);
            self.hits.push(hit);
            return true;
        }
        let last = self.hits.iter().rev().find(|known| is_of_direction(known));
        let is_decided = last.is_some_and(|last| last.verdict != PrefixVerdict::Pass);
        let contradicted = self.hits.iter().position(is_of_direction).filter(|_| is_decided);
        if let Some(first) = contradicted {
            self.hits.truncate(first);
        }
        self.hits.push(hit);
        contradicted.is_some()
    }
}

#[cfg(test)]
mod tests {
    use tortie_model::{PolicyId, PolicyKind, ProfileName};

    use super::*;

    fn rule(tier: &str, index: usize, verdict: PrefixVerdict) -> Arc<Hit> {
        let policy = PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", tier);
        let decided_by = DecidedBy::PolicyRule { tier: TierName::new(tier), policy, index };
        Arc::new(Hit { direction: Direction::Ingress, verdict, decided_by })
    }

    fn profile(verdict: PrefixVerdict) -> Arc<Hit> {
        let decided_by = DecidedBy::ProfileRule { profile: ProfileName::new("p"), index: 0 };
        Arc::new(Hit { direction: Direction::Ingress, verdict, decided_by })
    }

    fn trail(hits: &[Arc<Hit>]) -> Trail {
        let mut trail = Trail::default();
        for hit in hits {
            trail.add(Arc::clone(hit));
        }
        trail
    }

    #[test]
    fn a_repeated_packet_changes_nothing() {
        let hits = [rule("a", 0, PrefixVerdict::Pass), rule("b", 3, PrefixVerdict::Deny)];
        let mut twice = trail(&hits);
        for hit in &hits {
            assert!(!twice.add(Arc::clone(hit)));
        }
        assert_eq!(twice, trail(&hits));
        assert!(twice.denies());
        assert_eq!(twice.decision(), Some(&*hits[1]));
    }

    #[test]
    fn passing_rules_decide_nothing() {
        let passed = trail(&[rule("a", 0, PrefixVerdict::Pass)]);
        assert_eq!(passed.decision(), None);
        assert!(!passed.denies() && !passed.is_empty());
    }

    #[test]
    fn another_decision_replaces_the_old_one_and_later_hits() {
        let (pass, deny, allow) =
            (rule("a", 0, PrefixVerdict::Pass), rule("b", 0, PrefixVerdict::Deny), rule("b", 1, PrefixVerdict::Allow));
        let mut changed = trail(&[Arc::clone(&pass), deny]);
        assert!(!changed.add(Arc::clone(&pass)));
        assert!(changed.add(Arc::clone(&allow)));
        assert_eq!(changed, trail(&[pass, allow]));

        let mut denied_before = trail(&[rule("a", 0, PrefixVerdict::Pass), rule("b", 1, PrefixVerdict::Allow)]);
        assert!(denied_before.add(rule("a", 5, PrefixVerdict::Deny)));
        assert_eq!(denied_before, trail(&[rule("a", 5, PrefixVerdict::Deny)]));
    }

    #[test]
    fn a_tier_that_decided_and_is_gone_leaves_nothing() {
        let mut denied = trail(&[rule("a", 0, PrefixVerdict::Deny)]);
        assert!(denied.add(rule("b", 0, PrefixVerdict::Pass)));
        assert!(!denied.add(profile(PrefixVerdict::Allow)));
        assert_eq!(denied, trail(&[rule("b", 0, PrefixVerdict::Pass), profile(PrefixVerdict::Allow)]));
    }

    #[test]
    fn both_directions_of_a_forwarded_packet_decide() {
        let out =
            |index, verdict| Arc::new(Hit { direction: Direction::Egress, ..(*rule("a", index, verdict)).clone() });
        let (into, leaves) = (rule("a", 0, PrefixVerdict::Allow), out(0, PrefixVerdict::Allow));
        let mut both = trail(&[Arc::clone(&into), Arc::clone(&leaves)]);
        assert_eq!(both.hits().count(), 2);
        assert!(!both.add(Arc::clone(&into)) && !both.add(leaves));
        assert!(both.add(out(1, PrefixVerdict::Deny)) && both.denies());
        assert_eq!(both.of(Direction::Ingress), trail(&[into]));
        assert_eq!(both.of(Direction::Egress), trail(&[out(1, PrefixVerdict::Deny)]));
        // A packet that is decided on its way in again has not left yet.
        let elsewhere = rule("b", 0, PrefixVerdict::Deny);
        assert!(both.add(Arc::clone(&elsewhere)));
        assert_eq!(both, trail(&[elsewhere]));
    }
}
