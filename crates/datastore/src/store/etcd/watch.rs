//! Resources in etcd, followed.

use std::time::Duration;

use tortie_model::with_causes;
use tortie_resources::stored::ResourceKey;

use super::feed::{EtcdEvent, EtcdFeed};
use super::value::object;
use crate::store::{Known, ResourceWatch, StoredResource, StoredText, WatchEvent};

pub(super) struct EtcdWatch {
    feed: EtcdFeed,
    known: Known,
    endpoints: usize,
    /// Consecutive failures. Each attempt is at the next endpoint.
    failures: usize,
}

impl EtcdWatch {
    pub(super) fn new(feed: EtcdFeed, endpoints: usize) -> Self {
        Self { feed, known: Known::default(), endpoints, failures: 0 }
    }

    fn take(&mut self, event: EtcdEvent) {
        self.failures = if matches!(event, EtcdEvent::Unavailable(_)) { self.failures + 1 } else { 0 };
        match event {
            EtcdEvent::Unavailable(_) if self.failures < self.endpoints => {}
            EtcdEvent::ListBegins => self.known.list_begins(),
            EtcdEvent::Listed(text) | EtcdEvent::Changed(text) => self.take_text(text),
            EtcdEvent::ListEnds(_) => self.known.list_ends(),
            EtcdEvent::Deleted { path, .. } => {
                if let Some(key) = ResourceKey::from_path(&path) {
                    self.known.remove(&key);
                }
            }
            EtcdEvent::Unavailable(why) => self.known.unavailable(why),
        }
    }

    fn take_text(&mut self, StoredText { path, text, revision }: StoredText) {
        // Other paths are not Calico's.
        let Some(key) = ResourceKey::from_path(&path) else { return };
        match object(&key, text.as_bytes(), revision) {
            Ok(object) => self.known.set(StoredResource { key, revision, object }),
            Err(error) => self.known.unreadable(key, revision, with_causes(&error)),
        }
    }
}

impl ResourceWatch for EtcdWatch {
    fn next(&mut self, patience: Duration) -> Option<WatchEvent> {
        loop {
            if let Some(event) = self.known.pop() {
                return Some(event);
            }
            let event = self.feed.next(patience)?;
            self.take(event);
        }
    }
}
