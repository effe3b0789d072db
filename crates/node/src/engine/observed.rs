//! Others who learn what is enforced.

use std::fmt;
use std::time::Duration;

use tortie_config::{Resolved, Sources};
use tortie_dataplane::KernelError;
use tortie_iptables::ChainName;
use tortie_linux::bpf::{CountsError, DecisionCount};
use tortie_linux::monitor::MonitorEvent;
use tortie_model::desired::DesiredUpdate;
use tortie_model::{Family, IpSetId, Update};
use tortie_nftables::RuleCount;

use super::enforcement::{Enforcement, EnforcementReport, Progress};
use crate::driver::{DriverError, DriverEvent};

/// Learns what is enforced, and what comes of it.
pub trait Observer: fmt::Debug {
    /// A change of what is to be enforced, before whoever enforces takes it. Cheap.
    fn on_update(&mut self, update: &DesiredUpdate);

    /// What came of an attempt to enforce, and whether everything has been in force once.
    fn on_progress(&mut self, progress: &Progress, has_enforced: bool);
}

/// An enforcement with observers, who change nothing about it.
#[derive(Debug)]
pub struct Observed<E> {
    inner: E,
    observers: Vec<Box<dyn Observer>>,
}

impl<E: Enforcement> Observed<E> {
    /// Tells these of this enforcement.
    pub fn new(inner: E, observers: Vec<Box<dyn Observer>>) -> Self {
        Self { inner, observers }
    }
}

impl<E: Enforcement> Enforcement for Observed<E> {
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
        for observer in &mut self.observers {
            observer.on_update(&update);
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
        let progress = self.inner.enforce()?;
        let has_enforced = self.inner.has_enforced();
        for observer in &mut self.observers {
            observer.on_progress(&progress, has_enforced);
        }
        Ok(progress)
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

    fn decision_counts(&mut self) -> Option<Result<Vec<DecisionCount>, CountsError>> {
        self.inner.decision_counts()
    }

    fn rule_counts(&mut self) -> Option<Result<Vec<(Family, RuleCount)>, KernelError>> {
        self.inner.rule_counts()
    }

    fn kernel_name(&self, chain: ChainName) -> Option<String> {
        self.inner.kernel_name(chain)
    }

    fn set_members(&self, id: &IpSetId) -> Option<Vec<String>> {
        self.inner.set_members(id)
    }
}
