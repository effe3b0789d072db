//! Kills between any two system calls of the agent.

use std::time::Duration;

use super::by_programs;
use crate::{
    catalogue::programs::write_admit,
    stage::{Stage, StageError, StageResult, ensure},
    world::BASE,
};

/// Upper bound of the calls of a change in this cluster.
const MOST: usize = 1000;
/// Upper bound of the calls of a start, which reads the value of each possible decision.
const MOST_OF_START: usize = 10_000;

/// Begins without periodic checks, so that the agent makes only the calls of a change.
fn quietly(stage: &mut Stage) -> StageResult {
    stage.environment.insert("FELIX_ROUTEREFRESHINTERVAL".to_owned(), "0".to_owned());
    by_programs(stage)
}

pub(super) fn killed_in_change(stage: &mut Stage) -> StageResult {
    quietly(stage)?;
    // Most writes go to memory that is mapped from the kernel, without a system call. `B1-killed`
    // covers kills between these writes, and the property test of nodes each single write.
    killed_at_each("bpf", 1, stage)
}

/// Kills the agent at each of these calls that a change makes; there must be at least `least`.
pub(in crate::catalogue) fn killed_at_each(calls: &str, least: usize, stage: &mut Stage) -> StageResult {
    let mut admitted = false;
    for call in 1..MOST {
        admitted = !admitted;
        let tracer = stage.inject(calls, &format!("signal=KILL:when={call}"))?;
        write_admit(stage, admitted)?;
        let edited = [("stranger", "web", admitted)];
        match stage.confirm(&edited) {
            Err(StageError::AgentEnded(_)) => {}
            // Calls after the change is in force count as well.
            Ok(()) => stage
                .until_within(Duration::from_secs(1), "the agent ends", |stage| Ok(stage.check().is_err()))
                .or(Ok::<(), StageError>(()))?,
            Err(error) => return Err(error),
        }
        let is_over = stage.ended()?.is_none();
        drop(tracer);
        if is_over {
            return ensure(call > least, || format!("a change takes only {} calls", call - 1));
        }
        stage.watch(Duration::from_millis(100))?;
        stage.start()?;
        stage.confirm(&edited)?;
    }
    Err(StageError::Unexpected(format!("a change takes more than {MOST} calls")))
}

pub(super) fn killed_in_start(stage: &mut Stage) -> StageResult {
    quietly(stage)?;
    stage.stop()?;
    killed_at_each_of_start("bpf", 30, stage)
}

/// Kills the agent at many of these calls that a start makes; there must be at least `least`.
pub(in crate::catalogue) fn killed_at_each_of_start(syscalls: &str, least: usize, stage: &mut Stage) -> StageResult {
    // Most calls only read, so that not each is tried.
    let calls = std::iter::successors(Some(1_usize), |call| Some(call + 1 + call / 50));
    for call in calls.take_while(|call| *call < MOST_OF_START) {
        stage.spawn_stopped()?;
        let tracer = stage.inject(syscalls, &format!("signal=KILL:when={call}"))?;
        stage.go_on()?;
        let mut is_over = false;
        stage.until("the agent ends, or is ready", |stage| {
            is_over = stage.is_ready();
            Ok(is_over || stage.check().is_err())
        })?;
        drop(tracer);
        // The call may have come after the start, before the tracer was gone.
        if is_over && stage.check().is_ok() {
            stage.confirm(&BASE)?;
            return ensure(call > least, || format!("a start takes only {} calls", call - 1));
        }
        stage.ended()?;
    }
    Err(StageError::Unexpected(format!("a start takes more than {MOST_OF_START} calls")))
}
