//! Destroying sets that are no longer wanted, many at a time.

use std::fmt::Write as _;
use std::time::Duration;

use tortie_net::IpSetName;

use crate::names::{is_temporary, temporary_prefix};
use crate::plan::{CommandFailure, Plan, Report};
use crate::progress::InFlight;
use crate::sets::IpSets;

/// A command that destroys sets should not take longer. The kernel takes some microseconds or some ten milliseconds for
/// each, depending on its version.
const LONGEST_COMMAND: Duration = Duration::from_millis(50);
/// A round of deletions ends after that many refused commands.
const REFUSALS_PER_ROUND: u32 = 8;

impl IpSets {
    /// The next thing to do to get rid of sets that are no longer wanted: after all rules were
    /// written, ask and carry out until it is [`Plan::Done`]. Each such round destroys a limited number of them;
    /// [`Report::more`] says whether to come back.
    ///
    /// A set that is still in use is not tried again before the sets are listed again.
    pub fn plan_deletions(&mut self, now: Duration) -> Plan {
        self.abandon(now);
        let deletion = *self.progress.deletion.get_or_insert_default();
        if !deletion.is_over && !self.to_destroy.is_empty() {
            let names = self.next_to_destroy();
            let mut text = String::new();
            for name in &names {
                // Writing to a String cannot fail.
                let _ = writeln!(text, "destroy {name}");
            }
            text.push_str("COMMIT\n");
            self.progress.in_flight = Some(InFlight::Destroy { names, since: now });
            return Plan::Restore(text);
        }
        self.progress.deletion = None;
        Plan::Done(Report {
            more: (!deletion.is_stuck && !self.to_destroy.is_empty()) || !self.may_read.is_empty(),
            destroyed: deletion.destroyed,
            ..Report::default()
        })
    }

    /// Temporary sets first.
    fn next_to_destroy(&self) -> Vec<IpSetName> {
        let first_temporary = temporary_prefix(self.family);
        let temporaries = self.to_destroy.range(first_temporary..).take_while(|name| is_temporary(name, self.family));
        let others = self.to_destroy.iter().filter(|name| !is_temporary(name, self.family));
        temporaries.chain(others).take(self.progress.batch.len()).copied().collect()
    }

    /// `ipset restore` stops at the first line that is refused; what came before it took effect.
    pub(super) fn destroyed(&mut self, took: Duration, names: &[IpSetName], result: Result<(), CommandFailure>) {
        let mut deletion = self.progress.deletion.unwrap_or_default();
        let batch = &mut self.progress.batch;
        match result {
            Ok(()) => {
                if took > LONGEST_COMMAND {
                    batch.halve(names.len());
                } else {
                    batch.grow();
                }
                names.iter().for_each(|name| self.mark_absent(name));
                deletion.destroyed += names.len();
                deletion.is_over = true;
                deletion.is_stuck = false;
            }
            Err(failure) => {
                deletion.refusals += 1;
                deletion.is_over = deletion.refusals >= REFUSALS_PER_ROUND;
                let line = if names.len() == 1 { Some(1) } else { failure.line() };
                let refused = line.and_then(|line| Some((line.checked_sub(1)?, names.get(line - 1)?)));
                match refused {
                    Some((before, refused)) => {
                        names.iter().take(before).for_each(|name| self.mark_absent(name));
                        deletion.destroyed += before;
                        deletion.is_stuck = !self.refused(refused, &failure);
                    }
                    None => batch.halve(names.len()),
                }
            }
        }
        self.progress.deletion = Some(deletion);
    }

    /// Puts a set aside that was not destroyed. Returns whether the kernel is known to be the reason.
    fn refused(&mut self, name: &IpSetName, failure: &CommandFailure) -> bool {
        if failure.says_no_such_set() {
            self.mark_absent(name);
            return true;
        }
        tracing::debug!(set = %name, %failure, "IP set not destroyed; tried again after the next listing");
        if self.to_destroy.remove(name) {
            self.not_destroyed.insert(*name);
        }
        failure.says_in_use()
    }
}
