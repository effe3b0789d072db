//! When a file says what its writer means. Pure: fed with stamps, events, contents and the time.
//!
//! Few writers replace a file by renaming a complete one to its name. The others empty it and fill it again, or remove it
//! and recreate it, or write it in pieces; whoever looks in between finds less than is meant. What a file holds more, or
//! otherwise, than before is taken once it is whole. What it holds *less* is believed sooner or later, by how it came about:
//!
//! | the file | is taken | what it does not define any more |
//! |---|---|---|
//! | was renamed to its name | at once | is gone at once |
//! | was renamed, and no event told that it was closed | at once, if it can be parsed and ends where a token ends; or else as if it were being written | is gone after [`Settle::after`] |
//! | was closed after writing | at once, if it ends where a token ends | is gone after [`Settle::after`] |
//! | was closed after writing, again within [`Settle::after`] | once it has been quiet for [`Settle::after`] | is gone then |
//! | is being written: changed and not closed | not before it is closed, or quiet for [`Settle::empty`] | stays |
//! | changed, and no event tells how | once it has been quiet for [`Settle::after`] | is gone then |
//! | holds no document | at once | is gone after [`Settle::empty`] |
//! | is missing | | is gone after [`Settle::after`]; after [`Settle::empty`] if no file is left |
//!
//! Nothing is gone at once while another file has changed and is not taken yet: an object may be on its way there. At the
//! start nothing is known of writers: a file that changed just now is waited for if it is empty, cannot be parsed, or ends
//! within a token.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ahash::RandomState;

use crate::scan::Stamp;

/// How long what files seem to have lost stays in force, so that a file that is being replaced is not taken for one that
/// has been emptied or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settle {
    /// For a file that is missing, or has become smaller in a way that does not tell whether it is complete; 1 s by default.
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
    /// Everything is taken as it is found.
    pub(crate) const NOT: Self = Self { after: Duration::ZERO, empty: Duration::ZERO };
}

/// What an event tells of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sign {
    /// It is new, or another file of the same number.
    Created,
    /// Its content changed.
    Written,
    /// Whoever had it open for writing has closed it.
    Closed,
    /// It was given its name, or reached by another one, at one stroke.
    Renamed,
    /// Its owner, mode or time stamps changed.
    Touched,
}

/// What is known of whoever writes a file.
#[derive(Clone, Debug)]
struct Writer {
    state: State,
    /// When it was last closed after a change.
    closed: Option<Duration>,
    /// When there was last an event.
    heard: Duration,
}

#[derive(Clone, Debug)]
enum State {
    Writing,
    /// Renamed while it was being written, or the event of closing was lost.
    Moved {
        at: Stamp,
    },
    /// The file is as it was left: at one stroke, or by closing it, `again` soon after it was closed before.
    Left {
        at: Stamp,
        renamed: bool,
        again: bool,
    },
}

/// What there is to know of a file's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// There is no document in it.
    pub(crate) is_empty: bool,
    /// All of it can be parsed.
    pub(crate) is_readable: bool,
    /// It does not break off within a token.
    pub(crate) ends: bool,
}

/// What to do with a file that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Nothing has changed since it was taken.
    Same,
    /// It is not whole yet.
    Wait,
    Read,
}

/// What to do with a content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is not whole yet.
    Wait,
    /// It is whole; what it lacks is gone.
    Take,
    /// What it holds counts; what it lacks stays until [`Settling::due`] says otherwise.
    TakeAndKeep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Not to be taken before so much time has passed.
    Wait(Duration),
    /// The same, for lack of events.
    Young(Duration),
    /// The same, unless it is whole.
    Moved(Duration),
    Renamed,
    Closed,
    Settled,
}

#[derive(Debug, Default)]
struct File {
    taken: Option<Taken>,
    /// That it is not as it was taken.
    doubt: Option<Doubt>,
    /// It held no document when it was last taken.
    is_empty: bool,
    is_missing: bool,
    /// Until when that is kept which it does not define any more.
    kept_until: Option<Duration>,
}

#[derive(Debug)]
struct Taken {
    stamp: Stamp,
    /// So soon after a change that another may look alike.
    racy: bool,
    /// It could not be read.
    failed: bool,
}

#[derive(Debug)]
struct Doubt {
    stamp: Stamp,
    /// When it was first seen like this.
    seen: Duration,
    /// When it was first seen unlike what was taken.
    since: Duration,
    /// When to look again.
    again: Duration,
}

/// The files of a directory and their writers.
#[derive(Debug)]
pub(crate) struct Settling {
    settle: Settle,
    writers: HashMap<(u64, u64), Writer, RandomState>,
    files: BTreeMap<PathBuf, File>,
    start: Start,
}

/// How far the first reading has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    NotBegun,
    /// Files that are torn are waited for until then.
    Until(Duration),
    Done,
}

impl Settling {
    /// Nothing is known, at the beginning of time.
    pub(crate) fn new(settle: Settle) -> Self {
        Self { settle, writers: HashMap::default(), files: BTreeMap::new(), start: Start::NotBegun }
    }

    /// Exchanges how long files are left to settle.
    pub(crate) fn exchange(&mut self, settle: Settle) -> Settle {
        std::mem::replace(&mut self.settle, settle)
    }

    /// Takes an event; `stamp` is of the file when the event was heard.
    pub(crate) fn note(&mut self, sign: Sign, stamp: &Stamp, now: Duration) {
        let known = self.writers.remove(&stamp.file());
        let left = |renamed, again| State::Left { at: stamp.clone(), renamed, again };
        let was_writing = matches!(known, Some(Writer { state: State::Writing | State::Moved { .. }, .. }));
        let closed = known.as_ref().and_then(|writer| writer.closed);
        let writer = match sign {
            // Links to a file create a name for it, which tells nothing of its content.
            Sign::Created => return,
            Sign::Written => Writer { state: State::Writing, closed, heard: now },
            Sign::Closed if was_writing => {
                let again = closed.is_some_and(|closed| now.saturating_sub(closed) < self.settle.after);
                Writer { state: left(false, again), closed: Some(now), heard: now }
            }
            Sign::Renamed if was_writing => Writer { state: State::Moved { at: stamp.clone() }, closed, heard: now },
            Sign::Renamed => Writer { state: left(true, false), closed, heard: now },
            Sign::Touched => match known {
                Some(Writer { state: State::Left { renamed, again, .. }, closed, .. }) => {
                    Writer { state: left(renamed, again), closed, heard: now }
                }
                Some(Writer { state: State::Moved { .. }, closed, .. }) => {
                    Writer { state: State::Moved { at: stamp.clone() }, closed, heard: now }
                }
                // A writer that changes time stamps goes on writing.
                Some(writer) => writer,
                None => return,
            },
            Sign::Closed => match known {
                Some(writer) => Writer { heard: now, ..writer },
                None => return,
            },
        };
        self.writers.insert(stamp.file(), writer);
    }

    /// Events have been lost: nothing is known of writers.
    pub(crate) fn forget_events(&mut self) {
        self.writers.clear();
    }

    /// What to do with a file that is there; it last changed `age` ago by the clock of its file system.
    pub(crate) fn look(&mut self, path: &Path, stamp: &Stamp, age: Duration, now: Duration) -> Look {
        if self.start == Start::NotBegun {
            self.start = Start::Until(now + self.settle.empty);
        }
        if let Some(file) = self.files.get_mut(path)
            && file.taken.as_ref().is_some_and(|taken| taken.stamp == *stamp && !taken.racy && !taken.failed)
            && !file.is_missing
        {
            file.doubt = None;
            return Look::Same;
        }
        match self.phase(path, stamp, age, now) {
            Phase::Wait(more) => {
                self.doubt(path, stamp, now, more);
                Look::Wait
            }
            Phase::Young(more) if self.start == Start::Done => {
                self.doubt(path, stamp, now, more);
                Look::Wait
            }
            _ => Look::Read,
        }
    }

    /// A file changed while it was being read.
    pub(crate) fn changed_meanwhile(&mut self, path: &Path, stamp: &Stamp, now: Duration) {
        self.doubt(path, stamp, now, Duration::ZERO);
    }

    /// What to do with the content of a file. Nothing is settled by it until [`Settling::take`].
    pub(crate) fn judge(&mut self, path: &Path, stamp: &Stamp, facts: Facts, age: Duration, now: Duration) -> Verdict {
        let phase = self.phase(path, stamp, age, now);
        let quiet = self.quiet(path, stamp, age, now);
        let suspect = facts.is_empty || !facts.is_readable || !facts.ends;
        let is_new = self.files.get(path).is_none_or(|file| file.taken.is_none());
        match phase {
            Phase::Young(more) if is_new && suspect && !self.is_late(now) => {
                self.doubt(path, stamp, now, more);
                Verdict::Wait
            }
            Phase::Closed if !facts.ends && !facts.is_empty && quiet < self.settle.after => {
                self.doubt(path, stamp, now, self.settle.after - quiet);
                Verdict::Wait
            }
            Phase::Wait(more) => {
                self.doubt(path, stamp, now, more);
                Verdict::Wait
            }
            Phase::Moved(more) if suspect => {
                self.doubt(path, stamp, now, more);
                Verdict::Wait
            }
            _ if facts.is_empty && quiet < self.settle.empty => Verdict::TakeAndKeep,
            Phase::Young(_) => Verdict::TakeAndKeep,
            // More may follow.
            Phase::Closed | Phase::Moved(_) if quiet < self.settle.after => Verdict::TakeAndKeep,
            Phase::Closed | Phase::Moved(_) | Phase::Renamed | Phase::Settled => Verdict::Take,
        }
    }

    /// Whether a file other than this one has changed lately and is not taken yet.
    pub(crate) fn others_in_doubt(&self, path: &Path, now: Duration) -> bool {
        let is_doubtful =
            |file: &File| file.doubt.as_ref().is_some_and(|doubt| now.saturating_sub(doubt.since) < self.settle.after);
        self.files.iter().any(|(other, file)| other != path && is_doubtful(file))
    }

    /// A content was taken; `keep` if what it lacks is kept.
    pub(crate) fn take(&mut self, path: &Path, stamp: Stamp, content: TakenAs, keep: bool, now: Duration) {
        let wait = if content.is_empty { self.settle.empty } else { self.settle.after };
        let file = self.file(path);
        let stays_empty = content.is_empty && file.is_empty;
        file.kept_until = match file.kept_until {
            _ if !keep => None,
            Some(until) if stays_empty => Some(until),
            _ => Some(now + wait),
        };
        (file.is_empty, file.is_missing, file.doubt) = (content.is_empty, false, None);
        file.taken = Some(Taken { stamp, racy: content.racy, failed: content.failed });
    }

    /// A content was found to be what it was.
    pub(crate) fn confirm(&mut self, path: &Path, stamp: Stamp, content: TakenAs) {
        let file = self.file(path);
        file.doubt = None;
        file.taken = Some(Taken { stamp, racy: content.racy, failed: content.failed });
    }

    /// A file that has been read is missing; `all` if there are no files at all. What it defined is kept for a while.
    /// Returns whether it was there before.
    pub(crate) fn miss(&mut self, path: &Path, all: bool, now: Duration) -> bool {
        let wait = if all { self.settle.empty } else { self.settle.after };
        let file = self.file(path);
        let was_taken = !file.is_missing;
        // A file in doubt had come back, and is missing again.
        if was_taken || file.doubt.is_some() {
            let until = file.kept_until.unwrap_or_default().max(now + wait);
            *file = File { is_missing: true, kept_until: Some(until), ..File::default() };
        }
        was_taken
    }

    /// Forgets the files of which this holds.
    pub(crate) fn forget_if(&mut self, is_gone: impl Fn(&Path) -> bool) {
        self.files.retain(|path, _| !is_gone(path));
    }

    /// Nothing is to be known of a file any more.
    pub(crate) fn forget(&mut self, path: &Path) {
        self.files.remove(path);
    }

    /// The files of which it is time to let go what they do not define any more; whether the file itself is missing.
    pub(crate) fn due(&mut self, now: Duration) -> Vec<(PathBuf, bool)> {
        let mut due = Vec::new();
        for (path, file) in &mut self.files {
            if file.doubt.is_none() && file.kept_until.is_some_and(|until| until <= now) {
                file.kept_until = None;
                due.push((path.clone(), file.is_missing));
            }
        }
        self.files.retain(|_, file| !file.is_missing || file.kept_until.is_some());
        let (settle, files) = (self.settle, &mut self.files);
        // What was heard so long ago is no different from what time alone tells.
        self.writers.retain(|_, writer| {
            now.saturating_sub(writer.heard) < settle.empty.max(settle.after) + settle.after
                || files.values().any(|file| file.doubt.is_some())
        });
        due
    }

    /// Everything that is there has been looked at; whether all of it has been taken once, or waited for long enough.
    pub(crate) fn has_read_all(&mut self, now: Duration) -> bool {
        if self.is_late(now) || self.files.values().all(|file| file.doubt.is_none()) {
            self.start = Start::Done;
        }
        self.start == Start::Done
    }

    /// Whether torn files are not waited for at the start any more.
    fn is_late(&self, now: Duration) -> bool {
        matches!(self.start, Start::Until(until) if until <= now)
    }

    /// How soon there is a reason to look again without any event; files with young stamps are looked at after `racy`.
    pub(crate) fn next_look(&self, racy: Duration, now: Duration) -> Option<Duration> {
        let of_file = |file: &File| {
            let is_racy = file.taken.as_ref().is_some_and(|taken| taken.racy);
            let restless = |doubt: &Doubt| {
                let at = doubt.since + self.settle.empty + Duration::from_millis(1);
                if at > now { doubt.again.min(at) } else { doubt.again }
            };
            let doubt = file.doubt.as_ref().map(|doubt| restless(doubt).saturating_sub(now));
            let kept = file.kept_until.filter(|_| file.doubt.is_none()).map(|until| until.saturating_sub(now));
            [is_racy.then_some(racy), doubt, kept].into_iter().flatten().min()
        };
        self.files.values().filter_map(of_file).min()
    }

    /// The files that have not come to rest for more than [`Settle::empty`].
    pub(crate) fn restless(&self, now: Duration) -> Vec<PathBuf> {
        let is_restless =
            |file: &File| file.doubt.as_ref().is_some_and(|doubt| now.saturating_sub(doubt.since) > self.settle.empty);
        self.files.iter().filter(|(_, file)| is_restless(file)).map(|(path, _)| path.clone()).collect()
    }

    fn file(&mut self, path: &Path) -> &mut File {
        if !self.files.contains_key(path) {
            self.files.insert(path.to_path_buf(), File::default());
        }
        self.files.entry(path.to_path_buf()).or_default()
    }

    fn doubt(&mut self, path: &Path, stamp: &Stamp, now: Duration, more: Duration) {
        let file = self.file(path);
        let before = file.doubt.take();
        let since = before.as_ref().map_or(now, |doubt| doubt.since);
        let seen = before.filter(|doubt| doubt.stamp == *stamp).map_or(now, |doubt| doubt.seen);
        file.doubt = Some(Doubt { stamp: stamp.clone(), seen, since, again: now + more });
    }

    /// For how long a file has been as it is.
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

/// What was taken of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TakenAs {
    pub(crate) is_empty: bool,
    pub(crate) racy: bool,
    pub(crate) failed: bool,
}
