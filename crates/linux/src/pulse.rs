//! Signs of life of threads.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A report of a thread about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// The thread works.
    Beats,
    /// The thread gives no sign of life until the next one, because it waits for another thread
    /// that reports itself, or has ended normally.
    Rests,
}

/// Signs of life of one thread; the default discards them.
#[derive(Clone, Default)]
pub struct Pulse(Option<Arc<dyn Fn(Life) + Send + Sync>>);

impl fmt::Debug for Pulse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pulse").field("has_listener", &self.0.is_some()).finish()
    }
}

impl Pulse {
    /// Longest time between two signs of life of a thread.
    pub const TIMEOUT: Duration = Duration::from_secs(60);

    /// Returns a pulse whose signs of life go to `report`.
    #[must_use]
    pub fn new(report: impl Fn(Life) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(report)))
    }

    /// Gives a sign of life.
    pub fn beat(&self) {
        self.report(Life::Beats);
    }

    /// Expects no sign of life until the next one; see [`Life::Rests`].
    pub fn rest(&self) {
        self.report(Life::Rests);
    }

    fn report(&self, life: Life) {
        if let Some(report) = &self.0 {
            report(life);
        }
    }
}
