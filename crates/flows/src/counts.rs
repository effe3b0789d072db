//! Counts of the decisions of rules.

use std::sync::Arc;

use ahash::AHashMap;

use crate::flow::{Count, Time};
use crate::hits::Hit;

/// Counts of a rule, or of the end of a list of rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleTotals {
    /// Number of decisions about packets that belong to no known connection.
    pub hits: u64,
    /// Traffic in both directions of connections that it decided last; dropped packets of denied
    /// ones.
    pub traffic: Count,
    /// Time of the last hit.
    pub last_hit: Time,
}

/// Counts of a limited number of rules; all other rules are counted together.
#[derive(Debug)]
pub struct RuleCounts {
    rules: AHashMap<Arc<Hit>, RuleTotals>,
    others: RuleTotals,
    limit: usize,
}

impl RuleCounts {
    pub(crate) fn new(limit: usize) -> Self {
        Self { rules: AHashMap::new(), others: RuleTotals::default(), limit }
    }

    pub(crate) fn hit(&mut self, hit: &Arc<Hit>, now: Time) {
        let totals = self.of(hit);
        totals.hits += 1;
        totals.last_hit = totals.last_hit.max(now);
    }

    pub(crate) fn add(&mut self, hit: &Arc<Hit>, traffic: Count) {
        self.of(hit).traffic += traffic;
    }

    /// Removes rules, which no longer exist.
    pub(crate) fn retain(&mut self, keep: impl Fn(&Hit) -> bool) {
        self.rules.retain(|hit, _| keep(hit));
    }

    /// Iterates over the rules with separate counts, in no order.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Hit, &RuleTotals)> {
        self.rules.iter().map(|(hit, totals)| (&**hit, totals))
    }

    /// Returns the counts of all other rules together.
    #[must_use]
    pub fn others(&self) -> &RuleTotals {
        &self.others
    }

    fn of(&mut self, hit: &Arc<Hit>) -> &mut RuleTotals {
        if self.rules.len() >= self.limit && !self.rules.contains_key(hit) {
            return &mut self.others;
        }
        self.rules.entry(Arc::clone(hit)).or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tortie_evaluate::DecidedBy;
    use tortie_model::{Direction, TierName};
    use tortie_rules::PrefixVerdict;

    use super::*;

    fn end_of(tier: &str) -> Arc<Hit> {
        let decided_by = DecidedBy::EndOfTier { tier: TierName::new(tier) };
        Arc::new(Hit { direction: Direction::Egress, verdict: PrefixVerdict::Deny, decided_by })
    }

    #[test]
    fn rules_past_the_limit_are_counted_together() {
        let mut counts = RuleCounts::new(2);
        let at = Duration::from_secs;
        for (tier, now) in [("a", 5), ("b", 6), ("c", 7), ("d", 8), ("a", 9), ("a", 3)] {
            counts.hit(&end_of(tier), at(now));
        }
        counts.add(&end_of("d"), Count { packets: 2, bytes: 100 });
        assert_eq!(counts.iter().len(), 2);
        let of_a = counts.iter().find(|(hit, _)| **hit == *end_of("a")).unwrap().1;
        assert_eq!((of_a.hits, of_a.last_hit), (3, at(9)));
        assert_eq!((counts.others().hits, counts.others().traffic.bytes), (2, 100));

        counts.retain(|hit| *hit != *end_of("a"));
        counts.hit(&end_of("c"), at(10));
        assert_eq!(counts.iter().len(), 2);
        assert_eq!(counts.others().hits, 2);
    }
}
