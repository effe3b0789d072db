//! Writers of all kinds, on a disk that is none, at times of no clock.

use std::cell::{Cell, RefCell};

use tortie_resources::stored::built_in_tier;

use super::*;

const FILE: &str = "a.yaml";
const AFTER: Duration = Duration::from_secs(1);
const EMPTY: Duration = Duration::from_secs(10);
const OLD: Duration = Duration::from_secs(1000);
/// Interval between scans.
const PERIOD: Duration = Duration::from_secs(10);

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[derive(Clone, Debug)]
struct FakeFile {
    inode: u64,
    version: i64,
    text: String,
    changed: Duration,
}

type Interruption = Box<dyn Fn(&World)>;

/// A directory, its writers, and its reader.
struct World {
    files: RefCell<BTreeMap<PathBuf, FakeFile>>,
    now: Cell<Duration>,
    next: Cell<u64>,
    /// Interruption between two scans of one turn.
    after_scan: RefCell<Option<Interruption>>,
    events: RefCell<Vec<(FileEvent, Stamp, Duration)>>,
    /// Events by name, if they are read late or not as they happened.
    inotify: Option<RefCell<inotify::Inotify>>,
    hears: bool,
    /// Whether looks concern the names of events only; every [`PERIOD`] all files.
    by_name: bool,
    /// Names of the events since the last look; `None` if some were lost.
    changed: RefCell<Option<BTreeSet<PathBuf>>>,
    /// Number of scans.
    scans: Cell<u32>,
    /// Whether scans fail.
    is_unavailable: Cell<bool>,
    /// Whether time stamps are coarse and inode numbers are reused, as on ext4.
    looks_alike: bool,
    directory: RefCell<Directory>,
    /// Tier names and orders, as a consumer sees them.
    tiers: RefCell<BTreeMap<String, f64>>,
}

impl World {
    fn new(hears: bool) -> Self {
        let world = Self {
            files: RefCell::default(),
            now: Cell::new(OLD),
            next: Cell::new(1),
            after_scan: RefCell::default(),
            events: RefCell::default(),
            inotify: None,
            hears,
            by_name: false,
            changed: RefCell::new(Some(BTreeSet::new())),
            scans: Cell::new(0),
            is_unavailable: Cell::new(false),
            looks_alike: false,
            directory: RefCell::new(Directory::new(Options::default())),
            tiers: RefCell::default(),
        };
        world.directory.borrow_mut().settle(Settle { after: AFTER, empty: EMPTY });
        world
    }

    /// Returns a world in which a file with this content has been read.
    fn with(hears: bool, text: &str) -> Self {
        let world = Self::new(hears);
        world.write(FILE, text);
        world.pass(millis(20_000));
        world.look();
        world.pass(millis(20_000));
        world.look();
        world
    }

    fn event(&self, path: &str, event: FileEvent) {
        self.note_name(path);
        if let Some(inotify) = &self.inotify {
            return inotify.borrow_mut().happens(event, path);
        }
        if let Some(file) = self.files.borrow().get(Path::new(path)) {
            self.events.borrow_mut().push((event, file.stamp(), self.now.get()));
        }
    }

    fn note_name(&self, path: &str) {
        if let (None, Some(changed)) = (&self.inotify, &mut *self.changed.borrow_mut()) {
            changed.insert(path.into());
        }
    }

    /// Returns the names for the next look; `None` if it is a scan.
    fn names(&self, directory: &Directory) -> Option<BTreeSet<PathBuf>> {
        let changed = self.changed.replace(Some(BTreeSet::new()));
        let is_scanned = directory.scanned().is_some_and(|at| self.now.get() < at + PERIOD);
        changed.filter(|_| self.by_name && self.hears && is_scanned)
    }

    fn fresh(&self) -> u64 {
        self.next.set(self.next.get() + 1);
        self.next.get()
    }

    fn version(&self) -> i64 {
        let tick = u64::try_from(self.now.get().as_millis() / 10).unwrap();
        i64::try_from(if self.looks_alike { tick } else { self.fresh() }).unwrap()
    }

    fn inode(&self) -> u64 {
        let is_free = |inode: &u64| self.files.borrow().values().all(|file| file.inode != *inode);
        if self.looks_alike { (1..).find(is_free).unwrap() } else { self.fresh() }
    }

    /// Makes a file, without anything in it.
    fn create(&self, path: &str) {
        let (version, inode) = (self.version(), self.inode());
        let file = FakeFile { inode, version, text: String::new(), changed: self.now.get() };
        self.files.borrow_mut().insert(path.into(), file);
        self.event(path, FileEvent::Created);
    }

    fn change(&self, path: &str, change: impl FnOnce(&mut String)) {
        let version = self.version();
        if let Some(file) = self.files.borrow_mut().get_mut(Path::new(path)) {
            change(&mut file.text);
            (file.version, file.changed) = (version, self.now.get());
        }
        self.event(path, FileEvent::Written);
    }

    fn close(&self, path: &str) {
        self.event(path, FileEvent::Closed);
    }

    /// As `cat >` does.
    fn write(&self, path: &str, text: &str) {
        if self.files.borrow().contains_key(Path::new(path)) {
            self.change(path, String::clear);
        } else {
            self.create(path);
        }
        self.change(path, |all| all.push_str(text));
        self.close(path);
    }

    fn remove(&self, path: &str) {
        self.files.borrow_mut().remove(Path::new(path));
        self.note_name(path);
        if let Some(inotify) = &self.inotify {
            inotify.borrow_mut().removed(path);
        }
    }

    fn rename(&self, from: &str, to: &str) {
        let file = self.files.borrow_mut().remove(Path::new(from));
        if let Some(file) = file {
            self.note_name(from);
            if let Some(inotify) = &self.inotify {
                inotify.borrow_mut().renamed_from(from);
            }
            self.files.borrow_mut().insert(to.into(), FakeFile { changed: self.now.get(), ..file });
            self.event(to, FileEvent::Renamed);
        }
    }

    fn pass(&self, time: Duration) {
        self.now.set(self.now.get() + time);
    }

    fn look(&self) -> Turn {
        let events = self.events.take();
        let mut directory = self.directory.borrow_mut();
        for (event, stamp, at) in events.into_iter().filter(|_| self.hears) {
            directory.note(event, &stamp, at);
        }
        if let Some(inotify) = &self.inotify {
            inotify.borrow_mut().read(self, &mut directory);
        }
        let names = self.names(&directory);
        let turn = directory.turn(self, names, self.now.get()).unwrap();
        for update in &turn.updates {
            let Update::Tier(name, tier) = update else { continue };
            if built_in_tier(name.as_str()).is_some() {
                continue;
            }
            match tier {
                Some(tier) => self.tiers.borrow_mut().insert(name.to_string(), tier.order.unwrap().get()),
                None => self.tiers.borrow_mut().remove(name.as_str()),
            };
        }
        turn
    }

    /// Looks as often as is asked for, for so long.
    fn look_on(&self, time: Duration) {
        let end = self.now.get() + time;
        loop {
            self.look();
            let next = self.directory.borrow().next_look(self.now.get()).map(|next| self.now.get() + next);
            match next.filter(|next| *next <= end) {
                Some(next) => self.now.set(next.max(self.now.get() + millis(1))),
                None => break self.now.set(end),
            }
        }
    }

    fn tiers(&self) -> String {
        self.tiers.borrow().iter().map(|(name, order)| format!("{name}{order}")).collect::<Vec<_>>().join(" ")
    }
}

impl FakeFile {
    fn stamp(&self) -> Stamp {
        Stamp::fake(self.inode, self.text.len() as u64, self.version)
    }
}

fn is_seen(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "yaml" || extension == "json")
}

impl Disk for World {
    fn scan(&self) -> io::Result<ScanResult> {
        self.scans.set(self.scans.get() + 1);
        if self.is_unavailable.get() {
            return Err(io::Error::other("too many open files"));
        }
        let files = self.files.borrow().iter().map(|(path, file)| (path.clone(), file.stamp())).collect::<Vec<_>>();
        let files = files.into_iter().filter(|(path, _)| is_seen(path)).collect();
        if let Some(then) = self.after_scan.take() {
            then(self);
        }
        let mut found = ScanResult::default();
        (found.files, found.is_checkable) = (files, true);
        Ok(found)
    }

    fn recheck(&self, found: &mut ScanResult, names: &BTreeSet<PathBuf>) -> Option<BTreeSet<PathBuf>> {
        let files = self.files.borrow();
        for path in names.iter().filter(|path| is_seen(path)) {
            found.files.remove(path);
            found.files.extend(files.get(path).map(|file| (path.clone(), file.stamp())));
        }
        Some(names.clone())
    }

    fn read(&self, path: &Path) -> Result<Option<String>, ManifestError> {
        Ok(self.files.borrow().get(path).map(|file| file.text.clone()))
    }

    fn stamp(&self, path: &Path) -> Option<Stamp> {
        self.files.borrow().get(path).map(FakeFile::stamp)
    }

    fn age(&self, stamp: &Stamp) -> Duration {
        let files = self.files.borrow();
        let file = files.values().find(|file| file.stamp() == *stamp);
        file.map_or(OLD, |file| self.now.get() - file.changed)
    }
}

fn text(tiers: &[(char, u32)]) -> String {
    let tier = |(name, order): &(char, u32)| {
        format!("apiVersion: projectcalico.org/v3\nkind: Tier\nmetadata:\n  name: {name}\nspec:\n  order: {order}\n")
    };
    tiers.iter().map(tier).collect::<Vec<_>>().join("---\n")
}

#[test]
fn a_truncated_and_rewritten_file_keeps_its_objects() {
    for hears in [true, false] {
        let world = World::with(hears, &text(&[('a', 1), ('b', 2)]));
        world.change(FILE, String::clear);
        world.close(FILE);
        for _ in 0..30 {
            world.pass(millis(10));
            world.look();
            assert_eq!(world.tiers(), "a1 b2");
        }
        world.change(FILE, |all| *all = text(&[('a', 1), ('c', 3)]));
        world.close(FILE);
        world.look_on(AFTER);
        assert_eq!(world.tiers(), "a1 c3");
    }
}

#[test]
fn a_removed_and_recreated_file_keeps_its_objects() {
    for hears in [true, false] {
        let world = World::with(hears, &text(&[('a', 1), ('b', 2)]));
        world.remove(FILE);
        world.look();
        world.pass(millis(20));
        world.create(FILE);
        world.look();
        world.pass(millis(20));
        world.change(FILE, |all| *all = text(&[('a', 5)]));
        world.look();
        assert_eq!(world.tiers(), "a1 b2");
        world.close(FILE);
        world.look();
        assert_eq!(world.tiers(), if hears { "a5 b2" } else { "a1 b2" });
        world.look_on(AFTER);
        assert_eq!(world.tiers(), "a5");
    }
}

#[test]
fn a_file_that_is_recreated_and_removed_is_deleted() {
    for hears in [true, false] {
        let world = World::with(hears, &text(&[('a', 1)]));
        world.write("z.yaml", "");
        world.remove(FILE);
        world.look();
        world.pass(millis(20));
        world.create(FILE);
        world.look();
        world.pass(millis(500));
        world.remove(FILE);
        world.look_on(AFTER - millis(1));
        assert_eq!(world.tiers(), "a1");
        world.look_on(millis(2));
        assert_eq!(world.tiers(), "");
    }
}

#[test]
fn an_incomplete_new_file_that_is_removed_is_dropped() {
    let world = World::with(true, "");
    world.create("z.yaml");
    world.look();
    world.remove("z.yaml");
    for _ in 0..20 {
        world.look();
        assert_eq!(world.directory.borrow().state.problems().count(), 0);
        world.pass(AFTER);
    }
}

#[test]
fn removed_and_emptied_files_are_deleted_after_a_pause() {
    let both = text(&[('a', 1), ('b', 2)]);
    let world = World::with(true, &both);
    world.write("z.yaml", "");
    world.remove(FILE);
    world.look_on(AFTER - millis(1));
    assert_eq!(world.tiers(), "a1 b2");
    world.look_on(millis(2));
    assert_eq!(world.tiers(), "");

    let world = World::with(true, &both);
    world.write(FILE, "# nothing\n");
    world.look_on(EMPTY - millis(1));
    assert_eq!(world.tiers(), "a1 b2");
    world.look_on(millis(2));
    assert_eq!(world.tiers(), "");

    // No file is left; perhaps the directory is not mounted.
    let world = World::with(true, &both);
    world.remove(FILE);
    world.look_on(EMPTY - millis(1));
    assert_eq!(world.tiers(), "a1 b2");
    world.look_on(millis(2));
    assert_eq!(world.tiers(), "");
}

#[test]
fn a_file_that_is_renamed_counts_at_once() {
    let world = World::with(true, &text(&[('a', 1), ('b', 2)]));
    world.write(".new", &text(&[('b', 3)]));
    world.rename(".new", FILE);
    world.look();
    assert_eq!(world.tiers(), "b3");
    assert_eq!(world.directory.borrow().next_look(world.now.get()), Some(RACY_RESCAN));
}

#[test]
fn a_file_that_is_renamed_while_it_is_written_is_waited_for() {
    let world = World::with(true, &text(&[('a', 1)]));
    world.create(".new");
    world.change(".new", |all| all.push_str("apiVersion: "));
    world.rename(".new", FILE);
    world.look_on(AFTER * 3);
    assert_eq!(world.tiers(), "a1");
    world.change(FILE, |all| *all = text(&[('b', 3)]));
    world.close(FILE);
    world.look_on(AFTER);
    assert_eq!(world.tiers(), "b3");
}

#[test]
fn a_file_that_ends_within_a_token_waits() {
    let world = World::with(true, &text(&[('a', 10)]));
    let cut = text(&[('a', 10)]).trim_end().trim_end_matches('0').to_owned();
    world.write(FILE, &cut);
    world.look_on(AFTER - millis(1));
    assert_eq!(world.tiers(), "a10");
    world.look_on(millis(2));
    assert_eq!(world.tiers(), "a1");
}

#[test]
fn nothing_is_taken_from_a_file_that_is_open_for_writing() {
    let world = World::with(true, &text(&[('a', 1)]));
    world.change(FILE, |all| *all = text(&[('b', 2)]));
    world.look_on(EMPTY - millis(1));
    assert_eq!(world.tiers(), "a1");
    // The writer has died, or keeps the file open.
    world.look_on(millis(2));
    assert_eq!(world.tiers(), "b2");
}

#[test]
fn a_file_written_without_pause_is_reported_and_keeps_its_objects() {
    let world = World::with(true, &text(&[('a', 1)]));
    for _ in 0..30 {
        world.pass(millis(500));
        world.change(FILE, |all| all.push_str("# more\n"));
        world.look();
        assert_eq!(world.tiers(), "a1");
    }
    let problems_of =
        |world: &World| world.directory.borrow().state.problems().map(|p| p.to_string()).collect::<Vec<_>>();
    assert_eq!(problems_of(&world), [format!("{FILE}: {RESTLESS}")]);
    world.close(FILE);
    world.look_on(AFTER);
    assert_eq!((world.tiers().as_str(), problems_of(&world).len()), ("a1", 0));
}

#[test]
fn an_object_that_moves_to_a_file_that_is_not_whole_yet_stays() {
    let world = World::with(true, &text(&[('a', 1), ('b', 2)]));
    world.create("b.yaml");
    world.change("b.yaml", |all| *all = text(&[('b', 2)]));
    world.write(".new", &text(&[('a', 1)]));
    world.rename(".new", FILE);
    world.look();
    assert_eq!(world.tiers(), "a1 b2");
    world.close("b.yaml");
    world.look_on(AFTER * 2);
    assert_eq!(world.tiers(), "a1 b2");
    assert_eq!(world.directory.borrow().state.problems().count(), 0);
}

#[test]
fn several_files_that_are_exchanged_between_looks_at_them_lose_nothing() {
    let world = World::with(true, &text(&[('b', 2)]));
    world.write("z.yaml", &text(&[('a', 1)]));
    world.look_on(millis(20_000));
    assert_eq!(world.tiers(), "a1 b2");
    // The first file is listed before the exchange, the last one is read after it.
    *world.after_scan.borrow_mut() = Some(Box::new(|world| {
        for (path, tiers) in [(FILE, [('a', 1)].as_slice()), ("z.yaml", &[('b', 2)])] {
            world.write(".new", &text(tiers));
            world.rename(".new", path);
        }
    }));
    world.write(".new", &text(&[('b', 2)]));
    world.rename(".new", "z.yaml");
    for _ in 0..3 {
        world.look();
        assert_eq!(world.tiers(), "a1 b2");
    }
}

#[test]
fn the_start_waits_for_a_file_that_is_torn_but_not_for_ever() {
    let world = World::new(false);
    world.write("whole.yaml", &text(&[('w', 1)]));
    assert!(world.look().complete);
    for torn in ["", "apiVersion: projectcalico.org/v3\nkind: Ti", "{]\n"] {
        let world = World::new(false);
        world.write(FILE, torn);
        assert!(!world.look().complete);
        world.pass(millis(300));
        world.write(FILE, &text(&[('a', 1)]));
        assert!(world.look().complete);
        assert_eq!(world.tiers(), "a1");
    }
    let world = World::new(false);
    let done = (0..).find(|_| {
        world.write(FILE, "{]\n");
        world.pass(millis(100));
        world.look().complete
    });
    assert_eq!((done, world.now.get() - OLD), (Some(100), EMPTY + millis(100)));
}

mod inotify;
mod writers;

#[test]
fn a_change_that_an_event_names_needs_no_scan() {
    let world = World { by_name: true, ..World::with(true, &text(&[('a', 1)])) };
    let scans = world.scans.get();
    world.look();
    world.write(FILE, &text(&[('a', 2)]));
    world.look();
    assert_eq!(world.tiers(), "a2");
    world.create(".new");
    world.change(".new", |all| all.push_str(&text(&[('b', 2)])));
    world.rename(".new", "b.yaml");
    world.look_on(millis(500));
    assert_eq!((world.tiers().as_str(), world.scans.get()), ("a2 b2", scans));
    // Nothing is removed without a scan.
    world.remove("b.yaml");
    world.look();
    assert_eq!(world.scans.get(), scans);
    world.look_on(AFTER + millis(1));
    assert_eq!((world.tiers().as_str(), world.scans.get()), ("a2", scans + 1));
}

#[test]
fn nothing_is_removed_while_a_scan_cannot_confirm_it() {
    let world = World { by_name: true, ..World::with(true, &text(&[('a', 1), ('b', 2)])) };
    world.look();
    // The events of the file that an object moves to are late.
    world.write("b.yaml", &text(&[('b', 2)]));
    world.events.take();
    world.changed.replace(Some(BTreeSet::new()));
    world.write(".new", &text(&[('a', 1)]));
    world.rename(".new", FILE);
    world.is_unavailable.set(true);
    world.look();
    assert_eq!(world.tiers(), "a1 b2");
    assert_eq!(world.directory.borrow().next_look(world.now.get()), Some(Duration::ZERO));
    let names = Some(BTreeSet::new());
    assert!(world.directory.borrow_mut().turn(&world, names, world.now.get()).is_err());
    world.is_unavailable.set(false);
    for _ in 0..3 {
        world.look_on(AFTER);
        assert_eq!(world.tiers(), "a1 b2");
    }
}

/// Returns a world of known files, the next event of a directory in which leads to another scan.
fn known() -> World {
    let world = World { by_name: true, ..World::with(true, &text(&[('a', 1)])) };
    world.look();
    assert_eq!(world.directory.borrow().next_look(world.now.get()), None);
    world.scans.set(0);
    world
}

#[test]
fn a_scan_follows_a_second_after_the_event_of_a_directory() {
    for is_scanned in [false, true] {
        let world = known();
        world.directory.borrow_mut().note_folder();
        if is_scanned {
            // The look is a scan for another reason.
            world.changed.replace(None);
        }
        world.look();
        assert_eq!(world.scans.get(), u32::from(is_scanned));
        assert_eq!(world.directory.borrow().next_look(world.now.get()), Some(NEW_DIRECTORY));
        world.pass(NEW_DIRECTORY / 2);
        // Another scan in the meantime does not replace it.
        world.changed.replace(None);
        world.look();
        assert_eq!(world.directory.borrow().next_look(world.now.get()), Some(NEW_DIRECTORY / 2));
        world.pass(NEW_DIRECTORY / 2);
        world.scans.set(0);
        world.look();
        assert_eq!(world.scans.get(), 1);
        assert_eq!(world.directory.borrow().next_look(world.now.get()), None);
    }
}

#[test]
fn events_of_directories_without_a_pause_do_not_postpone_scans() {
    let world = known();
    for _ in 0..20 {
        world.directory.borrow_mut().note_folder();
        world.look();
        world.pass(millis(400));
    }
    let scans = world.scans.get();
    assert!((4..=8).contains(&scans), "{scans} scans in 8 seconds");
    // The last event has its scan, a second after it.
    world.look_on(millis(600) - millis(1));
    let scans = world.scans.get();
    world.look_on(millis(2));
    assert_eq!(world.scans.get(), scans + 1);
}
