//! Learned names for other threads.

use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::inbox::{Message, Outbox};
use crate::question::{LearnedNames, Lookup, LookupQuery};

/// Access to the addresses that a [`DnsReader`](crate::DnsReader) has learned, from any thread.
/// Clones share the access.
#[derive(Clone, Debug, Default)]
pub struct DnsLookup(Arc<Mutex<Option<Outbox>>>);

/// Reason for a question without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LookupError {
    /// The thread does not answer in time.
    #[error("the reader of DNS answers does not answer in time")]
    Timeout,
}

impl DnsLookup {
    /// Returns the addresses that a scope has learned; `None` if it does not learn. Cost for the
    /// thread `dns`: k log k for the k addresses of the scope, at most 10,000 by default.
    ///
    /// # Errors
    /// If the thread does not answer within `patience`.
    pub fn names(&self, query: LookupQuery, patience: Duration) -> Result<Option<LearnedNames>, LookupError> {
        let Some(outbox) = self.lock().clone() else { return Ok(None) };
        let (answer, answered) = sync_channel(1);
        if !outbox.send(Message::Lookup(Lookup { query, answer })) {
            // The reader has ended, and nothing learns.
            return Ok(None);
        }
        answered.recv_timeout(patience).map_err(|_| LookupError::Timeout)
    }

    pub(super) fn set(&self, outbox: Option<Outbox>) {
        *self.lock() = outbox;
    }

    fn lock(&self) -> MutexGuard<'_, Option<Outbox>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
