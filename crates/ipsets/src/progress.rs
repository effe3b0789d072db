//! The state of the reconciler between plans: the command in flight, the round, and the deletions.

use std::collections::BTreeSet;
use std::time::Duration;

use tortie_net::IpSetName;
use tortie_netfilter::Member;

use crate::list::{Lines, ListReader};
use crate::list_all::AllReader;
use crate::plan::CommandFailure;

/// Attempts per round to list the names before the first successful listing, and after it.
const FIRST_NAMES_ATTEMPTS: u32 = 10;
const NAMES_ATTEMPTS: u32 = 5;
/// Maximum number of sets that one command destroys.
const LARGEST_BATCH: usize = 512;

/// Reason for a listing of the kernel; a later reason includes the earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reason {
    /// To find the existing sets after a failure.
    Check,
    Background,
    Full,
}

/// The progress of the reconciler between plans.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    pub(crate) listing: Option<Reason>,
    /// The sets were listed at least once.
    pub(crate) has_listed: bool,
    pub(crate) in_flight: Option<InFlight>,
    pub(crate) round: Option<Round>,
    pub(crate) deletion: Option<Deletion>,
    pub(crate) batch: Batch,
    /// Duration of the last listing of all sets with their members.
    pub(crate) all_took: Duration,
    /// The failure of that listing, if it failed the last time.
    pub(crate) all_failure: Option<CommandFailure>,
}

/// The command whose result is awaited.
#[derive(Clone, Debug)]
pub(crate) enum InFlight {
    All(AllInFlight),
    Names { reason: Reason, lines: Lines, seen: BTreeSet<IpSetName> },
    List { name: IpSetName, lines: Lines, reader: ListReader },
    Restore { written_sets: WrittenSets, failures: u32 },
    Destroy { names: Vec<IpSetName>, since: Duration },
}

/// The plans from one [`Plan::Done`](crate::Plan::Done) to the next.
#[derive(Clone, Debug)]
pub(crate) struct Round {
    pub(crate) started: Duration,
    pub(crate) wait_until: Duration,
    pub(crate) names_failures: u32,
    pub(crate) names_failure: Option<CommandFailure>,
    /// Sets listed before the listing of all sets failed; `None` if it did not fail.
    pub(crate) all_failed: Option<BTreeSet<IpSetName>>,
    pub(crate) failures: u32,
    pub(crate) background_reads: u32,
    /// Groups still to be written after failed restores; the last one comes first.
    pub(crate) groups: Vec<Group>,
}

/// Sets to be written with one restore.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) names: Vec<IpSetName>,
    /// The number of failed restores of this group that named no culprit.
    pub(crate) failures: u32,
}

/// The listing of all sets, as it arrives.
#[derive(Clone, Debug)]
pub(crate) struct AllInFlight {
    pub(crate) reason: Reason,
    pub(crate) since: Duration,
    pub(crate) lines: Lines,
    pub(crate) partial: PartialListing,
}

/// The part of a listing that has arrived, sorted by set.
#[derive(Clone, Debug)]
pub(crate) struct PartialListing {
    pub(crate) reader: AllReader,
    /// Members of the set that is being read.
    pub(crate) members: Vec<Member>,
    /// All own sets that the listing names.
    pub(crate) seen: BTreeSet<IpSetName>,
    /// Desired sets whose members were read to the end.
    pub(crate) read: BTreeSet<IpSetName>,
    /// Sets that had to be read before any write.
    pub(crate) owed: BTreeSet<IpSetName>,
}

/// The number of sets that the next command destroys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch(usize);

impl Batch {
    pub(crate) const fn new() -> Self {
        Self(16)
    }

    pub(crate) fn grow(&mut self) {
        self.0 = (self.0 * 2).min(LARGEST_BATCH);
    }

    pub(crate) const fn len(self) -> usize {
        self.0
    }

    pub(crate) fn halve(&mut self, from: usize) {
        self.0 = (from / 2).max(1);
    }
}

/// The plans for deletions from one [`Plan::Done`](crate::Plan::Done) to the next.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Deletion {
    pub(crate) refusals: u32,
    pub(crate) destroyed: usize,
    /// The round is complete.
    pub(crate) is_over: bool,
    /// The last command failed for an unknown reason.
    pub(crate) is_stuck: bool,
}

/// The sets that a restore text writes.
#[derive(Clone, Debug, Default)]
pub(crate) struct WrittenSets {
    /// The sets, each with the number of its first line, counted from 1.
    sets: Vec<(usize, IpSetName)>,
    /// The temporary sets that hold the replaced members.
    temporaries: Vec<IpSetName>,
}

impl WrittenSets {
    pub(crate) fn names(&self) -> impl Iterator<Item = &IpSetName> {
        self.sets.iter().map(|(_, name)| name)
    }

    pub(crate) fn into_temporaries(self) -> Vec<IpSetName> {
        self.temporaries
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sets.is_empty()
    }

    /// Records that the lines from this one on belong to the set.
    pub(crate) fn begin(&mut self, line: usize, name: IpSetName) {
        self.sets.push((line, name));
    }

    /// Records a temporary set that holds replaced members.
    pub(crate) fn replace_into(&mut self, temporary: IpSetName) {
        self.temporaries.push(temporary);
    }

    /// Returns the set to which the line belongs.
    pub(crate) fn at_line(&self, line: usize) -> Option<&IpSetName> {
        let after = self.sets.partition_point(|(first, _)| *first <= line);
        let (_, name) = self.sets.get(after.checked_sub(1)?)?;
        Some(name)
    }
}

impl Progress {
    pub(crate) const fn new() -> Self {
        Self {
            listing: Some(Reason::Full),
            has_listed: false,
            in_flight: None,
            round: None,
            deletion: None,
            batch: Batch::new(),
            all_took: Duration::ZERO,
            all_failure: None,
        }
    }

    /// Reports whether the sets were listed at least once.
    pub(crate) const fn is_known(&self) -> bool {
        self.has_listed
    }

    pub(crate) fn want_listing(&mut self, reason: Reason) {
        self.listing = self.listing.max(Some(reason));
    }
}

impl Round {
    pub(crate) const fn new(now: Duration) -> Self {
        Self {
            started: now,
            wait_until: Duration::ZERO,
            names_failures: 0,
            names_failure: None,
            all_failed: None,
            failures: 0,
            background_reads: 0,
            groups: Vec::new(),
        }
    }

    pub(crate) fn names_attempts(has_listed: bool) -> u32 {
        if has_listed { NAMES_ATTEMPTS } else { FIRST_NAMES_ATTEMPTS }
    }

    /// Queues `names` to be written again: whole, or in two parts.
    pub(crate) fn retry(&mut self, mut names: Vec<IpSetName>, failures: u32, split: bool) {
        if split && names.len() > 1 {
            let second = names.split_off(names.len() / 2);
            self.retry(second, failures, false);
        }
        if !names.is_empty() {
            self.groups.push(Group { names, failures });
        }
    }
}
