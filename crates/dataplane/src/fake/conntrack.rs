//! Connection tracking of the fake kernel.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use tortie_model::{Cidr, Family};

use super::FakeKernel;
use crate::kernel::Conntrack;
use crate::kernel_error::KernelError;

/// Deletions of conntrack entries.
#[derive(Clone, Debug, Default)]
pub struct FakeConntrack {
    /// Addresses whose conntrack entries cannot be deleted.
    pub unflushable: BTreeSet<IpAddr>,
    /// Addresses whose conntrack entries were deleted, in order.
    pub flushed: Vec<IpAddr>,
    /// Addresses whose conntrack entries are still to be deleted.
    pub marked: BTreeSet<IpAddr>,
    /// Number of calls that deleted conntrack entries, each of any number of addresses.
    pub walks: usize,
}

impl Conntrack for FakeKernel {
    fn flush_conntrack(&mut self, addresses: &[IpAddr]) -> Vec<Result<(), KernelError>> {
        self.writes.flushes += addresses.len();
        self.conntrack.walks += 1;
        self.times.conntrack_waits.push(Duration::ZERO);
        let mut flush = |address: &IpAddr| {
            if self.conntrack.unflushable.contains(address) {
                return Err(KernelError::Failed("an entry is busy".into()));
            }
            self.conntrack.flushed.push(*address);
            Ok(())
        };
        addresses.iter().map(&mut flush).collect()
    }

    fn marked_flushes(&mut self, family: Family) -> Result<Vec<IpAddr>, KernelError> {
        Ok(self.conntrack.marked.iter().copied().filter(|address| Cidr::host(*address).family() == family).collect())
    }

    fn mark_flush(&mut self, address: IpAddr, is_pending: bool) -> Result<(), KernelError> {
        match is_pending {
            true => self.conntrack.marked.insert(address),
            false => self.conntrack.marked.remove(&address),
        };
        Ok(())
    }
}
