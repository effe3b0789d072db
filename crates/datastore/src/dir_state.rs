//! What a directory of manifests says: contents of files in, updates out.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use ahash::RandomState;
use tortie_model::{LabelInterner, Update};
use tortie_resources::manifest::{self, Format, ObjectId, Options, Outcome, Resource};
use tortie_resources::{Position, Problem, Severity};

use crate::objects::contests;
use crate::register::Register;
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
/// first counts; if two objects claim one key, the object that sorts first. Either way the other one is a problem. The
/// objects that every datastore has are there from the first [`DirState::settle`] on.
#[derive(Debug)]
pub struct DirState {
    options: Options,
    labels: LabelInterner,
    files: BTreeMap<Arc<Path>, File>,
    objects: Map<ObjectId, Definitions>,
    register: Register,
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

/// What the files say of one object.
type Definitions = BTreeMap<Arc<Path>, Definition>;

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
            register: Register::new(None),
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
        self.register.snapshot()
    }

    /// Everything that is wrong now, in the order of files and positions.
    pub fn problems(&self) -> impl Iterator<Item = InputProblem> {
        let mut problems: Vec<InputProblem> =
            self.files.values().flat_map(|file| file.problems.iter().cloned()).collect();
        for id in &self.troubled {
            if let Some(definitions) = self.objects.get(id) {
                report(definitions, self.register.cover(id).unwrap_or(Cover::Nothing), &mut problems);
            }
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
                    self.objects.entry(id).or_default().insert(Arc::clone(path), resource.into());
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
                if let Some(definition) = self.objects.get_mut(id).and_then(|all| all.get_mut(path)) {
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
        if let Some(definitions) = self.objects.get_mut(id) {
            definitions.remove(path);
        }
    }

    /// The updates that follow from what was staged: those that make a difference, in the order of their keys.
    pub fn settle(&mut self) -> Vec<Update> {
        for id in std::mem::take(&mut self.touched) {
            let Some(definitions) = self.objects.get(&id) else { continue };
            if is_troubled(definitions) {
                self.troubled.insert(id.clone());
            } else {
                self.troubled.remove(&id);
            }
            if let Some((_, definition)) = foremost(definitions) {
                self.register.put(&id, definition.outcome.clone(), 0);
            } else {
                self.register.remove(&id);
                self.objects.remove(&id);
            }
        }
        self.register.settle()
    }

    /// The problems of objects that claim a key which another one has.
    fn report_contests(&self, problems: &mut Vec<InputProblem>) {
        let definition = |id| self.objects.get(id).and_then(foremost);
        for ((winner, loser), severity) in contests(&self.register) {
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
fn foremost(definitions: &Definitions) -> Option<(&Arc<Path>, &Definition)> {
    definitions.iter().find(|(_, definition)| !definition.stale).or_else(|| definitions.first_key_value())
}

fn is_troubled(definitions: &Definitions) -> bool {
    let mut readable = definitions.values().filter(|definition| !definition.stale);
    readable.next().is_some_and(|first| !first.problems.is_empty()) || readable.next().is_some()
}

/// The problems of what can be read; of what cannot, the file has its own.
fn report(definitions: &Definitions, cover: Cover, problems: &mut Vec<InputProblem>) {
    let mut definitions = definitions.iter().filter(|(_, definition)| !definition.stale);
    let Some((first, definition)) = definitions.next() else { return };
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
