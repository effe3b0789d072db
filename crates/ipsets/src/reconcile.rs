//! The state machine: which command is next, and what its result means.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::list::{Lines, ListError, ListReader, Listing, owned_name};
use crate::names::SetName;
use crate::plan::{CommandFailure, Plan, Report};
use crate::sets::{IpSets, Kernel, Need, Resync, SetState};
use crate::write::{RestoreText, Touched};

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

/// Why the names are to be listed; a later reason includes the earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NamesWish {
    /// To see which sets exist after a failure.
    Check,
    Background,
    Full,
}

impl From<Resync> for NamesWish {
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
    names: Option<NamesWish>,
    /// The names were listed at least once.
    known: bool,
    in_flight: Option<InFlight>,
    round: Option<Round>,
    deletion: Option<Deletion>,
}

/// The command whose result is awaited.
#[derive(Clone, Debug)]
enum InFlight {
    Names { wish: NamesWish, lines: Lines, seen: BTreeSet<SetName> },
    List { name: SetName, lines: Lines, reader: ListReader },
    Restore { touched: Touched, failures: u32 },
    Destroy(SetName),
}

/// From the first plan after [`Plan::Done`] to the next [`Plan::Done`].
#[derive(Clone, Debug)]
struct Round {
    started: Duration,
    wait_until: Duration,
    names_failures: u32,
    names_failure: Option<CommandFailure>,
    failures: u32,
    background_reads: u32,
    /// What is left to write of restores that failed; the last one comes first.
    groups: Vec<Group>,
}

/// Sets to be written with one restore.
#[derive(Clone, Debug)]
struct Group {
    names: Vec<SetName>,
    /// How often writing them failed without a culprit.
    failures: u32,
}

#[derive(Clone, Copy, Debug)]
struct Deletion {
    succeeded: bool,
}

impl Progress {
    pub(crate) const fn new() -> Self {
        Self { names: Some(NamesWish::Full), known: false, in_flight: None, round: None, deletion: None }
    }

    pub(crate) fn want_names(&mut self, wish: NamesWish) {
        self.names = self.names.max(Some(wish));
    }
}

impl Round {
    const fn new(now: Duration) -> Self {
        Self {
            started: now,
            wait_until: Duration::ZERO,
            names_failures: 0,
            names_failure: None,
            failures: 0,
            background_reads: 0,
            groups: Vec::new(),
        }
    }

    fn names_attempts(known: bool) -> u32 {
        if known { NAMES_ATTEMPTS } else { FIRST_NAMES_ATTEMPTS }
    }

    /// Queues `names` to be written again: whole, or in two parts.
    fn retry(&mut self, mut names: Vec<SetName>, failures: u32, split: bool) {
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
        let may_list_names = round.names_failures < Round::names_attempts(known);
        if may_list_names && let Some(wish) = self.progress.names {
            self.progress.in_flight = Some(InFlight::Names { wish, lines: Lines::default(), seen: BTreeSet::new() });
            return Plan::ListNames;
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

    /// The next thing to do to get rid of sets that are no longer wanted: after all rules were
    /// written, ask and carry out until it is [`Plan::Done`]. One set is destroyed in each such
    /// round, since the kernel takes its time over it; [`Report::more`] says whether to come back.
    ///
    /// A set that is still in use is not tried again before the names are listed anew.
    pub fn plan_deletions(&mut self, now: Duration) -> Plan {
        self.abandon(now);
        if self.progress.deletion.is_none()
            && let Some(name) = self.next_doomed()
        {
            self.progress.deletion = Some(Deletion { succeeded: false });
            self.progress.in_flight = Some(InFlight::Destroy(name.clone()));
            return Plan::Destroy(name);
        }
        let succeeded = self.progress.deletion.take().is_some_and(|d| d.succeeded);
        Plan::Done(Report {
            more: (succeeded && !self.doomed.is_empty()) || !self.may_read.is_empty(),
            ..Report::default()
        })
    }

    /// Takes the next piece of what [`Plan::ListNames`] or [`Plan::List`] printed; the pieces may
    /// be cut anywhere.
    pub fn on_output(&mut self, chunk: &[u8]) {
        match &mut self.progress.in_flight {
            Some(InFlight::Names { lines, seen, .. }) => {
                lines.push(chunk, |line| seen.extend(owned_name(self.family, line)));
            }
            Some(InFlight::List { name, lines, reader }) => {
                let mut state = self.sets.get_mut(name);
                lines.push(chunk, |line| observe(reader, state.as_deref_mut(), line));
            }
            Some(InFlight::Restore { .. } | InFlight::Destroy(_)) | None => {}
        }
    }

    /// Takes the end of the command last planned. Without one this does nothing.
    pub fn on_exit(&mut self, now: Duration, result: Result<(), CommandFailure>) {
        match self.progress.in_flight.take() {
            None => {}
            Some(InFlight::Names { wish, lines, mut seen }) => {
                let result = result.and_then(|()| {
                    lines
                        .finish(|line| seen.extend(owned_name(self.family, line)))
                        .map_err(|error| CommandFailure::new(error.to_string()))
                });
                match result {
                    Ok(()) => self.names_listed(wish, &seen),
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
            Some(InFlight::Destroy(name)) => self.destroyed(&name, result),
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

    // Names.

    fn names_listed(&mut self, wish: NamesWish, listed: &BTreeSet<SetName>) {
        if self.progress.names == Some(wish) {
            self.progress.names = None;
        }
        self.progress.known = true;
        if let Some(round) = &mut self.progress.round {
            round.names_failures = 0;
            round.names_failure = None;
        }
        let reread = wish > NamesWish::Check;
        if wish == NamesWish::Full {
            self.may_read.clear();
        }
        if reread {
            // What is known of sets on their way out is not kept up to date any longer.
            self.sets.retain(|_, state| state.desired.is_some());
        }
        let queued: BTreeSet<SetName> = self.may_read.iter().cloned().collect();
        let gone: Vec<SetName> = self.sets.keys().filter(|name| !listed.contains(*name)).cloned().collect();
        for name in &gone {
            self.mark_absent(name);
        }
        for name in listed {
            let Some(state) = self.sets.get_mut(name) else {
                continue;
            };
            if wish == NamesWish::Full || state.kernel == Kernel::Absent {
                state.kernel = Kernel::Unread;
            }
            if state.kernel == Kernel::Unread && state.desired.is_some() {
                self.must_read.insert(name.clone());
                self.dirty.remove(name);
            } else if reread && !queued.contains(name) {
                self.may_read.push_back(name.clone());
            }
        }
        self.undeletable.clear();
        self.doomed =
            listed.iter().filter(|name| self.sets.get(*name).is_none_or(|s| s.desired.is_none())).cloned().collect();
    }

    fn names_failed(&mut self, now: Duration, failure: CommandFailure) {
        let known = self.progress.known;
        if let Some(round) = &mut self.progress.round {
            round.names_failures += 1;
            if round.names_failures < Round::names_attempts(known) {
                round.wait_until = now + pause(round.names_failures);
            }
            round.names_failure = Some(failure);
        }
    }

    // Listings.

    fn next_background_read(&mut self, now: Duration) -> Option<SetName> {
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

    fn start_list(&mut self, name: SetName) -> Plan {
        if let Some(state) = self.sets.get_mut(&name) {
            state.kernel = Kernel::Unread;
            state.members.expect_observed();
        }
        self.reconsider(&name);
        self.progress.in_flight = Some(InFlight::List {
            name: name.clone(),
            lines: Lines::default(),
            reader: ListReader::new(name.clone(), self.family),
        });
        Plan::List(name)
    }

    fn listed(&mut self, now: Duration, name: &SetName, listing: Result<Listing, ListError>) {
        let listing = match listing {
            Ok(listing) => listing,
            Err(error) => {
                return self.list_failed(now, name, CommandFailure::new(error.to_string()));
            }
        };
        if self.must_read.contains(name) {
            // It was removed and added while it was being read.
            return;
        }
        if let Some(state) = self.sets.get_mut(name) {
            state.kernel = Kernel::Present(listing);
            state.health.list_failures = 0;
            state.members.tidy();
        }
        self.reconsider(name);
    }

    fn list_failed(&mut self, now: Duration, name: &SetName, failure: CommandFailure) {
        let Some(state) = self.sets.get_mut(name) else {
            return;
        };
        state.health.list_failures += 1;
        let failures = state.health.list_failures;
        state.health.last = Some(failure);
        state.members.forget_observed();
        if failures < LIST_ATTEMPTS {
            self.must_read.insert(name.clone());
            self.fail(now + pause(failures));
        } else {
            state.health.list_failures = 0;
            state.kernel = Kernel::Unreadable;
            self.reconsider(name);
            self.fail(now);
        }
    }

    fn mark_absent(&mut self, name: &SetName) {
        self.must_read.remove(name);
        self.doomed.remove(name);
        self.undeletable.remove(name);
        if let Some(state) = self.sets.get_mut(name) {
            if state.desired.is_none() {
                self.sets.remove(name);
            } else {
                state.kernel = Kernel::Absent;
                state.members.forget_observed();
                state.health.list_failures = 0;
                state.health.swap_refused = false;
            }
        }
        self.reconsider(name);
    }

    // Writes.

    fn next_restore(&mut self, now: Duration) -> Option<Plan> {
        loop {
            let group = match self.next_group(now) {
                Next::Group(group) => group,
                Next::Sleep(time) => return Some(Plan::Sleep(time)),
                Next::Nothing => return None,
            };
            let mut text = RestoreText::new(self.family, self.config.members_per_restore);
            for name in group.names {
                if text.is_full() {
                    // The rest stays dirty and comes with one of the next.
                    break;
                }
                let Some(state) = self.sets.get_mut(&name) else {
                    continue;
                };
                if state.need(self.family) == Need::Swap {
                    let temporary = self.free_temporary();
                    if let Some(state) = self.sets.get_mut(&name) {
                        text.swap(&name, &temporary, state);
                    }
                } else {
                    text.write(&name, state);
                }
                self.reconsider(&name);
            }
            let Some((text, touched)) = text.finish() else {
                continue;
            };
            self.progress.in_flight = Some(InFlight::Restore { touched, failures: group.failures });
            return Some(Plan::Restore(text));
        }
    }

    fn next_group(&mut self, now: Duration) -> Next {
        let Some(round) = &mut self.progress.round else {
            return Next::Nothing;
        };
        let healthy = |name: &SetName| self.sets.get(name).is_some_and(|state| state.health.failures == 0);
        while let Some(mut group) = round.groups.pop() {
            group.names.retain(|name| self.dirty.contains(name) && healthy(name));
            if !group.names.is_empty() {
                return Next::Group(group);
            }
        }
        let names: Vec<SetName> = self.dirty.iter().filter(|n| healthy(n)).cloned().collect();
        if !names.is_empty() {
            return Next::Group(Group { names, failures: 0 });
        }
        // Only sets that failed are left; each is tried alone.
        let health = |name| self.sets.get(name).map(|state| &state.health);
        let next = self
            .dirty
            .iter()
            .filter_map(|name| Some((name, health(name)?)))
            .filter(|(_, h)| h.retry_at <= now || h.failures <= QUICK_ATTEMPTS)
            .min_by_key(|(_, h)| h.retry_at);
        match next {
            Some((_, health)) if health.retry_at > now => Next::Sleep(health.retry_at - now),
            Some((name, _)) => Next::Group(Group { names: vec![name.clone()], failures: 0 }),
            None => Next::Nothing,
        }
    }

    fn free_temporary(&mut self) -> SetName {
        loop {
            let name = SetName::temporary(self.family, self.next_temporary);
            self.next_temporary += 1;
            if !self.doomed.contains(&name) && !self.undeletable.contains(&name) {
                return name;
            }
        }
    }

    fn restored(&mut self, touched: Touched) {
        for name in touched.names() {
            if let Some(state) = self.sets.get_mut(name) {
                state.health = Default::default();
            }
        }
        self.doomed.extend(touched.into_temporaries());
    }

    fn restore_failed(&mut self, now: Duration, touched: &Touched, group_failures: u32, failure: CommandFailure) {
        self.fail(now);
        // Some of the lines may have taken effect.
        self.progress.want_names(NamesWish::Check);
        let names: Vec<SetName> = touched.names().cloned().collect();
        for name in &names {
            match self.sets.get_mut(name) {
                Some(state) if state.desired.is_some() => {
                    state.kernel = Kernel::Unread;
                    self.must_read.insert(name.clone());
                    self.reconsider(name);
                }
                _ => {
                    self.sets.remove(name);
                }
            }
        }
        let culprit = match &names[..] {
            [only] => Some(only),
            _ => failure.line().and_then(|line| touched.at_line(line)),
        };
        let Some(culprit) = culprit.cloned() else {
            let failures = (group_failures + 1).min(WHOLE_ATTEMPTS);
            if let Some(round) = &mut self.progress.round {
                round.wait_until = now + pause(failures);
                round.retry(names, failures, failures == WHOLE_ATTEMPTS);
            }
            return;
        };
        if let Some(state) = self.sets.get_mut(&culprit) {
            let health = &mut state.health;
            health.failures += 1;
            health.retry_at = now + set_pause(health.failures);
            health.swap_refused |= failure.says_types_differ();
            health.last = Some(failure);
        }
        let others = names.into_iter().filter(|name| *name != culprit).collect();
        if let Some(round) = &mut self.progress.round {
            // In halves, lest many culprits cost as many readings of all the others.
            round.retry(others, group_failures, true);
        }
    }

    // Deletions.

    /// Temporary sets first.
    fn next_doomed(&self) -> Option<SetName> {
        let temporary = |name: &&SetName| name.is_temporary(self.family);
        let first_temporary = SetName::temporary_prefix(self.family);
        self.doomed.range(first_temporary..).next().filter(temporary).or_else(|| self.doomed.first()).cloned()
    }

    fn destroyed(&mut self, name: &SetName, result: Result<(), CommandFailure>) {
        match result {
            Err(failure) if !failure.says_no_such_set() => {
                tracing::debug!(set = %name, %failure, "IP set not destroyed");
                if self.doomed.remove(name) {
                    self.undeletable.insert(name.clone());
                }
            }
            Ok(()) | Err(_) => {
                if let Some(deletion) = &mut self.progress.deletion {
                    deletion.succeeded = true;
                }
                self.mark_absent(name);
            }
        }
    }
}

/// What to write next.
enum Next {
    Group(Group),
    Sleep(Duration),
    Nothing,
}

fn observe(reader: &mut ListReader, state: Option<&mut SetState>, line: &[u8]) {
    if let Some(member) = reader.line(line)
        && let Some(state) = state
        && state.desired.map(|spec| spec.set_type()) == reader.set_type()
    {
        state.members.observe(member);
    }
}
