//! End of every fault: the agent has converged, and cleanup leaves no state behind.

use std::{fmt::Write, process::Command, time::Duration};

use super::{Stage, StageError, StageResult, ensure};
use crate::{
    evaluation::{Expect, Interval},
    prober::{Channel, Prober},
};

/// Time without changes after which the kernel's state counts as final.
const STILL: Duration = Duration::from_millis(600);

impl Stage {
    /// Waits until all packets match policy, ends the prober and returns its results.
    pub(crate) fn end_probing(&mut self) -> (StageResult, Vec<(Channel, usize, Vec<Interval>)>) {
        let settled = self.everything_settled();
        let prober = std::mem::replace(&mut self.prober, Prober::new());
        (settled, prober.finish())
    }

    fn everything_settled(&mut self) -> StageResult {
        let since = self.prober.now();
        self.until("all packets get the verdicts of policy", |stage| {
            let settled = |expect| {
                // Channels without an expectation are ignored.
                let unsettled = stage.prober.unsettled(expect, since, |_| true);
                unsettled.iter().all(|channel| !stage.prober.current(|one| one == channel).contains(&expect))
            };
            Ok(settled(Expect::Allowed) && settled(Expect::Denied))
        })
    }

    /// Checks that the kernel holds the state that a new agent writes on an empty node, and none of
    /// it after cleanup.
    pub(crate) fn end(&mut self) -> StageResult {
        self.helpers.repair_all()?;
        if self.agent.is_none() {
            self.start()?;
        }
        self.until_ready()?;
        let converged = self.stable_state()?;
        self.stop()?;
        let after_stop = self.kernel_state()?;
        ensure(after_stop == converged, || {
            format!("ending the agent changed the kernel:{}", difference(&converged, &after_stop))
        })?;
        self.clean_up()?;
        self.prelude.clear();
        self.start()?;
        let fresh = self.stable_state()?;
        ensure(fresh == converged, || {
            format!("the kernel state differs from that of a new agent (-):{}", difference(&fresh, &converged))
        })?;
        self.stop()?;
        self.clean_up()
    }

    /// Returns the kernel's state once it no longer changes.
    fn stable_state(&mut self) -> Result<Vec<String>, StageError> {
        let mut state = self.kernel_state()?;
        self.until("the kernel does not change any more", |stage| {
            std::thread::sleep(STILL);
            let now = stage.kernel_state()?;
            let is_stable = now == state;
            state = now;
            Ok(is_stable)
        })?;
        Ok(state)
    }

    /// Removes the agent's state by `tortie cleanup`.
    pub(crate) fn clean_up(&mut self) -> StageResult {
        let mut command = Command::new(&self.program);
        command.arg("cleanup").env("XTABLES_LOCKFILE", self.folder.join("xtables.lock"));
        self.lab.node().output(&mut command, "")?;
        let left = self.left_over()?;
        ensure(left.is_empty(), || format!("cleaning up leaves:\n  {}", left.join("\n  ")))
    }
}

/// Formats the lines that only one of two states has.
fn difference(expected: &[String], found: &[String]) -> String {
    let mut text = String::new();
    for line in expected.iter().filter(|line| !found.contains(line)) {
        let _ = write!(text, "\n  - {line}");
    }
    for line in found.iter().filter(|line| !expected.contains(line)) {
        let _ = write!(text, "\n  + {line}");
    }
    if text.is_empty() { "\n  (the order alone)".to_owned() } else { text }
}
