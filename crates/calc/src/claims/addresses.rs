//! Objects that have an address.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ahash::AHashMap;
use tortie_model::{HostConfigKey, HostEndpointKey, Hostname};

/// Values by address; families are kept apart so that the key of an IPv4 address costs four bytes.
#[derive(Debug, Default)]
struct ByAddress<V> {
    v4: AHashMap<[u8; 4], V>,
    v6: AHashMap<[u8; 16], V>,
}

impl<V: Default> ByAddress<V> {
    fn get(&self, address: IpAddr) -> Option<&V> {
        match address {
            IpAddr::V4(v4) => self.v4.get(&v4.octets()),
            IpAddr::V6(v6) => self.v6.get(&v6.octets()),
        }
    }

    fn or_default(&mut self, address: IpAddr) -> &mut V {
        match address {
            IpAddr::V4(v4) => self.v4.entry(v4.octets()).or_default(),
            IpAddr::V6(v6) => self.v6.entry(v6.octets()).or_default(),
        }
    }

    fn remove(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(v4) => drop(self.v4.remove(&v4.octets())),
            IpAddr::V6(v6) => drop(self.v6.remove(&v6.octets())),
        }
    }

    fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }
}

/// Namespace in place of that of a pod for endpoints of other orchestrators.
pub(super) const NO_NAMESPACE: &str = "";
/// Number in place of that of a namespace for an address of endpoints of several namespaces.
const SEVERAL: u32 = u32::MAX;

/// Endpoints with an address: how many, and the number of their namespace.
#[derive(Clone, Copy, Debug, Default)]
struct Owner {
    namespace: u32,
    count: u32,
}

#[derive(Debug)]
struct Namespace {
    number: u32,
    addresses: u32,
}

/// Addresses that the platform confirms, with the namespaces of their endpoints.
#[derive(Debug, Default)]
pub(super) struct ConfirmedAddresses {
    owners: ByAddress<Owner>,
    /// Endpoints by namespace, of the addresses of endpoints of several namespaces.
    shared: BTreeMap<IpAddr, BTreeMap<u32, u32>>,
    namespaces: AHashMap<Box<str>, Namespace>,
    last_number: u32,
}

impl ConfirmedAddresses {
    pub(super) fn add(&mut self, address: IpAddr, namespace: &str) {
        let number = self.join(namespace);
        let owner = self.owners.or_default(address);
        owner.count += 1;
        if owner.count == 1 {
            owner.namespace = number;
        } else if owner.namespace != number {
            let shared = self.shared.entry(address).or_default();
            if owner.namespace != SEVERAL {
                shared.insert(owner.namespace, owner.count - 1);
                owner.namespace = SEVERAL;
            }
            *shared.entry(number).or_default() += 1;
        }
    }

    pub(super) fn remove(&mut self, address: IpAddr, namespace: &str) {
        let Some(number) = self.leave(namespace) else { return };
        let owner = self.owners.or_default(address);
        owner.count = owner.count.saturating_sub(1);
        if let Some(shared) = self.shared.get_mut(&address) {
            if let Some(count) = shared.get_mut(&number) {
                *count -= 1;
            }
            shared.retain(|_, count| *count > 0);
            if let (1, Some((last, _))) = (shared.len(), shared.first_key_value()) {
                owner.namespace = *last;
                self.shared.remove(&address);
            }
        }
        if owner.count == 0 {
            self.owners.remove(address);
        }
    }

    pub(super) fn contains(&self, address: IpAddr) -> bool {
        self.owners.get(address).is_some()
    }

    /// Whether endpoints have the address, all of which are pods of other namespaces.
    pub(super) fn is_foreign(&self, address: IpAddr, namespace: &str) -> bool {
        let Some(owner) = self.owners.get(address) else { return false };
        let is_of = |namespace: &str| {
            self.namespaces.get(namespace).is_some_and(|Namespace { number, .. }| match owner.namespace {
                SEVERAL => self.shared.get(&address).is_some_and(|shared| shared.contains_key(number)),
                own => own == *number,
            })
        };
        !is_of(namespace) && !is_of(NO_NAMESPACE)
    }

    fn join(&mut self, namespace: &str) -> u32 {
        if let Some(known) = self.namespaces.get_mut(namespace) {
            known.addresses += 1;
            return known.number;
        }
        self.last_number = self.last_number.wrapping_add(1) % SEVERAL;
        self.namespaces.insert(namespace.into(), Namespace { number: self.last_number, addresses: 1 });
        self.last_number
    }

    fn leave(&mut self, namespace: &str) -> Option<u32> {
        let known = self.namespaces.get_mut(namespace)?;
        known.addresses -= 1;
        let number = known.number;
        if known.addresses == 0 {
            self.namespaces.remove(namespace);
        }
        Some(number)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.owners.is_empty() && self.shared.is_empty() && self.namespaces.is_empty()
    }
}

/// Number of objects by address.
#[derive(Debug, Default)]
struct AddressCounts(ByAddress<u32>);

impl AddressCounts {
    fn add(&mut self, address: IpAddr) {
        *self.0.or_default(address) += 1;
    }

    fn remove(&mut self, address: IpAddr) {
        let count = self.0.or_default(address);
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.0.remove(address);
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
        self.counts.0.get(address).is_some()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_source.is_empty() && self.counts.0.is_empty()
    }
}
