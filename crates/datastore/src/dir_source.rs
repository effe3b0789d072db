//! A directory of manifests on disk, read once or watched.

mod directory;
mod events;
mod settling;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tortie_model::{Update, with_causes};
use tortie_resources::manifest::Options;
use tortie_revisions::history::{Origin, Recorder};
use tortie_revisions::last_good::{self, Change, Record};

use crate::scan::{self, ManifestError, ScanResult, Stamp};
use crate::{Closed, DirAccess, Feed, InputProblem, Source};
use directory::{Directory, Disk, Turn};
use events::{FileEvents, OnDisk, Signs, is_end_of_writing};
pub use settling::Settle;

/// Quiet time to wait for before reading, because writers change several files, or one file in
/// several steps.
const PAUSE: Duration = Duration::from_millis(10);
/// Longest wait for that quiet time.
const MAX_PAUSE: Duration = Duration::from_millis(100);
/// Interval between attempts to list an unavailable directory.
const RETRY: Duration = Duration::from_secs(1);
/// Longest interval between two liveness reports of the source thread.
const LIFE: Duration = Duration::from_secs(5);
/// Default interval between scans without a file event.
const RESCAN: Duration = Duration::from_secs(10);

/// A directory of manifests.
#[derive(Debug)]
pub struct DirSource {
    root: PathBuf,
    access: DirAccess,
    directory: Directory,
    settle: Settle,
    begun: Instant,
    interval: Duration,
    options: Options,
    /// State directory for the last valid versions, and the node name.
    keep: Option<(PathBuf, String)>,
    /// Number of history states to keep.
    states: usize,
    last_good: Option<last_good::Writer>,
}

impl DirSource {
    /// Returns a source of the manifests below `root`. Nothing is read yet.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>, options: Options) -> Self {
        Self {
            root: root.into(),
            access: DirAccess::default(),
            directory: Directory::new(options.clone()),
            settle: Settle::default(),
            begun: Instant::now(),
            interval: RESCAN,
            options,
            keep: None,
            states: 0,
            last_good: None,
        }
    }

    /// Reads all changes since the last call; the first call reads everything. Files are taken as
    /// they are, even if another process is writing them. The first call also returns Calico's
    /// built-in objects, such as the profile `projectcalico-default-allow`, unless a file defines
    /// one of that name.
    ///
    /// # Errors
    /// If the directory cannot be listed; nothing has changed then.
    pub fn read(&mut self) -> io::Result<Vec<Update>> {
        self.directory.settle(Settle::NOT);
        self.look(None).map(|turn| turn.updates)
    }

    /// Returns all current problems.
    pub fn problems(&self) -> impl Iterator<Item = InputProblem> {
        self.directory.state.problems()
    }

    /// Looks at the files that these names concern; at all files if `names` is `None`.
    fn look(&mut self, names: Option<BTreeSet<PathBuf>>) -> io::Result<Turn> {
        let disk = Files { root: &self.root, access: self.access, time: SystemTime::now() };
        self.directory.turn(&disk, names, self.begun.elapsed())
    }

    /// Returns the time until the next periodic scan.
    fn next_scan(&self) -> Duration {
        let scanned = self.directory.scanned();
        scanned.map_or(Duration::ZERO, |at| at.saturating_add(self.interval).saturating_sub(self.begun.elapsed()))
    }

    /// Keeps the last valid versions below a state directory of the program, and starts with the
    /// versions found there. Failures to read or write them are logged and have no other effect.
    #[must_use]
    pub fn keep_last_good(mut self, state: impl Into<PathBuf>, node: &str) -> Self {
        self.keep = Some((state.into(), node.to_owned()));
        self
    }

    /// Keeps a [history](tortie_revisions::history) of this many states beside the last valid
    /// versions; 0 disables it.
    #[must_use]
    pub fn keep_history(mut self, states: usize) -> Self {
        self.states = states;
        self
    }

    /// Restores the last valid versions.
    fn restore(&mut self) {
        let Some((state, node)) = self.keep.take() else { return };
        let unusable = |record: &Path, why: &dyn std::fmt::Display| {
            tracing::warn!(record = %record.display(), %why, "record of a last valid version ignored");
        };
        let opened = last_good::Store::open(&state, &self.root, &node).and_then(|store| {
            let records = store.load(unusable)?;
            let history = self.history(&state, &node, !records.is_empty());
            Ok((records, last_good::Writer::start(store, self.options.clone(), history)?))
        });
        match opened {
            Ok((records, writer)) => {
                let place = |record: Record| (self.place(&record.path), record);
                let records: Vec<_> = records.into_iter().map(place).collect();
                if !records.is_empty() {
                    tracing::info!(files = records.len(), "last valid versions restored");
                    self.directory.restore(&records);
                }
                self.last_good = Some(writer);
            }
            Err(error) => tracing::warn!(
                directory = %state.display(), error = %with_causes(&error),
                "last valid versions cannot be kept; enforcement continues, but a restart will not restore them"
            ),
        }
    }

    /// Returns the history, if it is enabled and can be opened. If last valid versions were
    /// restored, they are the first state of an empty history.
    fn history(&self, state: &Path, node: &str, is_known: bool) -> Option<Recorder> {
        if self.states == 0 {
            return None;
        }
        let opened =
            Recorder::open(state, Origin::Directory(self.root.clone()), node, self.states).and_then(|history| {
                if is_known && history.is_empty() {
                    history.begin()?;
                }
                Ok(history)
            });
        opened
            .inspect_err(|error| tracing::warn!(error = %with_causes(error), "no history of the manifests is kept"))
            .ok()
    }

    /// Returns the path by which a scan finds the file of an event, whose path is absolute and may
    /// contain `.`; see [`watched_path`].
    fn as_found(&self, path: &Path) -> PathBuf {
        let path: PathBuf = path.components().collect();
        if self.root.is_absolute() {
            return path;
        }
        let below =
            std::path::absolute(&self.root).ok().and_then(|root| Some(path.strip_prefix(root).ok()?.to_owned()));
        below.map_or(path, |below| self.root.join(below))
    }

    fn place(&self, below: &str) -> PathBuf {
        if below.is_empty() { self.root.clone() } else { self.root.join(below) }
    }

    fn keep_changes(&self, changes: Vec<(PathBuf, Change)>) {
        let Some(writer) = &self.last_good else { return };
        if changes.is_empty() {
            return;
        }
        writer.enqueue(changes.into_iter().filter_map(|(path, change)| {
            let below = path.strip_prefix(&self.root).ok().and_then(Path::to_str);
            if below.is_none() {
                tracing::debug!(file = %path.display(), "no record can be kept under a name that is not UTF-8");
            }
            Some((below?.to_owned(), change))
        }));
    }

    /// Sets whether endpoints are closed while their protection is unknown; see
    /// [`DirState::close_unknown`](crate::DirState::close_unknown).
    #[must_use]
    pub fn close_unknown(mut self, closes: bool) -> Self {
        self.directory.state.set_close_unknown(closes);
        self
    }

    /// Sets how long definitions stay in force that files seem to have lost.
    #[must_use]
    pub fn settle_for(mut self, settle: Settle) -> Self {
        self.settle = settle;
        self
    }

    /// Sets the bounds of reading: links that lead out of the directory, and file sizes.
    #[must_use]
    pub fn read_within(mut self, access: DirAccess) -> Self {
        self.access = access;
        self
    }

    /// Sets the interval between scans without a file event; 10 s by default.
    #[must_use]
    pub fn rescan_every(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }
}

/// File events are hints. The source looks at the files that they name, and a periodic scan finds
/// changes without events. It scans at once if events are lost or concern directories.
impl Source for DirSource {
    fn name(&self) -> &'static str {
        "directory"
    }

    fn run(mut self: Box<Self>, feed: &Feed) -> Closed {
        self.directory.settle(self.settle);
        self.restore();
        let (hint, hints) = sync_channel(1);
        let watch = Watch::new(*self, feed, hint);
        let (wake, scan) = (watch.hint.clone(), Arc::clone(&watch.scan));
        feed.wake_with(move || {
            scan.store(true, Ordering::Release);
            // One pending hint is enough.
            let _ = wake.try_send(());
        });
        match watch.run(&hints) {
            Ok(never) => match never {},
            Err(closed) => closed,
        }
    }
}

struct Watch<'f> {
    source: DirSource,
    feed: &'f Feed,
    hint: SyncSender<()>,
    file_events: Arc<Mutex<FileEvents>>,
    /// Whether the consumer asks for changes without events.
    scan: Arc<AtomicBool>,
    /// Identity and watcher of the watched directory; another directory of the same name is not
    /// watched.
    watched: Option<((u64, u64), Option<RecommendedWatcher>)>,
    /// Whether changes in some directories have no events, so that each look is a scan.
    misses_events: bool,
}

impl<'f> Watch<'f> {
    fn new(source: DirSource, feed: &'f Feed, hint: SyncSender<()>) -> Self {
        let (file_events, scan) = (Arc::default(), Arc::default());
        Self { source, feed, hint, file_events, scan, watched: None, misses_events: false }
    }

    fn run(mut self, hints: &Receiver<()>) -> Result<Infallible, Closed> {
        self.feed.begin_resync()?;
        let mut in_sync = false;
        let mut available = true;
        loop {
            self.feed.show_life();
            let noticed = Instant::now();
            let names = self.changed_names(available);
            match self.source.look(names) {
                Ok(turn) => {
                    if !available {
                        tracing::info!(directory = %self.source.root.display(), "the directory can be read again");
                    }
                    let complete = turn.complete;
                    self.send(turn, noticed, !in_sync || !available)?;
                    available = true;
                    self.feed.available()?;
                    if !in_sync && complete {
                        in_sync = true;
                        self.feed.end_resync()?;
                    }
                }
                Err(error) => {
                    if available {
                        self.feed.refused(error.to_string())?;
                    }
                    available = false;
                }
            }
            self.wait(hints, available);
            if self.feed.take_resend()? {
                if in_sync { self.send_all()? } else { self.feed.begin_resync()? }
            }
        }
    }

    /// Ensures that events come from the directory that exists now. Returns whether they did
    /// before.
    fn keep_watching(&mut self) -> bool {
        let there = scan::identity(&self.source.root);
        let watched = self.watched.as_ref().map(|(identity, watcher)| (*identity, watcher.is_some()));
        if there.is_some() && watched == there.map(|identity| (identity, true)) {
            return true;
        }
        let is_known_to_fail = watched.is_some() && watched == there.map(|identity| (identity, false));
        self.misses_events = false;
        self.end_watching();
        self.watched = there.map(|identity| {
            let watcher = self.new_watcher().and_then(|mut watcher| self.watch_with(&mut watcher).map(|()| watcher));
            if let (Err(error), false) = (&watcher, is_known_to_fail) {
                tracing::warn!(%error, "file events are unavailable; relying on periodic scans");
            }
            (identity, watcher.ok())
        });
        false
    }

    /// Ends the watcher. The kernel counts its watches towards the limit of the user
    /// (`fs.inotify.max_user_watches`), so that another one might not start beside it.
    fn end_watching(&mut self) {
        let watcher = self.watched.as_mut().and_then(|(_, watcher)| watcher.take());
        if let Some(mut watcher) = watcher {
            // Dropping it ends its watches some time later. It watches nothing after an error.
            let _ = watcher.unwatch(&self.source.root);
        }
    }

    /// Returns a watcher that watches nothing yet.
    fn new_watcher(&self) -> notify::Result<RecommendedWatcher> {
        let (hint, file_events, begun) = (self.hint.clone(), Arc::clone(&self.file_events), self.source.begun);
        let disk = OnDisk { root: self.source.root.clone(), access: self.source.access };
        let handler = move |event: notify::Result<notify::Event>| {
            // Reacting to the source's own reads would cause endless looks.
            if event.as_ref().is_ok_and(|event| event.kind.is_access() && !is_end_of_writing(event.kind)) {
                return;
            }
            file_events.lock().unwrap_or_else(PoisonError::into_inner).handle_event(
                &disk,
                event.ok().as_ref(),
                begun.elapsed(),
            );
            // One pending hint is enough.
            let _ = hint.try_send(());
        };
        // The target of a link within the directory has events by its own name. A watcher that
        // follows the link would send them by either name, and none once the link is removed.
        let config = notify::Config::default().with_follow_symlinks(self.source.access.follow_links);
        can_start_a_thread()?;
        RecommendedWatcher::new(handler, config)
    }

    fn watch_with(&self, watcher: &mut RecommendedWatcher) -> notify::Result<()> {
        watcher.watch(&watched_path(&self.source.root), RecursiveMode::Recursive)
    }

    /// Passes the received events to the directory, and returns the names that may have changed;
    /// `None` if they are unknown, or a scan is due.
    fn changed_names(&mut self, available: bool) -> Option<BTreeSet<PathBuf>> {
        let asked = self.scan.swap(false, Ordering::AcqRel);
        // Watching begins before reading, so that no change is missed in between.
        let was_watching = self.keep_watching();
        let signs = self.file_events.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Signs { notes, changed, moved, of_folder, lost } = signs;
        let is_scan_due = self.source.next_scan().is_zero();
        let lost = lost || self.may_unwatch(&moved);
        if lost {
            self.source.directory.clear_events();
        }
        if lost || self.misses_events && is_scan_due {
            self.watch_all();
        }
        if of_folder {
            self.source.directory.note_folder();
        }
        for (event, stamp, at) in notes {
            self.source.directory.note(event, &stamp, at);
        }
        let is_known = was_watching && available && !(lost || self.misses_events || asked || is_scan_due);
        is_known.then(|| changed.iter().map(|path| self.source.as_found(path)).collect())
    }

    /// Reports whether the watcher may have lost a directory with one of these names. It stops
    /// watching a directory when a link to it is removed, if it follows links.
    fn may_unwatch(&self, moved: &BTreeSet<PathBuf>) -> bool {
        let source = &self.source;
        let is_link = |path: &PathBuf| source.directory.may_link_to_folder(&source.root, &source.as_found(path));
        source.access.follow_links && moved.iter().any(is_link)
    }

    /// Watches all directories again, because the event of a new one may have been lost, or it
    /// could not be watched; as many as possible, if the limit does not allow all.
    fn watch_all(&mut self) {
        self.end_watching();
        let mut watcher = self.new_watcher().ok();
        self.misses_events = watcher.as_mut().is_none_or(|watcher| self.watch_with(watcher).is_err());
        if let Some((_, watching)) = &mut self.watched {
            *watching = watcher;
        }
    }

    fn send(&self, turn: Turn, noticed: Instant, always: bool) -> Result<(), Closed> {
        let Turn { updates, touched, complete: _, changes } = turn;
        if touched || always {
            self.feed.problems(self.source.problems().collect())?;
        }
        self.feed.send(updates, noticed)?;
        self.source.keep_changes(changes);
        Ok(())
    }

    fn send_all(&self) -> Result<(), Closed> {
        self.feed.begin_resync()?;
        self.feed.problems(self.source.problems().collect())?;
        self.feed.send(self.source.directory.state.snapshot(), Instant::now())?;
        self.feed.end_resync()
    }

    /// Waits until there may be something to read.
    fn wait(&self, hints: &Receiver<()>, available: bool) {
        let next_look = || self.source.directory.next_look(self.source.begun.elapsed());
        let soonest = if available { next_look() } else { Some(RETRY) };
        let scan = if available { self.source.next_scan() } else { self.source.interval };
        let timeout = soonest.map_or(scan, |soonest| soonest.min(scan));
        let end = Instant::now() + timeout;
        let hinted = loop {
            self.feed.show_life();
            let rest = end.saturating_duration_since(Instant::now());
            if hints.recv_timeout(rest.min(LIFE)).is_ok() {
                break true;
            }
            if rest <= LIFE {
                break false;
            }
        };
        if hinted {
            let begin = Instant::now();
            while begin.elapsed() < MAX_PAUSE && hints.recv_timeout(PAUSE).is_ok() {}
        }
    }
}

/// The directory in the file system, at one time of the system clock.
struct Files<'r> {
    root: &'r Path,
    access: DirAccess,
    time: SystemTime,
}

impl Disk for Files<'_> {
    fn scan(&self) -> io::Result<ScanResult> {
        scan::scan(self.root, self.access)
    }

    fn recheck(&self, found: &mut ScanResult, names: &BTreeSet<PathBuf>) -> Option<BTreeSet<PathBuf>> {
        scan::recheck(self.root, self.access, found, names)
    }

    fn read(&self, path: &Path) -> Result<Option<String>, ManifestError> {
        scan::read(self.root, path, self.access)
    }

    fn stamp(&self, path: &Path) -> Option<Stamp> {
        Stamp::at(path)
    }

    fn age(&self, stamp: &Stamp) -> Duration {
        // A scan may take long on a busy machine.
        stamp.age(self.time, SystemTime::now())
    }
}

/// Returns the path to watch. A watcher that does not follow links would not watch the directory
/// itself behind a link, so that the path contains its entry `.` then.
fn watched_path(root: &Path) -> PathBuf {
    if root.is_symlink() && root.is_dir() { root.join(".") } else { root.to_path_buf() }
}

/// Reports whether a thread can be started. The `notify` watcher assumes that its thread starts,
/// and panics if it does not.
fn can_start_a_thread() -> notify::Result<()> {
    let thread = thread::Builder::new().name("file-events".into()).spawn(|| {}).map_err(notify::Error::io)?;
    thread.join().map_err(|_| notify::Error::generic("a thread panicked"))
}

#[cfg(test)]
mod tests;
