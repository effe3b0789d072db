//! Objects as they arrive one by one from a datastore over the network.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use ahash::RandomState;
use tortie_model::{Hostname, Update};
use tortie_resources::manifest::{Kind, ObjectId, Resource, SyncerType};
use tortie_resources::{FieldProblem, Position, Severity};

use crate::register::Register;
use crate::{Fallback, InputProblem};

/// The objects of a datastore, and what follows from them. Pure: whoever reads the datastore tells what each object is.
///
/// * An object that becomes invalid keeps what was last good for it, however often it is listed again; a policy that never
///   was good is replaced by one that denies what it selects.
/// * If two objects claim one key, the one whose name sorts first counts
///   (`libcalico-go/lib/backend/watchersyncer/conflictresolvingcachewriter.go`), and the other one is a problem. The endpoints
///   that an ignored policy selects are denied, unless both policies are the same.
/// * The objects that every datastore has, such as the profile `projectcalico-default-allow` and the tier `default`, are
///   there from the first [`Objects::take_updates`] on.
///
/// An object is known by its kind, namespace and name *in the datastore*, which is all that tells of its deletion; what it
/// means may go by another name, such as that of a policy of the default tier.
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
    /// What is wrong with objects as they are written now.
    objects_with_problems: HashMap<ObjectId, ObjectProblems, RandomState>,
    /// How many times each kind has been listed.
    listings: BTreeMap<Kind, u32>,
    /// Whether the problems may be others than when they were last taken.
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
    /// An empty datastore, all of which is wanted.
    #[must_use]
    pub fn new() -> Self {
        Self::with(None, SyncerType::Felix)
    }

    /// An empty datastore, all of which is wanted that this syncer has.
    #[must_use]
    pub fn of_syncer(syncer: SyncerType) -> Self {
        Self::with(None, syncer)
    }

    /// An empty datastore of which this node wants its part: workload endpoints of other nodes are reduced by
    /// [`tortie_model::WorkloadEndpoint::for_other_node`].
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

    /// The same, with the versions of objects for [`Objects::at_versions`], for who has room for them.
    #[must_use]
    pub fn with_versions(mut self) -> Self {
        self.register.keep_versions();
        self
    }

    /// How many objects there are, built-in ones not counted.
    #[must_use]
    pub fn len(&self) -> usize {
        self.register.len()
    }

    /// Whether there are no objects but the built-in ones.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tells what an object is now. Text that cannot be read is [`Resource::unreadable`].
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

    /// Tells at which version an object is that has been told by [`Objects::set`].
    pub fn set_version(&mut self, id: &ObjectId, version: impl fmt::Display) {
        self.register.set_version(id, version);
    }

    /// Updates, each with the version of the object that it follows from, if [`Objects::with_versions`] asked for them: of one that
    /// cannot be used as it is now, that of the object as it is, not of what stands for it.
    pub fn at_versions(&self, updates: Vec<Update>) -> impl Iterator<Item = (Update, Option<Arc<str>>)> {
        updates.into_iter().map(|update| {
            let version = self.register.version(&update).cloned();
            (update, version)
        })
    }

    /// Tells that an object does not exist any more.
    pub fn remove(&mut self, id: &ObjectId) {
        self.problems_changed |= self.register.is_in_conflict() || self.objects_with_problems.remove(id).is_some();
        self.objects_with_problems.remove(id);
        self.register.remove(id);
    }

    /// All objects of a kind will be told. A listing that breaks off is restarted.
    pub fn begin_list(&mut self, kind: Kind) {
        let listing = self.listings.entry(kind).or_default();
        *listing = listing.wrapping_add(1);
    }

    /// All objects of a kind have been told since [`Objects::begin_list`]: those that were not do not exist any more.
    pub fn end_list(&mut self, kind: Kind) {
        let current = self.listings.get(&kind).copied().unwrap_or_default();
        self.problems_changed |= self.register.is_in_conflict();
        for id in self.register.sweep(|id, listing| id.kind != kind || listing == current) {
            self.problems_changed |= self.objects_with_problems.remove(&id).is_some();
        }
    }

    /// The updates that follow from what was told since the last time: those that make a difference, in the order of
    /// their keys. It may be called within a listing, so that a long one need not be held twice.
    pub fn take_updates(&mut self) -> Vec<Update> {
        self.register.take_updates()
    }

    /// Everything that is in force, in the order of keys, for a consumer that restarts.
    #[must_use]
    pub fn snapshot(&self) -> Vec<Update> {
        self.register.snapshot()
    }

    /// Everything that is wrong now, in the order of the objects.
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
            let what = format!("stands for the same as {winner}, which counts");
            let problem = FieldProblem::new(severity, Position::default(), "", what);
            let problem = InputProblem::new(loser.to_string(), problem, fallback);
            problems.push((loser, problem));
        }
        problems.sort_by(|(a, x), (b, y)| (a, x.problem.position).cmp(&(b, y.problem.position)));
        problems.into_iter().map(|(_, problem)| problem).collect()
    }

    /// [`Objects::problems`] if they may have changed since this was last called.
    pub fn changed_problems(&mut self) -> Option<Vec<InputProblem>> {
        std::mem::take(&mut self.problems_changed).then(|| self.problems())
    }
}

/// The pairs of objects that claim the same, winner and loser, the severity, and what is in force for the loser. One that wants
/// the same value loses nothing.
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
