//! Destruction of sets that are no longer desired, in batches.

use std::fmt::Write as _;
use std::time::Duration;

use tortie_net::IpSetName;

use crate::names::{is_temporary, temporary_prefix};
use crate::plan::{CommandFailure, Plan, Report};
use crate::progress::InFlight;
use crate::sets::IpSets;

/// Intended maximum duration of a command that destroys sets. The kernel takes some microseconds or
/// some ten milliseconds for each, depending on its version.
const LONGEST_COMMAND: Duration = Duration::from_millis(50);
/// Refused commands after which a round of deletions ends.
const REFUSALS_PER_ROUND: u32 = 8;

impl IpSets {
    /// Returns the next operation that destroys sets that are no longer desired. After all rules
    /// are written, the caller executes plans until [`Plan::Done`]. Each such round destroys a
    /// limited number of sets; [`Report::more`] is true if another round is needed.
    ///
    /// A set that is still in use is retried only after the next listing.
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

    /// Returns the next batch, temporary sets first.
    fn next_to_destroy(&self) -> Vec<IpSetName> {
        let first_temporary = temporary_prefix(self.family);
        let temporaries = self.to_destroy.range(first_temporary..).take_while(|name| is_temporary(name, self.family));
        let others = self.to_destroy.iter().filter(|name| !is_temporary(name, self.family));
        temporaries.chain(others).take(self.progress.batch.len()).copied().collect()
    }

    /// `ipset restore` stops at the first refused line; the lines before it took effect.
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

    /// Sets aside a set that was not destroyed. Returns true if the set is missing or still in use.
    fn refused(&mut self, name: &IpSetName, failure: &CommandFailure) -> bool {
        if failure.is_no_such_set() {
            self.mark_absent(name);
            return true;
        }
        tracing::debug!(set = %name, %failure, "IP set not destroyed; retrying after the next listing");
        if self.to_destroy.remove(name) {
            self.not_destroyed.insert(*name);
        }
        failure.is_in_use()
    }
}
