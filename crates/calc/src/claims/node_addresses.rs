//! Addresses of nodes.

use std::net::IpAddr;

use ahash::AHashMap;
use tortie_model::{HostConfigKey, HostEndpointKey, Hostname};

/// Object that gives a node an address.
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
    /// Number of objects with each address.
    counts: AHashMap<IpAddr, usize>,
}

impl NodeAddresses {
    /// Replaces the addresses of an object. Returns the addresses from before and after, if they
    /// differ.
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
        after.iter().for_each(|address| *self.counts.entry(*address).or_default() += 1);
        before.iter().for_each(|address| self.forget(*address));
        before.into_iter().chain(after).collect()
    }

    #[expect(clippy::expect_used, reason = "removed addresses were counted before")]
    fn forget(&mut self, address: IpAddr) {
        let count = self.counts.get_mut(&address).expect("each address that an object told is counted");
        *count -= 1;
        if *count == 0 {
            self.counts.remove(&address);
        }
    }

    pub(super) fn contains(&self, address: IpAddr) -> bool {
        self.counts.contains_key(&address)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_source.is_empty() && self.counts.is_empty()
    }
}
