//! Connections that are to be forgotten, and what became of the attempts.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use crate::kernel::{Kernel, KernelError};

const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(60);

/// Addresses whose connections are still to be forgotten.
#[derive(Debug, Default)]
pub(super) struct Flushes {
    /// `None` for those that were not tried yet.
    wanted: BTreeMap<IpAddr, Option<Failure>>,
}

#[derive(Debug)]
struct Failure {
    error: KernelError,
    attempts: u32,
    retry_at: Duration,
}

impl Flushes {
    pub(super) fn want(&mut self, address: IpAddr) {
        self.wanted.entry(address).or_default();
    }

    /// Returns whether nothing of the address is left to be forgotten. What failed rests for a while before it is tried
    /// again.
    pub(super) fn run(&mut self, address: IpAddr, kernel: &mut dyn Kernel) -> bool {
        let Some(failure) = self.wanted.get_mut(&address) else { return true };
        let attempts = failure.as_ref().map_or(0, |failure| failure.attempts);
        if failure.as_ref().is_some_and(|failure| failure.retry_at > kernel.now()) || kernel.is_stopping() {
            return false;
        }
        match kernel.flush_conntrack(address) {
            Ok(()) => {
                self.wanted.remove(&address);
                true
            }
            Err(error) => {
                let pause = FIRST_RETRY.saturating_mul(2u32.saturating_pow(attempts)).min(LAST_RETRY);
                *failure = Some(Failure { error, attempts: attempts + 1, retry_at: kernel.now() + pause });
                false
            }
        }
    }

    pub(super) fn run_all(&mut self, kernel: &mut dyn Kernel) {
        let addresses: Vec<IpAddr> = self.wanted.keys().copied().collect();
        for address in addresses {
            self.run(address, kernel);
        }
    }

    /// What failed, and why.
    pub(super) fn failed(&self) -> impl Iterator<Item = (IpAddr, &KernelError)> {
        self.wanted.iter().filter_map(|(address, failure)| Some((*address, &failure.as_ref()?.error)))
    }

    /// When something is to be tried again.
    pub(super) fn next(&self) -> Option<Duration> {
        self.wanted.values().flatten().map(|failure| failure.retry_at).min()
    }
}
