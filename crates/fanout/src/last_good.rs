//! What stands in for objects that cannot be read.

use std::collections::{BTreeMap, HashMap};

use tortie_datastore::{Fallback, InputProblem};
use tortie_model::{Key, Update};
use tortie_resources::v1::DecodeError;
use tortie_resources::{FieldProblem, Position, Severity};

/// The last good values of objects, and what is wrong with those that have become unreadable; across connections. Pure.
///
/// A value that cannot be read does not open what was closed: the last good one stays, and a policy that has none is
/// replaced by one that denies. (The original deletes the object.) Workload endpoints are too many to be kept; one that is
/// not known is denied everything.
///
/// What is known belongs to a *generation*: a resync begins a new one, and when it ends, what was not told in it is
/// forgotten, since it does not exist any more.
#[derive(Debug, Default)]
pub(crate) struct LastGood {
    generation: u64,
    values: HashMap<Key, (u64, Update)>,
    problems: BTreeMap<Key, (u64, InputProblem)>,
    changed: bool,
}

impl LastGood {
    /// Everything is going to be told. A resync that breaks off is restarted.
    pub(crate) fn begin(&mut self) {
        self.generation += 1;
    }

    /// Everything has been told.
    pub(crate) fn end(&mut self) {
        let current = self.generation;
        self.values.retain(|_, (generation, _)| *generation == current);
        let before = self.problems.len();
        self.problems.retain(|_, (generation, _)| *generation == current);
        self.changed |= self.problems.len() != before;
    }

    /// An object could be read, or does not exist.
    pub(crate) fn read(&mut self, update: &Update) {
        let key = update.key();
        self.changed |= self.problems.remove(&key).is_some();
        if update.exists() && !matches!(key, Key::WorkloadEndpoint(_)) {
            self.values.insert(key, (self.generation, update.clone()));
        } else {
            self.values.remove(&key);
        }
    }

    /// What is in force for an object that cannot be read.
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
        let DecodeError { path: subject, key, field, reason: what, .. } = error;
        let problem = FieldProblem::new(Severity::Error, Position::default(), field, what);
        let problem = InputProblem::new(subject, problem, fallback);
        let instead = match fallback {
            Fallback::NotNeeded | Fallback::LastGood => "its last good version stays in force",
            Fallback::Denied => "what it may select is denied until it can be read",
            Fallback::Nothing | Fallback::Closed | Fallback::Tolerated => "it counts as deleted",
        };
        tracing::warn!(%problem, "an object cannot be read; {instead}");
        self.problems.insert(*key, (self.generation, problem));
        self.changed = true;
        update
    }

    /// What cannot be read now, in the order of keys.
    pub(crate) fn problems(&self) -> impl Iterator<Item = &InputProblem> {
        self.problems.values().map(|(_, problem)| problem)
    }

    /// Whether the problems may be others than when this was last asked.
    pub(crate) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// How many values and problems are remembered.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.values.len() + self.problems.len()
    }
}
