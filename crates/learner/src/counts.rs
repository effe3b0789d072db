//! Counts of DNS answers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tortie_datastore::Quantiles;
use tortie_dns::{Counts, Crowding};

/// Measures of the reader of DNS answers.
#[derive(Clone, Debug, Default)]
pub struct DnsMetrics {
    /// Events so far.
    pub tally: DnsTally,
    /// Seconds for which packets were held.
    pub hold_time: Quantiles,
    /// Sizes of the learned state.
    pub learned: Counts,
    /// Namespaces beyond their share while the room for addresses is nearly full.
    pub crowding: Option<Crowding>,
    /// Packets that are held now.
    pub held: usize,
    /// Members that the kernel refuses now.
    pub refused_members: usize,
}

/// Events of the reader of DNS answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DnsTally {
    /// Packets that came by the queue.
    pub packets_in: u64,
    /// DNS responses in them.
    pub responses: u64,
    /// Messages that could not be read.
    pub invalid: u64,
    /// Packets released after the members that they need were written.
    pub released_programmed: u64,
    /// Packets released at the end of the hold duration.
    pub released_timeout: u64,
    /// Losses of the queue, such as by an error of its socket.
    pub shutdowns: u64,
    /// Addresses that made room for others.
    pub evicted: u64,
    /// Those of them that endpoints beyond their share had, for other endpoints.
    pub displaced: u64,
    /// Addresses that were not learned, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// Packets and messages that taught nothing, by reason.
    pub unlearned: BTreeMap<&'static str, u64>,
}

/// [`DnsMetrics`] that the thread writes and others read; `None` before a domain set is in use.
#[derive(Clone, Debug, Default)]
pub struct SharedDnsMetrics(Arc<Mutex<Option<DnsMetrics>>>);

impl SharedDnsMetrics {
    /// Reads or writes them.
    pub fn lock(&self) -> MutexGuard<'_, Option<DnsMetrics>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
