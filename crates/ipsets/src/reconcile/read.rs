//! Reading: names, single sets, and all sets at once.

use std::collections::BTreeSet;
use std::time::Duration;

use tortie_net::IpSetName;
use tortie_netfilter::{Member, SetType};

use super::{LIST_ATTEMPTS, pause};
use crate::list::{Lines, ListError, ListReader, Listing};
use crate::list_all::{AllReader, Event};
use crate::plan::{CommandFailure, Plan};
use crate::progress::{AllInFlight, InFlight, PartialListing, Reason, Round};
use crate::sets::{IpSets, Kernel, SetState};

/// Number of members that are collected before they are stored with their set.
const MEMBERS_AT_ONCE: usize = 1024;
/// Maximum number of sets that are listed one by one; above it, one listing of all sets costs less.
const FEW_SETS: usize = 8;

impl IpSets {
    /// A listing of all sets needs a single process. If it takes long, because of very many members
    /// or large sets of other programs, a background resync reads our sets one by one, a few at a
    /// time, so that other work does not wait for it.
    pub(super) fn start_listing(&mut self, now: Duration, reason: Reason, all_failed: bool) -> Plan {
        let at_once = match reason {
            Reason::Check => self.must_read.len() > FEW_SETS,
            Reason::Background => self.progress.all_took <= self.config.list_all_limit,
            Reason::Full => true,
        };
        if reason == Reason::Background && !at_once && !all_failed {
            // The machine may only have been busy: some resyncs later, all sets are listed at once
            // again.
            self.progress.all_took /= 2;
        }
        if !at_once || all_failed {
            self.progress.in_flight = Some(InFlight::Names { reason, lines: Lines::default(), seen: BTreeSet::new() });
            return Plan::ListNames;
        }
        let partial = PartialListing {
            reader: AllReader::new(self.family),
            members: Vec::new(),
            seen: BTreeSet::new(),
            read: BTreeSet::new(),
            // Sets filed in `must_read` from now on were removed and added during the listing.
            owed: std::mem::take(&mut self.must_read),
        };
        self.progress.in_flight =
            Some(InFlight::All(AllInFlight { reason, since: now, lines: Lines::default(), partial }));
        Plan::ListAll
    }

    /// Takes a piece of the listing of all sets.
    pub(super) fn read_all(&mut self, all: &mut AllInFlight, chunk: &[u8]) {
        let AllInFlight { lines, partial, .. } = all;
        lines.push(chunk, |line| self.read_line(partial, line));
    }

    fn read_line(&mut self, partial: &mut PartialListing, line: &[u8]) {
        let is_wanted = |name: &IpSetName| self.sets.get(name).is_some_and(|state| state.desired.is_some());
        if let Some(event) = partial.reader.line(line, is_wanted) {
            self.file(partial, event);
        }
    }

    fn file(&mut self, partial: &mut PartialListing, event: Event) {
        match event {
            Event::Begin(name) => {
                if partial.seen.contains(&name) {
                    // ipset lists no set twice: one of the two is a text that looks like a listing.
                    partial.read.remove(&name);
                    self.must_read.insert(name);
                }
                if self.sets.get(&name).is_some_and(|state| state.desired.is_some()) {
                    self.expect_members(&name);
                }
                partial.seen.insert(name);
            }
            Event::Member(member) => {
                partial.members.push(member);
                if partial.members.len() >= MEMBERS_AT_ONCE {
                    self.observe_members(partial);
                }
            }
            Event::End { name, set_type, listing } => {
                self.file_members(&name, set_type, &mut partial.members);
                match listing {
                    Ok(_) if self.must_read.contains(&name) => {}
                    Ok(listing) => {
                        self.present(&name, listing);
                        partial.read.insert(name);
                    }
                    Err(error) => {
                        tracing::debug!(set = %name, %error, "reading the IP set again separately");
                        self.must_read.insert(name);
                    }
                }
            }
        }
    }

    fn observe_members(&mut self, partial: &mut PartialListing) {
        if let Some((name, set_type)) = partial.reader.current() {
            self.file_members(name, set_type, &mut partial.members);
        }
    }

    fn file_members(&mut self, name: &IpSetName, set_type: Option<SetType>, members: &mut Vec<Member>) {
        match self.sets.get_mut(name) {
            Some(state) => members.drain(..).for_each(|member| state.observe(set_type, member)),
            None => members.clear(),
        }
    }

    /// Takes the end of the listing of all sets.
    pub(super) fn all_listed(&mut self, now: Duration, all: AllInFlight, result: Result<(), CommandFailure>) {
        let AllInFlight { reason, since, lines, mut partial } = all;
        let is_whole = lines.is_whole();
        let result = result.and_then(|()| Ok(lines.finish(|line| self.read_line(&mut partial, line))?));
        match result {
            Ok(()) => {
                if let Some(event) = partial.reader.finish(is_whole) {
                    self.file(&mut partial, event);
                }
                self.progress.all_took = now.saturating_sub(since);
                self.progress.all_failure = None;
                self.may_read.clear();
                self.sets_listed(reason, &partial.seen, &partial.read);
            }
            Err(failure) => {
                if self.progress.all_failure.as_ref() != Some(&failure) {
                    tracing::warn!(%failure, "listing all IP sets failed; reading the missing sets one by one");
                    self.progress.all_failure = Some(failure);
                }
                let PartialListing { reader, read, owed, .. } = partial;
                // The last set may be incomplete.
                let doubtful = reader.current().map(|(name, _)| *name);
                let unread = owed.into_iter().chain(doubtful).filter(|name| !read.contains(name));
                self.must_read.extend(unread);
                if let Some(round) = &mut self.progress.round {
                    round.all_failed = Some(read);
                }
            }
        }
    }

    pub(super) fn names_listed(&mut self, reason: Reason, listed: &BTreeSet<IpSetName>) {
        let round = self.progress.round.as_mut();
        let read = round.and_then(|round| round.all_failed.as_mut()).map(std::mem::take).unwrap_or_default();
        self.sets_listed(reason, listed, &read);
    }

    /// Takes the names of all sets (`listed`), and of those among them that were `read` with their
    /// members.
    fn sets_listed(&mut self, reason: Reason, listed: &BTreeSet<IpSetName>, read: &BTreeSet<IpSetName>) {
        if self.progress.listing == Some(reason) {
            self.progress.listing = None;
        }
        self.progress.has_listed = true;
        if let Some(round) = &mut self.progress.round {
            round.names_failures = 0;
            round.names_failure = None;
        }
        let reread = reason > Reason::Check;
        if reason == Reason::Full {
            self.may_read.clear();
        }
        if reread {
            // The state of sets that are no longer desired is not maintained from here on.
            self.sets.retain(|_, state| state.desired.is_some());
        }
        let queued: BTreeSet<IpSetName> = self.may_read.iter().copied().collect();
        let gone: Vec<IpSetName> = self.sets.keys().filter(|name| !listed.contains(*name)).copied().collect();
        for name in &gone {
            self.mark_absent(name);
        }
        for name in listed.difference(read) {
            // Only the names of undesired sets are known.
            let Some(state) = self.sets.get_mut(name) else { continue };
            if reason == Reason::Full || state.kernel == Kernel::Absent {
                state.kernel = Kernel::Unread;
            }
            if state.kernel == Kernel::Unread && state.desired.is_some() {
                self.must_read.insert(*name);
                self.dirty.remove(name);
            } else if reread && !queued.contains(name) {
                self.may_read.push_back(*name);
            }
        }
        self.not_destroyed.clear();
        self.to_destroy =
            listed.iter().filter(|name| self.sets.get(*name).is_none_or(|s| s.desired.is_none())).copied().collect();
    }

    pub(super) fn names_failed(&mut self, now: Duration, failure: CommandFailure) {
        let has_listed = self.progress.has_listed;
        if let Some(round) = &mut self.progress.round {
            round.names_failures += 1;
            if round.names_failures < Round::names_attempts(has_listed) {
                round.wait_until = now + pause(round.names_failures);
            }
            round.names_failure = Some(failure);
        }
    }

    pub(super) fn next_background_read(&mut self, now: Duration) -> Option<IpSetName> {
        let round = self.progress.round.as_mut()?;
        let in_time = now.saturating_sub(round.started) < self.config.background_budget;
        if round.background_reads > 0 && !in_time {
            return None;
        }
        while let Some(name) = self.may_read.pop_front() {
            let state = self.sets.get(&name);
            if state.is_some_and(|s| s.desired.is_some() && s.kernel != Kernel::Absent) {
                round.background_reads += 1;
                return Some(name);
            }
        }
        None
    }

    pub(super) fn start_list(&mut self, name: IpSetName) -> Plan {
        self.expect_members(&name);
        self.progress.in_flight =
            Some(InFlight::List { name, lines: Lines::default(), reader: ListReader::new(name, self.family) });
        Plan::List(name)
    }

    pub(super) fn listed(&mut self, now: Duration, name: &IpSetName, listing: Result<Listing, ListError>) {
        let listing = match listing {
            Ok(listing) => listing,
            Err(error) => return self.list_failed(now, name, error.into()),
        };
        if self.must_read.contains(name) {
            // It was removed and added while it was being read.
            return;
        }
        self.present(name, listing);
    }

    /// Prepares a set for a listing of its members.
    fn expect_members(&mut self, name: &IpSetName) {
        if let Some(state) = self.sets.get_mut(name) {
            state.kernel = Kernel::Unread;
            state.members.expect_observed();
        }
        self.reconsider(name);
    }

    /// Records that a set was read to its end.
    fn present(&mut self, name: &IpSetName, listing: Listing) {
        if let Some(state) = self.sets.get_mut(name) {
            state.kernel = Kernel::Present(listing);
            state.health.list_failures = 0;
            state.members.tidy();
        }
        self.reconsider(name);
    }

    pub(super) fn list_failed(&mut self, now: Duration, name: &IpSetName, failure: CommandFailure) {
        let Some(state) = self.sets.get_mut(name) else {
            return;
        };
        state.health.list_failures += 1;
        let failures = state.health.list_failures;
        state.health.last = Some(failure);
        state.members.clear_observed();
        if failures < LIST_ATTEMPTS {
            self.must_read.insert(*name);
            self.fail(now + pause(failures));
        } else {
            state.health.list_failures = 0;
            state.kernel = Kernel::Unreadable;
            self.reconsider(name);
            self.fail(now);
        }
    }

    pub(super) fn mark_absent(&mut self, name: &IpSetName) {
        self.must_read.remove(name);
        self.to_destroy.remove(name);
        self.not_destroyed.remove(name);
        if let Some(state) = self.sets.get_mut(name) {
            if state.desired.is_none() {
                self.sets.remove(name);
            } else {
                state.kernel = Kernel::Absent;
                state.members.clear_observed();
                state.health.list_failures = 0;
                state.health.swap_refused = false;
            }
        }
        self.reconsider(name);
    }
}

pub(super) fn observe(reader: &mut ListReader, state: Option<&mut SetState>, line: &[u8]) {
    if let Some(member) = reader.line(line)
        && let Some(state) = state
    {
        state.observe(reader.set_type(), member);
    }
}
