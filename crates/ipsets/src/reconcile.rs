//! The state machine: which command is next. What its result means is in the modules below.

use std::collections::BTreeSet;
use std::time::Duration;

use tortie_net::IpSetName;

use crate::list::{Lines, ListReader, owned_name};
use crate::plan::{CommandFailure, Plan};
use crate::sets::{IpSets, Resync};
use crate::write::Touched;

mod destroy;
mod read;
mod restore;

use destroy::{Batch, Deletion};
use read::{AllInFlight, observe};

/// After that many failures in a row a set that cannot be listed counts as unreadable, and is
/// replaced if it is wanted.
const LIST_ATTEMPTS: u32 = 5;
/// So often listing the names is tried in a round when nothing is known yet, and so often otherwise.
const FIRST_NAMES_ATTEMPTS: u32 = 10;
const NAMES_ATTEMPTS: u32 = 5;
/// A restore that fails without saying where is tried so often before it is cut in halves.
const WHOLE_ATTEMPTS: u32 = 3;
/// A failing set is tried again so often within the round, then only after longer pauses.
const QUICK_ATTEMPTS: u32 = 3;
/// A round ends after that many failed commands.
const FAILURES_PER_ROUND: u32 = 64;
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(1);
pub(crate) const FIRST_LONG_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Why the kernel is to be listed; a later reason includes the earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reason {
    /// To see which sets exist after a failure.
    Check,
    Background,
    Full,
}

impl From<Resync> for Reason {
    fn from(resync: Resync) -> Self {
        match resync {
            Resync::Background => Self::Background,
            Resync::Full => Self::Full,
        }
    }
}

/// Where the reconciler is.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    listing: Option<Reason>,
    /// The sets were listed at least once.
    known: bool,
    in_flight: Option<InFlight>,
    round: Option<Round>,
    deletion: Option<Deletion>,
    batch: Batch,
    /// How long it took to list all sets with their members, the last time.
    all_took: Duration,
    /// Why that did not work the last time.
    all_failure: Option<CommandFailure>,
}

/// The command whose result is awaited.
#[derive(Clone, Debug)]
enum InFlight {
    All(AllInFlight),
    Names { reason: Reason, lines: Lines, seen: BTreeSet<IpSetName> },
    List { name: IpSetName, lines: Lines, reader: ListReader },
    Restore { touched: Touched, failures: u32 },
    Destroy { names: Vec<IpSetName>, since: Duration },
}

/// From the first plan after [`Plan::Done`] to the next [`Plan::Done`].
#[derive(Clone, Debug)]
struct Round {
    started: Duration,
    wait_until: Duration,
    names_failures: u32,
    names_failure: Option<CommandFailure>,
    /// Listing all sets at once failed; these were listed before it did.
    all_failed: Option<BTreeSet<IpSetName>>,
    failures: u32,
    background_reads: u32,
    /// What is left to write of restores that failed; the last one comes first.
    groups: Vec<Group>,
}

/// Sets to be written with one restore.
#[derive(Clone, Debug)]
struct Group {
    names: Vec<IpSetName>,
    /// How often writing them failed without a culprit.
    failures: u32,
}

impl Progress {
    pub(crate) const fn new() -> Self {
        Self {
            listing: Some(Reason::Full),
            known: false,
            in_flight: None,
            round: None,
            deletion: None,
            batch: Batch::new(),
            all_took: Duration::ZERO,
            all_failure: None,
        }
    }

    /// Whether it was ever seen which sets there are.
    pub(crate) const fn is_known(&self) -> bool {
        self.known
    }

    pub(crate) fn want_listing(&mut self, reason: Reason) {
        self.listing = self.listing.max(Some(reason));
    }
}

impl Round {
    const fn new(now: Duration) -> Self {
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

    fn names_attempts(known: bool) -> u32 {
        if known { NAMES_ATTEMPTS } else { FIRST_NAMES_ATTEMPTS }
    }

    /// Queues `names` to be written again: whole, or in two parts.
    fn retry(&mut self, mut names: Vec<IpSetName>, failures: u32, split: bool) {
        if split && names.len() > 1 {
            let second = names.split_off(names.len() / 2);
            self.retry(second, failures, false);
        }
        if !names.is_empty() {
            self.groups.push(Group { names, failures });
        }
    }
}

/// 1, 2, 4 ms, …
fn pause(failures: u32) -> Duration {
    FIRST_PAUSE * 2u32.saturating_pow(failures.saturating_sub(1).min(16))
}

/// Short pauses for the attempts within a round, then 1, 2, 4 … 60 s.
fn set_pause(failures: u32) -> Duration {
    if failures <= QUICK_ATTEMPTS {
        return pause(failures);
    }
    let doublings = (failures - QUICK_ATTEMPTS - 1).min(16);
    (FIRST_LONG_PAUSE * 2u32.pow(doublings)).min(LONGEST_PAUSE)
}

impl IpSets {
    /// The next thing to do to bring every wanted set to its wanted content; sets that are no longer
    /// wanted stay, since rules may still refer to them (see
    /// [`plan_deletions`](Self::plan_deletions)).
    ///
    /// `now` is the time since any fixed moment and must not run backwards. A command whose result
    /// was not reported counts as failed.
    pub fn plan(&mut self, now: Duration) -> Plan {
        self.abandon(now);
        let known = self.progress.known;
        let round = self.progress.round.get_or_insert_with(|| Round::new(now));
        if round.wait_until > now {
            return Plan::Sleep(round.wait_until - now);
        }
        let may_list = round.names_failures < Round::names_attempts(known);
        let all_failed = round.all_failed.is_some();
        if may_list && let Some(reason) = self.progress.listing {
            return self.start_listing(now, reason, all_failed);
        }
        if !known || round.failures >= FAILURES_PER_ROUND {
            return self.finish(now);
        }
        if let Some(name) = self.must_read.pop_first() {
            return self.start_list(name);
        }
        if let Some(name) = self.next_background_read(now) {
            return self.start_list(name);
        }
        self.next_restore(now).unwrap_or_else(|| self.finish(now))
    }

    /// Takes the next piece of what [`Plan::ListAll`], [`Plan::ListNames`] or [`Plan::List`] printed; the pieces may be
    /// cut anywhere.
    pub fn on_output(&mut self, chunk: &[u8]) {
        // Out of the way, so that what is read can be filed.
        let mut in_flight = self.progress.in_flight.take();
        match &mut in_flight {
            Some(InFlight::All(all)) => self.read_all(all, chunk),
            Some(InFlight::Names { lines, seen, .. }) => {
                lines.push(chunk, |line| seen.extend(owned_name(self.family, line)));
            }
            Some(InFlight::List { name, lines, reader }) => {
                let mut state = self.sets.get_mut(name);
                lines.push(chunk, |line| observe(reader, state.as_deref_mut(), line));
            }
            Some(InFlight::Restore { .. } | InFlight::Destroy { .. }) | None => {}
        }
        self.progress.in_flight = in_flight;
    }

    /// Takes the end of the command last planned. Without one this does nothing.
    pub fn on_exit(&mut self, now: Duration, result: Result<(), CommandFailure>) {
        match self.progress.in_flight.take() {
            None => {}
            Some(InFlight::All(all)) => self.all_listed(now, all, result),
            Some(InFlight::Names { reason, lines, mut seen }) => {
                let result = result.and_then(|()| {
                    lines
                        .finish(|line| seen.extend(owned_name(self.family, line)))
                        .map_err(|error| CommandFailure::new(error.to_string()))
                });
                match result {
                    Ok(()) => self.names_listed(reason, &seen),
                    Err(failure) => self.names_failed(now, failure),
                }
            }
            Some(InFlight::List { name, lines, mut reader }) => match result {
                Ok(()) => {
                    let mut state = self.sets.get_mut(&name);
                    let listing = lines
                        .finish(|line| observe(&mut reader, state.as_deref_mut(), line))
                        .and_then(|()| reader.finish());
                    self.listed(now, &name, listing);
                }
                Err(failure) if failure.says_no_such_set() => self.mark_absent(&name),
                Err(failure) => self.list_failed(now, &name, failure),
            },
            Some(InFlight::Restore { touched, failures }) => match result {
                Ok(()) => self.restored(touched),
                Err(failure) => self.restore_failed(now, &touched, failures, failure),
            },
            Some(InFlight::Destroy { names, since }) => self.destroyed(now.saturating_sub(since), &names, result),
        }
    }

    fn abandon(&mut self, now: Duration) {
        if self.progress.in_flight.is_some() {
            self.on_exit(now, Err(CommandFailure::new("its result was not reported")));
        }
    }

    fn fail(&mut self, wait_until: Duration) {
        if let Some(round) = &mut self.progress.round {
            round.failures += 1;
            round.wait_until = round.wait_until.max(wait_until);
        }
    }

    fn finish(&mut self, now: Duration) -> Plan {
        let round = self.progress.round.take();
        Plan::Done(self.report(now, round.and_then(|round| round.names_failure)))
    }
}
