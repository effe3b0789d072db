//! Addresses that the fake kernel answers for.

use super::FakeKernel;
use crate::kernel::KernelError;
use crate::proxy_neighbours::{ProxyNeighbour, ProxyNeighbourChange};

impl FakeKernel {
    pub(super) fn change_proxied(&mut self, change: &ProxyNeighbourChange) -> Result<(), KernelError> {
        self.writes.neighbours += 1;
        match change {
            ProxyNeighbourChange::Add(entry) => {
                self.listen(entry.interface)?;
                self.proxied.insert(*entry);
                Ok(())
            }
            ProxyNeighbourChange::Remove(entry) => {
                self.proxied.remove(entry).then_some(()).ok_or(KernelError::NotFound)
            }
        }
    }

    pub(super) fn announce_one(&mut self, neighbour: ProxyNeighbour) -> Result<(), KernelError> {
        self.listen(neighbour.interface)?;
        self.announced.push(neighbour);
        Ok(())
    }

    fn listen(&self, interface: u32) -> Result<(), KernelError> {
        if self.removed_devices.contains(&interface) {
            return Err(KernelError::NotFound);
        }
        if self.mute_interfaces.contains(&interface) {
            return Err(KernelError::Failed("Operation not permitted".to_owned()));
        }
        Ok(())
    }
}
