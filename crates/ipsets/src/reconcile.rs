//! State machine that chooses the next command. The modules below handle the results.

use std::time::Duration;

use crate::list::owned_name;
use crate::plan::{CommandFailure, Plan};
use crate::progress::{InFlight, Round};
use crate::sets::IpSets;

mod destroy;
mod read;
mod restore;

use read::observe;

/// Consecutive failures to list a set after which it counts as unreadable and is
/// replaced if it is desired.
const LIST_ATTEMPTS: u32 = 5;
/// Attempts for a restore that fails without naming the line, before it is split in halves.
const WHOLE_ATTEMPTS: u32 = 3;
/// Attempts for a failing set within a round; further attempts follow after longer pauses.
const QUICK_ATTEMPTS: u32 = 3;
/// Failed commands after which a round ends.
const FAILURES_PER_ROUND: u32 = 64;
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(1);
pub(crate) const FIRST_LONG_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Returns 1, 2, 4 ms, …
fn pause(failures: u32) -> Duration {
    FIRST_PAUSE * 2u32.pow(failures.clamp(1, 17) - 1)
}

/// Returns short pauses for the attempts within a round, then 1, 2, 4 … 60 s.
fn set_pause(failures: u32) -> Duration {
    if failures <= QUICK_ATTEMPTS {
        return pause(failures);
    }
    let doublings = (failures - QUICK_ATTEMPTS - 1).min(16);
    (FIRST_LONG_PAUSE * 2u32.pow(doublings)).min(LONGEST_PAUSE)
}

impl IpSets {
    /// Returns the next operation that brings the desired sets in sync. Sets that are no longer
    /// desired stay, since rules may still refer to them (see
    /// [`plan_deletions`](Self::plan_deletions)).
    ///
    /// `now` is the time since a fixed moment and must not run backwards. A command whose result
    /// was not reported counts as failed.
    pub fn plan(&mut self, now: Duration) -> Plan {
        let empty = tracing::field::Empty;
        let _span = tracing::debug_span!("ipsets", family = %self.family, sets = empty, bytes = empty).entered();
        self.abandon(now);
        let has_listed = self.progress.has_listed;
        let round = self.progress.round.get_or_insert_with(|| Round::new(now));
        if round.wait_until > now {
            return Plan::Sleep(round.wait_until - now);
        }
        let may_list = round.names_failures < Round::names_attempts(has_listed);
        let all_failed = round.all_failed.is_some();
        if may_list && let Some(reason) = self.progress.listing {
            return self.start_listing(now, reason, all_failed);
        }
        if !has_listed || round.failures >= FAILURES_PER_ROUND {
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

    /// Takes the next piece of the output of [`Plan::ListAll`], [`Plan::ListNames`] or
    /// [`Plan::List`]; a piece may end anywhere.
    pub fn on_output(&mut self, chunk: &[u8]) {
        // Moved out so that `self` can be borrowed while lines are processed.
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

    /// Takes the result of the planned command. Without one this does nothing.
    pub fn on_exit(&mut self, now: Duration, result: Result<(), CommandFailure>) {
        match self.progress.in_flight.take() {
            None => {}
            Some(InFlight::All(all)) => self.all_listed(now, all, result),
            Some(InFlight::Names { reason, lines, mut seen }) => {
                let result = result.and_then(|()| Ok(lines.finish(|line| seen.extend(owned_name(self.family, line)))?));
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
                Err(failure) if failure.is_no_such_set() => self.mark_absent(&name),
                Err(failure) => self.list_failed(now, &name, failure),
            },
            Some(InFlight::Restore { written_sets, failures }) => match result {
                Ok(()) => self.restored(written_sets),
                Err(failure) => self.restore_failed(now, &written_sets, failures, failure),
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
