//! Configuration of the datastore in a session.

use tortie_model::desired::ConfigUpdate;

use super::{Session, SessionError};
use crate::engine::enforcement::Enforcement;

impl<E: Enforcement> Session<E> {
    pub(super) fn asks_for_restart(&self, config: &ConfigUpdate) -> bool {
        let mut sources = self.fixed.sources.clone();
        sources.set_datastore(config);
        sources.resolve().is_ok_and(|resolved| self.enforcement.must_restart(&self.fixed.resolved, &resolved))
    }

    pub(super) fn configure(&mut self, config: &ConfigUpdate) -> Result<bool, SessionError> {
        let mut sources = self.fixed.sources.clone();
        sources.set_datastore(config);
        match sources.resolve() {
            Ok(resolved) if self.enforcement.must_restart(&self.fixed.resolved, &resolved) => return Ok(true),
            Ok(resolved) => {
                self.enforcement.on_config(&sources, &resolved).map_err(SessionError::of_enforcement)?;
            }
            Err(error) if self.enforcement.has_enforced() => {
                tracing::error!(%error, "invalid configuration in the datastore; the configuration in force stays in force");
            }
            Err(error) => return Err(error.into()),
        }
        Ok(false)
    }
}
