//! Members that are tried again in turns.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};

use tortie_model::IpSetId;

use super::KernelMember;

/// Members, of which some are taken at a time, so that each has its turn.
#[derive(Debug, Default)]
pub(super) struct Turns {
    members: BTreeSet<KernelMember>,
    /// The last one that was taken.
    last: Option<KernelMember>,
}

impl Turns {
    pub(super) fn insert(&mut self, member: KernelMember) {
        self.members.insert(member);
    }

    /// Removes a member, and reports whether it was there.
    pub(super) fn remove(&mut self, member: &KernelMember) -> bool {
        self.members.remove(member)
    }

    pub(super) fn contains(&self, member: &KernelMember) -> bool {
        self.members.contains(member)
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    /// Removes the members of a set.
    pub(super) fn forget(&mut self, set: &IpSetId) {
        self.members.retain(|member| member.set != *set);
    }

    /// Takes up to `most` members: those after the last taken one in order, then from the first
    /// one.
    pub(super) fn take(&mut self, most: usize) -> Vec<KernelMember> {
        let taken: Vec<KernelMember> = match &self.last {
            None => self.members.iter().take(most).cloned().collect(),
            Some(last) => {
                let later = self.members.range((Excluded(last), Unbounded));
                later.chain(self.members.range(..=last)).take(most).cloned().collect()
            }
        };
        for member in &taken {
            self.members.remove(member);
        }
        if let Some(last) = taken.last() {
            self.last = Some(last.clone());
        }
        taken
    }
}
