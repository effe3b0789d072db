//! Changes of members on their way to the kernel, in numbered batches.

mod turns;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use tortie_dataplane::DomainSetPart;
use tortie_dns::Millis;
use tortie_model::{InterfaceName, IpSetId};

use self::turns::Turns;

/// Time between two attempts to write refused members.
const RETRY: Duration = Duration::from_secs(1);

/// Refused additions, and as many refused removals, that are tried again at once. Further ones wait
/// for their turn, since the changes of other endpoints wait meanwhile.
const RETRIED: usize = 256;

/// Member of a set in the kernel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct KernelMember {
    /// The set of patterns.
    pub(super) set: IpSetId,
    /// The kernel's set for it.
    pub(super) part: DomainSetPart,
    /// The interface of a workload; `None` for the host.
    pub(super) interface: Option<InterfaceName>,
    /// Number of the holder of the scope, where members of different holders are distinct; else 0.
    pub(super) owner: u64,
    /// The address.
    pub(super) address: IpAddr,
}

/// Members to write together. Each occurs once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Batch {
    /// The members, and whether each is to be present or absent.
    pub(super) changes: Vec<(KernelMember, bool)>,
}

/// Result of writing a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// All members are as they should be, except those at these positions, which the kernel
    /// refuses.
    Except(Vec<usize>),
    /// The kernel did not answer.
    Unknown,
}

/// A member that is to be written.
#[derive(Clone, Copy, Debug)]
struct Pending {
    is_present: bool,
    /// The kernel may have either state, since an earlier write failed. Otherwise it has the
    /// opposite one.
    is_uncertain: bool,
}

/// The changes that the kernel lacks. At most one batch is being written; the others collect in
/// the next one.
#[derive(Debug)]
pub(super) struct Writes {
    /// The changes of the batch that is collected.
    pending: BTreeMap<KernelMember, Pending>,
    /// Members that the kernel lacks since it refused them.
    refused_additions: Turns,
    /// Members that the kernel has since it refused to remove them.
    refused_removals: Turns,
    in_flight: Option<(u64, Batch)>,
    /// The number of the batch that is collected.
    collected: u64,
    /// The kernel has this batch and all before.
    done: u64,
    /// No batch begins before this time, after one whose outcome is unknown.
    rests_until: Option<Millis>,
    /// Refused changes are tried again at this time.
    retry_at: Option<Millis>,
    /// The latter, and those of them that are being tried again.
    unremoved: BTreeSet<KernelMember>,
}

impl Default for Writes {
    fn default() -> Self {
        Self {
            pending: BTreeMap::new(),
            refused_additions: Turns::default(),
            refused_removals: Turns::default(),
            in_flight: None,
            collected: 1,
            done: 0,
            rests_until: None,
            retry_at: None,
            unremoved: BTreeSet::new(),
        }
    }
}

impl Writes {
    /// Takes a change of a member, and returns the number of its batch.
    pub(super) fn note(&mut self, member: KernelMember, is_present: bool) -> u64 {
        let was_refused = self.refused_additions.remove(&member) | self.refused_removals.remove(&member);
        match self.pending.get_mut(&member) {
            Some(pending) if pending.is_present == is_present => {}
            // The kernel never learned of the opposite change.
            Some(pending) if !pending.is_uncertain => {
                self.pending.remove(&member);
            }
            Some(pending) => pending.is_present = is_present,
            None => {
                self.pending.insert(member, Pending { is_present, is_uncertain: was_refused });
            }
        }
        self.collected
    }

    /// Takes a member that the kernel has or lacks against its state, and returns the number of its
    /// batch; `None` if its change is on the way already, or is tried again.
    pub(super) fn correct(&mut self, member: KernelMember, is_present: bool) -> Option<u64> {
        if let Some(pending) = self.pending.get_mut(&member) {
            pending.is_uncertain = true;
            return None;
        }
        let in_flight = self.in_flight.as_ref().map(|(_, batch)| batch.changes.as_slice()).unwrap_or_default();
        // In the order of members.
        let is_in_flight = in_flight.binary_search_by(|(of, _)| of.cmp(&member)).is_ok();
        if is_in_flight || self.refused_additions.contains(&member) || self.refused_removals.contains(&member) {
            return None;
        }
        self.pending.insert(member, Pending { is_present, is_uncertain: true });
        Some(self.collected)
    }

    /// Returns the members that the kernel has and refuses to remove, also while their removal is
    /// tried again.
    pub(super) fn unremoved(&self) -> &BTreeSet<KernelMember> {
        &self.unremoved
    }

    /// Returns the number of the batch that the next change goes into.
    pub(super) fn collected(&self) -> u64 {
        self.collected
    }

    /// Returns the number of the last batch that the kernel has, with all before.
    pub(super) fn done(&self) -> u64 {
        self.done
    }

    /// Returns the number of members that the kernel refuses.
    pub(super) fn refused(&self) -> usize {
        self.refused_additions.len() + self.refused_removals.len()
    }

    /// Returns the batch to write now, if there is one.
    pub(super) fn begin(&mut self, now: Millis) -> Option<Batch> {
        if self.in_flight.is_some() || self.rests_until.is_some_and(|until| now < until) {
            return None;
        }
        self.rests_until = None;
        if self.retry_at.is_some_and(|at| at <= now) {
            for (turns, is_present) in [(&mut self.refused_removals, false), (&mut self.refused_additions, true)] {
                for member in turns.take(RETRIED) {
                    self.pending.entry(member).or_insert(Pending { is_present, is_uncertain: true });
                }
            }
            self.retry_at = (self.refused() > 0).then(|| now.after(RETRY));
        }
        if self.pending.is_empty() {
            self.done = self.collected;
            self.collected += 1;
            return None;
        }
        let pending = std::mem::take(&mut self.pending);
        let batch = Batch { changes: pending.into_iter().map(|(member, it)| (member, it.is_present)).collect() };
        self.in_flight = Some((self.collected, batch.clone()));
        self.collected += 1;
        Some(batch)
    }

    /// Takes the result of the batch that [`Writes::begin`] returned last.
    pub(super) fn finish(&mut self, now: Millis, written: &Written) {
        let Some((number, batch)) = self.in_flight.take() else { return };
        let refused = match written {
            Written::Except(refused) => {
                self.done = number;
                refused.as_slice()
            }
            Written::Unknown => {
                for (member, is_present) in batch.changes {
                    // A later change of the member counts, but the kernel may have either state.
                    let later = self.pending.entry(member).or_insert(Pending { is_present, is_uncertain: true });
                    later.is_uncertain = true;
                }
                self.rests_until = Some(now.after(RETRY));
                return;
            }
        };
        if !self.unremoved.is_empty() {
            batch.changes.iter().for_each(|(member, _)| _ = self.unremoved.remove(member));
        }
        for (member, is_present) in refused.iter().filter_map(|at| batch.changes.get(*at)) {
            if !is_present {
                self.unremoved.insert(member.clone());
            }
            match self.pending.get_mut(member) {
                Some(later) => later.is_uncertain = true,
                None if *is_present => self.refused_additions.insert(member.clone()),
                None => self.refused_removals.insert(member.clone()),
            }
        }
        if self.refused() > 0 && self.retry_at.is_none() {
            self.retry_at = Some(now.after(RETRY));
        }
    }

    /// Returns the time of the next attempt; `None` while a batch is being written.
    pub(super) fn next_attempt(&self) -> Option<Millis> {
        self.rests_until.or(self.retry_at).filter(|_| self.in_flight.is_none())
    }

    /// Forgets members of a set that is about to be destroyed, which the kernel refused.
    pub(super) fn forget_refused(&mut self, set: &IpSetId) {
        self.refused_additions.forget(set);
        self.refused_removals.forget(set);
        self.unremoved.retain(|member| member.set != *set);
    }

    /// Reports whether the kernel has everything.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.refused() == 0 && self.in_flight.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(last: u8) -> KernelMember {
        KernelMember {
            set: IpSetId::new("d:x"),
            part: DomainSetPart::Host,
            interface: None,
            owner: 0,
            address: IpAddr::from([192, 0, 2, last]),
        }
    }

    fn batch(changes: &[(u8, bool)]) -> Option<Batch> {
        let changes = changes.iter().map(|(last, is_present)| (member(*last), *is_present)).collect();
        Some(Batch { changes })
    }

    #[test]
    fn changes_collect_while_a_batch_is_written() {
        let mut writes = Writes::default();
        let now = Millis(0);
        assert_eq!(writes.note(member(1), true), 1);
        assert_eq!(writes.begin(now), batch(&[(1, true)]));
        assert_eq!(writes.note(member(2), true), 2);
        assert_eq!(writes.begin(now), None, "one at a time");
        assert_eq!(writes.done(), 0);
        writes.finish(now, &Written::Except(vec![]));
        assert_eq!(writes.done(), 1);
        assert_eq!(writes.begin(now), batch(&[(2, true)]));
        writes.finish(now, &Written::Except(vec![]));
        assert_eq!(writes.done(), 2);
        assert!(writes.is_idle());
    }

    #[test]
    fn a_change_that_undoes_another_needs_no_write_and_is_done_all_the_same() {
        let mut writes = Writes::default();
        let number = writes.note(member(1), true);
        writes.note(member(1), false);
        assert_eq!(writes.begin(Millis(0)), None);
        assert!(writes.done() >= number);
        assert!(writes.note(member(1), true) > writes.done());
    }

    #[test]
    fn a_batch_without_answer_is_written_again_with_later_changes() {
        let mut writes = Writes::default();
        let number = writes.note(member(1), true);
        writes.note(member(2), true);
        writes.begin(Millis(0)).unwrap();
        writes.note(member(1), false);
        writes.finish(Millis(10), &Written::Unknown);
        assert_eq!((writes.begin(Millis(10)), writes.done()), (None, 0));
        assert_eq!(writes.next_attempt(), Some(Millis(1_010)));
        assert_eq!(writes.begin(Millis(1_010)), batch(&[(1, false), (2, true)]));
        writes.finish(Millis(1_010), &Written::Except(vec![]));
        assert!(writes.done() >= number && writes.is_idle());
    }

    #[test]
    fn a_refused_change_is_tried_again_and_holds_up_no_other() {
        let mut writes = Writes::default();
        writes.note(member(1), true);
        let number = writes.note(member(2), true);
        writes.begin(Millis(0)).unwrap();
        writes.finish(Millis(5), &Written::Except(vec![0]));
        assert_eq!((writes.done(), writes.refused()), (number, 1));
        assert_eq!(writes.begin(Millis(1_004)), None);
        assert_eq!(writes.begin(Millis(1_005)), batch(&[(1, true)]));
        writes.finish(Millis(1_005), &Written::Except(vec![0]));
        assert_eq!(writes.refused(), 1);
        // The member is gone meanwhile; the kernel may have it nevertheless.
        writes.note(member(1), false);
        assert_eq!(writes.begin(Millis(1_006)), batch(&[(1, false)]));
        writes.finish(Millis(1_006), &Written::Except(vec![]));
        assert!(writes.is_idle());
    }

    #[test]
    fn refused_changes_are_tried_again_in_turns() {
        let mut writes = Writes::default();
        let member = |number: u32| KernelMember { address: std::net::Ipv4Addr::from_bits(number).into(), ..member(0) };
        (0..1_000).for_each(|number| _ = writes.note(member(number), number % 2 == 0));
        let mut batch = writes.begin(Millis(0)).unwrap();
        let mut tried = vec![0; 1_000];
        for second in 1..=9_u64 {
            writes.finish(Millis(1_000 * second - 999), &Written::Except((0..batch.changes.len()).collect()));
            assert_eq!(writes.next_attempt().map(|at| at.0 / 1_000), Some(second));
            batch = writes.begin(Millis(1_000 * second + 1)).unwrap();
            assert_eq!(batch.changes.iter().filter(|(_, is_present)| *is_present).count(), RETRIED);
            assert_eq!(batch.changes.len(), 2 * RETRIED);
            for number in 0..1_000 {
                tried[number as usize] += usize::from(batch.changes.iter().any(|(of, _)| *of == member(number)));
            }
        }
        assert!(tried.iter().all(|times| (4..=5).contains(times)), "{tried:?}");
        // A batch without an answer ends no turn.
        writes.finish(Millis(9_002), &Written::Unknown);
        assert!(writes.next_attempt().is_some());
    }

    #[test]
    fn a_correction_is_written_unless_its_change_is_on_the_way() {
        let mut writes = Writes::default();
        let number = writes.correct(member(1), true).unwrap();
        assert_eq!(writes.correct(member(1), true), None, "collected");
        // The kernel may have either state: the opposite change is written as well.
        writes.note(member(1), false);
        assert_eq!(writes.begin(Millis(0)), batch(&[(1, false)]));
        assert_eq!(writes.correct(member(1), false), None, "being written");
        writes.finish(Millis(0), &Written::Except(vec![0]));
        assert!(writes.done() >= number && writes.unremoved().len() == 1);
        assert_eq!(writes.correct(member(1), false), None, "refused");
        assert_eq!(writes.begin(Millis(1_000)), batch(&[(1, false)]));
        writes.finish(Millis(1_000), &Written::Except(vec![]));
        assert!(writes.is_idle() && writes.unremoved().is_empty());
    }

    #[test]
    fn refused_changes_of_a_destroyed_set_are_forgotten() {
        let mut writes = Writes::default();
        writes.note(member(1), true);
        writes.begin(Millis(0)).unwrap();
        writes.finish(Millis(0), &Written::Except(vec![0]));
        writes.forget_refused(&IpSetId::new("d:x"));
        assert_eq!(writes.begin(Millis(5_000)), None);
        assert!(writes.is_idle());
    }
}
