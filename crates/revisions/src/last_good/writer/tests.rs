//! The history that is written together with the records.

use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::history::{Conflict, FileChange, FileRollback, History, HistoryEntry, Origin, RollbackError, RollbackPlan};
use crate::state_file::{put, seal};

const KEEP: usize = 4;
const NAMES: [&str; 4] = ["a.yaml", "b.yaml", "sub/c.yaml", "sub/deep/d.yaml"];

type Files = BTreeMap<String, String>;

/// A directory of manifests, and the writer of its history.
struct World {
    folder: TempDir,
    /// Files that the source has taken.
    taken: Files,
}

impl World {
    fn new() -> Self {
        let world = Self { folder: TempDir::new().unwrap(), taken: Files::new() };
        fs::create_dir(world.directory()).unwrap();
        world
    }

    fn directory(&self) -> PathBuf {
        self.folder.path().join("manifests")
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// Returns the writer of an agent that has just started.
    fn work(&self) -> Work {
        let store = Store::open(&self.state(), &self.directory(), "n1").unwrap();
        let is_known = !store.load(|path, why| panic!("{}: {why}", path.display())).unwrap().is_empty();
        let history = Recorder::open(&self.state(), Origin::Directory(self.directory()), "n1", KEEP).unwrap();
        if is_known && history.is_empty() {
            history.begin().unwrap();
        }
        Work { store, options: Options::default(), history: Some(history), failed: BTreeMap::new() }
    }

    /// Makes the directory hold exactly this.
    fn write(&self, files: &Files) {
        fs::remove_dir_all(self.directory()).unwrap();
        fs::create_dir(self.directory()).unwrap();
        for (path, text) in files {
            let place = self.directory().join(path);
            fs::create_dir_all(place.parent().unwrap()).unwrap();
            fs::write(place, text).unwrap();
        }
    }

    /// Returns the files of the directory.
    fn found(&self) -> Files {
        let (mut files, mut folders) = (Files::new(), vec![self.directory()]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let name = path.strip_prefix(self.directory()).unwrap().to_str().unwrap().to_owned();
                match path.extension() {
                    _ if path.is_dir() => folders.push(path),
                    Some(extension) if extension == "yaml" => {
                        drop(files.insert(name, fs::read_to_string(path).unwrap()));
                    }
                    _ => {}
                }
            }
        }
        files
    }

    /// Returns the changes that a source finds in the directory.
    fn changes(&self) -> BTreeMap<String, Vec<Change>> {
        let now = self.found();
        let gone = self.taken.keys().filter(|path| !now.contains_key(*path));
        let gone = gone.map(|path| (path.clone(), vec![Change::Gone]));
        let other = now.iter().filter(|(path, text)| self.taken.get(*path) != Some(text));
        let taken = other.map(|(path, text)| (path.clone(), vec![Change::Taken(text.clone(), BTreeSet::new())]));
        gone.chain(taken).collect()
    }

    fn take(&mut self, work: &mut Work) {
        work.take(self.changes());
        self.taken = self.found();
    }

    fn history(&self) -> History {
        History::find(&self.state(), Some(&Origin::Directory(self.directory()))).unwrap()
    }

    fn numbers(&self) -> Vec<u64> {
        self.history().entries().unwrap().iter().map(|entry| entry.number).collect()
    }

    fn roll_back(&self, number: u64) -> RollbackPlan {
        let plan = self.history().rollback_plan(number).unwrap();
        assert_eq!(plan.conflicts, []);
        self.history().roll_back(&plan).unwrap();
        plan
    }
}

fn files(files: &[(&str, &str)]) -> Files {
    files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
}

fn some_files() -> impl Strategy<Value = Files> {
    let text = prop_oneof![Just("x: 1\n"), Just("x: 2\n"), Just("{}\n"), Just("not: [yaml\n")];
    proptest::collection::btree_map(proptest::sample::select(&NAMES[..]), text, 0..=NAMES.len())
        .prop_map(|map| map.into_iter().map(|(path, text)| (path.to_owned(), text.to_owned())).collect())
}

#[derive(Clone, Debug)]
enum Event {
    /// The directory is replaced by these files.
    Write(Files),
    /// The same, and the agent is killed before a record is written.
    KilledAfterTheEntry(Files),
    /// The same before the entry is written, when the texts are.
    KilledBeforeTheEntry(Files),
    Restart,
    /// Rollback to a state, by its index among those that are kept.
    RollBack(proptest::sample::Index),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => some_files().prop_map(Event::Write),
        1 => some_files().prop_map(Event::KilledAfterTheEntry),
        1 => some_files().prop_map(Event::KilledBeforeTheEntry),
        1 => Just(Event::Restart),
        2 => any::<proptest::sample::Index>().prop_map(Event::RollBack),
    ]
}

/// Does the part of [`Work::take`] that an agent completes before it is killed.
fn killed(work: &Work, changes: BTreeMap<String, Vec<Change>>, with_entry: bool) {
    let history = work.history.as_ref().unwrap();
    let mut kept = Vec::new();
    for (path, changes) in changes {
        let before = work.store.get(&path);
        let record = after(before.clone(), &path, changes, &work.options);
        let text = |record: &Option<Record>| record.as_ref().map(|record| record.text.clone());
        let (before, after) = (text(&before), text(&record));
        kept.extend(
            history.keep(&TextChange { path: &path, before: before.as_deref(), after: after.as_deref() }).unwrap(),
        );
    }
    if with_entry && !kept.is_empty() {
        history.add(kept).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(48) })]

    /// After any changes, kills and restarts, each listed state is restored as it was.
    #[test]
    fn listed_states_come_back(first in some_files(), events in proptest::collection::vec(event(), 1..12)) {
        let mut world = World::new();
        world.write(&first);
        let mut work = world.work();
        world.take(&mut work);
        // The files of the directory in each state.
        let mut states: BTreeMap<u64, Files> = world.numbers().into_iter().map(|number| (number, first.clone())).collect();
        for event in events {
            match event {
                Event::Write(files) => {
                    world.write(&files);
                    world.take(&mut work);
                }
                Event::KilledAfterTheEntry(ref files) | Event::KilledBeforeTheEntry(ref files) if !world.numbers().is_empty() => {
                    let with_entry = matches!(event, Event::KilledAfterTheEntry(_));
                    world.write(files);
                    killed(&work, world.changes(), with_entry);
                    work = world.work();
                    world.take(&mut work);
                }
                Event::Restart | Event::KilledAfterTheEntry(_) | Event::KilledBeforeTheEntry(_) => work = world.work(),
                Event::RollBack(index) => {
                    let numbers = world.numbers();
                    if numbers.is_empty() {
                        continue;
                    }
                    let number = numbers[index.index(numbers.len())];
                    world.roll_back(number);
                    prop_assert_eq!(&world.found(), &states[&number], "state {}", number);
                    world.take(&mut work);
                }
            }
            let numbers = world.numbers();
            prop_assert!(numbers.len() <= KEEP);
            if let Some(newest) = numbers.last() {
                let found = world.found();
                prop_assert_eq!(states.entry(*newest).or_insert_with(|| found.clone()), &found);
            }
        }
        // Unneeded texts are not kept.
        drop(work);
        let folder = world.state().join("history");
        let texts: usize = fs::read_dir(folder).unwrap().map(|one| fs::read_dir(one.unwrap().path().join("texts")).unwrap().count()).sum();
        prop_assert!(texts <= 4);
    }
}

#[test]
fn entries_name_the_changed_files() {
    let mut world = World::new();
    world.write(&files(&[("a.yaml", "x: 1\n"), ("b.yaml", "{}\n")]));
    let mut work = world.work();
    world.take(&mut work);
    world.write(&files(&[("a.yaml", "x: 2\n"), ("sub/c.yaml", "{}\n")]));
    world.take(&mut work);
    // A write without a change makes no state.
    work.take(BTreeMap::from([("a.yaml".into(), vec![Change::Taken("x: 2\n".into(), BTreeSet::new())])]));
    let history = world.history();
    let [first, second] = &history.entries().unwrap()[..] else { panic!() };
    assert_eq!((first.number, &first.changes[..], second.number), (1, &[][..], 2));
    let changed: Vec<_> = second
        .changes
        .iter()
        .map(|change| {
            let text = |id: &Option<_>| id.as_ref().map(|id| history.text(id, &change.path).unwrap());
            (change.path.as_str(), text(&change.before), text(&change.after))
        })
        .collect();
    let (one, two, empty) = (Some("x: 1\n".to_owned()), Some("x: 2\n".to_owned()), Some("{}\n".to_owned()));
    assert_eq!(changed, [("a.yaml", one, two), ("b.yaml", empty.clone(), None), ("sub/c.yaml", None, empty)]);
}

#[test]
fn a_rollback_reports_unrecorded_changes() {
    let mut world = World::new();
    let mut work = world.work();
    for text in ["x: 1\n", "x: 2\n", "x: 3\n"] {
        world.write(&files(&[("a.yaml", text)]));
        world.take(&mut work);
    }
    fs::write(world.directory().join("a.yaml"), "x: mine\n").unwrap();
    fs::write(world.directory().join("other.yaml"), "x: other\n").unwrap();
    let history = world.history();
    let plan = history.rollback_plan(1).unwrap();
    assert_eq!(plan.conflicts, [("a.yaml".to_owned(), Conflict::Unknown)]);
    history.roll_back(&plan).unwrap();
    assert_eq!(world.found(), files(&[("a.yaml", "x: 1\n"), ("other.yaml", "x: other\n")]));

    let error = history.rollback_plan(9).unwrap_err();
    assert_eq!(error.to_string(), "state 9 is not kept; there are 1 to 3");
}

fn only_folder(world: &World) -> PathBuf {
    fs::read_dir(world.state().join("history")).unwrap().next().unwrap().unwrap().path()
}

#[test]
fn damage_is_detected() {
    let mut world = World::new();
    let mut work = world.work();
    for text in ["x: 1\n", "x: 2\n", "x: 3\n"] {
        world.write(&files(&[("a.yaml", text), ("b.yaml", "{}\n")]));
        world.take(&mut work);
    }
    let folder = only_folder(&world);
    let entry = folder.join("states").join(format!("{:020}", 2));
    let whole = fs::read(&entry).unwrap();
    fs::write(&entry, &whole[..whole.len() - 3]).unwrap();
    // A file that only the lost entry changed would stay as it is now.
    let plan = world.history().rollback_plan(1).unwrap();
    assert_eq!(plan.conflicts, [("a.yaml".to_owned(), Conflict::Gap)]);
    fs::write(&entry, whole).unwrap();
    assert_eq!(world.history().rollback_plan(1).unwrap().conflicts, []);

    for text in fs::read_dir(folder.join("texts")).unwrap() {
        fs::write(text.unwrap().path(), "x: forged\n").unwrap();
    }
    assert!(matches!(world.history().rollback_plan(1), Err(RollbackError::NoText { .. })));
}

#[test]
fn states_that_an_earlier_version_wrote_come_back() {
    let mut world = World::new();
    let mut work = world.work();
    for text in ["x: 1\n", "x: 2\n"] {
        world.write(&files(&[("a.yaml", text)]));
        world.take(&mut work);
    }
    let entries = world.history().entries().unwrap();
    for entry in &entries {
        let change = |change: &FileChange| json!([change.path, change.before, change.after]);
        let changes: Vec<_> = entry.changes.iter().map(change).collect();
        let body = json!({"number": entry.number, "time_ms": entry.time_ms, "gap": false, "changes": changes});
        let place = only_folder(&world).join("states").join(format!("{:020}", entry.number));
        put(&place, &seal("tortie-history 1", &body.to_string())).unwrap();
    }
    assert_eq!(world.history().entries().unwrap(), entries);
    drop(world.work());
    for state in fs::read_dir(only_folder(&world).join("states")).unwrap() {
        assert!(fs::read_to_string(state.unwrap().path()).unwrap().starts_with("tortie-journal 1 state\n"));
    }
    assert_eq!(world.history().entries().unwrap(), entries);
    world.roll_back(1);
    assert_eq!(world.found(), files(&[("a.yaml", "x: 1\n")]));
}

#[test]
fn a_state_that_could_not_be_kept_leaves_a_gap() {
    let mut world = World::new();
    let mut work = world.work();
    let mut write = |world: &mut World, text: &str| {
        world.write(&files(&[("a.yaml", text)]));
        world.take(&mut work);
    };
    write(&mut world, "x: 1\n");
    let states = only_folder(&world).join("states");
    fs::rename(&states, states.with_extension("away")).unwrap();
    write(&mut world, "x: 2\n");
    fs::rename(states.with_extension("away"), &states).unwrap();
    write(&mut world, "x: 3\n");
    assert_eq!(world.numbers(), [1, 2]);
    let plan = world.history().rollback_plan(1).unwrap();
    assert_eq!(plan.conflicts, [("a.yaml".to_owned(), Conflict::Gap)]);
    let back = FileRollback { path: "a.yaml".into(), now: Some("x: 3\n".into()), text: Some("x: 2\n".into()) };
    assert_eq!(plan.files, [back]);
}

#[test]
fn a_record_that_is_torn_is_not_taken_for_none() {
    let mut world = World::new();
    let mut work = world.work();
    world.write(&files(&[("a.yaml", "x: 1\n")]));
    world.take(&mut work);
    let all = world.state().join("last-good");
    let folder = fs::read_dir(all).unwrap().next().unwrap().unwrap().path();
    for record in fs::read_dir(folder).unwrap() {
        fs::write(record.unwrap().path(), "torn").unwrap();
    }
    world.write(&files(&[("a.yaml", "x: 2\n")]));
    world.take(&mut work);
    // It would be removed, as if it had not existed.
    assert_eq!(world.history().rollback_plan(1).unwrap().conflicts, [("a.yaml".to_owned(), Conflict::Gap)]);
}

#[test]
fn a_rollback_refuses_links() {
    let mut world = World::new();
    let mut work = world.work();
    for text in ["x: 1\n", "x: 2\n"] {
        world.write(&files(&[("a.yaml", "{}\n"), ("b.yaml", text)]));
        world.take(&mut work);
    }
    let real = world.folder.path().join("real.yaml");
    fs::write(&real, "x: 2\n").unwrap();
    fs::remove_file(world.directory().join("b.yaml")).unwrap();
    std::os::unix::fs::symlink(&real, world.directory().join("b.yaml")).unwrap();
    let history = world.history();
    let plan = history.rollback_plan(1).unwrap();
    assert!(matches!(history.roll_back(&plan), Err(RollbackError::Link { .. })));
    assert_eq!(fs::read_to_string(real).unwrap(), "x: 2\n");
}

#[test]
fn a_single_file_and_its_mode() {
    let folder = TempDir::new().unwrap();
    let (file, state) = (folder.path().join("all.yaml"), folder.path().join("state"));
    fs::write(&file, "x: 2\n").unwrap();
    let store = Store::open(&state, &file, "n1").unwrap();
    let history = Recorder::open(&state, Origin::Directory(file.clone()), "n1", KEEP).unwrap();
    let mut work = Work { store, options: Options::default(), history: Some(history), failed: BTreeMap::new() };
    for text in ["x: 1\n", "x: 2\n"] {
        work.take(BTreeMap::from([(String::new(), vec![Change::Taken(text.into(), BTreeSet::new())])]));
    }
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o640);
    fs::set_permissions(&file, mode).unwrap();
    let history = History::find(&state, None).unwrap();
    history.roll_back(&history.rollback_plan(1).unwrap()).unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "x: 1\n");
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&file).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o640);
}

#[test]
fn only_texts_that_fit_are_kept() {
    let world = World::new();
    let mut world = world;
    let mut work = world.work();
    for text in ["x: 1\n", "x: 2\n"] {
        world.write(&files(&[("a.yaml", text)]));
        world.take(&mut work);
    }
    assert!(HistoryEntry::clone(&world.history().entries().unwrap()[0]).changes.is_empty());
    assert_eq!(world.numbers(), [1, 2]);
    // No other user may write into the history, because a rollback trusts it.
    let states = world.state().join("history");
    fs::set_permissions(&states, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    assert!(Recorder::open(&world.state(), Origin::Directory(world.directory()), "n1", KEEP).is_err());
}
