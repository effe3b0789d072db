//! Fallbacks for unreadable objects.

use std::collections::{BTreeMap, HashMap};

use tortie_datastore::{Fallback, InputProblem};
use tortie_model::{Key, Update};
use tortie_resources::v1::DecodeError;
use tortie_resources::{FieldProblem, Position, Severity};

/// Last valid values of objects, and the problems of those that have become unreadable. Kept across
/// connections. Does no I/O.
///
/// An unreadable value must not allow traffic that was denied. The last valid value stays in force,
/// and a policy without one is replaced by a policy that denies. (Calico deletes the object.)
/// Workload endpoints are too numerous to be kept; an unknown endpoint is denied all traffic.
///
/// Values and problems belong to a *generation*. A resync begins a new generation. When it ends,
/// objects that were not received in it are dropped, since they no longer exist.
#[derive(Debug, Default)]
pub(crate) struct LastGood {
    generation: u64,
    values: HashMap<Key, (u64, Update)>,
    problems: BTreeMap<Key, (u64, InputProblem)>,
    changed: bool,
}

impl LastGood {
    /// Begins a resync. An aborted resync is restarted.
    pub(crate) fn begin(&mut self) {
        self.generation += 1;
    }

    /// Ends a resync: all objects have been received.
    pub(crate) fn end(&mut self) {
        let current = self.generation;
        self.values.retain(|_, (generation, _)| *generation == current);
        let before = self.problems.len();
        self.problems.retain(|_, (generation, _)| *generation == current);
        self.changed |= self.problems.len() != before;
    }

    /// Records an object that could be read, or does not exist.
    pub(crate) fn read(&mut self, update: &Update) {
        let key = update.key();
        self.changed |= self.problems.remove(&key).is_some();
        if update.exists() && !matches!(key, Key::WorkloadEndpoint(_)) {
            self.values.insert(key, (self.generation, update.clone()));
        } else {
            self.values.remove(&key);
        }
    }

    /// Returns the fallback for an unreadable object and records its problem.
    pub(crate) fn unreadable(&mut self, error: DecodeError) -> Update {
        let denial = error.fallback();
        let (before, update) = match self.values.get_mut(&*error.key) {
            Some((generation, value)) => {
                *generation = self.generation;
                (Some(Fallback::NotNeeded), value.clone())
            }
            None => (None, denial.clone()),
        };
        let fallback = Fallback::of_unusable(before, denial.exists());
        let DecodeError { path: subject, key, field, reason: message, .. } = error;
        let problem = FieldProblem::new(Severity::Error, Position::default(), field, message);
        let problem = InputProblem::new(subject, problem, fallback);
        let instead = match fallback {
            Fallback::NotNeeded | Fallback::LastGood => "its last good version stays in force",
            Fallback::Denied => "the endpoints that it may select are denied until it can be read",
            Fallback::Nothing | Fallback::Closed | Fallback::Tolerated => "it counts as deleted",
        };
        tracing::warn!(%problem, instead, "an object cannot be read");
        self.problems.insert(*key, (self.generation, problem));
        self.changed = true;
        update
    }

    /// Returns the problems of the unreadable objects in the order of their keys.
    pub(crate) fn problems(&self) -> impl Iterator<Item = &InputProblem> {
        self.problems.values().map(|(_, problem)| problem)
    }

    /// Reports whether the problems may have changed since the last call.
    pub(crate) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Returns the number of recorded values and problems.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.values.len() + self.problems.len()
    }
}
