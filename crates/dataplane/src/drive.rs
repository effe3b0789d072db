//! Carries out the plans of the drivers, side by side.

use std::time::Duration;

use tortie_ipsets::{CommandFailure, IpSets, Plan as SetPlan, Report};
use tortie_iptables::{CommandError, Plan as TablePlan, Reconciler, TableError};

use crate::kernel::{CommandOutcome, CommandStatus, Kernel, KernelCommand};

/// Calls of `ipset`, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SetCounters {
    pub(crate) calls: u64,
    pub(crate) errors: u64,
    pub(crate) lines: u64,
}

/// How a table ended up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TableOutcome {
    Done { recheck_after: Option<Duration> },
    Failed(TableError),
}

/// What to do with the outcome of a table's command.
enum TableStep {
    Save,
    Restore,
}

/// Brings all tables to what is wanted of them, side by side. Outcomes are in the order of the tables.
pub(crate) fn tables(kernel: &mut dyn Kernel, mut tables: Vec<&mut Reconciler>) -> Vec<TableOutcome> {
    let mut ends: Vec<Option<TableOutcome>> = tables.iter().map(|_| None).collect();
    loop {
        let now = kernel.now();
        let mut steps = Vec::new();
        let mut commands = Vec::new();
        let mut wake: Option<Duration> = None;
        for (index, (table, end)) in tables.iter_mut().zip(&mut ends).enumerate() {
            if end.is_some() {
                continue;
            }
            match table.plan(now) {
                TablePlan::Save(command) => {
                    steps.push((index, TableStep::Save));
                    commands.push(kernel_command(command, String::new()));
                }
                TablePlan::Restore { command, input } => {
                    steps.push((index, TableStep::Restore));
                    commands.push(kernel_command(command, input));
                }
                TablePlan::Sleep { until } => wake = Some(wake.map_or(until, |wake| wake.min(until))),
                TablePlan::Done { recheck_after } => *end = Some(TableOutcome::Done { recheck_after }),
                TablePlan::Failed(error) => *end = Some(TableOutcome::Failed(error)),
            }
        }
        if commands.is_empty() {
            match wake {
                Some(until) => kernel.sleep(until.saturating_sub(now)),
                None => break,
            }
            continue;
        }
        let mut outcomes = kernel.run(commands).into_iter();
        let now = kernel.now();
        for (index, step) in steps {
            let Some(table) = tables.get_mut(index) else { continue };
            let outcome = outcomes.next().unwrap_or_else(|| CommandOutcome::not_run("no outcome was reported"));
            match step {
                TableStep::Save => {
                    let mut reader = table.save_reader();
                    let snapshot = if outcome.is_success() {
                        reader.feed(&outcome.stdout);
                        reader.finish().map_err(CommandError::from)
                    } else {
                        // What it printed before it failed is no explanation.
                        Err(command_error(CommandOutcome { stdout: Vec::new(), ..outcome }))
                    };
                    table.on_saved(now, snapshot);
                }
                TableStep::Restore => {
                    let result = if outcome.is_success() { Ok(()) } else { Err(command_error(outcome)) };
                    table.on_restored(now, result);
                }
            }
        }
    }
    ends.into_iter().map(|end| end.unwrap_or(TableOutcome::Done { recheck_after: None })).collect()
}

fn kernel_command(command: tortie_iptables::Command, input: String) -> KernelCommand {
    KernelCommand { program: command.program, args: command.args, input }
}

fn command_error(outcome: CommandOutcome) -> CommandError {
    let code = match outcome.status {
        CommandStatus::Code(code) => Some(code),
        CommandStatus::Signal => None,
        CommandStatus::NotRun(why) => return CommandError::Io(why),
    };
    let mut stderr = outcome.stderr;
    if stderr.trim().is_empty() {
        stderr = String::from_utf8_lossy(&outcome.stdout).into_owned();
    }
    CommandError::Exit { code, stderr }
}

/// What an [`IpSets`] is asked for next.
type NextSetPlan = fn(&mut IpSets, Duration) -> SetPlan;

/// Creates and fills the sets of all families, side by side. Reports are in their order.
pub(crate) fn sets(kernel: &mut dyn Kernel, sets: Vec<&mut IpSets>, counters: &mut SetCounters) -> Vec<Report> {
    set_plans(kernel, sets, counters, IpSets::plan)
}

/// Destroys at most one set of each family that is not wanted any more.
pub(crate) fn set_deletions(
    kernel: &mut dyn Kernel,
    sets: Vec<&mut IpSets>,
    counters: &mut SetCounters,
) -> Vec<Report> {
    set_plans(kernel, sets, counters, IpSets::plan_deletions)
}

fn set_plans(
    kernel: &mut dyn Kernel,
    mut sets: Vec<&mut IpSets>,
    counters: &mut SetCounters,
    next: NextSetPlan,
) -> Vec<Report> {
    let mut ends: Vec<Option<Report>> = sets.iter().map(|_| None).collect();
    loop {
        let now = kernel.now();
        let mut running = Vec::new();
        let mut commands = Vec::new();
        let mut pause: Option<Duration> = None;
        for (index, (set, end)) in sets.iter_mut().zip(&mut ends).enumerate() {
            if end.is_some() {
                continue;
            }
            let plan = next(set, now);
            if let Some((args, input)) = plan.command() {
                counters.calls += 1;
                counters.lines += input.lines().count() as u64;
                running.push(index);
                commands.push(KernelCommand {
                    program: "ipset".to_owned(),
                    args: args.into_iter().map(str::to_owned).collect(),
                    input: input.to_owned(),
                });
                continue;
            }
            match plan {
                SetPlan::Sleep(time) => pause = Some(pause.map_or(time, |pause| pause.min(time))),
                SetPlan::Done(report) => *end = Some(report),
                // Not a plan of this version; nothing is known to be left to do.
                _ => *end = Some(Report::default()),
            }
        }
        if commands.is_empty() {
            match pause {
                Some(time) => kernel.sleep(time),
                None => break,
            }
            continue;
        }
        let mut outcomes = kernel.run(commands).into_iter();
        let now = kernel.now();
        for index in running {
            let Some(set) = sets.get_mut(index) else { continue };
            let outcome = outcomes.next().unwrap_or_else(|| CommandOutcome::not_run("no outcome was reported"));
            set.on_output(&outcome.stdout);
            let result = if outcome.is_success() { Ok(()) } else { Err(set_failure(&outcome)) };
            counters.errors += u64::from(result.is_err());
            set.on_exit(now, result);
        }
    }
    ends.into_iter().map(Option::unwrap_or_default).collect()
}

fn set_failure(outcome: &CommandOutcome) -> CommandFailure {
    match &outcome.status {
        CommandStatus::NotRun(why) => CommandFailure::new(why.clone()),
        CommandStatus::Code(_) | CommandStatus::Signal => CommandFailure::new(outcome.stderr.clone()),
    }
}
