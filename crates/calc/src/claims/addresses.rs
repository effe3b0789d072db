//! Counts of the objects that have an address.

use std::net::IpAddr;

use ahash::AHashMap;
use tortie_model::{HostConfigKey, HostEndpointKey, Hostname};

/// Number of objects by address; families are kept apart so that an IPv4 address costs eight bytes.
#[derive(Debug, Default)]
pub(super) struct AddressCounts {
    v4: AHashMap<[u8; 4], u32>,
    v6: AHashMap<[u8; 16], u32>,
}

impl AddressCounts {
    pub(super) fn add(&mut self, address: IpAddr) {
        *match address {
            IpAddr::V4(v4) => self.v4.entry(v4.octets()).or_default(),
            IpAddr::V6(v6) => self.v6.entry(v6.octets()).or_default(),
        } += 1;
    }

    pub(super) fn remove(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(v4) => remove(&mut self.v4, v4.octets()),
            IpAddr::V6(v6) => remove(&mut self.v6, v6.octets()),
        }
    }

    pub(super) fn contains(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => self.v4.contains_key(&v4.octets()),
            IpAddr::V6(v6) => self.v6.contains_key(&v6.octets()),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }
}

fn remove<const N: usize>(counts: &mut AHashMap<[u8; N], u32>, octets: [u8; N]) {
    if let Some(count) = counts.get_mut(&octets) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&octets);
        }
    }
}

/// An object that tells an address of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum NodeSource {
    Node(Hostname),
    Wireguard(Hostname),
    /// A parameter of one node; tunnel addresses are such.
    Config(HostConfigKey),
    HostEndpoint(HostEndpointKey),
}

/// Addresses of nodes and their tunnels.
#[derive(Debug, Default)]
pub(super) struct NodeAddresses {
    by_source: AHashMap<NodeSource, Box<[IpAddr]>>,
    counts: AddressCounts,
}

impl NodeAddresses {
    /// Replaces the addresses that an object tells. Returns all addresses that it told or tells, if these differ.
    pub(super) fn set(&mut self, source: NodeSource, addresses: Box<[IpAddr]>) -> Vec<IpAddr> {
        let after = addresses.clone();
        let before = if addresses.is_empty() {
            self.by_source.remove(&source)
        } else {
            self.by_source.insert(source, addresses)
        };
        let before = before.unwrap_or_default();
        if before == after {
            return Vec::new();
        }
        after.iter().for_each(|address| self.counts.add(*address));
        before.iter().for_each(|address| self.counts.remove(*address));
        before.into_iter().chain(after).collect()
    }

    pub(super) fn contains(&self, address: IpAddr) -> bool {
        self.counts.contains(address)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_source.is_empty() && self.counts.is_empty()
    }
}
