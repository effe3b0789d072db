//! What a directory of manifests says: contents of files in, updates out.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use ahash::RandomState;
use tortie_model::{Key, LabelInterner, Update, Value};
use tortie_resources::manifest::{self, Contributions, Format, ObjectId, Options, Outcome, Resource};
use tortie_resources::{Position, Problem, Severity};

use crate::{Cover, InputProblem};

type Map<K, V> = HashMap<K, V, RandomState>;

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileContent<'a> {
    /// This text.
    Text(&'a str),
    /// Something that cannot be read, and why. What the file defined before stays in force.
    Unreadable(&'a str),
}

/// The state of a directory. Pure: whoever watches the directory tells what its files hold.
///
/// An object that becomes invalid keeps what was last good for it. If two files define one object, the file that sorts
/// first counts; if two objects claim one key, the object that sorts first. Either way the other one is a problem.
#[derive(Debug)]
pub struct DirState {
    options: Options,
    labels: LabelInterner,
    files: BTreeMap<Arc<Path>, File>,
    objects: Map<ObjectId, Object>,
    claims: Map<Key, BTreeMap<ObjectId, Value>>,
    /// The keys that more than one object claims.
    contested: BTreeSet<Key>,
    /// The objects that have anything to report.
    troubled: BTreeSet<ObjectId>,
    /// The objects whose definitions have changed since they were last settled.
    touched: BTreeSet<ObjectId>,
}

#[derive(Debug, Default)]
struct File {
    /// Distinguishes contents well enough to skip what has not changed.
    fingerprint: Option<u64>,
    /// What is defined here, by a readable document or, while there are unreadable ones, formerly.
    objects: BTreeSet<ObjectId>,
    /// Documents that define no object that is known, and files that cannot be read.
    problems: Vec<InputProblem>,
}

#[derive(Debug, Default)]
struct Object {
    definitions: BTreeMap<Arc<Path>, Definition>,
    last_good: Option<Contributions>,
    /// The stand-in of the last version that could have one.
    substitute: Option<Contributions>,
    /// The keys claimed now.
    claimed: Vec<Key>,
}

#[derive(Debug)]
struct Definition {
    /// Whether it was there before part of the file became unreadable, and may be there still.
    stale: bool,
    subject: String,
    position: Position,
    outcome: Outcome,
    problems: Vec<Problem>,
}

impl From<Resource> for Definition {
    fn from(resource: Resource) -> Self {
        Self {
            stale: false,
            subject: resource.subject,
            position: resource.position,
            outcome: resource.outcome,
            problems: resource.problems,
        }
    }
}

impl DirState {
    /// An empty directory.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            options,
            labels: LabelInterner::new(),
            files: BTreeMap::new(),
            objects: Map::default(),
            claims: Map::default(),
            contested: BTreeSet::new(),
            troubled: BTreeSet::new(),
            touched: BTreeSet::new(),
        }
    }

    /// The files that are known.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.keys().map(|path| &**path)
    }

    /// Tells what one file holds now; `None` if it is gone. See [`DirState::stage_file`] for several at once.
    pub fn set_file(&mut self, path: &Path, content: Option<FileContent<'_>>) -> Vec<Update> {
        self.stage_file(path, content);
        self.settle()
    }

    /// Tells what a file holds now; `None` if it is gone. Nothing follows from it until [`DirState::settle`], so that
    /// an object that moves from one file to another does not vanish in between. Returns whether the file is new,
    /// different or gone.
    pub fn stage_file(&mut self, path: &Path, content: Option<FileContent<'_>>) -> bool {
        let path: Arc<Path> = self.files.get_key_value(path).map_or_else(|| path.into(), |(path, _)| Arc::clone(path));
        let fingerprint = content.map(fingerprint);
        if fingerprint.is_some() && self.files.get(&path).is_some_and(|file| file.fingerprint == fingerprint) {
            return false;
        }
        match content {
            Some(content) => self.read_file(&path, content, fingerprint),
            None => self.remove_file(&path),
        }
        true
    }

    /// Everything that is in force, in the order of keys.
    #[must_use]
    pub fn snapshot(&self) -> Vec<Update> {
        let mut updates: Vec<Update> = self
            .claims
            .iter()
            .filter_map(|(key, claims)| claims.values().next().map(|value| Update::set(key.clone(), value.clone())))
            .collect();
        updates.sort_by(|a, b| a.key.cmp(&b.key));
        updates
    }

    /// Everything that is wrong now, in the order of files and positions.
    pub fn problems(&self) -> impl Iterator<Item = InputProblem> {
        let mut problems: Vec<InputProblem> =
            self.files.values().flat_map(|file| file.problems.iter().cloned()).collect();
        for object in self.troubled.iter().filter_map(|id| self.objects.get(id)) {
            object.report(&mut problems);
        }
        self.report_contests(&mut problems);
        problems
            .sort_by(|a, b| (&a.file, a.problem.position, &a.subject).cmp(&(&b.file, b.problem.position, &b.subject)));
        problems.into_iter()
    }

    /// Reads a file and files its definitions.
    fn read_file(&mut self, path: &Arc<Path>, content: FileContent<'_>, fingerprint: Option<u64>) {
        let (manifest, mut unreadable) = match content {
            FileContent::Text(text) => {
                let manifest = manifest::read(text, format_of(path), &self.options, &mut self.labels);
                let unreadable: Vec<_> = manifest.unreadable.iter().map(|e| (e.position, e.what.clone())).collect();
                (manifest, unreadable)
            }
            FileContent::Unreadable(why) => {
                (manifest::Manifest::default(), vec![(Position::default(), why.to_owned())])
            }
        };
        let before = self.files.remove(path).map(|file| file.objects).unwrap_or_default();
        let mut file = File { fingerprint, ..File::default() };
        let mut doubles = Vec::new();
        // A document whose kind or name cannot be made out defines something all the same.
        let mut obscure = !unreadable.is_empty();
        for resource in manifest.resources {
            obscure |= resource.id.is_none() && matches!(resource.outcome, Outcome::Invalid { .. });
            match resource.id.clone() {
                Some(id) if file.objects.contains(&id) => doubles.push((resource.position, resource.subject)),
                Some(id) => {
                    file.objects.insert(id.clone());
                    self.objects.entry(id).or_default().definitions.insert(Arc::clone(path), resource.into());
                }
                None => file.problems.extend(nameless(path, resource)),
            }
        }
        for (position, subject) in doubles {
            let what = format!("{subject} is defined twice in this file; the first definition counts");
            file.problems.push(InputProblem::of_file(path.to_path_buf(), position, what, Cover::NotNeeded));
        }
        let missing = before.difference(&file.objects).cloned().collect::<Vec<_>>();
        self.touched.extend(before);
        self.touched.extend(file.objects.iter().cloned());
        if obscure {
            // An obscure document may well be the one that defines what is missing now.
            let cover = if missing.is_empty() { Cover::Nothing } else { Cover::LastGood };
            for id in &missing {
                if let Some(definition) = self.objects.get_mut(id).and_then(|o| o.definitions.get_mut(path)) {
                    definition.stale = true;
                }
            }
            file.objects.extend(missing);
            for problem in file.problems.iter_mut().filter(|problem| problem.cover == Cover::Nothing) {
                problem.cover = cover;
            }
            for (position, what) in unreadable.drain(..) {
                file.problems.push(InputProblem::of_file(path.to_path_buf(), position, what, cover));
            }
        } else {
            for id in &missing {
                self.forget_definition(id, path);
            }
        }
        self.files.insert(Arc::clone(path), file);
    }

    fn remove_file(&mut self, path: &Arc<Path>) {
        let objects = self.files.remove(path).map(|file| file.objects).unwrap_or_default();
        for id in &objects {
            self.forget_definition(id, path);
        }
        self.touched.extend(objects);
    }

    fn forget_definition(&mut self, id: &ObjectId, path: &Arc<Path>) {
        if let Some(object) = self.objects.get_mut(id) {
            object.definitions.remove(path);
        }
    }

    /// The updates that follow from what was staged: those that make a difference, in the order of their keys.
    pub fn settle(&mut self) -> Vec<Update> {
        let mut before: BTreeMap<Key, Option<Value>> = BTreeMap::new();
        for id in std::mem::take(&mut self.touched) {
            let Some(object) = self.objects.get_mut(&id) else { continue };
            let claimed = std::mem::take(&mut object.claimed);
            let contributions = object.settle();
            object.claimed = contributions.iter().map(|(key, _)| key.clone()).collect();
            if object.is_troubled() {
                self.troubled.insert(id.clone());
            } else {
                self.troubled.remove(&id);
            }
            if object.definitions.is_empty() {
                self.objects.remove(&id);
            }
            for key in claimed {
                before.entry(key.clone()).or_insert_with(|| winner(&self.claims, &key));
                let Some(claims) = self.claims.get_mut(&key) else { continue };
                claims.remove(&id);
                if claims.len() < 2 {
                    self.contested.remove(&key);
                }
                if claims.is_empty() {
                    self.claims.remove(&key);
                }
            }
            for (key, value) in contributions {
                before.entry(key.clone()).or_insert_with(|| winner(&self.claims, &key));
                let claims = self.claims.entry(key.clone()).or_default();
                claims.insert(id.clone(), value);
                if claims.len() > 1 {
                    self.contested.insert(key);
                }
            }
        }
        let changed = before.into_iter().filter_map(|(key, old)| {
            let new = winner(&self.claims, &key);
            (new != old).then_some(Update { key, value: new })
        });
        changed.collect()
    }

    /// The problems of objects that claim a key which another one has. One that wants the same value loses nothing.
    fn report_contests(&self, problems: &mut Vec<InputProblem>) {
        let mut contests: BTreeMap<(&ObjectId, &ObjectId), Severity> = BTreeMap::new();
        for claims in self.contested.iter().filter_map(|key| self.claims.get(key)) {
            let mut claims = claims.iter();
            let Some((winner, value)) = claims.next() else { continue };
            for (loser, claimed) in claims {
                let severity = if claimed == value { Severity::Warning } else { Severity::Error };
                let worst = contests.entry((winner, loser)).or_insert(severity);
                if severity == Severity::Error {
                    *worst = severity;
                }
            }
        }
        let definition = |id| self.objects.get(id).and_then(|object| foremost(&object.definitions));
        for ((winner, loser), severity) in contests {
            let (Some((winners_file, winner)), Some((file, loser))) = (definition(winner), definition(loser)) else {
                continue;
            };
            let what =
                format!("stands for the same as {}, {}, which counts", winner.subject, winner.place(winners_file));
            problems.push(InputProblem {
                file: Some(file.to_path_buf()),
                subject: loser.subject.clone(),
                problem: Problem { severity, position: loser.position, field: String::new(), what },
                cover: Cover::NotNeeded,
            });
        }
    }
}

impl Definition {
    /// `file:line:column`.
    fn place(&self, file: &Path) -> String {
        format!("{}:{}", file.display(), self.position)
    }
}

/// The definition that counts, and its file: the first of those that can be read, or else the first.
fn foremost(definitions: &BTreeMap<Arc<Path>, Definition>) -> Option<(&Arc<Path>, &Definition)> {
    definitions.iter().find(|(_, definition)| !definition.stale).or_else(|| definitions.first_key_value())
}

impl Object {
    /// What the object contributes now. A good definition becomes the last good one.
    fn settle(&mut self) -> Contributions {
        let Some((_, definition)) = foremost(&self.definitions) else { return Contributions::new() };
        match &definition.outcome {
            Outcome::Valid(contributions) => {
                self.last_good = Some(contributions.clone());
                contributions.clone()
            }
            Outcome::Invalid { substitute } => {
                // A denial must not end because the next version is even less readable.
                if substitute.is_some() {
                    self.substitute.clone_from(substitute);
                }
                self.last_good.clone().or_else(|| self.substitute.clone()).unwrap_or_default()
            }
            Outcome::Unknown => Contributions::new(),
        }
    }

    fn is_troubled(&self) -> bool {
        let mut readable = self.definitions.values().filter(|definition| !definition.stale);
        readable.next().is_some_and(|first| !first.problems.is_empty()) || readable.next().is_some()
    }

    /// The problems of what can be read; of what cannot, the file has its own.
    fn report(&self, problems: &mut Vec<InputProblem>) {
        let mut definitions = self.definitions.iter().filter(|(_, definition)| !definition.stale);
        let Some((first, definition)) = definitions.next() else { return };
        let cover = match &definition.outcome {
            Outcome::Valid(_) | Outcome::Unknown => Cover::NotNeeded,
            Outcome::Invalid { .. } if self.last_good.is_some() => Cover::LastGood,
            Outcome::Invalid { .. } if self.substitute.is_some() => Cover::Denied,
            Outcome::Invalid { .. } => Cover::Nothing,
        };
        problems.extend(definition.problems.iter().map(|problem| InputProblem {
            file: Some(first.to_path_buf()),
            subject: definition.subject.clone(),
            problem: problem.clone(),
            cover: if problem.severity == Severity::Error { cover } else { Cover::NotNeeded },
        }));
        for (path, double) in definitions {
            problems.push(InputProblem {
                file: Some(path.to_path_buf()),
                subject: double.subject.clone(),
                problem: Problem {
                    severity: Severity::Error,
                    position: double.position,
                    field: String::new(),
                    what: format!("is defined at {} already, which counts", definition.place(first)),
                },
                cover: Cover::NotNeeded,
            });
        }
    }
}

/// The problems of a document that defines no object that is known.
fn nameless(path: &Path, resource: Resource) -> impl Iterator<Item = InputProblem> {
    let cover = match resource.outcome {
        Outcome::Invalid { .. } => Cover::Nothing,
        Outcome::Valid(_) | Outcome::Unknown => Cover::NotNeeded,
    };
    let (file, subject) = (path.to_path_buf(), resource.subject);
    resource.problems.into_iter().map(move |problem| InputProblem {
        file: Some(file.clone()),
        subject: subject.clone(),
        cover: if problem.severity == Severity::Error { cover } else { Cover::NotNeeded },
        problem,
    })
}

fn winner(claims: &Map<Key, BTreeMap<ObjectId, Value>>, key: &Key) -> Option<Value> {
    claims.get(key).and_then(|claims| claims.values().next()).cloned()
}

fn format_of(path: &Path) -> Format {
    if path.extension().is_some_and(|extension| extension == "json") { Format::Json } else { Format::Yaml }
}

fn fingerprint(content: FileContent<'_>) -> u64 {
    // Fixed keys would let a file be crafted that looks unchanged; these are drawn once per process.
    static STATE: std::sync::OnceLock<RandomState> = std::sync::OnceLock::new();
    STATE.get_or_init(RandomState::new).hash_one(content)
}

#[cfg(test)]
mod tests;
