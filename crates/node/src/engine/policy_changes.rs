//! Policies that changed, until they are in force.

use std::collections::BTreeMap;
use std::time::Instant;

use tortie_model::PolicyId;

/// Maximum number of policies that are logged one by one when they come into force together.
const MAX_LOGGED: usize = 20;

#[derive(Debug)]
struct Change {
    noticed: Instant,
    was_active: bool,
    calculated: bool,
}

/// Policies that changed since everything was first in force, and are not in the kernel yet.
#[derive(Debug, Default)]
pub(super) struct PolicyChanges {
    changes: BTreeMap<PolicyId, Change>,
}

impl PolicyChanges {
    /// Notes a changed policy; of several changes the time of the first counts.
    pub(super) fn changed(&mut self, id: &PolicyId, noticed: Instant, was_active: bool) {
        let first = Change { noticed, was_active, calculated: false };
        let change = self.changes.entry(id.clone()).or_insert(first);
        change.calculated = false;
        change.was_active |= was_active;
    }

    /// Changes have waited for something else than the kernel until now.
    pub(super) fn waited_until(&mut self, now: Instant) {
        self.changes.values_mut().for_each(|change| change.noticed = now);
    }

    pub(super) fn calculated(&mut self) {
        self.changes.values_mut().for_each(|change| change.calculated = true);
    }

    pub(super) fn in_force(&mut self, now: Instant, is_active: impl Fn(&PolicyId) -> bool) {
        let changes = std::mem::take(&mut self.changes);
        let (done, rest) = changes.into_iter().partition::<BTreeMap<_, _>, _>(|(_, change)| change.calculated);
        self.changes = rest;
        let here: Vec<_> = done
            .into_iter()
            .map(|(id, change)| (is_active(&id), id, change))
            .filter(|(is_active, _, change)| *is_active || change.was_active)
            .collect();
        if here.len() > MAX_LOGGED {
            let longest = here.iter().map(|(_, _, change)| now.saturating_duration_since(change.noticed)).max();
            tracing::info!(
                policies = here.len(),
                took_ms = longest.unwrap_or_default().as_millis(),
                "changed policies are in force"
            );
            return;
        }
        for (is_active, id, change) in here {
            let took = now.saturating_duration_since(change.noticed);
            let took_ms = took.as_millis();
            match (change.was_active, is_active) {
                (false, _) => tracing::info!(policy = %id, took_ms, "the policy is in force"),
                (true, true) => tracing::info!(policy = %id, took_ms, "the changed policy is in force"),
                (true, false) => tracing::info!(policy = %id, took_ms, "the policy is no longer in force"),
            }
        }
    }
}

#[cfg(test)]
mod tests;
