//! How every fault ends: the agent has converged, and leaves nothing behind when it is cleaned up.

use std::{fmt::Write, process::Command, time::Duration};

use super::{Done, Stage, Trouble, ensure};
use crate::{
    judge::{Expect, Interval},
    prober::{Channel, Prober},
};

/// So long the kernel has to stay as it is before it counts as the agent's last word.
const STILL: Duration = Duration::from_millis(600);

impl Stage {
    /// All packets must fare as policy says by now. Ends the prober and tells what it saw.
    pub(crate) fn end_probing(&mut self) -> (Done, Vec<(Channel, usize, Vec<Interval>)>) {
        let settled = self.everything_settled();
        let prober = std::mem::replace(&mut self.prober, Prober::new());
        (settled, prober.finish())
    }

    fn everything_settled(&mut self) -> Done {
        let since = self.prober.now();
        self.until("all packets fare as policy says", |stage| {
            let settled = |expect| {
                // Channels of which nothing is expected fare as they like.
                let unsettled = stage.prober.unsettled(expect, since, |_| true);
                unsettled.iter().all(|channel| !stage.prober.current(|one| one == channel).contains(&expect))
            };
            Ok(settled(Expect::Allowed) && settled(Expect::Denied))
        })
    }

    /// The kernel must hold what an agent writes that finds nothing, and nothing of it after cleaning up.
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
            format!("the kernel does not hold what a new agent writes (-):{}", difference(&fresh, &converged))
        })?;
        self.stop()?;
        self.clean_up()
    }

    /// What the kernel holds once it does not change any more.
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

    /// Has `tortie cleanup` remove everything.
    pub(crate) fn clean_up(&mut self) -> Done {
        let mut command = Command::new(&self.program);
        command.arg("cleanup").env("XTABLES_LOCKFILE", self.folder.join("xtables.lock"));
        self.lab.node().output(&mut command, "")?;
        let left = self.left_over()?;
        ensure(left.is_empty(), || format!("cleaning up leaves:\n  {}", left.join("\n  ")))
    }
}

/// Lines that only one of two states has.
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
