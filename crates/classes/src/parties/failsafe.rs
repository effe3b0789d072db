//! Addresses that failsafe ports distinguish.

use std::net::IpAddr;

use ahash::AHashMap;
use tortie_model::{Cidr, Family};

use crate::compiled::Compiled;
use crate::networks::unspecified;
use crate::states::States;

/// Addresses by the networks of failsafe ports that they are in.
pub(crate) struct Failsafe {
    nets: Vec<Cidr>,
    /// The first address that is in just these.
    first: AHashMap<Vec<bool>, IpAddr>,
    /// For all addresses if failsafe ports have no networks, or there are no host endpoints.
    any: IpAddr,
}

impl Failsafe {
    pub(crate) fn new(states: States<&Compiled<'_>>, family: Family) -> Self {
        let both = [states.before, states.after];
        let has_hosts = both.iter().any(|state| !state.classes.hosts.is_empty());
        let settings = both.iter().filter(|_| has_hosts).flat_map(|state| state.classes.nodes.all_settings());
        let ports = settings.flat_map(|settings| settings.failsafe_inbound.iter().chain(&settings.failsafe_outbound));
        let mut nets: Vec<Cidr> = ports.filter_map(|port| Some(port.net?.masked())).collect();
        nets.retain(|net| net.family() == family && net.prefix_len() > 0);
        nets.sort_unstable();
        nets.dedup();
        Self { nets, first: AHashMap::new(), any: unspecified(family) }
    }

    /// An address that failsafe ports treat like this one.
    pub(crate) fn like(&mut self, address: IpAddr) -> IpAddr {
        if self.nets.is_empty() {
            return self.any;
        }
        let within = self.nets.iter().map(|net| net.contains(address)).collect();
        *self.first.entry(within).or_insert(address)
    }

    /// The networks, each once.
    pub(crate) fn nets(&self) -> impl Iterator<Item = Cidr> + '_ {
        self.nets.iter().copied()
    }
}
