//! Decisions by number.

use std::sync::Arc;

use ahash::AHashMap;
use tortie_classes::evaluate::{DecidedBy, Verdict};

use crate::layout::{ALLOW, DENY, UNDECIDED, VERDICT_BITS};

/// A decision by number. 0 denies what is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DecisionId(u32);

impl DecisionId {
    /// As a cell says it, with the verdict in the lowest bits.
    #[must_use]
    pub const fn from_cell(value: u32) -> Self {
        Self(value >> VERDICT_BITS)
    }

    /// The value of a cell, with [`DENY`], [`ALLOW`] or [`UNDECIDED`] in the lowest bits.
    #[must_use]
    pub const fn to_cell(self, verdict: Verdict) -> u32 {
        self.0 << VERDICT_BITS | verdict_bits(verdict)
    }

    /// The number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

const fn verdict_bits(verdict: Verdict) -> u32 {
    match verdict {
        Verdict::Deny => DENY,
        Verdict::Allow => ALLOW,
        Verdict::Undecided => UNDECIDED,
    }
}

#[derive(Debug)]
struct Decision {
    verdict: Verdict,
    by: Arc<DecidedBy>,
    /// How many groups have it in their tables.
    users: u32,
}

/// Numbers of decisions. One keeps its number for as long as it is in a table, and until [`Decisions::reclaim`] afterwards.
#[derive(Debug)]
pub(super) struct Decisions {
    /// By what is decided.
    ids: [AHashMap<Arc<DecidedBy>, DecisionId>; 3],
    /// The first is for what is not known.
    decisions: Vec<Option<Decision>>,
    free: Vec<DecisionId>,
    /// Those that had no user at some time since numbers were last reclaimed.
    retired: Vec<DecisionId>,
    /// Those that stand for something else than before, since they were last taken.
    reused: Vec<DecisionId>,
}

impl Decisions {
    pub(super) fn new() -> Self {
        Self {
            ids: Default::default(),
            decisions: vec![None],
            free: Vec::new(),
            retired: Vec::new(),
            reused: Vec::new(),
        }
    }

    pub(super) fn get(&self, id: DecisionId) -> Option<(Verdict, &DecidedBy)> {
        let decision = self.decisions.get(id.0 as usize)?.as_ref()?;
        Some((decision.verdict, &decision.by))
    }

    /// The number of a decision, with a user more.
    pub(super) fn acquire(&mut self, verdict: Verdict, by: &DecidedBy) -> DecisionId {
        let Some(ids) = self.ids.get_mut(verdict_bits(verdict) as usize) else { return DecisionId::default() };
        if let Some(id) = ids.get(by).copied() {
            if let Some(Some(decision)) = self.decisions.get_mut(id.0 as usize) {
                decision.users += 1;
            }
            return id;
        }
        let by = Arc::new(by.clone());
        let decision = Some(Decision { verdict, by: Arc::clone(&by), users: 1 });
        let id = match self.free.pop() {
            Some(id) => {
                self.reused.push(id);
                id
            }
            None => DecisionId(u32::try_from(self.decisions.len()).unwrap_or(0)),
        };
        match self.decisions.get_mut(id.0 as usize) {
            Some(slot) => *slot = decision,
            None => self.decisions.push(decision),
        }
        ids.insert(by, id);
        id
    }

    pub(super) fn release(&mut self, id: DecisionId) {
        if let Some(Some(decision)) = self.decisions.get_mut(id.0 as usize) {
            decision.users = decision.users.saturating_sub(1);
            if decision.users == 0 {
                self.retired.push(id);
            }
        }
    }

    /// No packet is judged any more by tables that are gone.
    pub(super) fn reclaim(&mut self) {
        for id in std::mem::take(&mut self.retired) {
            let Some(slot) = self.decisions.get_mut(id.0 as usize) else { continue };
            let Some(decision) = slot.take_if(|decision| decision.users == 0) else { continue };
            if let Some(ids) = self.ids.get_mut(verdict_bits(decision.verdict) as usize) {
                ids.remove(&decision.by);
            }
            self.free.push(id);
        }
    }

    /// Those that stand for something else than before, since they were last taken.
    pub(super) fn take_reused(&mut self) -> Vec<DecisionId> {
        std::mem::take(&mut self.reused)
    }

    /// How many have a number.
    pub(super) fn len(&self) -> usize {
        self.decisions.len() - 1 - self.free.len()
    }

    /// Numbers are below.
    pub(super) fn extent(&self) -> usize {
        self.decisions.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tier(name: &str) -> DecidedBy {
        DecidedBy::EndOfTier { tier: name.into() }
    }

    #[test]
    fn numbers_are_given_out_again_after_they_were_reclaimed() {
        let mut decisions = Decisions::new();
        let one = decisions.acquire(Verdict::Deny, &tier("a"));
        assert_eq!(decisions.acquire(Verdict::Deny, &tier("a")), one);
        let other = decisions.acquire(Verdict::Allow, &tier("a"));
        assert_ne!(other, one);
        decisions.release(one);
        decisions.reclaim();
        assert_eq!(decisions.get(one), Some((Verdict::Deny, &tier("a"))), "another group has it");
        decisions.release(one);
        assert_eq!(decisions.get(one), Some((Verdict::Deny, &tier("a"))), "packets may be judged by it");
        let third = decisions.acquire(Verdict::Deny, &tier("b"));
        assert!(![one, other].contains(&third));
        decisions.reclaim();
        assert_eq!((decisions.get(one), decisions.len()), (None, 2));
        assert!(decisions.take_reused().is_empty());
        assert_eq!(decisions.acquire(Verdict::Deny, &tier("c")), one);
        assert_eq!(decisions.take_reused(), [one]);
        assert_eq!(decisions.extent(), 4);
    }

    #[test]
    fn a_decision_that_comes_back_keeps_its_number() {
        let mut decisions = Decisions::new();
        let one = decisions.acquire(Verdict::Deny, &tier("a"));
        decisions.release(one);
        assert_eq!(decisions.acquire(Verdict::Deny, &tier("a")), one);
        decisions.release(one);
        assert_eq!(decisions.acquire(Verdict::Deny, &tier("a")), one);
        decisions.reclaim();
        assert_eq!(decisions.get(one), Some((Verdict::Deny, &tier("a"))));
        decisions.release(one);
        decisions.reclaim();
        assert_eq!(decisions.len(), 0);
    }

    #[test]
    fn a_cell_tells_verdict_and_number() {
        for (verdict, bits) in [(Verdict::Deny, 0), (Verdict::Allow, 1), (Verdict::Undecided, 2)] {
            assert_eq!(DecisionId(5).to_cell(verdict), 20 + bits);
            assert_eq!(DecisionId::from_cell(20 + bits), DecisionId(5));
        }
        assert_eq!(DecisionId::default().to_cell(Verdict::Deny), 0);
    }
}
