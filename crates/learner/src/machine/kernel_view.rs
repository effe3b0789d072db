//! Members that the kernel was seen to have, at the start and later.

use std::collections::BTreeSet;

use tortie_dataplane::DomainSetPart;
use tortie_dns::{Action, Member, Millis, RestoreError, Restored};
use tortie_model::IpSetId;

use super::Machine;
use super::scopes::{placed, scope_of};
use crate::writes::KernelMember;

/// A set of the kernel: the set of patterns and the part of it.
pub(crate) type SetPart = (IpSetId, DomainSetPart);

/// Sets of one comparison.
const COMPARED: usize = 16;
/// Members of all sets up to which sets are compared again, so that a comparison takes some 10 ms.
pub(crate) const COMPARED_MEMBERS: usize = 20_000;

impl Machine {
    /// Returns the kernel's sets whose members are not known yet. Until they have been listed, they
    /// may have members that nothing explains.
    pub(crate) fn unlisted(&self) -> Vec<SetPart> {
        self.kernel_sets().into_iter().filter(|set| !self.listed.contains(set)).collect()
    }

    /// Returns the next sets to list again, in turns, since another program may have changed or
    /// emptied them; none while there are more members than can be compared beside the replies.
    pub(crate) fn next_comparison(&mut self) -> Vec<SetPart> {
        if self.learned.counts().members > COMPARED_MEMBERS {
            return Vec::new();
        }
        let after = self.compared.take();
        let (before, behind): (Vec<SetPart>, Vec<SetPart>) =
            self.listed.iter().cloned().partition(|set| after.as_ref().is_some_and(|after| set <= after));
        let next: Vec<SetPart> = behind.into_iter().chain(before).take(COMPARED).collect();
        self.compared = next.last().cloned();
        next
    }

    /// Restores a saved state before the first packet. `kernel` has all members of the `sets` that
    /// [`Machine::unlisted`] returned.
    pub(crate) fn restore(
        &mut self,
        now: Millis,
        saved: Option<&[u8]>,
        sets: &[SetPart],
        kernel: Vec<KernelMember>,
    ) -> Result<Restored, RestoreError> {
        self.note_listed(sets);
        let (mut in_place, mut displaced) = (BTreeSet::new(), BTreeSet::new());
        for member in kernel {
            let scope = scope_of(&member);
            let place = self.scopes.get(scope).map(|learner| learner.place);
            let place = place.filter(|place| place.owner == member.owner);
            let known = Member { set: member.set.clone(), scope, address: member.address };
            if place.is_some_and(|place| place.part == member.part) {
                in_place.insert(known);
                continue;
            }
            // Scopes may have other parts than before the restart.
            displaced.extend(place.map(|_| known));
            self.writes.note(member, false);
        }
        let displaced: BTreeSet<Member> = displaced.difference(&in_place).cloned().collect();
        let all: Vec<Member> = in_place.into_iter().chain(displaced.iter().cloned()).collect();
        let restored = self.learned.restore(now, saved, &all);
        for change in self.learned.take_changes() {
            // The part of its scope never had a displaced member.
            if change.action == Action::Added || !displaced.contains(&change.member) {
                self.note_change(change);
            }
        }
        let kept: BTreeSet<Member> = self.members_of(displaced.iter().map(|member| &member.set)).collect();
        for member in displaced.into_iter().filter(|member| kept.contains(member)) {
            self.note_change(tortie_dns::Change { member, action: Action::Added });
        }
        restored
    }

    /// Leads the members that the kernel has in these sets to those that it should have. Members
    /// that nothing explains go, and lost ones come back. Cost: the members of the sets and of the
    /// scopes that use them.
    pub(crate) fn compare(&mut self, sets: &[SetPart], kernel: Vec<KernelMember>) {
        let sets: BTreeSet<&SetPart> = self.note_listed(sets);
        let mut kernel: BTreeSet<KernelMember> = kernel.into_iter().collect();
        let members: Vec<Member> = self.members_of(sets.iter().map(|(set, _)| set)).collect();
        for member in members {
            let Some(learner) = self.scopes.get_mut(member.scope) else { continue };
            let member = placed(member, learner.place);
            if !kernel.remove(&member)
                && sets.contains(&(member.set.clone(), member.part))
                && let Some(number) = self.writes.correct(member, true)
            {
                learner.needs = number;
            }
        }
        for member in kernel {
            if sets.contains(&(member.set.clone(), member.part)) {
                self.writes.correct(member, false);
            }
        }
    }

    /// Forgets that a set was listed, which is about to be destroyed.
    pub(super) fn forget_listed(&mut self, set: &IpSetId) {
        self.listed.retain(|(of, _)| of != set);
    }

    /// Forgets sets that are no longer in use: when they come back, they may have members again.
    pub(super) fn forget_unused(&mut self) {
        let used = self.kernel_sets();
        self.listed.retain(|set| used.contains(set));
    }

    /// Notes that sets were listed, and returns those that are still in use.
    fn note_listed<'s>(&mut self, sets: &'s [SetPart]) -> BTreeSet<&'s SetPart> {
        let used = self.kernel_sets();
        let sets: BTreeSet<&SetPart> = sets.iter().filter(|set| used.contains(set)).collect();
        self.listed.extend(sets.iter().map(|set| (*set).clone()));
        sets
    }

    /// Returns the kernel's sets that may have members of the scopes.
    fn kernel_sets(&self) -> BTreeSet<SetPart> {
        let parts: BTreeSet<DomainSetPart> = self.scopes.parts().collect();
        self.sets.iter().flat_map(|set| parts.iter().map(|part| (set.clone(), *part))).collect()
    }

    /// Returns the members that sets should have.
    fn members_of<'s>(&self, sets: impl Iterator<Item = &'s IpSetId>) -> impl Iterator<Item = Member> {
        let sets: BTreeSet<&IpSetId> = sets.collect();
        sets.into_iter().flat_map(|set| self.learned.members(set))
    }
}
