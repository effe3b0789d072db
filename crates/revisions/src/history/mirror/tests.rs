use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::history::{Conflict, History, RollbackError};

const KEEP: usize = 4;
const NAMES: [&str; 4] = ["Tier/a.yaml", "Tier/b.yaml", "NetworkPolicy/x/c.yaml", "NetworkPolicy/x/d.yaml"];

type Files = BTreeMap<String, String>;

/// Content of etcd, and the copy that keeps its history.
struct World {
    folder: TempDir,
    held: Files,
    mirror: Option<Mirror>,
    /// Content of etcd in each state.
    states: BTreeMap<u64, Files>,
}

fn origin() -> Origin {
    Origin::Etcd("etcd://a:1".into())
}

impl World {
    fn new(held: Files) -> Self {
        let mut world = Self { folder: TempDir::new().unwrap(), held, mirror: None, states: BTreeMap::new() };
        world.restart();
        world
    }

    fn open(&self) -> Mirror {
        Mirror::open(self.folder.path(), origin(), "n1", KEEP).unwrap()
    }

    /// Starts an agent, which receives everything.
    fn restart(&mut self) {
        self.mirror = None;
        self.mirror = Some(self.open());
        self.take();
    }

    fn mirror(&mut self) -> &mut Mirror {
        self.mirror.as_mut().unwrap()
    }

    /// Returns the files that result from a complete list.
    fn texts(&mut self) -> BTreeMap<String, Option<String>> {
        let gone: Vec<String> = self.mirror().paths().map(str::to_owned).collect();
        let gone = gone.into_iter().map(|path| (path, None));
        gone.chain(self.held.iter().map(|(path, text)| (path.clone(), Some(text.clone())))).collect()
    }

    fn take(&mut self) {
        let texts = self.texts();
        self.mirror().take(&texts).unwrap();
        let newest = *self.numbers().last().unwrap();
        let held = self.held.clone();
        assert_eq!(*self.states.entry(newest).or_insert_with(|| held.clone()), held, "state {newest}");
    }

    /// As [`World::take`], but the process is killed at this point.
    fn killed(&mut self, at: Kill) {
        let texts = self.texts();
        let held = self.held.clone();
        let mirror = self.mirror();
        let change = |(path, text): (&String, &Option<String>)| mirror.index.change(path, text.as_deref());
        let changes: Vec<FileChange> = texts.iter().filter_map(change).collect();
        changes.iter().for_each(|change| mirror.keep(change).unwrap());
        let files = match at {
            Kill::AfterFiles(files) => files.min(changes.len()),
            Kill::AfterEntry => changes.len(),
        };
        changes
            .iter()
            .take(files)
            .for_each(|change| mirror.write(&change.path, texts[&change.path].as_deref()).unwrap());
        if at == Kill::AfterEntry && !changes.is_empty() {
            mirror.recorder.add(changes).unwrap();
            let newest = mirror.recorder.newest();
            self.states.insert(newest, held);
        }
    }

    fn history(&self) -> History {
        History::find(self.folder.path(), Some(&origin())).unwrap()
    }

    fn numbers(&self) -> Vec<u64> {
        self.history().entries().unwrap().iter().map(|entry| entry.number).collect()
    }

    /// Returns the files that a rollback to a state would produce.
    fn back(&self, number: u64) -> Result<Files, RollbackError> {
        let plan = self.history().rollback_plan_from(number, |path| Ok(self.held.get(path).cloned()))?;
        assert_eq!(plan.conflicts, []);
        let mut files = self.held.clone();
        for file in plan.files {
            assert_eq!(file.now.as_ref(), files.get(&file.path));
            match file.text {
                Some(text) => files.insert(file.path, text),
                None => files.remove(&file.path),
            };
        }
        Ok(files)
    }

    fn file(&self, path: &str) -> PathBuf {
        self.history().directory().join(path)
    }
}

fn files(files: &[(&str, &str)]) -> Files {
    files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
}

fn some_files() -> impl Strategy<Value = Files> {
    let text = prop_oneof![Just("x: 1\n"), Just("x: 2\n"), Just("x: 3\n")];
    proptest::collection::btree_map(proptest::sample::select(&NAMES[..]), text, 0..=NAMES.len())
        .prop_map(|map| map.into_iter().map(|(path, text)| (path.to_owned(), text.to_owned())).collect())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kill {
    /// So many files of the copy are written.
    AfterFiles(usize),
    /// The entry is made, and the index is not written.
    AfterEntry,
}

#[derive(Clone, Debug)]
enum Event {
    Write(Files),
    /// The agent is killed while it records this, and then the content of etcd changes.
    Killed(Files, Kill, Files),
    /// The content of etcd changes while no agent runs.
    Restart(Files),
    /// A file of the copy is torn, which a restart notices.
    Torn(&'static str),
    /// Rollback to a state, by its index among those that are kept.
    RollBack(proptest::sample::Index),
}

fn event() -> impl Strategy<Value = Event> {
    let kill = prop_oneof![(0..=NAMES.len()).prop_map(Kill::AfterFiles), Just(Kill::AfterEntry)];
    prop_oneof![
        3 => some_files().prop_map(Event::Write),
        3 => (some_files(), kill, some_files()).prop_map(|(during, kill, after)| Event::Killed(during, kill, after)),
        1 => some_files().prop_map(Event::Restart),
        1 => proptest::sample::select(&NAMES[..]).prop_map(Event::Torn),
        2 => any::<proptest::sample::Index>().prop_map(Event::RollBack),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(48) })]

    /// After any changes, kills and restarts, each listed state is restored as it was.
    #[test]
    fn listed_states_come_back(first in some_files(), events in proptest::collection::vec(event(), 1..10)) {
        let mut world = World::new(first);
        for event in events {
            match event {
                Event::Write(files) => {
                    world.held = files;
                    world.take();
                }
                Event::Killed(during, kill, after) => {
                    world.held = during;
                    world.killed(kill);
                    world.held = after;
                    world.restart();
                }
                Event::Restart(files) => {
                    world.held = files;
                    world.restart();
                }
                Event::Torn(path) => {
                    let before = world.numbers();
                    if world.held.contains_key(path) {
                        fs::write(world.file(path), "x:").unwrap();
                    }
                    world.restart();
                    prop_assert_eq!(before, world.numbers(), "nothing has changed");
                }
                Event::RollBack(index) => {
                    let numbers = world.numbers();
                    world.held = world.back(numbers[index.index(numbers.len())]).unwrap();
                    world.take();
                }
            }
            prop_assert!(world.numbers().len() <= KEEP);
            for number in world.numbers() {
                prop_assert_eq!(&world.back(number).unwrap(), &world.states[&number], "state {}", number);
            }
            // The copy is one.
            for (path, text) in &world.held {
                prop_assert_eq!(&fs::read_to_string(world.file(path)).unwrap(), text);
            }
            prop_assert!(NAMES.iter().all(|path| world.held.contains_key(*path) || !world.file(path).exists()));
        }
    }
}

#[test]
fn a_torn_and_changed_entry_is_lost_and_reported() {
    let mut world = World::new(files(&[("Tier/a.yaml", "x: 0\n"), ("Tier/b.yaml", "x: 1\n")]));
    fs::write(world.file("Tier/a.yaml"), "x:").unwrap();
    world.held = files(&[("Tier/a.yaml", "x: 2\n"), ("Tier/b.yaml", "x: 2\n")]);
    world.restart();
    assert_eq!(world.numbers(), [1, 2]);
    assert!(matches!(world.back(1), Err(RollbackError::NoText { path }) if path == "Tier/a.yaml"));
}

#[test]
fn without_an_index_a_change_is_not_believed() {
    let mut world = World::new(files(&[("Tier/a.yaml", "x: 1\n")]));
    let index = world.history().beside("index");
    for torn in [Some("tortie-copy 1\n"), None] {
        match torn {
            Some(torn) => fs::write(&index, torn).unwrap(),
            None => fs::remove_file(&index).unwrap(),
        }
        // Without the files it would seem that all resources had just been created.
        fs::remove_dir_all(world.history().directory()).unwrap();
        let newest = *world.numbers().last().unwrap();
        world.restart();
        let plan = world.history().rollback_plan_from(newest, |path| Ok(world.held.get(path).cloned())).unwrap();
        assert_eq!(plan.conflicts, [("Tier/a.yaml".to_owned(), Conflict::Gap)]);
    }
}

#[test]
fn an_entry_that_is_lost_leaves_a_gap() {
    let mut world = World::new(files(&[("Tier/a.yaml", "x: 1\n")]));
    world.held = files(&[("Tier/a.yaml", "x: 2\n")]);
    world.take();
    fs::remove_file(world.history().beside("states").join(format!("{:020}", 2))).unwrap();
    world.states.remove(&2);
    world.mirror = Some(world.open());
    world.held = files(&[("Tier/a.yaml", "x: 3\n")]);
    world.take();
    let plan = world.history().rollback_plan_from(1, |path| Ok(world.held.get(path).cloned())).unwrap();
    assert_eq!(plan.conflicts, [("Tier/a.yaml".to_owned(), Conflict::Gap)]);
}

#[test]
fn failed_writes_are_retried() {
    let mut world = World::new(files(&[("Tier/a.yaml", "x: 1\n")]));
    let states = world.history().beside("states");
    fs::rename(&states, states.with_extension("away")).unwrap();
    world.held = files(&[("Tier/a.yaml", "x: 2\n")]);
    let texts = world.texts();
    world.mirror().take(&texts).unwrap_err();
    world.held = files(&[("Tier/a.yaml", "x: 3\n")]);
    let texts = world.texts();
    world.mirror().take(&texts).unwrap_err();
    fs::rename(states.with_extension("away"), &states).unwrap();
    world.take();
    assert_eq!(world.numbers(), [1, 2]);
    assert_eq!(world.back(1).unwrap(), world.states[&1]);
}

#[test]
fn the_copy_does_not_grow_without_end() {
    let mut world = World::new(files(&[("Tier/a.yaml", "x: 1\n")]));
    world.mirror().max_copy = 10;
    world.held = files(&[("Tier/a.yaml", "x: 1\n"), ("Tier/b.yaml", "x: 12\n")]);
    let texts = world.texts();
    let error = world.mirror().take(&texts).unwrap_err();
    assert_eq!(error.to_string(), "the resources would take more than 10 bytes");
    assert!(!world.file("Tier/b.yaml").exists());
    world.held = files(&[("Tier/b.yaml", "x: 12\n")]);
    world.take();
    assert_eq!(world.numbers(), [1, 2]);
}

#[test]
fn files_are_readable_by_their_owner_only() {
    use std::os::unix::fs::MetadataExt as _;

    let world = World::new(files(&[("Tier/a.yaml", "x: 1\n")]));
    let mode = |path: PathBuf| fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(mode(world.file("Tier/a.yaml")), 0o600);
    assert_eq!((mode(world.file("Tier")), mode(world.history().beside("index"))), (0o700, 0o600));
}

#[test]
fn histories_lie_side_by_side() {
    let world = World::new(files(&[("Tier/a.yaml", "x: 1\n")]));
    let (state, manifests) = (world.folder.path(), world.folder.path().join("manifests"));
    fs::create_dir(&manifests).unwrap();
    Recorder::open(state, Origin::Directory(manifests), "n1", KEEP).unwrap().begin().unwrap();
    let why = History::find(state, None).unwrap_err().to_string();
    assert!(why.starts_with("there are several histories, so --datastore must say which: "), "{why}");
    assert!(why.contains("etcd://a:1 (node n1)") && why.contains("/manifests (node n1)"), "{why}");
    assert_eq!(History::find(state, Some(&origin())).unwrap().origin(), &origin());
    let other = History::find(state, Some(&Origin::Etcd("etcd://b:1".into()))).unwrap_err().to_string();
    assert!(other.starts_with("no history of etcd://b:1 is kept below "), "{other}");
}
