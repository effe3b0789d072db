//! Static ARP entries of workloads: their addresses are known, so the node needs no ARP requests,
//! and workloads cannot spoof replies.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use tortie_iptables::InterfaceName;
use tortie_model::{Family, Mac};
use tortie_netfilter::delta::Delta;

use crate::kernel::Neighbours;
use crate::kernel_error::KernelError;
use crate::links::KnownLinks;
use crate::neighbour::{Neighbour, NeighbourChange};
use crate::report::DataplaneProblem;

/// Permanent IPv4 neighbour entries on workload interfaces. Unwanted entries are left alone: they
/// vanish with their interface.
#[derive(Debug)]
pub(crate) struct StaticNeighbours {
    enabled: bool,
    desired: BTreeMap<InterfaceName, BTreeMap<IpAddr, Mac>>,
    dirty: BTreeSet<InterfaceName>,
    entries: Delta<(u32, IpAddr), Mac>,
    indices: BTreeMap<InterfaceName, u32>,
    must_read: bool,
    retry_at: Option<Duration>,
}

impl StaticNeighbours {
    pub(crate) fn new(enabled: bool) -> Self {
        Self {
            enabled,
            desired: BTreeMap::new(),
            dirty: BTreeSet::new(),
            entries: Delta::new(),
            indices: BTreeMap::new(),
            must_read: true,
            retry_at: None,
        }
    }

    /// Sets the entries of an interface to exactly these.
    pub(crate) fn set(&mut self, interface: InterfaceName, entries: BTreeMap<IpAddr, Mac>) {
        if !self.enabled || self.desired.get(&interface).is_some_and(|old| *old == entries) {
            return;
        }
        if entries.is_empty() {
            self.desired.remove(&interface);
        } else {
            self.desired.insert(interface, entries);
        }
        self.dirty.insert(interface);
    }

    /// Notes that an interface appeared, disappeared or changed its state.
    pub(crate) fn on_link(&mut self, interface: InterfaceName) {
        if self.desired.contains_key(&interface) {
            self.dirty.insert(interface);
            self.must_read = true;
        }
    }

    /// Has the kernel's entries read again, because other processes may have changed them.
    pub(crate) fn refresh(&mut self) {
        self.must_read = true;
    }

    /// Drops pending work, because the kernel has no neighbour entries.
    pub(crate) fn leave(&mut self) {
        self.dirty.clear();
    }

    /// Returns the time until the next retry.
    pub(crate) fn next(&self, now: Duration, retry_interval: Duration) -> Option<Duration> {
        self.retry_at.map(|failed| (failed + retry_interval).saturating_sub(now))
    }

    /// Writes missing and deviating entries, except on the interfaces in `held`.
    pub(crate) fn apply(
        &mut self,
        kernel: &mut dyn Neighbours,
        links: &KnownLinks,
        held: &BTreeSet<InterfaceName>,
        problems: &mut Vec<DataplaneProblem>,
    ) {
        for interface in std::mem::take(&mut self.dirty) {
            self.resolve(interface, links);
        }
        let _span = tracing::debug_span!("neighbours", wanted = self.entries.desired_len()).entered();
        let anything_wanted = self.entries.desired_len() > 0;
        if !self.enabled || !anything_wanted {
            self.retry_at = None;
            return;
        }
        if self.must_read {
            match kernel.permanent_neighbours(Family::V4) {
                Ok(observed) => {
                    let observed = observed.into_iter().map(|entry| ((entry.interface, entry.address), entry.mac));
                    self.entries.replace_observed(observed);
                    self.must_read = false;
                }
                Err(error) => {
                    problems.push(DataplaneProblem::Neighbours { family: Family::V4, error });
                    self.retry_at = Some(kernel.now());
                    return;
                }
            }
        }
        let writes: Vec<Neighbour> = self
            .entries
            .pending_writes()
            .filter(|((interface, _), _)| !links.name(*interface).is_some_and(|name| held.contains(&name)))
            .map(|((interface, address), write)| Neighbour {
                interface: *interface,
                address: *address,
                mac: *write.desired,
            })
            .collect();
        let mut failed = false;
        let changes: Vec<NeighbourChange> = writes.iter().copied().map(NeighbourChange::Set).collect();
        let mut outcomes = kernel.change_neighbours(&changes).into_iter();
        for neighbour in writes {
            match outcomes.next().unwrap_or_else(|| Err(KernelError::no_answer())) {
                Ok(()) => self.entries.confirm_written(&(neighbour.interface, neighbour.address)),
                Err(error) => {
                    failed = true;
                    // The interface is missing or down; a link event follows.
                    if !matches!(error, KernelError::NotFound | KernelError::LinkDown) {
                        problems.push(DataplaneProblem::Neighbour { neighbour, error });
                    }
                }
            }
        }
        self.retry_at = failed.then(|| kernel.now());
    }

    fn resolve(&mut self, interface: InterfaceName, links: &KnownLinks) {
        if let Some(index) = self.indices.remove(&interface) {
            let old: Vec<_> = self.entries.iter_desired().map(|(key, _)| *key).filter(|(i, _)| *i == index).collect();
            for key in old {
                self.entries.remove_desired(&key);
            }
        }
        let (Some(link), Some(entries)) = (links.get(interface), self.desired.get(&interface)) else { return };
        if !link.is_up {
            return;
        }
        self.indices.insert(interface, link.index);
        for (address, mac) in entries {
            self.entries.set_desired((link.index, *address), *mac);
        }
    }
}
