//! Executes the plans of the reconcilers concurrently.

use std::collections::BTreeMap;
use std::time::Duration;

use tortie_ipsets::{CommandFailure, IpSets, Plan as SetPlan, Report};
use tortie_iptables::{
    Backend, CommandError, CommitCounter, ForeignCommits, Plan as TablePlan, Reconciler, TableError,
};

use tortie_model::Cause;
use tortie_netfilter::{Command, CommandStatus, Outcome};
use tortie_nftables::{
    CommitError, Plan as NftablesPlan, ReadError, Table as NftablesTable, TableError as NftablesError,
};

use crate::kernel::Netfilter;

/// Calls of `ipset`, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SetCounters {
    pub(crate) calls: u64,
    pub(crate) errors: u64,
    pub(crate) lines: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TableOutcome {
    Done { recheck_after: Option<Duration> },
    Failed(TableError),
}

/// Step that consumes the outcome of a table's command.
enum TableStep {
    Save { is_shared: bool },
    Restore { transactions: Option<u32> },
}

/// Commands that run concurrently, and the steps that wait for them.
struct Round<Step> {
    /// Index of a table or set, the step that takes the outcome, and index of a command.
    steps: Vec<(usize, Step, usize)>,
    commands: Vec<Command>,
    /// Earliest time at which a table or set has more to do; 0 if one has more to do already.
    wake: Option<Duration>,
}

impl<Step> Round<Step> {
    const fn new() -> Self {
        Self { steps: Vec::new(), commands: Vec::new(), wake: None }
    }

    fn wait(&mut self, until: Duration) {
        self.wake = Some(self.wake.map_or(until, |wake| wake.min(until)));
    }

    /// Runs the commands, or waits if there are none. Returns `None` if nothing is left to do, or
    /// if the kernel is stopping: the outcome of an interrupted command is no evidence about the
    /// kernel.
    fn run(&mut self, kernel: &mut dyn Netfilter, now: Duration) -> Option<Vec<Outcome>> {
        if self.commands.is_empty() {
            kernel.sleep(self.wake?.saturating_sub(now));
            return Some(Vec::new());
        }
        let asked = self.commands.len();
        let mut outcomes = kernel.run(std::mem::take(&mut self.commands));
        outcomes.resize(asked, Outcome::not_run("no outcome was reported"));
        (!kernel.is_stopping()).then_some(outcomes)
    }
}

/// Returns the table or set of a step, and the outcome that the step takes.
#[expect(clippy::expect_used, reason = "a round plans its steps from the same list, and fills up its outcomes")]
fn of_step<'a, T>(
    planned: &'a mut [&mut T],
    outcomes: &'a [Outcome],
    index: usize,
    command: usize,
) -> (&'a mut T, &'a Outcome) {
    let planned = planned.get_mut(index).expect("a step has the index of a planned table or set");
    (planned, outcomes.get(command).expect("each command has an outcome"))
}

/// Brings all tables to their desired state, concurrently. Outcomes are in the order of the tables,
/// and are meaningless if the kernel is stopping. `commits` counts transactions on nftables.
pub(crate) fn tables(
    kernel: &mut dyn Netfilter,
    commits: &mut CommitCounter,
    mut tables: Vec<&mut Reconciler>,
) -> Vec<TableOutcome> {
    let mut ends: Vec<Option<TableOutcome>> = tables.iter().map(|_| None).collect();
    let uses_nftables = tables.iter().any(|table| table.config().backend == Backend::Nft);
    let mut may_share = true;
    while !kernel.is_stopping() {
        let now = kernel.now();
        let generation = if uses_nftables { kernel.ruleset_generation() } else { None };
        let foreign = generation.map(|generation| commits.foreign(generation));
        let (mut round, saves) = plan_tables(&mut tables, &mut ends, now, foreign);
        let saves = read_legacy(kernel, &mut tables, saves, &mut round);
        for (index, command, is_shared) in shared(saves, may_share, &mut round.commands) {
            round.steps.push((index, TableStep::Save { is_shared }, command));
        }
        let Some(outcomes) = round.run(kernel, now) else { break };
        let now = kernel.now();
        for (index, step, command) in round.steps {
            let (table, outcome) = of_step(&mut tables, &outcomes, index, command);
            match step {
                TableStep::Save { is_shared } => may_share &= note_save(table, now, outcome, is_shared),
                TableStep::Restore { transactions } => {
                    if table.config().backend == Backend::Nft {
                        commits.committed(transactions.filter(|_| outcome.is_success()));
                    }
                    note_restore(table, now, outcome);
                }
            }
        }
    }
    ends.into_iter().map(|end| end.unwrap_or(TableOutcome::Done { recheck_after: None })).collect()
}

/// A table that is to be listed by a command.
struct Save {
    index: usize,
    command: Command,
    backend: Backend,
}

/// Returns the next command of each table that has not ended, listings apart.
fn plan_tables(
    tables: &mut [&mut Reconciler],
    ends: &mut [Option<TableOutcome>],
    now: Duration,
    foreign: Option<ForeignCommits>,
) -> (Round<TableStep>, Vec<Save>) {
    let mut round = Round::new();
    let mut saves = Vec::new();
    for (index, (table, end)) in tables.iter_mut().zip(ends).enumerate().filter(|(_, (_, end))| end.is_none()) {
        table.set_foreign_commits(foreign.filter(|_| table.config().backend == Backend::Nft));
        match table.plan(now) {
            TablePlan::Save(command) => saves.push(Save { index, command, backend: table.config().backend }),
            TablePlan::Restore(command) => {
                let transactions = CommitCounter::transactions(&command.input);
                round.steps.push((index, TableStep::Restore { transactions }, round.commands.len()));
                round.commands.push(command);
            }
            TablePlan::Sleep { until } => round.wait(until),
            TablePlan::Done { recheck_after, .. } => *end = Some(TableOutcome::Done { recheck_after }),
            TablePlan::Failed(error) => *end = Some(TableOutcome::Failed(error)),
        }
    }
    (round, saves)
}

/// Reads tables of legacy iptables without a program where that suffices. Returns the others.
fn read_legacy(
    kernel: &mut dyn Netfilter,
    tables: &mut [&mut Reconciler],
    saves: Vec<Save>,
    round: &mut Round<TableStep>,
) -> Vec<Save> {
    let reads_entries = |save: &Save| tables.get(save.index).is_some_and(|table| table.reads_entries());
    let (readable, mut others): (Vec<Save>, Vec<Save>) = saves.into_iter().partition(reads_entries);
    if readable.is_empty() {
        return others;
    }
    let wanted = readable.iter().filter_map(|save| tables.get(save.index)).map(|table| table.config());
    let wanted: Vec<_> = wanted.map(|config| (config.family, config.table)).collect();
    let mut read = kernel.read_legacy(&wanted).into_iter();
    let now = kernel.now();
    for save in readable {
        match (read.next().flatten(), tables.get_mut(save.index)) {
            (Some(snapshot), Some(table)) => {
                table.on_saved(now, Ok(snapshot));
                round.wait(Duration::ZERO);
            }
            _ => others.push(save),
        }
    }
    others
}

/// Passes a table its listing. Returns whether tables may go on sharing listings.
fn note_save(table: &mut Reconciler, now: Duration, outcome: &Outcome, is_shared: bool) -> bool {
    let mut reader = table.save_reader();
    let snapshot = if outcome.is_success() {
        reader.feed(&outcome.stdout);
        if is_shared && !reader.has_begun() {
            // The table is missing, or the listing ends too early. Without a report, the table
            // requests another listing.
            return false;
        }
        reader.finish().map_err(CommandError::from)
    } else {
        // Output from before the failure does not explain it.
        Err(command_error(&outcome.status, &outcome.stderr, &[]))
    };
    table.on_saved(now, snapshot);
    // A table that cannot be listed must not hide the others.
    !is_shared || outcome.is_success()
}

fn note_restore(table: &mut Reconciler, now: Duration, outcome: &Outcome) {
    let result = if outcome.is_success() {
        Ok(())
    } else {
        Err(command_error(&outcome.status, &outcome.stderr, &outcome.stdout))
    };
    table.on_restored(now, result);
}

/// Brings the nftables tables to their desired state, one after the other. Outcomes are in the
/// order of the tables, and are meaningless if the kernel is stopping. `commits` counts
/// transactions: iptables-nft tables share the kernel's counter with these.
pub(crate) fn nftables<'a>(
    kernel: &mut dyn Netfilter,
    commits: &mut CommitCounter,
    tables: impl Iterator<Item = &'a mut NftablesTable>,
) -> Vec<NftablesOutcome> {
    tables.map(|table| nftables_table(kernel, commits, table)).collect()
}

fn nftables_table(
    kernel: &mut dyn Netfilter,
    commits: &mut CommitCounter,
    table: &mut NftablesTable,
) -> NftablesOutcome {
    while !kernel.is_stopping() {
        let now = kernel.now();
        match table.plan(now) {
            NftablesPlan::Read => {
                let result =
                    kernel.read_nftables(table.config().id).map_err(|error| ReadError::Failed(Cause::new(error)));
                table.on_read(kernel.now(), result);
            }
            NftablesPlan::Commit(transaction) => {
                let result = kernel.commit_nftables(&transaction);
                commits.committed(match &result {
                    Ok(()) => Some(1),
                    Err(CommitError::Refused(_)) => Some(0),
                    Err(CommitError::Failed(_)) => None,
                });
                table.on_committed(kernel.now(), result);
            }
            NftablesPlan::Sleep { until } => kernel.sleep(until.saturating_sub(now)),
            NftablesPlan::Done { recheck_after, .. } => return Ok(recheck_after),
            NftablesPlan::Failed(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Outcome of an nftables table: the time to its next check, or the reason why it is not in force.
pub(crate) type NftablesOutcome = Result<Option<Duration>, NftablesError>;

fn command_error(status: &CommandStatus, stderr: &str, stdout: &[u8]) -> CommandError {
    let code = match status {
        CommandStatus::Code(code) => Some(*code),
        CommandStatus::Signal => None,
        CommandStatus::NotRun(why) => return CommandError::Io(why.clone()),
    };
    let stderr =
        if stderr.trim().is_empty() { String::from_utf8_lossy(stdout).into_owned() } else { stderr.to_owned() };
    CommandError::Exit { code, stderr }
}

/// Merges listings. `iptables-nft-save` fetches the whole ruleset even for a single table. If
/// several tables of an IP version have to be read, one listing serves them all if they
/// `may_share` it. Returns for each save its table, its position among `commands`, and whether
/// others share it.
fn shared(saves: Vec<Save>, may_share: bool, commands: &mut Vec<Command>) -> Vec<(usize, usize, bool)> {
    let mut places = Vec::new();
    let mut listings: BTreeMap<String, usize> = BTreeMap::new();
    let may_share = |save: &Save| may_share && save.backend == Backend::Nft;
    let programs: Vec<String> =
        saves.iter().filter(|save| may_share(save)).map(|save| save.command.program.clone()).collect();
    for save in saves {
        let with_others = programs.iter().filter(|program| **program == save.command.program).count() > 1;
        if !may_share(&save) || !with_others {
            places.push((save.index, commands.len(), false));
            commands.push(save.command);
            continue;
        }
        let place = *listings.entry(save.command.program.clone()).or_insert_with(|| {
            commands.push(Command { args: Vec::new(), ..save.command });
            commands.len() - 1
        });
        places.push((save.index, place, true));
    }
    places
}

/// Method that returns the next plan of an [`IpSets`].
type NextSetPlan = fn(&mut IpSets, Duration) -> SetPlan;

/// Creates and fills the sets of all families, concurrently. Reports are in the order of the
/// families, and are meaningless if the kernel is stopping.
pub(crate) fn sets(kernel: &mut dyn Netfilter, sets: Vec<&mut IpSets>, counters: &mut SetCounters) -> Vec<Report> {
    set_plans(kernel, sets, counters, IpSets::plan)
}

/// Destroys sets that are no longer desired, a limited number for each family.
pub(crate) fn set_deletions(
    kernel: &mut dyn Netfilter,
    sets: Vec<&mut IpSets>,
    counters: &mut SetCounters,
) -> Vec<Report> {
    set_plans(kernel, sets, counters, IpSets::plan_deletions)
}

fn set_plans(
    kernel: &mut dyn Netfilter,
    mut sets: Vec<&mut IpSets>,
    counters: &mut SetCounters,
    next: NextSetPlan,
) -> Vec<Report> {
    let mut ends: Vec<Option<Report>> = sets.iter().map(|_| None).collect();
    while !kernel.is_stopping() {
        let now = kernel.now();
        let mut round = plan_sets(&mut sets, &mut ends, now, next);
        counters.calls += round.commands.len() as u64;
        counters.lines += round.commands.iter().map(|command| command.input.lines().count() as u64).sum::<u64>();
        let Some(outcomes) = round.run(kernel, now) else { break };
        let now = kernel.now();
        counters.errors += outcomes.iter().filter(|outcome| !outcome.is_success()).count() as u64;
        for (index, (), command) in round.steps {
            let (set, outcome) = of_step(&mut sets, &outcomes, index, command);
            set.on_output(&outcome.stdout);
            let result = if outcome.is_success() { Ok(()) } else { Err(set_failure(outcome)) };
            set.on_exit(now, result);
        }
    }
    ends.into_iter().map(Option::unwrap_or_default).collect()
}

/// Returns the next command of the sets of each family that have not ended. Families share a
/// command that is the same for both.
fn plan_sets(sets: &mut [&mut IpSets], ends: &mut [Option<Report>], now: Duration, next: NextSetPlan) -> Round<()> {
    let mut round = Round::new();
    let mut shared: Option<(SetPlan, usize)> = None;
    for (index, (set, end)) in sets.iter_mut().zip(ends).enumerate().filter(|(_, (_, end))| end.is_none()) {
        let plan = next(set, now);
        if let Some((_, at)) = shared.as_ref().filter(|(same, _)| *same == plan) {
            round.steps.push((index, (), *at));
            continue;
        }
        if let Some(command) = plan.command() {
            round.steps.push((index, (), round.commands.len()));
            round.commands.push(command);
            if plan.is_shared() {
                shared = Some((plan, round.commands.len() - 1));
            }
            continue;
        }
        match plan {
            SetPlan::Sleep(time) => round.wait(now + time),
            SetPlan::Done(report) => *end = Some(report),
            // A plan that this version does not know: nothing is known to be left to do.
            _ => *end = Some(Report::default()),
        }
    }
    round
}

fn set_failure(outcome: &Outcome) -> CommandFailure {
    match &outcome.status {
        CommandStatus::NotRun(why) => CommandFailure::new(why.clone()),
        CommandStatus::Code(_) | CommandStatus::Signal => CommandFailure::new(outcome.stderr.clone()),
    }
}
