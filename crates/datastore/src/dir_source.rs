//! A directory of manifests on disk, read once or watched.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime};

use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tortie_model::Update;
use tortie_resources::manifest::Options;

use crate::scan::{self, Found, Stamp};
use crate::{Closed, DirState, Feed, FileContent, InputProblem, Source};

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
/// How often the directory is scanned without a reason.
const RESCAN: Duration = Duration::from_secs(10);

/// A directory of manifests.
#[derive(Debug)]
pub struct DirSource {
    root: PathBuf,
    state: DirState,
    looks: BTreeMap<PathBuf, Look>,
    interval: Duration,
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
        Self { root: root.into(), state: DirState::new(options), looks: BTreeMap::new(), interval: RESCAN }
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
    pub fn problems(&self) -> impl Iterator<Item = InputProblem> {
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
        Ok(Scanned { updates: self.state.settle(), touched })
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

    fn run(self: Box<Self>, feed: &Feed) -> Closed {
        let (hint, hints) = sync_channel(1);
        let wake = hint.clone();
        // A hint that waits already will do.
        feed.wake_with(move || {
            let _ = wake.try_send(());
        });
        match (Watch { source: *self, feed, hint, watched: None }).run(&hints) {
            Ok(never) => match never {},
            Err(closed) => closed,
        }
    }
}

struct Watch<'f> {
    source: DirSource,
    feed: &'f Feed,
    hint: SyncSender<()>,
    /// What is being watched for events; another directory of the same name is not.
    watched: Option<((u64, u64), Option<RecommendedWatcher>)>,
}

impl Watch<'_> {
    fn run(mut self, hints: &Receiver<()>) -> Result<Infallible, Closed> {
        self.feed.begin_resync()?;
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
                    self.feed.available()?;
                    if !in_sync {
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

    fn tell(&self, scanned: Scanned, noticed: Instant, always: bool) -> Result<(), Closed> {
        let Scanned { updates, touched } = scanned;
        if touched || always {
            self.feed.problems(self.source.problems().collect())?;
        }
        self.feed.tell(updates, noticed)
    }

    fn tell_all(&self) -> Result<(), Closed> {
        self.feed.begin_resync()?;
        self.feed.problems(self.source.problems().collect())?;
        self.feed.tell(self.source.state.snapshot(), Instant::now())?;
        self.feed.end_resync()
    }

    /// Waits until there may be something to read.
    fn wait(&self, hints: &Receiver<()>, available: bool) {
        let soonest = if available { self.source.next_look() } else { Some(RETRY) };
        let timeout = soonest.map_or(self.source.interval, |soonest| soonest.min(self.source.interval));
        if hints.recv_timeout(timeout).is_ok() {
            let begin = Instant::now();
            while begin.elapsed() < MAX_PAUSE && hints.recv_timeout(PAUSE).is_ok() {}
        }
    }
}

fn is_end_of_writing(kind: EventKind) -> bool {
    kind == EventKind::Access(AccessKind::Close(AccessMode::Write))
}

#[cfg(test)]
mod tests;
