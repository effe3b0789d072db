//! Reader of a source for another syncer than Felix's.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::Value as Json;
use tortie_datastore::{Event, InputProblem, Source, Watching, watch};
use tortie_model::{SyncStatus, Update};

pub(crate) struct Reader {
    pub(crate) watching: Watching,
    /// Values and versions by path.
    pub(crate) received: BTreeMap<String, (Json, String)>,
    pub(crate) in_sync: bool,
    pub(crate) problems: Vec<InputProblem>,
}

impl Reader {
    pub(crate) fn new(source: impl Source) -> Self {
        let watching = watch(source).expect("a thread");
        Self { watching, received: BTreeMap::new(), in_sync: false, problems: Vec::new() }
    }

    pub(crate) fn until(&mut self, description: &str, holds: impl Fn(&Self) -> bool) {
        let until = Instant::now() + Duration::from_secs(120);
        while !holds(self) {
            assert!(Instant::now() < until, "{description}: {:?}, in sync: {}", self.received, self.in_sync);
            match self.watching.events.recv_timeout(Duration::from_millis(100)) {
                Some(Event::Status(status)) => self.in_sync = status == SyncStatus::InSync,
                Some(Event::Problems(problems)) => self.problems = problems,
                Some(Event::Updates { updates, .. }) => updates.into_iter().for_each(|update| self.take(update)),
                Some(Event::Unavailable { .. } | Event::Available | Event::Versions(_)) | None => {}
            }
        }
    }

    fn take(&mut self, update: Update) {
        match update {
            Update::SyncerObject(path, Some(object)) => {
                let value = serde_json::from_str(&object.text).expect("JSON");
                self.received.insert(path.to_string(), (value, object.resource_version.to_string()));
            }
            Update::SyncerObject(path, None) => drop(self.received.remove(&*path)),
            other => panic!("{other:?} is for Felix"),
        }
    }

    pub(crate) fn paths(&self) -> Vec<&str> {
        self.received.keys().map(String::as_str).collect()
    }
}
