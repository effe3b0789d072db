//! A directory of manifests on disk, read once or watched.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use notify::{RecursiveMode, Watcher};
use tortie_model::{SyncStatus, Update};
use tortie_resources::manifest::Options;

use crate::scan::{self, Stamp};
use crate::{DirState, FileContent, FileProblem};

/// How many events wait for the consumer; beyond that the source waits.
const QUEUE: usize = 16;
/// How many updates one event holds at the most.
const BATCH: usize = 1024;
/// Writers change several files, or one in several steps: reading waits until they pause that long …
const PAUSE: Duration = Duration::from_millis(10);
/// … but no longer than this.
const MAX_PAUSE: Duration = Duration::from_millis(100);
/// How soon files are looked at again whose time stamps do not prove anything yet.
const RACY_RESCAN: Duration = Duration::from_millis(120);

/// What a source tells.
#[derive(Debug)]
pub enum Event {
    /// How far the datastore has been read.
    Status(SyncStatus),
    /// Objects have changed.
    Updates {
        /// The objects, each once.
        updates: Vec<Update>,
        /// When the source noticed the change.
        noticed: Instant,
    },
    /// Everything that is wrong now, replacing what was told before.
    Problems(Vec<FileProblem>),
    /// The datastore cannot be read now, and why; what was told stays true until it can.
    Unavailable(String),
}

/// A directory of manifests.
#[derive(Debug)]
pub struct DirSource {
    root: PathBuf,
    state: DirState,
    /// The files as they were when last read, and whether that was so soon after a change that another may look alike.
    stamps: BTreeMap<PathBuf, (Stamp, bool)>,
}

/// What a scan found.
#[derive(Debug, Default)]
struct Scanned {
    updates: Vec<Update>,
    /// Whether any file was read anew or is gone, which may have changed the problems.
    touched: bool,
}

impl DirSource {
    /// The manifests below `root`. Nothing is read yet.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>, options: Options) -> Self {
        Self { root: root.into(), state: DirState::new(options), stamps: BTreeMap::new() }
    }

    /// Reads everything that has changed since the last time; the first time that is everything.
    ///
    /// # Errors
    /// If the directory cannot be listed; nothing has changed then.
    pub fn read(&mut self) -> io::Result<Vec<Update>> {
        self.rescan().map(|scanned| scanned.updates)
    }

    /// Everything that is wrong now.
    pub fn problems(&self) -> impl Iterator<Item = FileProblem> {
        self.state.problems()
    }

    fn rescan(&mut self) -> io::Result<Scanned> {
        let now = SystemTime::now();
        let found = scan::scan(&self.root)?;
        let mut touched = false;
        for path in self.stamps.keys().filter(|path| !found.contains_key(*path)) {
            touched |= self.state.stage_file(path, None);
        }
        let mut stamps = BTreeMap::new();
        for (path, stamp) in found {
            let settled = self.stamps.get(&path).is_some_and(|(before, racy)| *before == stamp && !racy);
            if !settled {
                touched |= stage(&mut self.state, &path);
            }
            let racy = stamp.is_racy(now);
            stamps.insert(path, (stamp, racy));
        }
        self.stamps = stamps;
        Ok(Scanned { updates: self.state.settle(), touched })
    }

    fn is_racy(&self) -> bool {
        self.stamps.values().any(|(_, racy)| *racy)
    }

    /// Reads the directory and then watches it on a thread of its own. File events are hints; the truth is a scan after
    /// each, and every `interval`.
    ///
    /// The thread ends when the events' receiver is dropped.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn watch(self, interval: Duration) -> io::Result<Watching> {
        let (sender, events) = sync_channel(QUEUE);
        let (hint, hints) = sync_channel(1);
        let resend = Resend { wanted: Arc::default(), hint: hint.clone() };
        let wanted = Arc::clone(&resend.wanted);
        thread::Builder::new().name("datastore".into()).spawn(move || {
            // The only error is that nobody listens any more.
            let _ = Watch { source: self, sender, interval, resend: wanted }.run(hint, &hints);
        })?;
        Ok(Watching { events, resend })
    }
}

fn stage(state: &mut DirState, path: &Path) -> bool {
    match scan::read(path) {
        Ok(Some(text)) => state.stage_file(path, Some(FileContent::Text(&text))),
        Ok(None) => state.stage_file(path, None),
        Err(why) => state.stage_file(path, Some(FileContent::Unreadable(&why))),
    }
}

/// A directory that is being watched.
#[derive(Debug)]
pub struct Watching {
    /// What it tells.
    pub events: Receiver<Event>,
    /// Asks for all of it again.
    pub resend: Resend,
}

/// Asks a source to tell everything from the beginning, for a consumer that begins anew.
#[derive(Clone, Debug)]
pub struct Resend {
    wanted: Arc<AtomicBool>,
    hint: SyncSender<()>,
}

impl Resend {
    /// Asks. The answer begins with the status [`SyncStatus::Resync`] and ends with [`SyncStatus::InSync`]; what the
    /// source keeps for lack of anything better, such as last good versions, is part of it.
    pub fn ask(&self) {
        self.wanted.store(true, Ordering::Release);
        // A hint that waits already will do.
        let _ = self.hint.try_send(());
    }
}

struct NobodyListens;

struct Watch {
    source: DirSource,
    sender: SyncSender<Event>,
    interval: Duration,
    resend: Arc<AtomicBool>,
}

impl Watch {
    fn run(mut self, hint: SyncSender<()>, hints: &Receiver<()>) -> Result<(), NobodyListens> {
        // Watching begins before reading, so that no change falls between. A hint that finds one waiting adds nothing.
        let watcher = notify::recommended_watcher(move |_| {
            let _ = hint.try_send(());
        })
        .and_then(|mut watcher| watcher.watch(&self.source.root, RecursiveMode::Recursive).map(|()| watcher));
        if let Err(error) = &watcher {
            tracing::warn!(%error, "file events are not to be had; relying on periodic scans");
        }
        self.send(Event::Status(SyncStatus::Resync))?;
        let mut in_sync = false;
        let mut available = true;
        loop {
            let noticed = Instant::now();
            match self.source.rescan() {
                Ok(scanned) => {
                    self.tell(scanned, noticed, !in_sync || !available)?;
                    available = true;
                    if !in_sync {
                        in_sync = true;
                        self.send(Event::Status(SyncStatus::InSync))?;
                    }
                }
                Err(error) => {
                    if available {
                        self.send(Event::Unavailable(error.to_string()))?;
                    }
                    available = false;
                }
            }
            self.wait(hints);
            if in_sync && self.resend.swap(false, Ordering::AcqRel) {
                self.tell_all()?;
            }
        }
    }

    fn tell(&self, scanned: Scanned, noticed: Instant, always: bool) -> Result<(), NobodyListens> {
        let Scanned { updates, touched } = scanned;
        if touched || always {
            self.send(Event::Problems(self.source.problems().collect()))?;
        }
        self.tell_updates(updates, noticed)
    }

    fn tell_all(&self) -> Result<(), NobodyListens> {
        self.send(Event::Status(SyncStatus::Resync))?;
        self.send(Event::Problems(self.source.problems().collect()))?;
        self.tell_updates(self.source.state.snapshot(), Instant::now())?;
        self.send(Event::Status(SyncStatus::InSync))
    }

    fn tell_updates(&self, mut updates: Vec<Update>, noticed: Instant) -> Result<(), NobodyListens> {
        while !updates.is_empty() {
            let rest = updates.split_off(updates.len().min(BATCH));
            self.send(Event::Updates { updates, noticed })?;
            updates = rest;
        }
        Ok(())
    }

    /// Waits until there may be something to read.
    fn wait(&self, hints: &Receiver<()>) {
        let timeout = if self.source.is_racy() { RACY_RESCAN } else { self.interval };
        match hints.recv_timeout(timeout) {
            Ok(()) => {
                let begin = Instant::now();
                while begin.elapsed() < MAX_PAUSE && hints.recv_timeout(PAUSE).is_ok() {}
            }
            Err(RecvTimeoutError::Timeout) => {}
            // The watcher could not be set up.
            Err(RecvTimeoutError::Disconnected) => thread::sleep(timeout),
        }
    }

    fn send(&self, event: Event) -> Result<(), NobodyListens> {
        self.sender.send(event).map_err(|_| NobodyListens)
    }
}

#[cfg(test)]
mod tests;
