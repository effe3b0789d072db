//! Pending deletions of conntrack entries, and the results of attempts.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use tortie_model::Family;

use crate::kernel::Conntrack;
use crate::kernel_error::KernelError;

const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(60);

/// Addresses whose conntrack entries are still to be deleted. Each is marked in the kernel until
/// then, for a successor of this process.
#[derive(Debug, Default)]
pub(super) struct Flushes {
    /// No entries are ever deleted.
    is_none: bool,
    /// Last failure of each address; `None` before the first attempt.
    desired: BTreeMap<IpAddr, Option<Failure>>,
    has_read_marks: bool,
}

#[derive(Debug)]
struct Failure {
    error: KernelError,
    attempts: u32,
    retry_at: Duration,
}

impl Flushes {
    /// Returns an instance that never deletes entries, for routes that no connections depend on.
    pub(super) fn none() -> Self {
        Self { is_none: true, ..Self::default() }
    }

    /// Reads, once, the marks that earlier processes left.
    pub(super) fn read_marks(&mut self, family: Family, kernel: &mut dyn Conntrack) -> Result<(), KernelError> {
        if !self.has_read_marks && !self.is_none {
            for address in kernel.marked_flushes(family)? {
                self.desired.entry(address).or_default();
            }
            self.has_read_marks = true;
        }
        Ok(())
    }

    /// Queues the deletion of an address's conntrack entries. Call it before the route to the
    /// address is removed: a successor that finds neither route nor mark assigns the address
    /// without a deletion.
    pub(super) fn request(&mut self, address: IpAddr, kernel: &mut dyn Conntrack) {
        if self.is_none || self.desired.contains_key(&address) {
            return;
        }
        // Only a successor needs the mark; this process deletes the entries without it.
        let failure = kernel.mark_flush(address, true).err();
        let failure = failure.map(|error| Failure { error, attempts: 0, retry_at: Duration::ZERO });
        self.desired.insert(address, failure);
    }

    /// Reports whether conntrack entries of the address are still to be deleted.
    pub(super) fn is_pending(&self, address: IpAddr) -> bool {
        self.desired.contains_key(&address)
    }

    /// Tries to delete the conntrack entries of all addresses that are due, in one call: its cost
    /// depends on the number of all entries in the kernel. After a failure, the next attempt for
    /// that address waits 1 s to 60 s.
    pub(super) fn run(&mut self, kernel: &mut dyn Conntrack) {
        let now = kernel.now();
        let is_due = |failure: &Option<Failure>| failure.as_ref().is_none_or(|failure| failure.retry_at <= now);
        let due: Vec<IpAddr> =
            self.desired.iter().filter(|(_, failure)| is_due(failure)).map(|(address, _)| *address).collect();
        if due.is_empty() || kernel.is_stopping() {
            return;
        }
        let mut outcomes = kernel.flush_conntrack(&due).into_iter();
        for address in due {
            let outcome = outcomes.next().unwrap_or_else(|| Err(KernelError::no_answer()));
            match outcome.and_then(|()| kernel.mark_flush(address, false)) {
                Ok(()) => drop(self.desired.remove(&address)),
                Err(error) => self.fail(address, error, kernel.now()),
            }
        }
    }

    fn fail(&mut self, address: IpAddr, error: KernelError, now: Duration) {
        let failure = self.desired.entry(address).or_default();
        let attempts = failure.as_ref().map_or(0, |failure| failure.attempts);
        let pause = FIRST_RETRY.saturating_mul(2u32.saturating_pow(attempts)).min(LAST_RETRY);
        *failure = Some(Failure { error, attempts: attempts + 1, retry_at: now + pause });
    }

    /// Returns the addresses whose last attempt failed, with the error.
    pub(super) fn failed(&self) -> impl Iterator<Item = (IpAddr, &KernelError)> {
        self.desired.iter().filter_map(|(address, failure)| Some((*address, &failure.as_ref()?.error)))
    }

    /// Returns the time of the next retry.
    pub(super) fn next(&self) -> Option<Duration> {
        self.desired.values().flatten().map(|failure| failure.retry_at).min()
    }
}
