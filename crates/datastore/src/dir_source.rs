//! A directory of manifests on disk, read once or watched.

mod directory;
mod events;
mod settling;

use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tortie_model::{Update, with_causes};
use tortie_resources::manifest::Options;

use crate::history::{Origin, Recorder};
use crate::last_good::{self, Change, Record};
use crate::scan::{self, Found, ManifestError, Stamp};
use crate::{Closed, DirAccess, Feed, InputProblem, Source};
use directory::{Directory, Disk, Turn};
use events::{Heard, OnDisk, is_end_of_writing};
pub use settling::Settle;

/// Writers change several files, or one in several steps: reading waits until they pause that long …
const PAUSE: Duration = Duration::from_millis(10);
/// … but no longer than this.
const MAX_PAUSE: Duration = Duration::from_millis(100);
/// How soon a directory is looked for again that cannot be listed.
const RETRY: Duration = Duration::from_secs(1);
/// Longest time between two signs of life of a thread that is not stuck.
const LIFE: Duration = Duration::from_secs(5);
/// How often the directory is scanned without a reason.
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
    /// Where what was last good is kept, and for which node.
    keep: Option<(PathBuf, String)>,
    /// How many states of the history are kept.
    states: usize,
    last_good: Option<last_good::Writer>,
}

impl DirSource {
    /// The manifests below `root`. Nothing is read yet.
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

    /// Reads everything that has changed since the last time; the first time that is everything. Files are taken as they
    /// are, whoever may be writing them. The first time, Calico's built-in profile `projectcalico-default-allow` is among
    /// it, unless a file defines one of that name.
    ///
    /// # Errors
    /// If the directory cannot be listed; nothing has changed then.
    pub fn read(&mut self) -> io::Result<Vec<Update>> {
        self.directory.settle(Settle::NOT);
        self.look().map(|turn| turn.updates)
    }

    /// Everything that is wrong now.
    pub fn problems(&self) -> impl Iterator<Item = InputProblem> {
        self.directory.state.problems()
    }

    fn look(&mut self) -> io::Result<Turn> {
        let disk = Files { root: &self.root, access: self.access, time: SystemTime::now() };
        self.directory.turn(&disk, self.begun.elapsed())
    }

    /// Keeps what is last good below a state directory of the program, and begins with what it finds there. What cannot be
    /// read or written there is logged, and nothing else follows from it.
    #[must_use]
    pub fn keep_last_good(mut self, state: impl Into<PathBuf>, node: &str) -> Self {
        self.keep = Some((state.into(), node.to_owned()));
        self
    }

    /// Keeps a [history](crate::history) of so many states beside what is last good; 0 for none.
    #[must_use]
    pub fn keep_history(mut self, states: usize) -> Self {
        self.states = states;
        self
    }

    /// Brings back what was last good.
    fn restore(&mut self) {
        let Some((state, node)) = self.keep.take() else { return };
        let unusable = |record: &Path, why: &dyn std::fmt::Display| {
            tracing::warn!(record = %record.display(), %why, "a record of what was last good is ignored");
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
                    tracing::info!(files = records.len(), "what was last good is known from before");
                    self.directory.restore(&records);
                }
                self.last_good = Some(writer);
            }
            Err(error) => tracing::warn!(
                directory = %state.display(), error = %with_causes(&error),
                "what is last good cannot be kept; enforcement goes on, and a restart will not know it"
            ),
        }
    }

    /// The history, if one is wanted and can be kept. If a state is known from before, the history begins with it.
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

    fn place(&self, below: &str) -> PathBuf {
        if below.is_empty() { self.root.clone() } else { self.root.join(below) }
    }

    fn keep_changes(&self, changes: Vec<(PathBuf, Change)>) {
        let Some(writer) = &self.last_good else { return };
        if changes.is_empty() {
            return;
        }
        writer.tell(changes.into_iter().filter_map(|(path, change)| {
            let below = path.strip_prefix(&self.root).ok().and_then(Path::to_str);
            if below.is_none() {
                tracing::debug!(file = %path.display(), "no record can be kept under a name that is not UTF-8");
            }
            Some((below?.to_owned(), change))
        }));
    }

    /// Whether endpoints are kept closed of which it is unknown what was to protect them; see
    /// [`DirState::close_unknown`](crate::DirState::close_unknown).
    #[must_use]
    pub fn close_unknown(mut self, closes: bool) -> Self {
        self.directory.state.set_close_unknown(closes);
        self
    }

    /// How long what files seem to have lost stays in force.
    #[must_use]
    pub fn settle_for(mut self, settle: Settle) -> Self {
        self.settle = settle;
        self
    }

    /// Sets the bounds of reading: links that lead out of the directory, sizes of files.
    #[must_use]
    pub fn read_within(mut self, access: DirAccess) -> Self {
        self.access = access;
        self
    }

    /// How often the directory is scanned without a file event to hint at a change; 10 s if not set.
    #[must_use]
    pub fn rescan_every(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }
}

/// File events are hints; the truth is a scan after each, and every now and then.
impl Source for DirSource {
    fn name(&self) -> &'static str {
        "directory"
    }

    fn run(mut self: Box<Self>, feed: &Feed) -> Closed {
        self.directory.settle(self.settle);
        self.restore();
        let (hint, hints) = sync_channel(1);
        let wake = hint.clone();
        // A hint that waits already will do.
        feed.wake_with(move || {
            let _ = wake.try_send(());
        });
        match Watch::new(*self, feed, hint).run(&hints) {
            Ok(never) => match never {},
            Err(closed) => closed,
        }
    }
}

struct Watch<'f> {
    source: DirSource,
    feed: &'f Feed,
    hint: SyncSender<()>,
    heard: Arc<Mutex<Heard>>,
    /// What is being watched for events; another directory of the same name is not.
    watched: Option<((u64, u64), Option<RecommendedWatcher>)>,
}

impl<'f> Watch<'f> {
    fn new(source: DirSource, feed: &'f Feed, hint: SyncSender<()>) -> Self {
        Self { source, feed, hint, heard: Arc::default(), watched: None }
    }

    fn run(mut self, hints: &Receiver<()>) -> Result<Infallible, Closed> {
        self.feed.begin_resync()?;
        let mut in_sync = false;
        let mut available = true;
        loop {
            self.feed.show_life();
            let noticed = Instant::now();
            // Watching begins before reading, so that no change falls between.
            self.keep_watching();
            self.take_heard();
            match self.source.look() {
                Ok(turn) => {
                    if !available {
                        tracing::info!(directory = %self.source.root.display(), "the directory can be read again");
                    }
                    let complete = turn.complete;
                    self.tell(turn, noticed, !in_sync || !available)?;
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
                if in_sync { self.tell_all()? } else { self.feed.begin_resync()? }
            }
        }
    }

    /// Sees to it that events come from the directory that is there now.
    fn keep_watching(&mut self) {
        let root = &self.source.root;
        let there = scan::identity(root);
        let watched = self.watched.as_ref().map(|(identity, watcher)| (*identity, watcher.is_some()));
        if watched == there.map(|identity| (identity, true)) {
            return;
        }
        let is_known_to_fail = watched.is_some() && watched == there.map(|identity| (identity, false));
        let (hint, heard, begun) = (self.hint.clone(), Arc::clone(&self.heard), self.source.begun);
        let disk = OnDisk { root: root.clone(), access: self.source.access };
        self.watched = there.map(|identity| {
            let hear = move |event: notify::Result<notify::Event>| {
                // What the source itself opens and reads would have it read again for ever.
                if event.as_ref().is_ok_and(|event| event.kind.is_access() && !is_end_of_writing(event.kind)) {
                    return;
                }
                heard.lock().unwrap_or_else(PoisonError::into_inner).hear(&disk, event.ok().as_ref(), begun.elapsed());
                // A hint that finds one waiting adds nothing.
                let _ = hint.try_send(());
            };
            let watcher = can_start_a_thread()
                .and_then(|()| notify::recommended_watcher(hear))
                .and_then(|mut watcher| watcher.watch(root, RecursiveMode::Recursive).map(|()| watcher));
            if let (Err(error), false) = (&watcher, is_known_to_fail) {
                tracing::warn!(%error, "file events are not to be had; relying on periodic scans");
            }
            (identity, watcher.ok())
        });
    }

    /// Lets the directory know what the events tell of its files.
    fn take_heard(&mut self) {
        let (notes, lost) = self.heard.lock().unwrap_or_else(PoisonError::into_inner).take();
        if lost {
            self.source.directory.forget_events();
        }
        for (sign, stamp, at) in notes {
            self.source.directory.note(sign, &stamp, at);
        }
    }

    fn tell(&self, turn: Turn, noticed: Instant, always: bool) -> Result<(), Closed> {
        let Turn { updates, touched, complete: _, changes } = turn;
        if touched || always {
            self.feed.problems(self.source.problems().collect())?;
        }
        self.feed.tell(updates, noticed)?;
        self.source.keep_changes(changes);
        Ok(())
    }

    fn tell_all(&self) -> Result<(), Closed> {
        self.feed.begin_resync()?;
        self.feed.problems(self.source.problems().collect())?;
        self.feed.tell(self.source.directory.state.snapshot(), Instant::now())?;
        self.feed.end_resync()
    }

    /// Waits until there may be something to read.
    fn wait(&self, hints: &Receiver<()>, available: bool) {
        let next_look = || self.source.directory.next_look(self.source.begun.elapsed());
        let soonest = if available { next_look() } else { Some(RETRY) };
        let timeout = soonest.map_or(self.source.interval, |soonest| soonest.min(self.source.interval));
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

/// The directory as the file system has it, at one time of its clock.
struct Files<'r> {
    root: &'r Path,
    access: DirAccess,
    time: SystemTime,
}

impl Disk for Files<'_> {
    fn scan(&self) -> io::Result<Found> {
        scan::scan(self.root, self.access)
    }

    fn read(&self, path: &Path) -> Result<Option<String>, ManifestError> {
        scan::read(self.root, path, self.access)
    }

    fn stamp(&self, path: &Path) -> Option<Stamp> {
        Stamp::at(path)
    }

    fn age(&self, stamp: &Stamp) -> Duration {
        // A look may take long, on a machine with much to do.
        stamp.age(self.time, SystemTime::now())
    }
}

/// The watcher takes for granted that its thread starts, and ends the program if it does not.
fn can_start_a_thread() -> notify::Result<()> {
    let thread = thread::Builder::new().name("file-events".into()).spawn(|| {}).map_err(notify::Error::io)?;
    thread.join().map_err(|_| notify::Error::generic("a thread panicked"))
}

#[cfg(test)]
mod tests;
