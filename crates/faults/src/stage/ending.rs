//! End of every fault: the agent has converged, and cleanup leaves no state behind.

use std::{fmt::Write, process::Command, time::Duration};

use super::{Done, Stage, Trouble, ensure};
use crate::{
    judge::{Expect, Interval},
    prober::{Channel, Prober},
};

/// Time without changes after which the kernel's state counts as final.
const STILL: Duration = Duration::from_millis(600);

impl Stage {
    /// Waits until all packets match policy, ends the prober and returns its results.
    pub(crate) fn end_probing(&mut self) -> (Done, Vec<(Channel, usize, Vec<Interval>)>) {
        let settled = self.everything_settled();
        let prober = std::mem::replace(&mut self.prober, Prober::new());
        (settled, prober.finish())
    }

    fn everything_settled(&mut self) -> Done {
        let since = self.prober.now();
        self.until("all packets fare as policy says", |stage| {
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
    pub(crate) fn end(&mut self) -> Done {
        self.helpers.mend_all()?;
        if self.agent.is_none() {
            self.start()?;
        }
        self.until_ready()?;
        let converged = self.still()?;
        self.stop()?;
        let kept = self.kernel_state()?;
        ensure(kept == converged, || format!("ending the agent changed the kernel:{}", difference(&converged, &kept)))?;
        self.clean_up()?;
        self.prelude.clear();
        self.start()?;
        let fresh = self.still()?;
        ensure(fresh == converged, || {
            format!("the kernel state differs from that of a new agent (-):{}", difference(&fresh, &converged))
        })?;
        self.stop()?;
        self.clean_up()
    }

    /// Returns the kernel's state once it no longer changes.
    fn still(&mut self) -> Result<Vec<String>, Trouble> {
        let mut state = self.kernel_state()?;
        self.until("the kernel does not change any more", |stage| {
            std::thread::sleep(STILL);
            let now = stage.kernel_state()?;
            let still = now == state;
            state = now;
            Ok(still)
        })?;
        Ok(state)
    }

    /// Removes the agent's state by `tortie cleanup`.
    pub(crate) fn clean_up(&mut self) -> Done {
        let mut command = Command::new(&self.program);
        command.arg("cleanup").env("XTABLES_LOCKFILE", self.folder.join("xtables.lock"));
        self.lab.node().output(&mut command, "")?;
        let left = self.left_over()?;
        ensure(left.is_empty(), || format!("cleaning up leaves:\n  {}", left.join("\n  ")))
    }
}

/// Formats the lines that only one of two states has.
fn difference(wanted: &[String], found: &[String]) -> String {
    let mut text = String::new();
    for line in wanted.iter().filter(|line| !found.contains(line)) {
        let _ = write!(text, "\n  - {line}");
    }
    for line in found.iter().filter(|line| !wanted.contains(line)) {
        let _ = write!(text, "\n  + {line}");
    }
    if text.is_empty() { "\n  (the order alone)".to_owned() } else { text }
}
