//! A consumer of a source that asserts the source's contract.

use std::collections::{BTreeMap, BTreeSet};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tortie_datastore::{Closed, Event, InputProblem, Source, Watching, channel};
use tortie_model::{Key, SyncStatus, Update};

/// Maximum time of any step.
pub(super) const PATIENCE: Duration = Duration::from_secs(90);

pub(super) type State = BTreeMap<Key, Update>;

/// The consumer of a running source.
#[derive(Debug)]
pub(super) struct Consumer {
    watching: Watching,
    source: JoinHandle<Closed>,
    /// State that the source has sent so far.
    pub(super) state: State,
    /// Keys deleted since [`Consumer::clear_deletions`].
    pub(super) deleted: BTreeSet<Key>,
    /// Whether existing objects may be deleted and created again.
    pub(super) allows_recreation: bool,
    pub(super) problems: Vec<InputProblem>,
    pub(super) unavailable: Option<String>,
    status: Option<SyncStatus>,
    /// Number of completed resyncs.
    pub(super) in_sync: usize,
}

impl Consumer {
    pub(super) fn new(source: Box<dyn Source>) -> Self {
        let (feed, watching) = channel();
        let source = thread::spawn(move || source.run(&feed));
        Self {
            watching,
            source,
            state: State::new(),
            deleted: BTreeSet::new(),
            allows_recreation: false,
            problems: Vec::new(),
            unavailable: None,
            status: None,
            in_sync: 0,
        }
    }

    /// Processes the next event within this time, and returns whether there was one.
    pub(super) fn take(&mut self, within: Duration) -> bool {
        let Some(event) = self.watching.events.recv_timeout(within) else {
            assert!(!self.source.is_finished(), "the source has ended despite a consumer");
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
            assert!(keys.insert(key.clone()), "{key:?} is sent twice in one batch");
            if update.exists() {
                self.state.insert(key, update);
            } else {
                assert!(self.state.remove(&key).is_some(), "{key:?} is deleted, but was never there");
                self.deleted.insert(key);
            }
        }
    }

    pub(super) fn clear_deletions(&mut self) {
        self.deleted.clear();
    }

    /// Processes events until the condition holds.
    pub(super) fn until(&mut self, description: &str, done: impl Fn(&Self) -> bool) {
        self.until_or(|_| description.to_owned(), done);
    }

    /// As [`Consumer::until`], with the description computed from the present state.
    pub(super) fn until_or(&mut self, description: impl Fn(&Self) -> String, done: impl Fn(&Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !done(self) {
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "waited for {PATIENCE:?} in vain: {}", description(self));
            self.take(left.min(Duration::from_millis(100)));
        }
    }

    /// Processes events for this time.
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

    /// Requests a resync and discards the state sent before.
    pub(super) fn restart(&mut self) {
        self.watching.resend.ask();
        self.state.clear();
        self.deleted.clear();
        self.problems.clear();
        self.status = None;
        self.in_sync = 0;
    }

    /// Closes the channel; the source must end.
    pub(super) fn end(self) {
        let Self { watching, source, .. } = self;
        drop(watching);
        let end = Instant::now() + PATIENCE;
        while !source.is_finished() {
            assert!(Instant::now() < end, "the source runs without a consumer");
            thread::sleep(Duration::from_millis(5));
        }
        let Closed = source.join().expect("the source does not panic");
    }
}
