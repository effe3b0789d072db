//! Joins and departures of a live set's members since the last flush.

use ahash::RandomState;
use hashbrown::HashMap;

use super::item_members::ItemMembers;
use super::member::Member;
use crate::types::NamedPort;

/// How many more items contribute each member now than at the last flush. Joins and departures that cancel out leave a
/// zero behind, so a member that leaves and comes back is no change.
#[derive(Clone, Debug, Default)]
pub(super) struct MemberDeltas {
    counts: Option<Box<HashMap<Member, i32, RandomState>>>,
}

impl MemberDeltas {
    pub(super) fn is_empty(&self) -> bool {
        self.counts.is_none()
    }

    /// Books `count` contributions of each member that an item holds.
    pub(super) fn book(&mut self, item_members: &ItemMembers, named: Option<&NamedPort>, count: i32) {
        let counts = self.counts.get_or_insert_default();
        item_members.each_member(named, |member| *counts.entry(member).or_default() += count);
    }

    /// Members and how many more holders they have, those without a difference left out.
    pub(super) fn entries(self) -> impl Iterator<Item = (Member, i32)> {
        self.counts.into_iter().flat_map(|counts| *counts).filter(|&(_, count)| count != 0)
    }
}
