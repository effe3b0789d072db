//! Estimated memory of a layout, charged before the layout is built.

use super::Sets;
use tortie_netfilter::AddressUnion;

/// Bytes of a rule, desired and observed: matches, expressions, text and comment.
pub(crate) const RULE: usize = 2 << 10;
/// Bytes of a single address in a map of addresses, with its element.
pub(super) const HOST: usize = 384;
/// Bytes of a member of a rule.
pub(super) const HELD: usize = 16;
/// Bytes of a member of a union.
pub(crate) const MEMBER: usize = 192;

/// The layout exceeds its memory bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the layout exceeds its memory budget")]
#[allow(clippy::exhaustive_structs, reason = "there is nothing more to say")]
pub struct OverBudget;

/// The cost of one layout, and its bound.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meter {
    pub(super) spent: usize,
    room: usize,
}

impl Meter {
    pub(super) const fn new(room: usize) -> Self {
        Self { spent: 0, room }
    }

    /// Bytes that are left.
    pub(super) const fn left(&self) -> usize {
        self.room.saturating_sub(self.spent)
    }

    /// Charges `count` items of `bytes` bytes each.
    pub(super) fn spend(&mut self, count: usize, bytes: usize) -> Result<(), OverBudget> {
        self.spent = self.spent.saturating_add(count.saturating_mul(bytes));
        if self.spent > self.room { Err(OverBudget) } else { Ok(()) }
    }

    /// Charges the members of a union, set by set.
    pub(super) fn union(&mut self, of: &AddressUnion, sets: &impl Sets) -> Result<(), OverBudget> {
        self.spend(of.nets.len(), MEMBER)?;
        for set in &of.sets {
            let mut members = 0;
            sets.members(*set, &mut |_| members += 1);
            self.spend(members, MEMBER)?;
        }
        Ok(())
    }
}
