//! Objects that arrive one by one from a datastore over the network.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use ahash::RandomState;
use tortie_model::{Hostname, Update};
use tortie_resources::manifest::{Kind, ObjectId, Resource, SyncerType};
use tortie_resources::{FieldProblem, Position, Severity};

use crate::register::Register;
use crate::{Fallback, InputProblem};

/// State of a datastore's objects, and the updates that result from it. Pure: the caller reads the
/// datastore and passes each object.
///
/// * An invalid object keeps its last valid version, however often it is listed again. A policy
///   without one is replaced by a policy that denies the selected endpoints.
/// * If two objects claim one key, the one whose name sorts first takes effect
///   (`libcalico-go/lib/backend/watchersyncer/conflictresolvingcachewriter.go`), and the other one
///   is reported as a problem. The endpoints that an ignored policy selects are denied, unless both
///   policies are the same.
/// * The objects that every datastore has, such as the profile `projectcalico-default-allow` and
///   the tier `default`, are present from the first [`Objects::take_updates`] on.
///
/// An object is identified by its kind, namespace and name *in the datastore*, because a deletion
/// contains nothing else. The resulting key may have another name, as that of a policy of the
/// default tier.
///
/// ```
/// use tortie_datastore::Objects;
/// use tortie_model::Interner;
/// use tortie_resources::manifest::{Kind, ObjectId, Options, UnknownFields, read_object};
///
/// let options = Options { unknown_fields: UnknownFields::Ignore, ..Options::default() };
/// let (mut objects, mut labels) = (Objects::new(), Interner::new());
/// let id = ObjectId { kind: Kind::Namespace, namespace: "".into(), name: "shop".into() };
/// objects.begin_list(Kind::Namespace);
/// let json = r#"{"metadata": {"name": "shop"}}"#;
/// objects.set(&id, read_object(json, id.kind, &options, &mut labels)?);
/// objects.end_list(Kind::Namespace);
/// assert!(!objects.take_updates().is_empty() && objects.problems().is_empty());
/// // The datastore is listed again, and the namespace is gone.
/// objects.begin_list(Kind::Namespace);
/// objects.end_list(Kind::Namespace);
/// assert!(objects.take_updates().iter().all(|update| !update.exists()));
/// # Ok::<(), tortie_resources::SyntaxError>(())
/// ```
#[derive(Debug)]
pub struct Objects {
    register: Register,
    /// Problems of objects in their current form.
    objects_with_problems: HashMap<ObjectId, ObjectProblems, RandomState>,
    /// Number of listings of each kind.
    listings: BTreeMap<Kind, u32>,
    /// Whether the problems may have changed since they were last taken.
    problems_changed: bool,
}

#[derive(Debug)]
struct ObjectProblems {
    subject: String,
    problems: Vec<FieldProblem>,
    fallback: Fallback,
}

impl Default for Objects {
    fn default() -> Self {
        Self::new()
    }
}

impl Objects {
    /// Returns the state of an empty datastore, for a consumer of all objects.
    #[must_use]
    pub fn new() -> Self {
        Self::with(None, SyncerType::Felix)
    }

    /// Returns the state of an empty datastore, for a consumer of all objects of this syncer.
    #[must_use]
    pub fn of_syncer(syncer: SyncerType) -> Self {
        Self::with(None, syncer)
    }

    /// Returns the state of an empty datastore, for one node: workload endpoints of other nodes are
    /// reduced by [`tortie_model::WorkloadEndpoint::for_other_node`].
    #[must_use]
    pub fn of_node(node: Hostname) -> Self {
        Self::with(Some(node), SyncerType::Felix)
    }

    fn with(node: Option<Hostname>, syncer: SyncerType) -> Self {
        Self {
            register: Register::new(node, syncer),
            objects_with_problems: HashMap::default(),
            listings: BTreeMap::new(),
            problems_changed: true,
        }
    }

    /// Makes the state also keep the versions of objects, for [`Objects::at_versions`]. This takes
    /// memory.
    #[must_use]
    pub fn with_versions(mut self) -> Self {
        self.register.keep_versions();
        self
    }

    /// Returns the number of objects, without built-in ones.
    #[must_use]
    pub fn len(&self) -> usize {
        self.register.len()
    }

    /// Reports whether there are only built-in objects.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sets the current content of an object. Text that cannot be parsed is
    /// [`Resource::unreadable`].
    pub fn set(&mut self, id: &ObjectId, resource: Resource) {
        let listing = self.listings.get(&id.kind).copied().unwrap_or_default();
        let Resource { subject, outcome, problems, .. } = resource;
        let in_conflict = self.register.is_in_conflict();
        let fallback = self.register.put(id, outcome, listing);
        if problems.is_empty() {
            self.problems_changed |= self.objects_with_problems.remove(id).is_some();
        } else {
            self.objects_with_problems.insert(id.clone(), ObjectProblems { subject, problems, fallback });
            self.problems_changed = true;
        }
        self.problems_changed |= in_conflict || self.register.is_in_conflict();
    }

    /// Sets the datastore version of an object that was passed to [`Objects::set`].
    pub fn set_version(&mut self, id: &ObjectId, version: impl fmt::Display) {
        self.register.set_version(id, version);
    }

    /// Returns updates, each with the version of the object that it results from, if
    /// [`Objects::with_versions`] was called. For an unusable object this is the version of its
    /// current form, not of its substitute.
    pub fn at_versions(&self, updates: Vec<Update>) -> impl Iterator<Item = (Update, Option<Arc<str>>)> {
        updates.into_iter().map(|update| {
            let version = self.register.version(&update).cloned();
            (update, version)
        })
    }

    /// Removes an object that does not exist any more.
    pub fn remove(&mut self, id: &ObjectId) {
        self.problems_changed |= self.register.is_in_conflict() || self.objects_with_problems.remove(id).is_some();
        self.objects_with_problems.remove(id);
        self.register.remove(id);
    }

    /// Begins a listing: all objects of the kind follow. An interrupted listing is restarted.
    pub fn begin_list(&mut self, kind: Kind) {
        let listing = self.listings.entry(kind).or_default();
        *listing = listing.wrapping_add(1);
    }

    /// Ends a listing: objects of the kind that were not set since [`Objects::begin_list`] do not
    /// exist any more.
    pub fn end_list(&mut self, kind: Kind) {
        let current = self.listings.get(&kind).copied().unwrap_or_default();
        self.problems_changed |= self.register.is_in_conflict();
        for id in self.register.sweep(|id, listing| id.kind != kind || listing == current) {
            self.problems_changed |= self.objects_with_problems.remove(&id).is_some();
        }
    }

    /// Returns the updates that result from the changes since the last call, without redundant
    /// ones, in the order of their keys. It may be called during a listing, so that the objects of
    /// a long one are not held twice.
    pub fn take_updates(&mut self) -> Vec<Update> {
        self.register.take_updates()
    }

    /// Returns everything that is in force, in the order of keys, for a consumer that restarts.
    #[must_use]
    pub fn snapshot(&self) -> Vec<Update> {
        self.register.snapshot()
    }

    /// Returns all current problems, in the order of the objects.
    #[must_use]
    pub fn problems(&self) -> Vec<InputProblem> {
        let mut problems: Vec<(&ObjectId, InputProblem)> = Vec::new();
        for (id, of_object) in &self.objects_with_problems {
            problems.extend(of_object.problems.iter().map(|problem| {
                let fallback =
                    if problem.severity == Severity::Error { of_object.fallback } else { Fallback::NotNeeded };
                (id, InputProblem::new(&*of_object.subject, problem.clone(), fallback))
            }));
        }
        for ((winner, loser), (severity, fallback)) in conflicts(&self.register) {
            let message = format!("stands for the same as {winner}, which counts");
            let problem = FieldProblem::new(severity, Position::default(), "", message);
            let problem = InputProblem::new(loser.to_string(), problem, fallback);
            problems.push((loser, problem));
        }
        problems.sort_by(|(a, x), (b, y)| (a, x.problem.position).cmp(&(b, y.problem.position)));
        problems.into_iter().map(|(_, problem)| problem).collect()
    }

    /// Returns [`Objects::problems`] if they may have changed since the last call.
    pub fn changed_problems(&mut self) -> Option<Vec<InputProblem>> {
        std::mem::take(&mut self.problems_changed).then(|| self.problems())
    }
}

/// Returns the pairs of objects (winner, loser) that claim the same key, with severity and fallback
/// of the loser. A loser with the same value loses nothing, so this is a warning.
pub(crate) fn conflicts(register: &Register) -> BTreeMap<(&ObjectId, &ObjectId), (Severity, Fallback)> {
    let mut conflicts = BTreeMap::new();
    for conflict in register.conflicts() {
        let severity = if conflict.same { Severity::Warning } else { Severity::Error };
        let worst = conflicts.entry((conflict.winner, conflict.loser)).or_insert((severity, Fallback::NotNeeded));
        worst.0 = severity.max(worst.0);
        if conflict.denies {
            worst.1 = Fallback::Denied;
        }
    }
    conflicts
}

#[cfg(test)]
mod tests;
