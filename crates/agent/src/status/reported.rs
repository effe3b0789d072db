//! Telling of endpoints.

use std::time::Duration;

use tortie_model::desired::DesiredUpdate;

use super::{StatusNews, StatusWriter};
use crate::config::{Resolved, Sources};
use crate::driver::{DriverError, DriverEvent};
use crate::engine::{Enforcement, Progress};
use crate::monitor::MonitorEvent;

/// An enforcement whose endpoints' status is reported, if there is anybody to report it.
#[derive(Debug)]
pub struct Reported<E> {
    inner: E,
    writer: Option<StatusWriter>,
    /// Whether it has been told that everything is in force.
    told: bool,
}

impl<E> Reported<E> {
    /// Reports what happens to endpoints under this enforcement.
    pub fn new(inner: E, writer: Option<StatusWriter>) -> Self {
        Self { inner, writer, told: false }
    }
}

impl<E: Enforcement> Enforcement for Reported<E> {
    fn must_restart(&self, old: &Resolved, new: &Resolved) -> bool {
        self.inner.must_restart(old, new)
    }

    fn on_config(&mut self, sources: &Sources, resolved: &Resolved) -> Result<(), DriverError> {
        self.inner.on_config(sources, resolved)
    }

    fn takes_more(&self) -> bool {
        self.inner.takes_more()
    }

    fn on_update(&mut self, update: DesiredUpdate) {
        self.inner.on_update(update);
    }

    fn on_links(&mut self, event: MonitorEvent) {
        self.inner.on_links(event);
    }

    fn on_driver(&mut self, event: DriverEvent) -> Result<(), DriverError> {
        self.inner.on_driver(event)
    }

    fn enforce(&mut self) -> Result<Progress, DriverError> {
        let progress = self.inner.enforce()?;
        if let Some(writer) = &self.writer {
            if !progress.statuses.is_empty() {
                writer.tell(StatusNews::Changes(progress.statuses.clone()));
            }
            if let Some(sign) = &progress.process_status {
                writer.tell(StatusNews::ProcessStatus(sign.clone()));
            }
            if !self.told && self.inner.has_enforced() {
                self.told = true;
                writer.tell(StatusNews::InForce);
            }
        }
        Ok(progress)
    }

    fn now(&mut self) -> Duration {
        self.inner.now()
    }

    fn has_enforced(&self) -> bool {
        self.inner.has_enforced()
    }
}
