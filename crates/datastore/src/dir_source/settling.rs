//! Decision when a changed file is complete. Pure: stamps, events, contents and the time are
//! arguments.
//!
//! Few writers replace a file by renaming a complete one to its name. The others truncate it and
//! fill it again, remove and recreate it, or write it in pieces. A reader in between finds an
//! incomplete file. Added and changed definitions are taken once the file is whole. *Lost*
//! definitions are accepted at once or after a delay, depending on the events:
//!
//! | the file | is taken | definitions that it no longer has |
//! |---|---|---|
//! | was renamed to its name | at once | are gone at once |
//! | was renamed, without an event that it was closed | at once, if it can be parsed and ends where a token ends; otherwise as if it were being written | are gone after [`Settle::after`] |
//! | was closed after writing | at once, if it ends where a token ends | are gone after [`Settle::after`] |
//! | was closed after writing, again within [`Settle::after`] | once it has been quiet for [`Settle::after`] | are gone then |
//! | is being written: changed and not closed | not before it is closed, or quiet for [`Settle::empty`] | stay |
//! | changed without an event | once it has been quiet for [`Settle::after`] | are gone then |
//! | holds no document | at once | are gone after [`Settle::empty`] |
//! | is missing | | are gone after [`Settle::after`]; after [`Settle::empty`] if no file is left |
//!
//! No definition is gone at once while another file has changed and is not taken yet: the object
//! may be moving there. At the start there are no events of earlier writes: a file that changed
//! just now is waited for if it is empty, cannot be parsed, or ends within a token.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ahash::RandomState;

use crate::scan::Stamp;

/// Delays until definitions that files seem to have lost are removed, so that a file that is being
/// replaced is not taken for one that has been emptied or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settle {
    /// For a file that is missing, or has become smaller and may be incomplete; 1 s by default.
    pub after: Duration,
    /// For a file that held documents and holds none now; 10 s by default.
    pub empty: Duration,
}

impl Default for Settle {
    fn default() -> Self {
        Self { after: Duration::from_secs(1), empty: Duration::from_secs(10) }
    }
}

impl Settle {
    /// Files are taken as they are found.
    pub(crate) const NOT: Self = Self { after: Duration::ZERO, empty: Duration::ZERO };
}

/// Meaning of a file event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileEvent {
    /// The file is new, or another file with the same inode number.
    Created,
    /// Its content changed.
    Written,
    /// The writer has closed it.
    Closed,
    /// It was renamed to its name, or became reachable by another name, atomically.
    Renamed,
    /// Its owner, mode or time stamps changed.
    Touched,
}

/// Observed state of the process that writes a file.
#[derive(Clone, Debug)]
struct Writer {
    state: State,
    /// When it was last closed after a change.
    closed: Option<Duration>,
    /// Time of the last event.
    last_event: Duration,
}

#[derive(Clone, Debug)]
enum State {
    Writing,
    /// Renamed while it was being written, or the event of closing was lost.
    Moved {
        at: Stamp,
    },
    /// The file is complete: renamed atomically, or closed; `again` if it had been closed shortly
    /// before.
    Left {
        at: Stamp,
        renamed: bool,
        again: bool,
    },
}

/// Properties of a file's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// There is no document in it.
    pub(crate) is_empty: bool,
    /// All of it can be parsed.
    pub(crate) is_readable: bool,
    /// It does not break off within a token.
    pub(crate) ends: bool,
}

/// Decision on an existing file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadDecision {
    /// Nothing has changed since it was taken.
    Same,
    /// It is not whole yet.
    Wait,
    Read,
}

/// Decision on a content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SettleDecision {
    /// It is not whole yet.
    Wait,
    /// It is whole; definitions that it lacks are gone.
    Take,
    /// Its definitions are taken; those that it lacks stay until [`Settling::due`] returns the
    /// file.
    TakeAndKeep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The file is not to be taken before this time has passed.
    Wait(Duration),
    /// The same, because there were no events.
    Young(Duration),
    /// The same, unless it is whole.
    Moved(Duration),
    Renamed,
    Closed,
    Settled,
}

#[derive(Debug, Default)]
struct File {
    taken: Option<TakenVersion>,
    /// Set while the file differs from the taken version.
    doubt: Option<UnsettledVersion>,
    /// It held no document when it was last taken.
    is_empty: bool,
    is_missing: bool,
    /// Time until which definitions that it no longer has are kept.
    kept_until: Option<Duration>,
}

#[derive(Debug)]
struct TakenVersion {
    stamp: Stamp,
    /// Read so soon after a change that a further change may leave the stamp the same.
    racy: bool,
    /// It could not be read.
    failed: bool,
}

#[derive(Debug)]
struct UnsettledVersion {
    stamp: Stamp,
    /// When it was first seen like this.
    seen: Duration,
    /// Time when it was first seen to differ from the taken version.
    since: Duration,
    /// Time of the next scan.
    again: Duration,
}

/// The files of a directory and their writers.
#[derive(Debug)]
pub(crate) struct Settling {
    settle: Settle,
    writers: HashMap<(u64, u64), Writer, RandomState>,
    files: BTreeMap<PathBuf, File>,
    /// The names of [active](File::is_active) files.
    active: BTreeSet<PathBuf>,
    start: Start,
}

impl File {
    /// Reports whether the file may need another look without having changed.
    fn is_active(&self) -> bool {
        let is_racy = self.taken.as_ref().is_some_and(|taken| taken.racy);
        is_racy || self.doubt.is_some() || self.is_missing || self.kept_until.is_some()
    }

    /// Reports whether its kept definitions have expired.
    fn is_due(&self, now: Duration) -> bool {
        self.doubt.is_none() && self.kept_until.is_some_and(|until| until <= now)
    }
}

/// Progress of the first reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    NotBegun,
    /// Incomplete files are waited for until this time.
    Until(Duration),
    Done,
}

impl Settling {
    /// Returns a state without files and events.
    pub(crate) fn new(settle: Settle) -> Self {
        Self {
            settle,
            writers: HashMap::default(),
            files: BTreeMap::new(),
            active: BTreeSet::new(),
            start: Start::NotBegun,
        }
    }

    /// Replaces the delays and returns the previous ones.
    pub(crate) fn exchange(&mut self, settle: Settle) -> Settle {
        std::mem::replace(&mut self.settle, settle)
    }

    /// Processes an event; `stamp` is that of the file when the event was received.
    pub(crate) fn note(&mut self, event: FileEvent, stamp: &Stamp, now: Duration) {
        let known = self.writers.remove(&stamp.file());
        let left = |renamed, again| State::Left { at: stamp.clone(), renamed, again };
        let was_writing = matches!(known, Some(Writer { state: State::Writing | State::Moved { .. }, .. }));
        let closed = known.as_ref().and_then(|writer| writer.closed);
        let writer = match event {
            // A link to a file creates a name for it, which has no relation to its content.
            FileEvent::Created => return,
            FileEvent::Written => Writer { state: State::Writing, closed, last_event: now },
            FileEvent::Closed if was_writing => {
                let again = closed.is_some_and(|closed| now.saturating_sub(closed) < self.settle.after);
                Writer { state: left(false, again), closed: Some(now), last_event: now }
            }
            FileEvent::Renamed if was_writing => {
                Writer { state: State::Moved { at: stamp.clone() }, closed, last_event: now }
            }
            FileEvent::Renamed => Writer { state: left(true, false), closed, last_event: now },
            FileEvent::Touched => match known {
                Some(Writer { state: State::Left { renamed, again, .. }, closed, .. }) => {
                    Writer { state: left(renamed, again), closed, last_event: now }
                }
                Some(Writer { state: State::Moved { .. }, closed, .. }) => {
                    Writer { state: State::Moved { at: stamp.clone() }, closed, last_event: now }
                }
                // A change of time stamps does not end the writing.
                Some(writer) => writer,
                None => return,
            },
            FileEvent::Closed => match known {
                Some(writer) => Writer { last_event: now, ..writer },
                None => return,
            },
        };
        self.writers.insert(stamp.file(), writer);
    }

    /// Discards the states of all writers, because events have been lost.
    pub(crate) fn clear_events(&mut self) {
        self.writers.clear();
    }

    /// Decides on an existing file; it last changed `age` ago by the clock of its file system.
    pub(crate) fn look(&mut self, path: &Path, stamp: &Stamp, age: Duration, now: Duration) -> ReadDecision {
        if self.start == Start::NotBegun {
            self.start = Start::Until(now + self.settle.empty);
        }
        if let Some(file) = self.files.get(path)
            && file.taken.as_ref().is_some_and(|taken| taken.stamp == *stamp && !taken.racy && !taken.failed)
            && !file.is_missing
        {
            if file.doubt.is_some() {
                self.edit(path, |file| file.doubt = None);
            }
            return ReadDecision::Same;
        }
        match self.phase(path, stamp, age, now) {
            Phase::Wait(more) => {
                self.doubt(path, stamp, now, more);
                ReadDecision::Wait
            }
            Phase::Young(more) if self.start == Start::Done => {
                self.doubt(path, stamp, now, more);
                ReadDecision::Wait
            }
            _ => ReadDecision::Read,
        }
    }

    /// Notes that a file changed while it was being read.
    pub(crate) fn changed_meanwhile(&mut self, path: &Path, stamp: &Stamp, now: Duration) {
        self.doubt(path, stamp, now, Duration::ZERO);
    }

    /// Decides on the content of a file. The content does not count as taken until
    /// [`Settling::take`].
    pub(crate) fn decide(
        &mut self,
        path: &Path,
        stamp: &Stamp,
        facts: Facts,
        age: Duration,
        now: Duration,
    ) -> SettleDecision {
        let phase = self.phase(path, stamp, age, now);
        let quiet = self.quiet(path, stamp, age, now);
        let suspect = facts.is_empty || !facts.is_readable || !facts.ends;
        let is_new = self.files.get(path).is_none_or(|file| file.taken.is_none());
        match phase {
            Phase::Young(more) if is_new && suspect && !self.is_late(now) => {
                self.doubt(path, stamp, now, more);
                SettleDecision::Wait
            }
            Phase::Closed if !facts.ends && !facts.is_empty && quiet < self.settle.after => {
                self.doubt(path, stamp, now, self.settle.after - quiet);
                SettleDecision::Wait
            }
            Phase::Wait(more) => {
                self.doubt(path, stamp, now, more);
                SettleDecision::Wait
            }
            Phase::Moved(more) if suspect => {
                self.doubt(path, stamp, now, more);
                SettleDecision::Wait
            }
            _ if facts.is_empty && quiet < self.settle.empty => SettleDecision::TakeAndKeep,
            Phase::Young(_) => SettleDecision::TakeAndKeep,
            // More may follow.
            Phase::Closed | Phase::Moved(_) if quiet < self.settle.after => SettleDecision::TakeAndKeep,
            Phase::Closed | Phase::Moved(_) | Phase::Renamed | Phase::Settled => SettleDecision::Take,
        }
    }

    /// Reports whether another file has changed lately and is not taken yet.
    pub(crate) fn others_in_doubt(&self, path: &Path, now: Duration) -> bool {
        let is_doubtful =
            |file: &File| file.doubt.as_ref().is_some_and(|doubt| now.saturating_sub(doubt.since) < self.settle.after);
        self.active().any(|(other, file)| other != path && is_doubtful(file))
    }

    /// Notes that a content was taken; `keep` if the definitions that it lacks are kept.
    pub(crate) fn take(&mut self, path: &Path, stamp: Stamp, content: TakenContent, keep: bool, now: Duration) {
        let wait = if content.is_empty { self.settle.empty } else { self.settle.after };
        self.edit(path, |file| {
            let stays_empty = content.is_empty && file.is_empty;
            file.kept_until = match file.kept_until {
                _ if !keep => None,
                Some(until) if stays_empty => Some(until),
                _ => Some(now + wait),
            };
            (file.is_empty, file.is_missing, file.doubt) = (content.is_empty, false, None);
            file.taken = Some(TakenVersion { stamp, racy: content.racy, failed: content.failed });
        });
    }

    /// Notes that a content is unchanged.
    pub(crate) fn confirm(&mut self, path: &Path, stamp: Stamp, content: TakenContent) {
        self.edit(path, |file| {
            file.doubt = None;
            file.taken = Some(TakenVersion { stamp, racy: content.racy, failed: content.failed });
        });
    }

    /// Notes that a known file is missing; `all` if there are no files at all. Its definitions are
    /// kept for a while. Returns whether it existed before.
    pub(crate) fn miss(&mut self, path: &Path, all: bool, now: Duration) -> bool {
        let wait = if all { self.settle.empty } else { self.settle.after };
        self.edit(path, |file| {
            let was_taken = !file.is_missing;
            // A file in doubt had reappeared, and is missing again.
            if was_taken || file.doubt.is_some() {
                let until = file.kept_until.unwrap_or_default().max(now + wait);
                *file = File { is_missing: true, kept_until: Some(until), ..File::default() };
            }
            was_taken
        })
    }

    /// Returns the files that have been seen, and those that are missing.
    pub(crate) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.files.keys()
    }

    /// Removes a file.
    pub(crate) fn remove(&mut self, path: &Path) {
        self.files.remove(path);
        self.active.remove(path);
    }

    /// Returns the names of the files that need another look although no event names them.
    pub(crate) fn active_names(&self) -> impl Iterator<Item = &PathBuf> {
        self.active.iter()
    }

    fn active(&self) -> impl Iterator<Item = (&PathBuf, &File)> {
        self.active.iter().filter_map(|path| self.files.get_key_value(path))
    }

    /// Reports whether [`Settling::due`] would return any file.
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        self.active().any(|(_, file)| file.is_due(now))
    }

    /// Returns the files whose kept definitions have expired, each with whether the file itself is
    /// missing.
    pub(crate) fn due(&mut self, now: Duration) -> Vec<(PathBuf, bool)> {
        let is_due = |(path, file): (&PathBuf, &File)| file.is_due(now).then(|| (path.clone(), file.is_missing));
        let due: Vec<_> = self.active().filter_map(is_due).collect();
        for (path, _) in &due {
            self.edit(path, |file| file.kept_until = None);
        }
        let is_over =
            |(path, file): (&PathBuf, &File)| (file.is_missing && file.kept_until.is_none()).then(|| path.clone());
        for path in self.active().filter_map(is_over).collect::<Vec<_>>() {
            self.remove(&path);
        }
        let settle = self.settle;
        let has_doubt = self.active().any(|(_, file)| file.doubt.is_some());
        // Events this old have no effect any more.
        self.writers.retain(|_, writer| {
            has_doubt || now.saturating_sub(writer.last_event) < settle.empty.max(settle.after) + settle.after
        });
        due
    }

    /// Ends a scan. Returns whether all files have been taken once, or waited for long enough.
    pub(crate) fn has_read_all(&mut self, now: Duration) -> bool {
        if self.is_late(now) || self.active().all(|(_, file)| file.doubt.is_none()) {
            self.start = Start::Done;
        }
        self.start == Start::Done
    }

    /// Reports whether the wait for incomplete files at the start is over.
    fn is_late(&self, now: Duration) -> bool {
        matches!(self.start, Start::Until(until) if until <= now)
    }

    /// Returns the time until the next scan is needed without an event; files with young stamps are
    /// read again after `racy`.
    pub(crate) fn next_look(&self, racy: Duration, now: Duration) -> Option<Duration> {
        let of_file = |(_, file): (&PathBuf, &File)| {
            let is_racy = file.taken.as_ref().is_some_and(|taken| taken.racy);
            let restless = |doubt: &UnsettledVersion| {
                let at = doubt.since + self.settle.empty + Duration::from_millis(1);
                if at > now { doubt.again.min(at) } else { doubt.again }
            };
            let doubt = file.doubt.as_ref().map(|doubt| restless(doubt).saturating_sub(now));
            let kept = file.kept_until.filter(|_| file.doubt.is_none()).map(|until| until.saturating_sub(now));
            [is_racy.then_some(racy), doubt, kept].into_iter().flatten().min()
        };
        self.active().filter_map(of_file).min()
    }

    /// Returns the files that have been changing for longer than [`Settle::empty`].
    pub(crate) fn restless(&self, now: Duration) -> Vec<PathBuf> {
        let is_restless =
            |file: &File| file.doubt.as_ref().is_some_and(|doubt| now.saturating_sub(doubt.since) > self.settle.empty);
        self.active().filter(|(_, file)| is_restless(file)).map(|(path, _)| path.clone()).collect()
    }

    /// Changes the state of a file, which is new if it is unknown.
    fn edit<R>(&mut self, path: &Path, edit: impl FnOnce(&mut File) -> R) -> R {
        let file = self.files.entry(path.to_path_buf()).or_default();
        let was_active = file.is_active();
        let result = edit(file);
        match (was_active, file.is_active()) {
            (false, true) => drop(self.active.insert(path.to_path_buf())),
            (true, false) => drop(self.active.remove(path)),
            _ => {}
        }
        result
    }

    fn doubt(&mut self, path: &Path, stamp: &Stamp, now: Duration, more: Duration) {
        self.edit(path, |file| {
            let before = file.doubt.take();
            let since = before.as_ref().map_or(now, |doubt| doubt.since);
            let seen = before.filter(|doubt| doubt.stamp == *stamp).map_or(now, |doubt| doubt.seen);
            file.doubt = Some(UnsettledVersion { stamp: stamp.clone(), seen, since, again: now + more });
        });
    }

    /// Returns the time since the last change of a file.
    fn quiet(&self, path: &Path, stamp: &Stamp, age: Duration, now: Duration) -> Duration {
        let doubt = self.files.get(path).and_then(|file| file.doubt.as_ref());
        let seen = doubt.filter(|doubt| doubt.stamp == *stamp).map(|doubt| now.saturating_sub(doubt.seen));
        age.max(seen.unwrap_or_default())
    }

    fn phase(&self, path: &Path, stamp: &Stamp, age: Duration, now: Duration) -> Phase {
        let quiet = self.quiet(path, stamp, age, now);
        let Settle { after, empty } = self.settle;
        match self.writers.get(&stamp.file()).map(|writer| &writer.state) {
            Some(State::Moved { at }) if at.is_same_content(stamp) && quiet < empty => {
                return Phase::Moved(empty - quiet);
            }
            Some(State::Writing | State::Moved { .. }) if quiet < empty => return Phase::Wait(empty - quiet),
            Some(State::Left { at, renamed: true, .. }) if at.is_same_content(stamp) => return Phase::Renamed,
            Some(State::Left { at, again: true, .. }) if at.is_same_content(stamp) && quiet < after => {
                return Phase::Wait(after - quiet);
            }
            Some(State::Left { at, again: false, .. }) if at.is_same_content(stamp) => return Phase::Closed,
            _ => {}
        }
        let taken = self.files.get(path).and_then(|file| file.taken.as_ref());
        if quiet < after && taken.is_none_or(|taken| taken.stamp != *stamp) {
            Phase::Young(after - quiet)
        } else {
            Phase::Settled
        }
    }
}

/// Properties of a taken content.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TakenContent {
    pub(crate) is_empty: bool,
    pub(crate) racy: bool,
    pub(crate) failed: bool,
}
