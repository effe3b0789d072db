//! A directory of manifests on disk, read once or watched.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tortie_model::{SyncStatus, Update};
use tortie_resources::manifest::Options;

use crate::scan::{self, Found, Stamp};
use crate::{DirState, FileContent, FileProblem, built_in};

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
/// How soon files are looked at again that seem to be half-written …
const SECOND_LOOK: Duration = Duration::from_millis(50);
/// … and how many times before they are read for better or worse.
const PATIENCE: u8 = 8;
/// How soon a directory is looked for again that cannot be listed.
const RETRY: Duration = Duration::from_secs(1);

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
    looks: BTreeMap<PathBuf, Look>,
    /// Whether the directory has been read once.
    begun: bool,
}

/// What is known of a file without reading it again.
#[derive(Debug)]
struct Look {
    /// The file as it was when last read.
    read: Stamp,
    /// Whether that was so soon after a change that another may look alike.
    racy: bool,
    /// Whether it could not be read.
    failed: bool,
    /// The file as it was when last looked at.
    seen: Stamp,
    /// How many looks have found it half-written since it was read.
    waited: u8,
}

impl Look {
    fn is_up_to_date(&self, now: &Stamp) -> bool {
        self.read == *now && !self.racy && !self.failed
    }

    /// Writers that do not rename begin by emptying the file: what has shrunk may be half of it, unless it has stayed
    /// so since the look before.
    fn may_be_half_written(&self, now: &Stamp) -> bool {
        self.read.has_shrunk_to(now) && self.seen != *now
    }
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
        Self { root: root.into(), state: DirState::new(options), looks: BTreeMap::new(), begun: false }
    }

    /// Reads everything that has changed since the last time; the first time that is everything. A file that was read
    /// before and is being written now is left for the next time. The first time, Calico's built-in profile
    /// `projectcalico-default-allow` is among it, unless a file defines one of that name.
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
        let Found { files, closed } = scan::scan(&self.root)?;
        let is_hidden = |path: &Path| path.ancestors().skip(1).any(|folder| closed.contains_key(folder));
        let is_gone = |path: &Path| !files.contains_key(path) && !closed.contains_key(path) && !is_hidden(path);
        let gone: Vec<PathBuf> = self.state.files().filter(|path| is_gone(path)).map(Path::to_path_buf).collect();
        let mut touched = false;
        for path in gone {
            touched |= self.state.stage_file(&path, None);
        }
        for (path, why) in &closed {
            touched |= self.state.stage_file(path, Some(FileContent::Unreadable(why)));
        }
        let mut before = std::mem::take(&mut self.looks);
        for (path, stamp) in files {
            let look = match before.remove(&path) {
                Some(look) if look.is_up_to_date(&stamp) => look,
                look => self.look(&path, stamp, look, now, &mut touched),
            };
            self.looks.insert(path, look);
        }
        let mut updates = self.state.settle();
        if std::mem::replace(&mut self.begun, true) {
            built_in::restore(&mut updates);
        } else {
            built_in::begin(&mut updates);
        }
        Ok(Scanned { updates, touched })
    }

    /// Reads a file, unless it is being written.
    fn look(&mut self, path: &Path, now: Stamp, before: Option<Look>, time: SystemTime, touched: &mut bool) -> Look {
        let patient = before.filter(|look| look.waited < PATIENCE);
        let wait = |look: Look, seen| Look { seen, waited: look.waited + 1, ..look };
        let patient = match patient {
            Some(look) if look.may_be_half_written(&now) => return wait(look, now),
            patient => patient,
        };
        let content = scan::read(path);
        match patient {
            Some(look) if Stamp::at(path).is_none_or(|after| after != now) => return wait(look, now),
            _ => {}
        }
        *touched |= match &content {
            Ok(Some(text)) => self.state.stage_file(path, Some(FileContent::Text(text))),
            Ok(None) => self.state.stage_file(path, None),
            Err(why) => self.state.stage_file(path, Some(FileContent::Unreadable(why))),
        };
        Look { racy: now.is_racy(time), failed: content.is_err(), seen: now.clone(), read: now, waited: 0 }
    }

    /// How soon to look again at the latest; `None` if nothing is in doubt.
    fn next_look(&self) -> Option<Duration> {
        if self.looks.values().any(|look| look.waited > 0) {
            Some(SECOND_LOOK)
        } else {
            self.looks.values().any(|look| look.racy).then_some(RACY_RESCAN)
        }
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
            let _ = Watch { source: self, sender, interval, resend: wanted, hint, watched: None }.run(&hints);
        })?;
        Ok(Watching { events, resend })
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
    hint: SyncSender<()>,
    /// What is being watched for events; another directory of the same name is not.
    watched: Option<((u64, u64), Option<RecommendedWatcher>)>,
}

impl Watch {
    fn run(mut self, hints: &Receiver<()>) -> Result<(), NobodyListens> {
        self.send(Event::Status(SyncStatus::Resync))?;
        let mut in_sync = false;
        let mut available = true;
        loop {
            let noticed = Instant::now();
            // Watching begins before reading, so that no change falls between.
            self.keep_watching();
            match self.source.rescan() {
                Ok(scanned) => {
                    if !available {
                        tracing::info!(directory = %self.source.root.display(), "the directory can be read again");
                    }
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
            self.wait(hints, available);
            if in_sync && self.resend.swap(false, Ordering::AcqRel) {
                self.tell_all()?;
            }
        }
    }

    /// Sees to it that events come from the directory that is there now.
    fn keep_watching(&mut self) {
        let root = &self.source.root;
        let there = scan::identity(root);
        if self.watched.as_ref().map(|(identity, _)| *identity) == there {
            return;
        }
        let hint = self.hint.clone();
        self.watched = there.map(|identity| {
            let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
                // What the source itself opens and reads would have it read again for ever.
                if event.is_ok_and(|event| event.kind.is_access() && !is_end_of_writing(event.kind)) {
                    return;
                }
                // A hint that finds one waiting adds nothing.
                let _ = hint.try_send(());
            })
            .and_then(|mut watcher| watcher.watch(root, RecursiveMode::Recursive).map(|()| watcher));
            if let Err(error) = &watcher {
                tracing::warn!(%error, "file events are not to be had; relying on periodic scans");
            }
            (identity, watcher.ok())
        });
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
        let mut everything = self.source.state.snapshot();
        built_in::begin(&mut everything);
        self.tell_updates(everything, Instant::now())?;
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
    fn wait(&self, hints: &Receiver<()>, available: bool) {
        let soonest = if available { self.source.next_look() } else { Some(RETRY) };
        let timeout = soonest.map_or(self.interval, |soonest| soonest.min(self.interval));
        if hints.recv_timeout(timeout).is_ok() {
            let begin = Instant::now();
            while begin.elapsed() < MAX_PAUSE && hints.recv_timeout(PAUSE).is_ok() {}
        }
    }

    fn send(&self, event: Event) -> Result<(), NobodyListens> {
        self.sender.send(event).map_err(|_| NobodyListens)
    }
}

fn is_end_of_writing(kind: EventKind) -> bool {
    kind == EventKind::Access(AccessKind::Close(AccessMode::Write))
}

#[cfg(test)]
mod tests;
