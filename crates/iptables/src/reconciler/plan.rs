//! Plans of the reconciler, and handling of their results.

use std::time::Duration;

use tortie_net::with_causes;

use crate::reconciler::batch::Effects;
use crate::reconciler::hooks::Hook;
use crate::reconciler::isolation::{Isolation, may_be_a_chains_fault};
use crate::reconciler::{Knowledge, Purpose, Reconciler, ReconcilerConfig, TableError};
use crate::{Backend, Command, CommandError, ForeignCommits, Programs, SaveReader, TableSnapshot};

const RESTORE_RETRIES: u32 = 10;
const FIRST_RESTORE_DELAY: Duration = Duration::from_millis(1);
/// Searches for refused chains in one cycle before it fails.
const MAX_ISOLATIONS: u32 = 2;
const SAVE_RETRIES: u32 = 3;
const FIRST_SAVE_DELAY: Duration = Duration::from_millis(100);
/// Pause of a sweep after a failure without a refresh interval.
const SWEEP_HOLD_OFF: Duration = Duration::from_secs(180);
/// Maximum time that a program waits for the xtables lock, in seconds.
const LOCK_TIMEOUT_SECS: &str = "10";

/// Next operation of the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Plan {
    /// Run this, feed its standard output to a [`SaveReader`], then call
    /// [`Reconciler::on_saved`]. If [`Reconciler::reads_entries`], the table may be read by
    /// [`TableSnapshot::from_entries`] instead.
    Save(Command),
    /// Run this, then call [`Reconciler::on_restored`].
    Restore(Command),
    /// Request the next plan at this time.
    Sleep {
        /// On the same clock as the `now` of [`Reconciler::plan`].
        until: Duration,
    },
    /// The table is in sync, except for [`Reconciler::problems`].
    Done {
        /// Time from now until the next plan should be requested even without changes; never if
        /// `None`.
        recheck_after: Option<Duration>,
        /// Number of [`Reconciler::problems`]. Above 0, some chains are out of sync or replaced by
        /// stand-ins.
        problems: usize,
    },
    /// The table cannot be brought in sync; the kernel keeps its state. The caller may end the
    /// process, to be restarted, or request the next plan some time later, which starts a new
    /// cycle.
    Failed(TableError),
}

/// The plan that the caller executes at present.
#[derive(Debug)]
pub(super) enum Phase {
    Idle,
    Waiting { until: Duration },
    Saving { since: Duration, foreign: Option<ForeignCommits> },
    Restoring { since: Duration, effects: Effects },
}

/// State from a first plan to [`Plan::Done`] or [`Plan::Failed`].
#[derive(Debug)]
pub(super) struct Cycle {
    restore_retries: u32,
    restore_delay: Duration,
    save_retries: u32,
    save_delay: Duration,
    isolations: u32,
}

impl Cycle {
    fn new() -> Self {
        Self {
            restore_retries: RESTORE_RETRIES,
            restore_delay: FIRST_RESTORE_DELAY,
            save_retries: SAVE_RETRIES,
            save_delay: FIRST_SAVE_DELAY,
            isolations: 0,
        }
    }
}

#[expect(clippy::expect_used, reason = "results belong to plans of a cycle")]
fn under_way(cycle: &mut Option<Cycle>) -> &mut Cycle {
    cycle.as_mut().expect("a cycle is under way")
}

enum Step {
    Do(Plan),
    Again,
}

impl Reconciler {
    /// Returns the next operation. `now` is the time since a fixed moment of the caller's choice
    /// and must not go backwards.
    ///
    /// If the result of an earlier plan was not reported, its outcome counts as unknown.
    pub fn plan(&mut self, now: Duration) -> Plan {
        match self.round.phase {
            Phase::Waiting { until } if now < until => return Plan::Sleep { until },
            Phase::Saving { .. } | Phase::Restoring { .. } => self.kernel.knowledge = Knowledge::None,
            Phase::Idle | Phase::Waiting { .. } => {}
        }
        self.round.phase = Phase::Idle;
        let foreign = self.kernel.foreign.take();
        if let Some(until) = self.round.hold_off {
            if now < until {
                return self.done(Some(until - now));
            }
            self.round.hold_off = None;
        }
        if self.round.cycle.is_none() {
            self.round.cycle = Some(Cycle::new());
            if self.schedule.is_due(now) {
                self.doubt();
            }
        }
        let (table, family) = (self.config.table, self.config.family);
        let span = tracing::debug_span!("iptables", %table, %family, lines = tracing::field::Empty).entered();
        loop {
            if let Step::Do(plan) = self.step(now, foreign) {
                if let Plan::Restore(command) = &plan
                    && !span.is_disabled()
                {
                    span.record("lines", command.input.lines().count());
                }
                return plan;
            }
        }
    }

    /// Returns the input of `iptables-restore` for a kernel without rules of ours, and from then on
    /// assumes that it was run. Unreachable chains are not in it.
    ///
    /// # Errors
    /// If a hook refers to a chain that is not defined.
    pub fn render(&mut self) -> Result<String, TableError> {
        let (mut text, mut now) = (String::new(), Duration::ZERO);
        loop {
            match self.plan(now) {
                Plan::Save(_) => {
                    let nothing = self.save_reader().finish().map_err(Into::into);
                    self.on_saved(now, nothing);
                }
                Plan::Restore(command) => {
                    text.push_str(&command.input);
                    self.on_restored(now, Ok(()));
                }
                Plan::Sleep { until } => now = until,
                Plan::Done { .. } => return Ok(text),
                Plan::Failed(error) => return Err(error),
            }
        }
    }

    fn step(&mut self, now: Duration, foreign: Option<ForeignCommits>) -> Step {
        self.update_desired();
        self.confirm(now, foreign);
        if let Some(error) = self.undefined_hook() {
            self.round.failure.get_or_insert(error);
        }
        if let Some(error) = self.round.failure.take() {
            return Step::Do(self.fail(now, error));
        }
        if self.kernel.knowledge != Knowledge::Current || self.hook_texts_unknown() {
            self.round.phase = Phase::Saving { since: now, foreign };
            self.schedule.save_started(now);
            self.stats.save_calls += 1;
            tracing::debug!("reading the table");
            return Step::Do(Plan::Save(self.save_command()));
        }
        let batch = match &self.faults.isolation {
            Some(isolation) => match isolation.groups.last() {
                Some(group) => self.batch(Some(group)),
                None => {
                    self.faults.isolation = None;
                    return Step::Again;
                }
            },
            None => self.batch(None),
        };
        if !batch.is_empty() {
            self.stats.restore_calls += 1;
            self.stats.lines_executed += batch.lines;
            tracing::debug!(lines = batch.lines, "writing the table");
            self.round.phase = Phase::Restoring { since: now, effects: batch.effects };
            return Step::Do(Plan::Restore(self.restore_command(batch.text)));
        }
        if self.faults.isolation.is_some() {
            self.group_accepted();
            return Step::Again;
        }
        if self.begin_retries(now) {
            return Step::Again;
        }
        Step::Do(self.finish(now))
    }

    /// Evaluates the commits of other programs, if known. Without any, the known state of the table
    /// is confirmed. With commits during a write of ours, the table must be read again.
    fn confirm(&mut self, now: Duration, foreign: Option<ForeignCommits>) {
        let is_alone = foreign.is_some() && foreign == self.kernel.confirmed_at;
        if std::mem::take(&mut self.kernel.wrote) && self.kernel.confirmed_at.is_some() && !is_alone {
            self.doubt();
        }
        if self.kernel.knowledge == Knowledge::Doubted && is_alone {
            self.kernel.knowledge = Knowledge::Current;
            self.schedule.confirmed(now);
        }
    }

    fn finish(&mut self, now: Duration) -> Plan {
        self.fail_for_chains_left_alone();
        if let Some(error) = self.round.failure_at_end.take() {
            return self.fail(now, error);
        }
        self.round.cycle = None;
        self.schedule.spread_checks();
        let checks = self.schedule.next(now).into_iter().chain(self.next_retry(now));
        self.done(checks.min())
    }

    fn done(&self, recheck_after: Option<Duration>) -> Plan {
        Plan::Done { recheck_after, problems: self.problem_count() }
    }

    fn fail(&mut self, now: Duration, error: TableError) -> Plan {
        self.round.cycle = None;
        self.faults.isolation = None;
        self.faults.blocked.clear();
        self.round.failure_at_end = None;
        self.kernel.knowledge = Knowledge::None;
        self.end_trials(now);
        match self.config.purpose {
            Purpose::Enforce => Plan::Failed(error),
            Purpose::Sweep => {
                tracing::debug!(error = %with_causes(&error), "cannot sweep a table; retrying later");
                let rest = self.schedule.refresh_interval().unwrap_or(SWEEP_HOLD_OFF);
                self.round.hold_off = Some(now + rest);
                self.done(Some(rest))
            }
        }
    }

    /// Takes the result of [`Plan::Save`]: the result of [`SaveReader::finish`] if the program
    /// succeeded. A result without such a plan is ignored.
    pub fn on_saved(&mut self, now: Duration, result: Result<TableSnapshot, CommandError>) {
        let Phase::Saving { since, foreign } = self.round.phase else { return };
        self.round.phase = Phase::Idle;
        self.schedule.save_took(now.saturating_sub(since));
        match result {
            Ok(snapshot) => {
                self.kernel.confirmed_at = foreign;
                self.observe(snapshot);
            }
            Err(error) => {
                self.stats.save_errors += 1;
                self.save_failed(now, error);
            }
        }
    }

    /// Returns a parser for the output of [`Plan::Save`].
    #[must_use]
    pub fn save_reader(&self) -> SaveReader {
        SaveReader::new(self.config.table)
    }

    /// Reports whether the next read needs no texts of rules, and the table is one of legacy
    /// iptables, so that [`TableSnapshot::from_entries`] suffices. The general programs may write
    /// to nftables even then, and so the tables that they read count.
    #[must_use]
    pub fn reads_entries(&self) -> bool {
        let ReconcilerConfig { backend, programs, family, .. } = &self.config;
        *backend == Backend::Legacy
            && *programs == Programs::specific(Backend::Legacy, *family)
            && !self.hook_texts_unknown()
    }

    fn observe(&mut self, snapshot: TableSnapshot) {
        let known = self.pending_items();
        self.chains.replace_observed(snapshot.own_chains);
        self.kernel.observed = snapshot.hooked_chains;
        self.prune_quarantine();
        self.kernel.knowledge = Knowledge::Current;
        self.kernel.hook_texts_stale = snapshot.without_texts;
        let cycle = under_way(&mut self.round.cycle);
        (cycle.save_retries, cycle.save_delay) = (SAVE_RETRIES, FIRST_SAVE_DELAY);
        let found = self.pending_items();
        let clobbered = found.iter().filter(|item| known.binary_search(item).is_err()).count();
        if clobbered > 0 && self.stats.restore_calls > 0 {
            self.stats.clobbered += clobbered as u64;
            tracing::warn!(
                table = %self.config.table, family = %self.config.family, clobbered,
                "another process changed the chains; repairing them",
            );
        }
    }

    fn save_failed(&mut self, now: Duration, error: CommandError) {
        let (table, family) = (self.config.table, self.config.family);
        tracing::debug!(%table, %family, %error, "reading a table failed");
        let cycle = under_way(&mut self.round.cycle);
        if cycle.save_retries == 0 {
            self.round.failure = Some(TableError::Save { table, family, error });
            return;
        }
        cycle.save_retries -= 1;
        self.round.phase = Phase::Waiting { until: now + cycle.save_delay };
        cycle.save_delay *= 2;
    }

    /// Takes the result of [`Plan::Restore`]. A result without such a plan is ignored.
    pub fn on_restored(&mut self, now: Duration, result: Result<(), CommandError>) {
        let phase = std::mem::replace(&mut self.round.phase, Phase::Idle);
        let Phase::Restoring { since, effects } = phase else {
            self.round.phase = phase;
            return;
        };
        self.schedule.restore_took(now.saturating_sub(since));
        match result {
            Ok(()) => {
                self.schedule.wrote(now);
                self.kernel.wrote = true;
                self.take_effect(effects);
                self.restore_accepted();
            }
            Err(error) => {
                self.stats.restore_errors += 1;
                self.kernel.knowledge = Knowledge::None;
                self.restore_failed(now, error);
            }
        }
    }

    fn take_effect(&mut self, effects: Effects) {
        for (name, rules) in effects.chains {
            match rules {
                Some(rules) => self.chains.observe(name, rules),
                None => self.chains.observe_absent(&name),
            }
        }
        self.kernel.hook_texts_stale |= !effects.hooks.is_empty();
        self.kernel.observed.extend(effects.hooks);
    }

    fn restore_failed(&mut self, now: Duration, error: CommandError) {
        let (table, family) = (self.config.table, self.config.family);
        let may_isolate = self.config.purpose == Purpose::Enforce && may_be_a_chains_fault(&error);
        self.faults.failed_as_a_whole |= !may_isolate;
        let cycle = under_way(&mut self.round.cycle);
        tracing::debug!(%table, %family, %error, "writing a table failed");
        if self.faults.isolation.is_some() && may_isolate {
            let delay = self.group_refused(now, &error);
            self.round.phase = Phase::Waiting { until: now + delay };
        } else if cycle.restore_retries > 0 {
            cycle.restore_retries -= 1;
            self.round.phase = Phase::Waiting { until: now + cycle.restore_delay };
            cycle.restore_delay *= 2;
        } else if self.faults.isolation.is_none() && may_isolate && cycle.isolations < MAX_ISOLATIONS {
            cycle.isolations += 1;
            (cycle.restore_retries, cycle.restore_delay) = (RESTORE_RETRIES, FIRST_RESTORE_DELAY);
            self.faults.isolation = Some(Isolation::among(self.pending_items()));
        } else {
            self.fail_restore(error);
        }
    }

    pub(super) fn fail_restore(&mut self, error: CommandError) {
        let (table, family) = (self.config.table, self.config.family);
        self.faults.failed_as_a_whole = true;
        self.round.failure = Some(TableError::Restore { table, family, error });
    }

    fn undefined_hook(&self) -> Option<TableError> {
        let mut targets = self.desired.hooks.values().flat_map(Hook::targets);
        let chain = targets.find(|target| self.desired.undefined.contains(target))?;
        let (table, family) = (self.config.table, self.config.family);
        Some(TableError::Undefined { table, family, chain })
    }

    /// Reports whether rules of ours have to be removed by value whose text is not known, because
    /// they were written and not read since, or read without texts.
    fn hook_texts_unknown(&self) -> bool {
        self.kernel.hook_texts_stale && self.misplaced_hooks().any(|(_, _, observed)| !observed.ours.is_empty())
    }

    fn save_command(&self) -> Command {
        Command {
            program: self.config.programs.save.clone(),
            args: vec!["-t".to_owned(), self.config.table.as_str().to_owned()],
            input: String::new(),
        }
    }

    fn restore_command(&self, input: String) -> Command {
        // Without --noflush, iptables-restore would delete everything that is not in the input.
        let mut args = vec!["--noflush".to_owned(), "--verbose".to_owned()];
        if self.features.restore_supports_lock {
            let interval = self.config.lock_probe_interval.as_micros().to_string();
            args.extend(["--wait", LOCK_TIMEOUT_SECS, "--wait-interval"].map(str::to_owned));
            args.push(interval);
        }
        Command { program: self.config.programs.restore.clone(), args, input }
    }
}
