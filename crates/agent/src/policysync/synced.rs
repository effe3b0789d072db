//! Telling clients what is enforced.

use std::time::Duration;

use tortie_model::desired::DesiredUpdate;
use tortie_model::{IpSetId, Update};

use super::Feed;
use crate::config::{Resolved, Sources};
use crate::driver::{DriverError, DriverEvent};
use crate::engine::{Enforcement, EnforcementReport, Progress};
use crate::monitor::MonitorEvent;

/// An enforcement whose workloads are told their policy.
#[derive(Debug)]
pub struct Synced<E> {
    inner: E,
    feed: Option<Feed>,
}

impl<E: Enforcement> Synced<E> {
    /// Tells of this enforcement, if there is anybody to be told.
    pub fn new(inner: E, feed: Option<Feed>) -> Self {
        Self { inner, feed }
    }
}

impl<E: Enforcement> Enforcement for Synced<E> {
    fn must_restart(&self, old: &Resolved, new: &Resolved) -> bool {
        self.inner.must_restart(old, new)
    }

    fn on_config(&mut self, sources: &Sources, resolved: &Resolved) -> Result<(), DriverError> {
        self.inner.on_config(sources, resolved)
    }

    fn takes_more(&self) -> bool {
        self.inner.takes_more()
    }

    fn on_object(&mut self, update: &Update) {
        self.inner.on_object(update);
    }

    fn on_update(&mut self, update: DesiredUpdate) {
        if let Some(feed) = &self.feed {
            feed.on_update(&update);
        }
        self.inner.on_update(update);
    }

    fn on_links(&mut self, event: MonitorEvent) {
        self.inner.on_links(event);
    }

    fn on_driver(&mut self, event: DriverEvent) -> Result<(), DriverError> {
        self.inner.on_driver(event)
    }

    fn enforce(&mut self) -> Result<Progress, DriverError> {
        self.inner.enforce()
    }

    fn now(&mut self) -> Duration {
        self.inner.now()
    }

    fn outdated(&self) -> Option<&str> {
        self.inner.outdated()
    }

    fn has_enforced(&self) -> bool {
        self.inner.has_enforced()
    }

    fn report(&self) -> EnforcementReport {
        self.inner.report()
    }

    fn set_members(&self, id: &IpSetId) -> Option<Vec<String>> {
        self.inner.set_members(id)
    }
}
