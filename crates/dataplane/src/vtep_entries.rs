//! Neighbour and forwarding entries of a VXLAN device for other nodes: the MAC address of each
//! tunnel address, and the node behind each MAC address (`felix/vxlanfdb`).

use std::net::IpAddr;
use std::time::Duration;

use tortie_model::{Family, InterfaceName, Mac};
use tortie_netfilter::delta::Delta;

use crate::device::FdbEntry;
use crate::kernel::Neighbours;
use crate::kernel_error::KernelError;
use crate::links::KnownLinks;
use crate::neighbour::{Neighbour, NeighbourChange};
use crate::report::DataplaneProblem;
use crate::routes::BATCH;

/// Permanent entries of one device, all of which are ours.
#[derive(Debug)]
pub(crate) struct VtepEntries {
    family: Family,
    device: InterfaceName,
    neighbours: Delta<IpAddr, Mac>,
    destinations: Delta<Mac, IpAddr>,
    /// Index of the device whose entries were read.
    interface: Option<u32>,
    must_read: bool,
    last_read: Option<Duration>,
    retry_at: Option<Duration>,
}

impl VtepEntries {
    pub(crate) fn new(family: Family, device: InterfaceName) -> Self {
        Self {
            family,
            device,
            neighbours: Delta::new(),
            destinations: Delta::new(),
            interface: None,
            must_read: true,
            last_read: None,
            retry_at: None,
        }
    }

    /// Sets or removes the MAC address of a tunnel address.
    pub(crate) fn set_neighbour(&mut self, address: IpAddr, mac: Option<Mac>) {
        match mac {
            Some(mac) => self.neighbours.set_desired(address, mac),
            None => self.neighbours.remove_desired(&address),
        };
    }

    /// Sets or removes the node behind a MAC address.
    pub(crate) fn set_destination(&mut self, mac: Mac, destination: Option<IpAddr>) {
        match destination {
            Some(destination) => self.destinations.set_desired(mac, destination),
            None => self.destinations.remove_desired(&mac),
        };
    }

    /// Notes that the device appeared, disappeared or changed its state.
    pub(crate) fn on_link(&mut self) {
        self.must_read = true;
    }

    /// Returns the time until the next refresh or retry.
    pub(crate) fn next(&self, now: Duration, retry: Duration, refresh: Option<Duration>) -> Option<Duration> {
        let refresh = self.interface.and(refresh.zip(self.last_read)).map(|(interval, last)| last + interval);
        let retry = self.retry_at.map(|failed| failed + retry);
        refresh.into_iter().chain(retry).min().map(|at| at.saturating_sub(now))
    }

    /// Brings the device's entries to the desired state, if the device is desired and up.
    pub(crate) fn apply(
        &mut self,
        is_wanted: bool,
        kernel: &mut dyn Neighbours,
        links: &KnownLinks,
        refresh: Option<Duration>,
        problems: &mut Vec<DataplaneProblem>,
    ) {
        self.retry_at = None;
        let Some(link) = links.get(self.device).filter(|link| link.is_up && is_wanted) else {
            self.interface = None;
            return;
        };
        let now = kernel.now();
        let is_due = refresh.zip(self.last_read).is_some_and(|(interval, last)| now >= last + interval);
        if self.must_read || is_due || self.interface != Some(link.index) {
            if !self.read(kernel, link.index, problems) {
                self.retry_at = Some(now);
                return;
            }
            self.last_read = Some(now);
        }
        let before = problems.len();
        self.write(kernel, link.index, problems);
        if problems.len() > before || self.must_read {
            self.retry_at = Some(now);
        }
    }

    fn read(&mut self, kernel: &mut dyn Neighbours, interface: u32, problems: &mut Vec<DataplaneProblem>) -> bool {
        let family = self.family;
        let neighbours = match kernel.permanent_neighbours(family) {
            Ok(neighbours) => neighbours,
            Err(error) => {
                problems.push(DataplaneProblem::Neighbours { family, error });
                return false;
            }
        };
        let entries = match kernel.fdb(interface) {
            Ok(entries) => entries,
            Err(error) => {
                problems.push(DataplaneProblem::FdbEntries { interface, error });
                return false;
            }
        };
        let of_device = neighbours.into_iter().filter(|entry| entry.interface == interface);
        self.neighbours.replace_observed(of_device.map(|entry| (entry.address, entry.mac)));
        self.destinations.replace_observed(entries.into_iter().map(|entry| (entry.mac, entry.destination)));
        self.interface = Some(interface);
        self.must_read = false;
        true
    }

    fn write(&mut self, kernel: &mut dyn Neighbours, interface: u32, problems: &mut Vec<DataplaneProblem>) {
        let neighbour = |address: &IpAddr, mac: &Mac| Neighbour { interface, address: *address, mac: *mac };
        let entry = |mac: &Mac, destination: &IpAddr| FdbEntry { interface, mac: *mac, destination: *destination };
        // A neighbour entry is useless until the forwarding entry of its MAC address exists.
        let destinations = self.destinations.pending_writes().map(|(mac, write)| entry(mac, write.desired));
        let mut changes: Vec<NeighbourChange> = destinations.map(NeighbourChange::SetFdb).collect();
        let neighbours = self.neighbours.pending_writes().map(|(address, write)| neighbour(address, write.desired));
        changes.extend(neighbours.map(NeighbourChange::Set));
        let gone = self.neighbours.pending_removals().map(|(address, mac)| neighbour(address, mac));
        changes.extend(gone.map(NeighbourChange::Delete));
        let gone = self.destinations.pending_removals().map(|(mac, destination)| entry(mac, destination));
        changes.extend(gone.map(NeighbourChange::DeleteFdb));
        for batch in changes.chunks(BATCH) {
            if kernel.is_stopping() {
                return;
            }
            let mut outcomes = kernel.change_neighbours(batch).into_iter();
            for change in batch {
                let outcome = outcomes.next().unwrap_or_else(|| Err(KernelError::no_answer()));
                self.note(change, outcome, problems);
            }
        }
    }

    fn note(
        &mut self,
        change: &NeighbourChange,
        outcome: Result<(), KernelError>,
        problems: &mut Vec<DataplaneProblem>,
    ) {
        use NeighbourChange::{Delete, DeleteFdb, Set, SetFdb};
        match (outcome, *change) {
            (Ok(()), Set(entry)) => self.neighbours.confirm_written(&entry.address),
            (Ok(()), SetFdb(entry)) => self.destinations.confirm_written(&entry.mac),
            (Ok(()) | Err(KernelError::NotFound), Delete(entry)) => self.neighbours.confirm_removed(&entry.address),
            (Ok(()) | Err(KernelError::NotFound), DeleteFdb(entry)) => self.destinations.confirm_removed(&entry.mac),
            // The device is gone or down; a link event follows.
            (Err(KernelError::NotFound | KernelError::LinkDown), _) => self.must_read = true,
            (Err(error), Set(neighbour) | Delete(neighbour)) => {
                self.must_read = true;
                problems.push(DataplaneProblem::Neighbour { neighbour, error });
            }
            (Err(error), SetFdb(entry) | DeleteFdb(entry)) => {
                self.must_read = true;
                problems.push(DataplaneProblem::FdbEntry { entry, error });
            }
        }
    }
}
