//! Joins and departures of members of a live set since the last flush.

use ahash::RandomState;
use hashbrown::HashMap;

use super::item_members::ItemMembers;
use super::member::Member;
use crate::types::NamedPort;

/// Change of the number of contributing items since the last flush, per member. Joins and
/// departures that cancel out leave a zero, so a member that leaves and returns is not reported.
#[derive(Clone, Debug, Default)]
pub(super) struct MemberDeltas {
    counts: Option<Box<HashMap<Member, i32, RandomState>>>,
}

impl MemberDeltas {
    pub(super) fn is_empty(&self) -> bool {
        self.counts.is_none()
    }

    /// Adds `count` to each member that an item contributes.
    pub(super) fn book(&mut self, item_members: &ItemMembers, named: Option<&NamedPort>, count: i32) {
        let counts = self.counts.get_or_insert_default();
        item_members.each_member(named, |member| *counts.entry(member).or_default() += count);
    }

    /// Returns the members whose number of holders differs, with the difference.
    pub(super) fn entries(self) -> impl Iterator<Item = (Member, i32)> {
        self.counts.into_iter().flat_map(|counts| *counts).filter(|&(_, count)| count != 0)
    }
}
