//! Addresses of the node on the interfaces of workloads that are BGP peers (`felix/linkaddrs`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use tortie_model::desired::WorkloadEndpointState;
use tortie_model::{BgpConfiguration, Cidr, Family, InterfaceName};

use crate::device::DeviceChange;
use crate::kernel::Links;
use crate::kernel_error::KernelError;
use crate::links::KnownLinks;
use crate::report::DataplaneProblem;

/// The addresses that workloads peer with, and the interfaces of these workloads.
#[derive(Debug)]
pub(crate) struct PeerAddresses {
    families: Vec<Family>,
    /// As configured for the cluster.
    wanted: BTreeMap<Family, IpAddr>,
    invalid: Vec<String>,
    /// All addresses that this process has wanted; others on interfaces without a peer belong to
    /// other programs.
    known: BTreeSet<IpAddr>,
    peers: BTreeSet<InterfaceName>,
    /// Interfaces to which this process has added an address.
    given: BTreeSet<InterfaceName>,
    /// Workload interfaces that may deviate from their desired addresses.
    dirty: BTreeSet<InterfaceName>,
    failures: BTreeMap<InterfaceName, KernelError>,
    retry_at: Option<Duration>,
}

impl PeerAddresses {
    pub(crate) const fn new(families: Vec<Family>) -> Self {
        Self {
            families,
            wanted: BTreeMap::new(),
            invalid: Vec::new(),
            known: BTreeSet::new(),
            peers: BTreeSet::new(),
            given: BTreeSet::new(),
            dirty: BTreeSet::new(),
            failures: BTreeMap::new(),
            retry_at: None,
        }
    }

    pub(crate) fn on_configuration(&mut self, configuration: &BgpConfiguration) {
        let before = std::mem::take(&mut self.wanted);
        self.invalid.clear();
        let texts = [&configuration.local_workload_peering_ip_v4, &configuration.local_workload_peering_ip_v6];
        for (family, text) in Family::ALL.into_iter().zip(texts).filter(|(_, text)| !text.is_empty()) {
            match text.parse() {
                Ok(address) if Family::of(address) == family => drop(self.wanted.insert(family, address)),
                _ => self.invalid.push(text.to_string()),
            }
        }
        if self.wanted != before {
            self.known.extend(self.wanted.values());
            self.dirty.extend(&self.peers);
        }
    }

    /// Notes the endpoint of a workload interface.
    pub(crate) fn on_owner(&mut self, interface: InterfaceName, owner: Option<&WorkloadEndpointState>) {
        let peer = owner.and_then(|state| state.computed.as_ref()?.local_bgp_peer.as_ref());
        let is_peer = peer.is_some_and(|name| !name.is_empty());
        if is_peer {
            self.peers.insert(interface)
        } else {
            self.peers.remove(&interface)
        };
        self.dirty.insert(interface);
    }

    /// Notes that an interface or its addresses changed. Returns whether it is that of a peer.
    pub(crate) fn on_link(&mut self, interface: InterfaceName) -> bool {
        let is_peer = self.peers.contains(&interface);
        if is_peer {
            self.dirty.insert(interface);
        }
        is_peer
    }

    /// Clears all pending work, because the kernel has no addresses of interfaces.
    pub(crate) fn leave(&mut self) {
        self.dirty.clear();
    }

    /// Reports whether some interface should have an address.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.peers.is_empty() && !self.wanted.is_empty()
    }

    pub(crate) fn next(&self, now: Duration) -> Option<Duration> {
        self.retry_at.map(|at| at.saturating_sub(now))
    }

    /// Brings all addresses that may deviate to their desired values, in the families in `open`.
    pub(crate) fn apply(
        &mut self,
        kernel: &mut dyn Links,
        links: &KnownLinks,
        open: &BTreeSet<Family>,
        retry: Duration,
        problems: &mut Vec<DataplaneProblem>,
    ) {
        let now = kernel.now();
        if self.retry_at.take_if(|at| *at <= now).is_some() {
            self.dirty.extend(self.failures.keys());
        }
        if !self.dirty.is_empty() && !open.is_empty() && !kernel.is_stopping() {
            let dirty = std::mem::take(&mut self.dirty);
            for interface in dirty.iter().copied() {
                self.failures.remove(&interface);
                if let Err(error) = self.reconcile(kernel, links, open, interface) {
                    self.failures.insert(interface, error);
                }
            }
            if self.families.iter().any(|family| !open.contains(family)) {
                self.dirty = dirty;
            }
            self.retry_at = (!self.failures.is_empty()).then_some(now + retry);
        }
        problems.extend(
            self.failures.iter().map(|(interface, error)| DataplaneProblem::PeerAddress {
                interface: *interface,
                error: error.clone(),
            }),
        );
        let origin = "address that local workloads peer with";
        problems.extend(self.invalid.iter().map(|text| DataplaneProblem::Network { origin, text: text.clone() }));
    }

    fn reconcile(
        &mut self,
        kernel: &mut dyn Links,
        links: &KnownLinks,
        open: &BTreeSet<Family>,
        interface: InterfaceName,
    ) -> Result<(), KernelError> {
        let is_peer = self.peers.contains(&interface);
        let may_have_one = self.given.contains(&interface) || !links.addresses_of(interface).is_disjoint(&self.known);
        if !is_peer && !may_have_one {
            return Ok(());
        }
        let Some(link) = links.get(interface) else {
            self.given.remove(&interface);
            return Ok(());
        };
        // A link event follows when the interface is up.
        if is_peer && !link.is_up {
            return Ok(());
        }
        for family in open {
            let wanted = self.wanted.get(family).filter(|_| is_peer).copied().map(Cidr::host);
            let found = kernel.addresses(link.index, *family)?;
            let is_ours = |net: &Cidr| {
                let address = net.address();
                // The kernel itself adds link-local addresses with a shorter prefix.
                *net == Cidr::host(address) && (wanted.is_some() || self.known.contains(&address))
            };
            for stale in found.iter().filter(|net| is_ours(net) && Some(**net) != wanted) {
                let deleted = kernel.change_device(&DeviceChange::DeleteAddress(link.index, *stale));
                deleted.or_else(unless(KernelError::NotFound))?;
            }
            if let Some(wanted) = wanted.filter(|wanted| !found.contains(wanted)) {
                let added = kernel.change_device(&DeviceChange::AddLinkAddress(link.index, wanted));
                added.or_else(unless(KernelError::Exists))?;
                self.given.insert(interface);
            }
        }
        if !is_peer && open.len() == self.families.len() {
            self.given.remove(&interface);
        }
        Ok(())
    }
}

fn unless(harmless: KernelError) -> impl FnOnce(KernelError) -> Result<(), KernelError> {
    move |error| if error == harmless { Ok(()) } else { Err(error) }
}
