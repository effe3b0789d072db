//! Who listens to a source, and does not let it break the contract.

use std::collections::{BTreeMap, BTreeSet};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tortie_datastore::{Closed, Event, InputProblem, Source, Watching, channel};
use tortie_model::{Key, SyncStatus, Update};

/// How long anything may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(90);

pub(super) type State = BTreeMap<Key, Update>;

/// Listens to a source that runs.
#[derive(Debug)]
pub(super) struct Consumer {
    watching: Watching,
    source: JoinHandle<Closed>,
    /// What the source has told so far.
    pub(super) known: State,
    /// The keys deleted since [`Consumer::forget_deletions`].
    pub(super) deleted: BTreeSet<Key>,
    /// Whether what is deleted may be there again.
    pub(super) known_may_vanish: bool,
    pub(super) problems: Vec<InputProblem>,
    pub(super) unavailable: Option<String>,
    status: Option<SyncStatus>,
    /// How many times everything was told.
    pub(super) in_sync: usize,
}

impl Consumer {
    pub(super) fn new(source: Box<dyn Source>) -> Self {
        let (feed, watching) = channel();
        let source = thread::spawn(move || source.run(&feed));
        Self {
            watching,
            source,
            known: State::new(),
            deleted: BTreeSet::new(),
            known_may_vanish: false,
            problems: Vec::new(),
            unavailable: None,
            status: None,
            in_sync: 0,
        }
    }

    /// Takes what comes within this time; says whether anything did.
    pub(super) fn take(&mut self, within: Duration) -> bool {
        let Some(event) = self.watching.events.recv_timeout(within) else {
            assert!(!self.source.is_finished(), "the source has ended although somebody listens");
            return false;
        };
        match event {
            Event::Status(status) => self.take_status(status),
            Event::Updates { updates, noticed } => {
                assert!(!updates.is_empty(), "updates of nothing");
                assert!(noticed <= Instant::now(), "noticed in the future");
                self.take_updates(updates);
            }
            Event::Problems(problems) => self.problems = problems,
            Event::Unavailable { why, .. } => {
                assert!(!why.is_empty(), "no reason is given");
                self.unavailable = Some(why);
            }
            Event::Available => self.unavailable = None,
            Event::Versions(_) => {}
        }
        true
    }

    fn take_status(&mut self, status: SyncStatus) {
        match status {
            SyncStatus::InSync => {
                assert_eq!(self.status, Some(SyncStatus::Resync), "in sync without a resync before");
                self.in_sync += 1;
            }
            SyncStatus::Resync | SyncStatus::WaitForDatastore => {}
        }
        self.status = Some(status);
    }

    fn take_updates(&mut self, updates: Vec<Update>) {
        assert!(
            matches!(self.status, Some(SyncStatus::Resync | SyncStatus::InSync)),
            "updates before the first resync"
        );
        let mut keys = BTreeSet::new();
        for update in updates {
            let key = update.key();
            assert!(keys.insert(key.clone()), "{key:?} is told twice at once");
            if update.exists() {
                self.known.insert(key, update);
            } else {
                assert!(self.known.remove(&key).is_some(), "{key:?} is deleted, but was never there");
                self.deleted.insert(key);
            }
        }
    }

    pub(super) fn forget_deletions(&mut self) {
        self.deleted.clear();
    }

    /// Takes what comes until this holds.
    pub(super) fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        self.until_or(|_| what.to_owned(), done);
    }

    /// The same; what is waited for is told by what there is.
    pub(super) fn until_or(&mut self, what: impl Fn(&Self) -> String, done: impl Fn(&Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !done(self) {
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "waited for {PATIENCE:?} in vain: {}", what(self));
            self.take(left.min(Duration::from_millis(100)));
        }
    }

    /// Takes what comes for this long.
    pub(super) fn listen(&mut self, time: Duration) {
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            self.take(left);
        }
    }

    /// Restarts. Whatever the source told before means nothing any more.
    pub(super) fn restart(&mut self) {
        self.watching.resend.ask();
        self.known.clear();
        self.deleted.clear();
        self.problems.clear();
        self.status = None;
        self.in_sync = 0;
    }

    /// Listens no more; the source must notice.
    pub(super) fn end(self) {
        let Self { watching, source, .. } = self;
        drop(watching);
        let end = Instant::now() + PATIENCE;
        while !source.is_finished() {
            assert!(Instant::now() < end, "the source goes on although nobody listens");
            thread::sleep(Duration::from_millis(5));
        }
        let Closed = source.join().expect("the source does not panic");
    }
}
