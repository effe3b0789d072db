//! Neighbours and proxied addresses of the fake kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tortie_model::{Family, Mac};

use super::FakeKernel;
use crate::device::FdbEntry;
use crate::kernel::Neighbours;
use crate::kernel_error::KernelError;
use crate::neighbour::{AddressPlace, Neighbour, NeighbourChange, ProxyNeighbour, ProxyNeighbourChange};

/// Neighbour and forwarding entries, and proxied addresses.
#[derive(Clone, Debug, Default)]
pub struct FakeNeighbours {
    /// Permanent neighbour entries.
    pub entries: BTreeMap<(u32, IpAddr), Mac>,
    /// Forwarding entries of devices.
    pub fdb: BTreeMap<(u32, Mac), IpAddr>,
    /// Addresses for which requests are answered.
    pub proxied: BTreeSet<ProxyNeighbour>,
    /// Addresses that were announced, in order.
    pub announced: Vec<ProxyNeighbour>,
    /// Interfaces on which requests cannot be answered.
    pub mute_interfaces: BTreeSet<u32>,
    /// Places of addresses.
    pub places: BTreeMap<IpAddr, AddressPlace>,
}

impl FakeKernel {
    fn change_proxied(&mut self, change: &ProxyNeighbourChange) -> Result<(), KernelError> {
        self.writes.neighbours += 1;
        match change {
            ProxyNeighbourChange::Add(entry) => {
                self.listen(entry.interface)?;
                self.neighbours.proxied.insert(*entry);
                Ok(())
            }
            ProxyNeighbourChange::Remove(entry) => {
                self.neighbours.proxied.remove(entry).then_some(()).ok_or(KernelError::NotFound)
            }
        }
    }

    fn announce_one(&mut self, neighbour: ProxyNeighbour) -> Result<(), KernelError> {
        self.listen(neighbour.interface)?;
        self.neighbours.announced.push(neighbour);
        Ok(())
    }

    fn listen(&self, interface: u32) -> Result<(), KernelError> {
        if self.links.removed.contains(&interface) {
            return Err(KernelError::NotFound);
        }
        if self.neighbours.mute_interfaces.contains(&interface) {
            return Err(KernelError::Failed("Operation not permitted".into()));
        }
        Ok(())
    }
}

impl Neighbours for FakeKernel {
    fn permanent_neighbours(&mut self, family: Family) -> Result<Vec<Neighbour>, KernelError> {
        self.list()?;
        let entries = self.neighbours.entries.iter().filter(|((_, address), _)| Family::of(*address) == family);
        Ok(entries
            .map(|((interface, address), mac)| Neighbour { interface: *interface, address: *address, mac: *mac })
            .collect())
    }

    fn fdb(&mut self, interface: u32) -> Result<Vec<FdbEntry>, KernelError> {
        self.list()?;
        let entries = self.neighbours.fdb.iter().filter(|((index, _), _)| *index == interface);
        Ok(entries.map(|((_, mac), node)| FdbEntry { interface, mac: *mac, destination: *node }).collect())
    }

    fn change_neighbours(&mut self, changes: &[NeighbourChange]) -> Vec<Result<(), KernelError>> {
        let mut change = |change: &NeighbourChange| {
            self.writes.neighbours += 1;
            match change {
                NeighbourChange::Set(entry) if self.links.removed.contains(&entry.interface) => {
                    Err(KernelError::NotFound)
                }
                NeighbourChange::Set(entry) => {
                    self.neighbours.entries.insert((entry.interface, entry.address), entry.mac);
                    Ok(())
                }
                NeighbourChange::Delete(entry) => {
                    let old = self.neighbours.entries.remove(&(entry.interface, entry.address));
                    old.map(drop).ok_or(KernelError::NotFound)
                }
                NeighbourChange::SetFdb(entry) => {
                    if !self.links.devices.values().any(|(device, _)| device.index == entry.interface) {
                        return Err(KernelError::NotFound);
                    }
                    self.neighbours.fdb.insert((entry.interface, entry.mac), entry.destination);
                    Ok(())
                }
                NeighbourChange::DeleteFdb(entry) => {
                    self.neighbours.fdb.remove(&(entry.interface, entry.mac)).map(drop).ok_or(KernelError::NotFound)
                }
            }
        };
        changes.iter().map(&mut change).collect()
    }

    fn proxy_neighbours(&mut self, family: Family) -> Result<Vec<ProxyNeighbour>, KernelError> {
        self.list()?;
        Ok(self.neighbours.proxied.iter().copied().filter(|entry| Family::of(entry.address) == family).collect())
    }

    fn change_proxy_neighbours(&mut self, changes: &[ProxyNeighbourChange]) -> Vec<Result<(), KernelError>> {
        changes.iter().map(|change| self.change_proxied(change)).collect()
    }

    fn announce(&mut self, neighbours: &[ProxyNeighbour]) -> Vec<Result<(), KernelError>> {
        neighbours.iter().map(|neighbour| self.announce_one(*neighbour)).collect()
    }

    fn locate(
        &mut self,
        addresses: &[(IpAddr, Option<AddressPlace>)],
    ) -> Result<Vec<Option<AddressPlace>>, KernelError> {
        self.list()?;
        Ok(addresses.iter().map(|(address, _)| self.neighbours.places.get(address).cloned()).collect())
    }
}
