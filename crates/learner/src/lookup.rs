//! Learned names for other threads.

use std::net::IpAddr;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tortie_dns::Scope;
use tortie_model::{DomainName, IpSetId};

use crate::inbox::{Message, Outbox};

/// Access to the addresses that a [`DnsReader`](crate::DnsReader) has learned, from any thread.
/// Clones share the access.
#[derive(Clone, Debug, Default)]
pub struct DnsLookup(Arc<Mutex<Option<Outbox>>>);

/// Selection of learned addresses.
#[derive(Clone, Copy, Debug)]
pub struct LookupQuery {
    /// The scope that has learned them.
    pub scope: Scope,
    /// The only wanted address; all by default.
    pub address: Option<IpAddr>,
    /// Largest number of addresses in the result.
    pub limit: usize,
}

/// Addresses that a scope has learned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LearnedNames {
    /// The names in order, each with its addresses in order.
    pub names: Vec<LearnedName>,
    /// Number of further addresses beyond the limit. An address counts once for each of its names.
    pub left_out: usize,
}

/// A learned name with its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LearnedName {
    /// The name.
    pub name: DomainName,
    /// Its addresses, with the remaining lifetimes.
    pub addresses: Vec<(IpAddr, Duration)>,
    /// The domain sets of the scope that match the name, in order.
    pub sets: Vec<IpSetId>,
    /// The longest beginning of the name that a domain set of the scope matches, if none matches
    /// the name itself. The rest may be a search suffix of the resolver.
    pub near_miss: Option<DomainName>,
}

/// A question to the thread, with the way to answer it.
#[derive(Debug)]
pub(super) struct Lookup {
    pub(super) query: LookupQuery,
    pub(super) answer: SyncSender<Option<LearnedNames>>,
}

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
