//! State of a directory of manifests: contents of files in, updates out.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ahash::RandomState;
use tortie_model::{Interner, Update};
use tortie_resources::manifest::{self, Format, ObjectId, Options, Outcome, Resource};
use tortie_resources::{FieldProblem, Position, Severity};
use tortie_revisions::last_good::Record;
use tortie_revisions::unknown::{self, Scope};

use crate::objects::conflicts;
use crate::register::Register;
use crate::{Fallback, InputProblem};

mod doubles;

type Map<K, V> = HashMap<K, V, RandomState>;

/// Content of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileContent<'a> {
    /// This text.
    Text(&'a str),
    /// The reason why it cannot be read. The previous definitions of the file stay in force.
    Unreadable(&'a str),
}

/// State of a directory. Pure: the caller watches the directory and passes the contents of its
/// files.
///
/// An invalid object keeps its last valid version. If two files define one object, the file that
/// sorts first takes effect. If two objects claim one key, the object that sorts first takes
/// effect. In both cases the other one is reported as a problem. If the other definition of a
/// policy differs, an additional policy denies the endpoints that it selects, also while that
/// definition may be in an unreadable document. The objects that every datastore has are present
/// from the first [`DirState::take_updates`] on.
#[derive(Debug)]
pub struct DirState {
    options: Options,
    labels: Interner,
    files: BTreeMap<Arc<Path>, File>,
    objects: Map<ObjectId, Definitions>,
    register: Register,
    /// The objects that have anything to report.
    with_problems: BTreeSet<ObjectId>,
    /// The objects whose definitions have changed since the last updates were taken.
    touched: BTreeSet<ObjectId>,
    /// Whether endpoints are closed while their protection is unknown.
    closes: bool,
    /// Whether everything has been read once.
    is_complete: bool,
    /// Scopes of the closed endpoints.
    closed: BTreeSet<Scope>,
    /// Whether files have changed since `closed` was last computed.
    scopes_changed: bool,
}

#[derive(Debug, Default)]
struct File {
    /// Hash of the content, to skip unchanged contents.
    fingerprint: Option<u64>,
    /// Objects defined here by a readable document or, while some documents are unreadable,
    /// formerly.
    objects: BTreeSet<ObjectId>,
    /// Problems of documents without a usable id, and of an unreadable file.
    problems: Vec<InputProblem>,
    /// Whether any document may define an unknown object, because it cannot be identified.
    is_unidentified: bool,
    /// Whether any former definition is [kept](Missing::Kept).
    keeps: bool,
    /// Whether the file existed before.
    is_known: bool,
    /// Scopes that are closed because of this file.
    closed: BTreeSet<Scope>,
}

/// Treatment of definitions that a file no longer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// It does not exist any more.
    Gone,
    /// It stays in force, unless another file defines it, until [`DirState::release`].
    Kept,
}

/// Parsed content of a file.
#[derive(Debug)]
pub(crate) struct Reading {
    fingerprint: u64,
    resources: Vec<Resource>,
    unreadable: Vec<(Position, String)>,
}

impl Reading {
    /// Reports whether there is no document.
    pub(crate) fn is_empty(&self) -> bool {
        self.resources.is_empty() && self.unreadable.is_empty()
    }

    /// Reports whether all of it could be parsed.
    pub(crate) fn is_readable(&self) -> bool {
        self.unreadable.is_empty()
    }

    /// Reports whether it contains a document of unknown kind or name, which may define any object.
    fn is_unidentified(&self) -> bool {
        let is_unidentified =
            |resource: &Resource| resource.id.is_none() && matches!(resource.outcome, Outcome::Invalid { .. });
        !self.is_readable() || self.resources.iter().any(is_unidentified)
    }
}

/// The definitions of one object by file, in order. Nearly all objects have a single one, for which
/// a node of a tree would be too large.
#[derive(Debug, Default)]
struct Definitions(Vec<(Arc<Path>, Definition)>);

impl Definitions {
    fn place(&self, path: &Path) -> Result<usize, usize> {
        self.0.binary_search_by(|(known, _)| (**known).cmp(path))
    }

    fn iter(&self) -> impl Iterator<Item = (&Arc<Path>, &Definition)> {
        self.0.iter().map(|(path, definition)| (path, definition))
    }

    fn values(&self) -> impl Iterator<Item = &Definition> {
        self.0.iter().map(|(_, definition)| definition)
    }

    fn get(&self, path: &Path) -> Option<&Definition> {
        self.place(path).ok().and_then(|at| self.0.get(at)).map(|(_, definition)| definition)
    }

    fn get_mut(&mut self, path: &Path) -> Option<&mut Definition> {
        self.place(path).ok().and_then(|at| self.0.get_mut(at)).map(|(_, definition)| definition)
    }

    /// Returns the earlier definition of the file.
    fn insert(&mut self, path: &Arc<Path>, definition: Definition) -> Option<Definition> {
        match self.place(path) {
            Ok(at) => self.0.get_mut(at).map(|(_, known)| std::mem::replace(known, definition)),
            Err(at) => {
                self.0.reserve_exact(1);
                self.0.insert(at, (Arc::clone(path), definition));
                None
            }
        }
    }

    fn remove(&mut self, path: &Path) {
        self.0.retain(|(known, _)| **known != *path);
    }
}

/// Whether a file currently has a definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Age {
    Current,
    /// The file had it before, and may be incomplete now; see [`Missing::Kept`].
    Kept,
    /// The file had it before, and may still have it in a document that is unreadable now.
    Hidden,
}

#[derive(Debug)]
struct Definition {
    age: Age,
    subject: String,
    position: Position,
    outcome: Outcome,
    problems: Vec<FieldProblem>,
    /// Further, ignored definitions in the same file: current ones, then earlier ones.
    doubles: Vec<Self>,
}

impl From<Resource> for Definition {
    fn from(mut resource: Resource) -> Self {
        if let Outcome::Valid(updates) | Outcome::Invalid { substitute: Some(updates) } = &mut resource.outcome {
            updates.shrink_to_fit();
        }
        Self {
            age: Age::Current,
            subject: resource.subject,
            position: resource.position,
            outcome: resource.outcome,
            problems: resource.problems,
            doubles: Vec::new(),
        }
    }
}

impl DirState {
    /// Returns the state of an empty directory.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            register: Register::new(None, options.syncer),
            options,
            labels: Interner::new(),
            files: BTreeMap::new(),
            objects: Map::default(),
            with_problems: BTreeSet::new(),
            touched: BTreeSet::new(),
            closes: false,
            is_complete: false,
            closed: BTreeSet::new(),
            scopes_changed: false,
        }
    }

    /// Closes endpoints while their protection is unknown: an object of the first reading is
    /// unusable and never had a valid version ([`Fallback::Nothing`]). These are the endpoints of
    /// its namespace or, if that is unknown, all endpoints. An object that becomes unusable later
    /// closes no endpoint that was open.
    #[must_use]
    pub fn close_unknown(mut self) -> Self {
        self.set_close_unknown(true);
        self
    }

    pub(crate) fn set_close_unknown(&mut self, closes: bool) {
        self.closes = closes;
    }

    /// Notes that everything has been read once; see [`DirState::close_unknown`].
    pub fn complete(&mut self) {
        self.is_complete = true;
    }

    /// Marks a file as known although it has not been read: because of it, only these scopes are
    /// closed.
    pub(crate) fn restore_closed(&mut self, path: &Path, closed: BTreeSet<Scope>) {
        if let Some(file) = self.files.get_mut(path) {
            (file.is_known, file.closed) = (true, closed);
        }
    }

    /// Returns the scopes that are closed because of a file; `None` if the file is unknown.
    pub(crate) fn closed_for(&self, path: &Path) -> Option<&BTreeSet<Scope>> {
        self.files.get(path).map(|file| &file.closed)
    }

    /// Restores the last valid versions of each file from its record, before any other content is
    /// set. [`DirState::snapshot`] returns the resulting updates.
    pub fn restore(&mut self, records: &[(PathBuf, Record)]) {
        // Nearly all records have a text only.
        for (path, record) in records.iter().filter(|(_, record)| !record.kept.is_empty()) {
            self.stage_documents(path, &record.kept);
        }
        self.take_updates();
        for (path, record) in records {
            if !record.kept.is_empty() || !record.hidden.is_empty() {
                self.stage(path, None, Missing::Gone);
                self.stage_documents(path, &record.hidden);
            }
            self.stage_file(path, Some(FileContent::Text(&record.text)));
            self.restore_closed(path, record.closed.clone());
        }
        self.take_updates();
    }

    /// As [`DirState::stage_file`], for documents in JSON.
    fn stage_documents<'t>(&mut self, path: &Path, texts: impl IntoIterator<Item = &'t String>) {
        let read = |text: &String| manifest::read(text, Format::Json, &self.options, &mut self.labels).resources;
        let resources = texts.into_iter().flat_map(read).collect();
        self.stage(path, Some(Reading { fingerprint: 0, resources, unreadable: Vec::new() }), Missing::Gone);
    }

    /// Returns the known files.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.keys().map(|path| &**path)
    }

    /// Reports whether a file is known, or missing with kept definitions.
    pub(crate) fn is_known(&self, path: &Path) -> bool {
        self.files.contains_key(path)
    }

    /// Sets the content of one file and returns the updates; `None` if it is gone. See
    /// [`DirState::stage_file`] for several files at once.
    pub fn set_file(&mut self, path: &Path, content: Option<FileContent<'_>>) -> Vec<Update> {
        self.stage_file(path, content);
        self.take_updates()
    }

    /// Sets the content of a file; `None` if it is gone. It takes effect with
    /// [`DirState::take_updates`], so that an object that moves from one file to another does not
    /// vanish in between. Returns whether the file is new, different or gone.
    pub fn stage_file(&mut self, path: &Path, content: Option<FileContent<'_>>) -> bool {
        match content.map(|content| self.read(path, content)) {
            Some(None) => return false,
            Some(reading) => self.stage(path, reading, Missing::Gone),
            None => self.stage(path, None, Missing::Gone),
        }
        true
    }

    /// Parses a content without changing the state; `None` if the file had the same content before.
    pub(crate) fn read(&mut self, path: &Path, content: FileContent<'_>) -> Option<Reading> {
        let fingerprint = fingerprint(content);
        if self.files.get(path).is_some_and(|file| file.fingerprint == Some(fingerprint)) {
            return None;
        }
        Some(match content {
            FileContent::Text(text) => {
                let manifest = manifest::read(text, Format::of(path), &self.options, &mut self.labels);
                let unreadable = manifest.unreadable.into_iter().map(|error| (error.position, error.message)).collect();
                Reading { fingerprint, resources: manifest.resources, unreadable }
            }
            FileContent::Unreadable(why) => {
                Reading { fingerprint, resources: Vec::new(), unreadable: vec![(Position::default(), why.to_owned())] }
            }
        })
    }

    /// As [`DirState::stage_file`], for a parsed content; `None` if the file is gone.
    pub(crate) fn stage(&mut self, path: &Path, reading: Option<Reading>, missing: Missing) {
        let path: Arc<Path> = self.files.get_key_value(path).map_or_else(|| path.into(), |(path, _)| Arc::clone(path));
        self.scopes_changed = true;
        match (reading, missing) {
            (Some(reading), missing) => self.file_definitions(&path, reading, missing),
            (None, Missing::Gone) => self.remove_file(&path),
            (None, Missing::Kept) => {
                let File { objects, is_known, closed, .. } = self.files.remove(&path).unwrap_or_default();
                self.make_stale(&objects, &path, Age::Kept);
                self.touched.extend(objects.iter().cloned());
                self.files.insert(path, File { objects, keeps: true, is_known, closed, ..File::default() });
            }
        }
    }

    /// Reports whether the file would lose a definition with this content, including one that may
    /// be in an unreadable document.
    pub(crate) fn loses(&self, path: &Path, reading: &Reading) -> bool {
        let mut defined: BTreeMap<&ObjectId, usize> = BTreeMap::new();
        for id in reading.resources.iter().filter_map(|resource| resource.id.as_ref()) {
            *defined.entry(id).or_default() += 1;
        }
        let count = |id: &ObjectId| {
            self.objects.get(id).and_then(|all| all.get(path)).map_or(0, |first| first.doubles.len() + 1)
        };
        let is_there =
            |id: &ObjectId| defined.get(id).is_some_and(|defined| !id.kind.is_policy() || *defined >= count(id));
        let loses = |file: &File| !file.closed.is_empty() || !file.objects.iter().all(is_there);
        !reading.is_unidentified() && self.files.get(path).is_some_and(loses)
    }

    /// Removes the [kept](Missing::Kept) definitions of a file. Those that may be in an unreadable
    /// document stay.
    pub(crate) fn release(&mut self, path: &Path) {
        self.scopes_changed = true;
        let Some((path, _)) = self.files.get_key_value(path) else { return };
        let path = Arc::clone(path);
        let Some(file) = self.files.get_mut(&path) else { return };
        file.keeps = false;
        if file.is_unidentified {
            return;
        }
        let (objects, touched) = (&mut self.objects, &mut self.touched);
        file.objects.retain(|id| {
            let Some(definitions) = objects.get_mut(id) else { return true };
            let Some(definition) = definitions.get_mut(&path) else { return true };
            let is_current = definition.age == Age::Current;
            if !is_current {
                definitions.remove(&path);
                touched.insert(id.clone());
            } else if definition.clear_doubles() {
                touched.insert(id.clone());
            }
            is_current
        });
    }

    /// Returns everything that is in force, in the order of keys.
    #[must_use]
    pub fn snapshot(&self) -> Vec<Update> {
        self.register.snapshot()
    }

    /// Returns all current problems, in the order of files and positions.
    pub fn problems(&self) -> impl Iterator<Item = InputProblem> {
        let mut problems: Vec<InputProblem> =
            self.files.values().flat_map(|file| file.problems.iter().cloned()).collect();
        for id in &self.with_problems {
            if let Some(definitions) = self.objects.get(id) {
                report(id, definitions, &self.register, &mut problems);
            }
        }
        self.report_conflicts(&mut problems);
        for problem in &mut problems {
            if let Some(file) = &problem.file {
                problem.fallback = self.fallback_of(file, problem.fallback);
            }
        }
        problems
            .sort_by(|a, b| (&a.file, a.problem.position, &a.subject).cmp(&(&b.file, b.problem.position, &b.subject)));
        problems.into_iter()
    }

    /// Stores the definitions of a file.
    fn file_definitions(&mut self, path: &Arc<Path>, reading: Reading, missing: Missing) {
        let is_unidentified = reading.is_unidentified();
        let Reading { fingerprint, resources, unreadable } = reading;
        let File { objects: before, is_known, closed, .. } = self.files.remove(path).unwrap_or_default();
        let keeps = missing == Missing::Kept;
        let mut file =
            File { fingerprint: Some(fingerprint), is_unidentified, keeps, is_known, closed, ..File::default() };
        let mut replaced = Vec::new();
        for resource in resources {
            match resource.id.clone() {
                Some(id) => {
                    let is_first = file.objects.insert(id.clone());
                    let definitions = self.objects.entry(id.clone()).or_default();
                    match definitions.get_mut(path).filter(|_| !is_first) {
                        Some(first) => first.doubles.push(resource.into()),
                        None => {
                            let earlier = definitions.insert(path, resource.into());
                            replaced.extend(earlier.filter(|_| id.kind.is_policy()).map(|earlier| (id, earlier)));
                        }
                    }
                }
                None => file.problems.extend(nameless(path, resource)),
            }
        }
        let age = if is_unidentified { Age::Hidden } else { Age::Kept };
        for (id, earlier) in replaced {
            if let Some(definition) = self.objects.get_mut(&id).and_then(|all| all.get_mut(path)) {
                definition.succeed(earlier, (is_unidentified || keeps).then_some(age));
            }
        }
        let lost: BTreeSet<ObjectId> = before.difference(&file.objects).cloned().collect();
        self.touched.extend(before);
        self.touched.extend(file.objects.iter().cloned());
        // An unidentified document may be the one that defines a lost object.
        let fallback = if lost.is_empty() { Fallback::Nothing } else { Fallback::LastGood };
        for problem in file.problems.iter_mut().filter(|problem| problem.fallback == Fallback::Nothing) {
            problem.fallback = fallback;
        }
        for (position, message) in unreadable {
            file.problems.push(InputProblem::of_file(path.to_path_buf(), position, message, fallback));
        }
        if is_unidentified || keeps {
            self.make_stale(&lost, path, age);
            file.objects.extend(lost);
        } else {
            for id in &lost {
                self.remove_definition(id, path);
            }
        }
        self.files.insert(Arc::clone(path), file);
    }

    fn remove_file(&mut self, path: &Arc<Path>) {
        let objects = self.files.remove(path).map(|file| file.objects).unwrap_or_default();
        for id in &objects {
            self.remove_definition(id, path);
        }
        self.touched.extend(objects);
    }

    fn make_stale(&mut self, objects: &BTreeSet<ObjectId>, path: &Arc<Path>, age: Age) {
        for id in objects {
            if let Some(definition) = self.objects.get_mut(id).and_then(|all| all.get_mut(path)) {
                definition.age = age;
            }
        }
    }

    fn remove_definition(&mut self, id: &ObjectId, path: &Arc<Path>) {
        if let Some(definitions) = self.objects.get_mut(id) {
            definitions.remove(path);
        }
    }

    /// Returns the updates that result from the staged contents, without redundant ones, in the
    /// order of their keys.
    pub fn take_updates(&mut self) -> Vec<Update> {
        for id in std::mem::take(&mut self.touched) {
            let Some(definitions) = self.objects.get(&id) else { continue };
            if has_problems(definitions) {
                self.with_problems.insert(id.clone());
            } else {
                self.with_problems.remove(&id);
            }
            let effective = effective(definitions);
            match effective {
                Some((_, definition)) => drop(self.register.put(&id, definition.outcome.clone(), 0)),
                None => self.register.remove(&id),
            }
            if id.kind.is_policy() {
                doubles::close(definitions, &id, &mut self.register);
            }
            if effective.is_none() {
                self.objects.remove(&id);
            }
        }
        if self.closes && std::mem::take(&mut self.scopes_changed) {
            self.update_closed();
        }
        self.register.take_updates()
    }

    /// Recomputes which endpoints are closed, and changes the policies that close them.
    fn update_closed(&mut self) {
        let (mut closed, register, objects) = (BTreeSet::new(), &self.register, &self.objects);
        for (path, file) in &mut self.files {
            let is_new = !std::mem::replace(&mut file.is_known, true) && !self.is_complete;
            if is_new || !file.closed.is_empty() && !file.keeps {
                let nameless = file.problems.iter().filter(|problem| problem.fallback == Fallback::Nothing);
                let nameless = nameless.map(|problem| Scope::of_nameless(&problem.subject));
                let has_unknown =
                    |id: &ObjectId| objects.get(id).is_some_and(|all| doubles::has_unknown(all, id, path));
                let is_unknown = |id: &&ObjectId| register.fallback(id) == Some(Fallback::Nothing) || has_unknown(id);
                let now = file.objects.iter().filter(is_unknown).map(Scope::of).chain(nameless).collect();
                file.closed = if is_new { now } else { unknown::narrow(&file.closed, &now) };
            }
            closed.extend(file.closed.iter().cloned());
        }
        closed.remove(&Scope::Nobody);
        for scope in self.closed.difference(&closed) {
            self.register.remove(&scope.object());
        }
        for scope in closed.difference(&self.closed) {
            self.register.put(&scope.object(), Outcome::Valid(scope.denial()), 0);
        }
        self.closed = closed;
    }

    /// Returns the fallback of a problem of a file, with regard to closed scopes.
    fn fallback_of(&self, path: &Path, fallback: Fallback) -> Fallback {
        if fallback != Fallback::Nothing || !self.closes {
            return fallback;
        }
        match self.files.get(path).map(|file| &file.closed) {
            None => fallback,
            Some(closed) if closed.is_empty() => Fallback::Tolerated,
            Some(closed) if closed.iter().all(|scope| *scope == Scope::Nobody) => fallback,
            Some(_) => Fallback::Closed,
        }
    }

    /// Adds the problems of objects that claim a key which another object has.
    fn report_conflicts(&self, problems: &mut Vec<InputProblem>) {
        let definition = |id| self.objects.get(id).and_then(effective);
        for ((winner, loser), (severity, fallback)) in conflicts(&self.register) {
            let (Some((winners_file, winner)), Some((file, loser))) = (definition(winner), definition(loser)) else {
                continue;
            };
            let message =
                format!("stands for the same as {}, {}, which counts", winner.subject, winner.place(winners_file));
            let problem = FieldProblem::new(severity, loser.position, "", message);
            problems.push(InputProblem::new(&*loser.subject, problem, fallback).in_file(&**file));
        }
    }
}

impl Definition {
    /// `file:line:column`.
    fn place(&self, file: &Path) -> String {
        format!("{}:{}", file.display(), self.position)
    }
}

/// Returns the definition in effect, and its file: the first readable one, or else the first.
fn effective(definitions: &Definitions) -> Option<(&Arc<Path>, &Definition)> {
    definitions.iter().find(|(_, definition)| definition.age == Age::Current).or_else(|| definitions.iter().next())
}

fn has_problems(definitions: &Definitions) -> bool {
    let mut current = definitions.values().filter(|definition| definition.age == Age::Current);
    current.next().is_some_and(|first| !first.problems.is_empty() || first.current_doubles().next().is_some())
        || current.next().is_some()
}

/// Adds the problems of readable definitions; for unreadable documents the file has its own
/// problems.
fn report(id: &ObjectId, definitions: &Definitions, register: &Register, problems: &mut Vec<InputProblem>) {
    let mut definitions = definitions.iter().filter(|(_, definition)| definition.age == Age::Current);
    let Some((first, definition)) = definitions.next() else { return };
    let fallback = register.fallback(id).unwrap_or(Fallback::Nothing);
    problems.extend(definition.problems.iter().map(|problem| InputProblem {
        file: Some(first.to_path_buf()),
        subject: definition.subject.clone(),
        problem: problem.clone(),
        fallback: if problem.severity == Severity::Error { fallback } else { Fallback::NotNeeded },
    }));
    let in_same_file = definition.current_doubles().map(|double| (first, definition, double));
    let others = definitions.flat_map(|(path, other)| {
        std::iter::once(other).chain(other.current_doubles()).map(move |double| (path, other, double))
    });
    for (path, of_file, double) in in_same_file.chain(others) {
        let message = format!("is defined at {} already, which counts", definition.place(first));
        let problem = FieldProblem::new(Severity::Error, double.position, "", message);
        let fallback = match double.denial(definition, register.in_force(id)) {
            None if id.kind.is_policy() && double.is_unknown() => of_file.fallback_of_unknown(),
            None => Fallback::NotNeeded,
            Some(_) => Fallback::Denied,
        };
        problems.push(InputProblem::new(&*double.subject, problem, fallback).in_file(&**path));
    }
}

/// Returns the problems of a document without a usable id.
fn nameless(path: &Path, resource: Resource) -> impl Iterator<Item = InputProblem> {
    let fallback = match resource.outcome {
        Outcome::Invalid { .. } => Fallback::Nothing,
        Outcome::Valid(_) | Outcome::Unknown => Fallback::NotNeeded,
    };
    let (file, subject) = (path.to_path_buf(), resource.subject);
    resource.problems.into_iter().map(move |problem| InputProblem {
        file: Some(file.clone()),
        subject: subject.clone(),
        fallback: if problem.severity == Severity::Error { fallback } else { Fallback::NotNeeded },
        problem,
    })
}

fn fingerprint(content: FileContent<'_>) -> u64 {
    // With fixed keys, an attacker could craft a file with the same hash; these are drawn once per
    // process.
    static STATE: std::sync::OnceLock<RandomState> = std::sync::OnceLock::new();
    STATE.get_or_init(RandomState::new).hash_one(content)
}

#[cfg(test)]
mod tests;
