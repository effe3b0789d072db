//! Configuration of the datastore in a session.

use tortie_config::{Notice, Resolved};
use tortie_model::desired::ConfigUpdate;

use super::{Session, SessionError};
use crate::engine::enforcement::Enforcement;
use tortie_telemetry::health::Reporter;

impl<E: Enforcement> Session<E> {
    pub(super) fn asks_for_restart(&self, config: &ConfigUpdate) -> bool {
        let mut sources = self.fixed.sources.clone();
        sources.set_datastore(config);
        sources.resolve().is_ok_and(|resolved| self.enforcement.must_restart(&self.fixed.resolved, &resolved))
    }

    pub(super) fn configure(&mut self, config: &ConfigUpdate) -> Result<bool, SessionError> {
        let mut sources = self.fixed.sources.clone();
        sources.set_datastore(config);
        let resolved = sources.resolve()?;
        if self.enforcement.must_restart(&self.fixed.resolved, &resolved) {
            return Ok(true);
        }
        self.enforcement.on_config(&sources, &resolved).map_err(SessionError::of_enforcement)?;
        log_fallbacks(&resolved, &self.fixed.resolved);
        // Every change that has an effect restarts the session.
        (self.fixed.sources, self.fixed.resolved) = (sources, resolved);
        self.health.report(Reporter::CalculationGraph, self.condition());
        Ok(false)
    }

    /// Returns the invalid values of parameters that the agent needs.
    pub(super) fn fallbacks(&self) -> impl Iterator<Item = &Notice> {
        self.fixed.resolved.notices.iter().filter(|notice| matches!(notice, Notice::Fallback { .. }))
    }
}

/// Logs new invalid values of parameters that the agent needs.
fn log_fallbacks(now: &Resolved, before: &Resolved) {
    let is_new = |notice: &&Notice| matches!(notice, Notice::Fallback { .. }) && !before.notices.contains(notice);
    for problem in now.notices.iter().filter(is_new) {
        tracing::error!(%problem, "invalid configuration in the datastore");
    }
}
