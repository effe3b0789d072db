//! Report at the end of a round.

use std::collections::BTreeSet;
use std::time::Duration;

use tortie_net::IpSetName;

use crate::plan::{CommandFailure, Report, SetError, SetFailure};
use crate::reconcile::{FIRST_LONG_PAUSE, FIRST_PAUSE};
use crate::sets::{IpSets, Kernel, SetState};

impl IpSets {
    pub(crate) fn report(&self, now: Duration, listing: Option<CommandFailure>) -> Report {
        let mut retry_after = listing.is_some().then_some(FIRST_LONG_PAUSE);
        let suspects: BTreeSet<&IpSetName> = self.dirty.iter().chain(&self.overfull).chain(&self.must_read).collect();
        let mut failures = Vec::new();
        for name in suspects {
            // A set that appeared twice in a listing is read again, desired or not.
            let Some(state) = self.sets.get(name) else { continue };
            let pending = self.dirty.contains(name) || self.must_read.contains(name);
            if pending {
                let pause = match state.health.failures {
                    0 => FIRST_LONG_PAUSE,
                    _ => state.health.retry_at.saturating_sub(now).max(FIRST_PAUSE),
                };
                retry_after = Some(retry_after.map_or(pause, |least| least.min(pause)));
            }
            // The set is no longer desired.
            let Some(error) = set_error(state, pending) else { continue };
            if !self.progress.is_known() {
                // The failure to list the names is the report.
                continue;
            }
            let spec = state.desired;
            let is_read = matches!(state.kernel, Kernel::Present(found) if spec.is_some_and(|s| found.is_exactly(&s, self.family)));
            failures.push(SetFailure {
                name: *name,
                id: state.id.clone(),
                exists: state.kernel != Kernel::Absent,
                lacks: !is_read || state.members.missing_len() > 0,
                exceeds: !is_read || state.members.surplus_len() > 0,
                error,
            });
        }
        Report { failures, listing, more: !self.may_read.is_empty(), destroyed: 0, retry_after }
    }
}

fn set_error(state: &SetState, pending: bool) -> Option<SetError> {
    match (&state.health.last, state.health.failures) {
        (Some(failure), attempts @ 1..) if pending => Some(SetError::Refused { attempts, failure: failure.clone() }),
        _ if pending => Some(SetError::Deferred),
        _ => {
            let max_elements = state.desired?.max_elements();
            Some(SetError::TooManyMembers { members: state.members.desired_len(), max_elements })
        }
    }
}
