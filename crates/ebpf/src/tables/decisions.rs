//! Decisions by number.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use ahash::AHashMap;
use sha2::{Digest, Sha256};
use tortie_classes::evaluate::{DecidedBy, Verdict};
use tortie_model::Direction;

use crate::layout::{ALLOW, DECISION_SIZE, DENY, UNDECIDED, VERDICT_BITS};

/// Identity of a decision across processes.
pub(crate) type DecisionIdentity = [u8; DECISION_SIZE];

/// Number of a decision. Number 0 denies, for want of a known decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DecisionId(u32);

impl DecisionId {
    /// Returns the decision of a cell, which has the verdict in the lowest bits.
    #[must_use]
    pub const fn from_cell(value: u32) -> Self {
        Self(value >> VERDICT_BITS)
    }

    /// Returns the value of a cell, with [`DENY`], [`ALLOW`] or [`UNDECIDED`] in the lowest bits.
    #[must_use]
    pub const fn to_cell(self, verdict: Verdict) -> u32 {
        self.0 << VERDICT_BITS | verdict_bits(verdict)
    }

    /// Returns the decision with this number.
    #[must_use]
    pub const fn from_number(number: u32) -> Self {
        Self(number)
    }

    /// Returns the number.
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
    direction: Direction,
    verdict: Verdict,
    by: Arc<DecidedBy>,
    /// Number of groups that have it in their tables.
    users: u32,
}

/// Numbers of decisions. A decision keeps its number while it is in a table, and until
/// [`Decisions::reclaim`] afterwards.
#[derive(Debug)]
pub(super) struct Decisions {
    /// By direction, since rules of both directions are counted from 0, then by verdict.
    ids: [[Ids; 3]; 2],
    /// Decisions by number. Number 0 is reserved for the unknown decision.
    decisions: Vec<Option<Decision>>,
    free: Vec<DecisionId>,
    /// Numbers that had no user at some time since the last reclaim.
    retired: Vec<DecisionId>,
    /// Numbers that got another decision since the last call of `take_reused`.
    reused: Vec<DecisionId>,
    /// Numbers that got a decision since the last call of `take_named`.
    named: Vec<DecisionId>,
    /// Adopted numbers of decisions that are not in use yet.
    adopted: AHashMap<DecisionIdentity, DecisionId>,
    /// Adopted numbers whose decisions are not in use.
    unclaimed: Vec<DecisionId>,
}

type Ids = AHashMap<Arc<DecidedBy>, DecisionId>;

fn ids_of([ingress, egress]: &mut [[Ids; 3]; 2], direction: Direction, verdict: Verdict) -> &mut Ids {
    let [deny, allow, undecided] = match direction {
        Direction::Ingress => ingress,
        Direction::Egress => egress,
    };
    match verdict {
        Verdict::Deny => deny,
        Verdict::Allow => allow,
        Verdict::Undecided => undecided,
    }
}

impl Decisions {
    pub(super) fn new() -> Self {
        Self {
            ids: Default::default(),
            decisions: vec![None],
            free: Vec::new(),
            retired: Vec::new(),
            reused: Vec::new(),
            named: Vec::new(),
            adopted: AHashMap::new(),
            unclaimed: Vec::new(),
        }
    }

    /// Adopts numbers under which packets may be counted. Other numbers below `extent` were
    /// assigned at some time. Only possible before any number is assigned.
    pub(super) fn adopt(&mut self, in_use: &[(DecisionId, DecisionIdentity)], extent: u32) {
        assert!(self.decisions.len() == 1, "numbers are taken over before any is given out");
        let extent = in_use.iter().map(|(id, _)| id.0 + 1).fold(extent, u32::max);
        self.decisions.resize_with(extent as usize, || None);
        self.free = (1..extent).rev().map(DecisionId).filter(|id| !in_use.iter().any(|(used, _)| used == id)).collect();
        for (id, identity) in in_use {
            if let Some(other) = self.adopted.insert(*identity, *id) {
                self.unclaimed.push(other);
            }
        }
    }

    /// Releases the adopted numbers whose decisions are not in use.
    pub(super) fn release_adopted(&mut self) {
        self.unclaimed.extend(std::mem::take(&mut self.adopted).into_values());
    }

    /// Returns the identity of a decision.
    pub(super) fn identity(&self, id: DecisionId) -> Option<DecisionIdentity> {
        self.get(id).map(|(direction, verdict, by)| identity(direction, verdict, by))
    }

    /// Returns the decisions in use.
    pub(super) fn in_use(&self) -> impl Iterator<Item = DecisionId> + '_ {
        self.decisions.iter().zip(0..).filter_map(|(decision, number)| decision.as_ref().map(|_| DecisionId(number)))
    }

    pub(super) fn get(&self, id: DecisionId) -> Option<(Direction, Verdict, &DecidedBy)> {
        let Decision { direction, verdict, by, .. } = self.decisions.get(id.0 as usize)?.as_ref()?;
        Some((*direction, *verdict, by))
    }

    #[expect(clippy::expect_used, reason = "a decision stays at its number until it has no user")]
    fn known(&mut self, id: DecisionId) -> &mut Decision {
        self.decisions.get_mut(id.0 as usize).and_then(Option::as_mut).expect("a decision in use has its number")
    }

    /// Returns the number of a decision, and adds a user.
    #[expect(clippy::expect_used, reason = "2^32 decisions do not fit into memory")]
    pub(super) fn acquire(&mut self, direction: Direction, verdict: Verdict, by: &DecidedBy) -> DecisionId {
        if let Some(id) = ids_of(&mut self.ids, direction, verdict).get(by).copied() {
            self.known(id).users += 1;
            return id;
        }
        let by = Arc::new(by.clone());
        let decision = Some(Decision { direction, verdict, by: Arc::clone(&by), users: 1 });
        let known =
            if self.adopted.is_empty() { None } else { self.adopted.remove(&identity(direction, verdict, &by)) };
        let id = known.unwrap_or_else(|| {
            let id = match self.free.pop() {
                Some(id) => {
                    self.reused.push(id);
                    id
                }
                None => DecisionId(u32::try_from(self.decisions.len()).expect("there are fewer than 2^32 decisions")),
            };
            self.named.push(id);
            id
        });
        match self.decisions.get_mut(id.0 as usize) {
            Some(slot) => *slot = decision,
            None => self.decisions.push(decision),
        }
        ids_of(&mut self.ids, direction, verdict).insert(by, id);
        id
    }

    pub(super) fn release(&mut self, id: DecisionId) {
        let decision = self.known(id);
        decision.users -= 1;
        if decision.users == 0 {
            self.retired.push(id);
        }
    }

    /// Frees the numbers of decisions without users. The caller ensures that no packet is filtered
    /// by earlier tables any more.
    #[expect(clippy::expect_used, reason = "numbers are never taken away")]
    pub(super) fn reclaim(&mut self) {
        for id in std::mem::take(&mut self.retired) {
            let slot = self.decisions.get_mut(id.0 as usize).expect("a retired number was given out");
            // It may be in use again, or have been retired twice.
            let Some(decision) = slot.take_if(|decision| decision.users == 0) else { continue };
            ids_of(&mut self.ids, decision.direction, decision.verdict).remove(&decision.by);
            self.free.push(id);
        }
        self.free.append(&mut self.unclaimed);
    }

    /// Returns the numbers that got another decision since the last call.
    pub(super) fn take_reused(&mut self) -> Vec<DecisionId> {
        std::mem::take(&mut self.reused)
    }

    /// Returns the numbers that got a decision since the last call and are in use.
    pub(super) fn take_named(&mut self) -> Vec<DecisionId> {
        let mut named = std::mem::take(&mut self.named);
        named.sort_unstable();
        named.dedup();
        named.retain(|id| self.get(*id).is_some());
        named
    }

    /// Returns the number of decisions.
    pub(super) fn len(&self) -> usize {
        self.decisions.len() - 1 - self.free.len()
    }

    /// Returns the upper bound, exclusive, of all numbers.
    pub(super) fn extent(&self) -> usize {
        self.decisions.len()
    }
}

/// Returns the identity of a decision. A build by another compiler may compute another one; then
/// counters restart.
fn identity(direction: Direction, verdict: Verdict, by: &DecidedBy) -> DecisionIdentity {
    struct Sha(Sha256);
    impl Hasher for Sha {
        fn write(&mut self, bytes: &[u8]) {
            self.0.update(bytes);
        }

        fn finish(&self) -> u64 {
            0
        }
    }
    let mut sha = Sha(Sha256::new());
    sha.write_u8(u8::from(direction == Direction::Egress));
    sha.write_u32(verdict_bits(verdict));
    by.hash(&mut sha);
    let mut identity = DecisionIdentity::default();
    identity.iter_mut().zip(sha.0.finalize()).for_each(|(to, byte)| *to = byte);
    identity
}

#[cfg(test)]
mod tests {
    use tortie_model::{PolicyId, PolicyKind};

    use super::*;

    const INGRESS: Direction = Direction::Ingress;

    fn tier(name: &str) -> DecidedBy {
        DecidedBy::EndOfTier { tier: name.into() }
    }

    #[test]
    fn numbers_are_given_out_again_after_they_were_reclaimed() {
        let mut decisions = Decisions::new();
        let one = decisions.acquire(INGRESS, Verdict::Deny, &tier("a"));
        assert_eq!(decisions.acquire(INGRESS, Verdict::Deny, &tier("a")), one);
        let other = decisions.acquire(INGRESS, Verdict::Allow, &tier("a"));
        assert_ne!(other, one);
        decisions.release(one);
        decisions.reclaim();
        assert_eq!(decisions.get(one), Some((INGRESS, Verdict::Deny, &tier("a"))), "another group has it");
        decisions.release(one);
        assert_eq!(decisions.get(one), Some((INGRESS, Verdict::Deny, &tier("a"))), "packets may still match it");
        let third = decisions.acquire(INGRESS, Verdict::Deny, &tier("b"));
        assert!(![one, other].contains(&third));
        decisions.reclaim();
        assert_eq!((decisions.get(one), decisions.len()), (None, 2));
        assert!(decisions.take_reused().is_empty());
        assert_eq!(decisions.acquire(INGRESS, Verdict::Deny, &tier("c")), one);
        assert_eq!(decisions.take_reused(), [one]);
        assert_eq!(decisions.extent(), 4);
    }

    #[test]
    fn a_decision_that_comes_back_keeps_its_number() {
        let mut decisions = Decisions::new();
        let one = decisions.acquire(INGRESS, Verdict::Deny, &tier("a"));
        decisions.release(one);
        assert_eq!(decisions.acquire(INGRESS, Verdict::Deny, &tier("a")), one);
        decisions.release(one);
        assert_eq!(decisions.acquire(INGRESS, Verdict::Deny, &tier("a")), one);
        decisions.reclaim();
        assert_eq!(decisions.get(one), Some((INGRESS, Verdict::Deny, &tier("a"))));
        decisions.release(one);
        decisions.reclaim();
        assert_eq!(decisions.len(), 0);
    }

    #[test]
    fn the_same_rule_number_of_the_other_direction_is_another_decision() {
        let mut decisions = Decisions::new();
        let rule = DecidedBy::PolicyRule {
            tier: "a".into(),
            policy: PolicyId::new(PolicyKind::NetworkPolicy, "shop", "web"),
            index: 0,
        };
        let to = decisions.acquire(INGRESS, Verdict::Allow, &rule);
        let from = decisions.acquire(Direction::Egress, Verdict::Allow, &rule);
        assert_ne!(to, from);
        assert_ne!(decisions.identity(to), decisions.identity(from));
        assert_eq!(decisions.get(to), Some((INGRESS, Verdict::Allow, &rule)));
        assert_eq!(decisions.get(from), Some((Direction::Egress, Verdict::Allow, &rule)));
        decisions.release(to);
        decisions.reclaim();
        assert_eq!((decisions.get(to), decisions.len()), (None, 1));
        assert_eq!(decisions.get(from), Some((Direction::Egress, Verdict::Allow, &rule)));
    }

    #[test]
    fn a_decision_keeps_the_number_that_it_had_in_another_process() {
        let mut before = Decisions::new();
        let ids = ["a", "b", "c", "d"].map(|name| before.acquire(INGRESS, Verdict::Deny, &tier(name)));
        let known = |id: DecisionId| (id, before.identity(id).unwrap());
        let mut decisions = Decisions::new();
        decisions.adopt(&[known(ids[1]), known(ids[2])], 5);
        assert_eq!(decisions.acquire(INGRESS, Verdict::Deny, &tier("c")), ids[2]);
        assert!(decisions.take_named().is_empty() && decisions.take_reused().is_empty());
        // Another verdict makes it another decision, so the adopted number is not used.
        let other = decisions.acquire(INGRESS, Verdict::Allow, &tier("b"));
        assert_eq!((other, decisions.take_named(), decisions.take_reused()), (ids[0], vec![other], vec![other]));
        decisions.release_adopted();
        assert_eq!(decisions.acquire(INGRESS, Verdict::Deny, &tier("e")), ids[3]);
        assert_eq!(
            decisions.acquire(INGRESS, Verdict::Deny, &tier("b")),
            DecisionId(5),
            "packets may be counted as the one before"
        );
        decisions.reclaim();
        assert_eq!(decisions.acquire(INGRESS, Verdict::Deny, &tier("f")), ids[1]);
        assert_eq!(decisions.take_reused(), [ids[3], ids[1]], "others have been counted there");
        assert_eq!(decisions.in_use().count(), decisions.len());
    }

    #[test]
    fn a_cell_holds_verdict_and_number() {
        for (verdict, bits) in [(Verdict::Deny, 0), (Verdict::Allow, 1), (Verdict::Undecided, 2)] {
            assert_eq!(DecisionId(5).to_cell(verdict), 20 + bits);
            assert_eq!(DecisionId::from_cell(20 + bits), DecisionId(5));
        }
        assert_eq!(DecisionId::default().to_cell(Verdict::Deny), 0);
    }
}
