//! The program around an agent.

use std::error::Error;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tortie_config::{Config, Sources};
use tortie_model::desired::DesiredUpdate;

use crate::engine::{Observer, Progress};

/// The program around an agent. Its methods are called on the agent's thread, one at a time, and
/// hold up enforcement.
pub trait Embedder: Send {
    /// All parts of the agent run; no policy of this run is in force yet.
    fn starting(&mut self) {}

    /// Every object of the source is in force, but for those that are reported. Called after each
    /// apply from then on.
    fn in_force(&mut self) {}

    /// The engine restarts with these parameters.
    fn restarting(&mut self, _config: &Config) {}

    /// The agent ends because of [`Handle::shutdown`](super::Handle::shutdown).
    fn stopping(&mut self) {}

    /// Reads the parameters of this machine again, because of
    /// [`Handle::reload`](super::Handle::reload).
    ///
    /// # Errors
    /// If they cannot be read. The agent logs the error and goes on with the parameters in force.
    fn reload(&mut self, _parameters: &mut Sources) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(())
    }
}

#[derive(Debug)]
pub(super) struct NoEmbedder;

impl Embedder for NoEmbedder {}

impl fmt::Debug for dyn Embedder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Embedder")
    }
}

#[derive(Clone, Debug)]
pub(super) struct Shared(Arc<Mutex<Box<dyn Embedder>>>);

impl Shared {
    pub(super) fn new(embedder: Box<dyn Embedder>) -> Self {
        Self(Arc::new(Mutex::new(embedder)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Box<dyn Embedder>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Shared {
    fn on_update(&mut self, _: &DesiredUpdate) {}

    fn on_progress(&mut self, _: &Progress, has_enforced: bool) {
        if has_enforced {
            self.lock().in_force();
        }
    }
}
