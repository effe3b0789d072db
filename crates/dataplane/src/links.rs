//! The network interfaces of the node, as an observer of the kernel reports them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tortie_iptables::InterfaceName;

/// A change of a network interface. Deliberately exhaustive: these are all there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// The interface exists and can carry traffic (`IFF_RUNNING`).
    Up {
        /// Its name.
        name: InterfaceName,
        /// Its index. An interface with the same name and another index is a different interface.
        index: u32,
    },
    /// The interface exists but cannot carry traffic.
    Down {
        /// Its name.
        name: InterfaceName,
        /// Its index.
        index: u32,
    },
    /// No interface has that name.
    Gone {
        /// The name.
        name: InterfaceName,
    },
    /// All addresses of the interface; reported even while it is down.
    Addresses {
        /// Its name.
        name: InterfaceName,
        /// All of its addresses.
        addresses: BTreeSet<IpAddr>,
    },
}

/// An interface that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) is_up: bool,
}

/// Reports whether the name of an interface has one of the prefixes of workload interfaces.
pub(crate) fn is_workload(prefixes: &[InterfaceName], interface: InterfaceName) -> bool {
    prefixes.iter().any(|prefix| interface.as_str().starts_with(prefix.as_str()))
}

/// All known interfaces and their addresses.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownLinks {
    links: BTreeMap<InterfaceName, Link>,
    addresses: BTreeMap<InterfaceName, BTreeSet<IpAddr>>,
    names: BTreeMap<u32, InterfaceName>,
}

/// Change caused by an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LinkChange {
    /// Index or state.
    State(InterfaceName),
    /// Addresses; with the former ones.
    Addresses { name: InterfaceName, old: BTreeSet<IpAddr> },
}

impl KnownLinks {
    pub(crate) fn apply(&mut self, event: LinkEvent) -> Vec<LinkChange> {
        match event {
            LinkEvent::Up { name, index } => self.set(name, Some(Link { index, is_up: true })),
            LinkEvent::Down { name, index } => self.set(name, Some(Link { index, is_up: false })),
            LinkEvent::Gone { name } => {
                let mut changes = self.set(name, None);
                if let Some(old) = self.addresses.remove(&name) {
                    changes.push(LinkChange::Addresses { name, old });
                }
                changes
            }
            LinkEvent::Addresses { name, addresses } => {
                if self.addresses.get(&name) == Some(&addresses) {
                    return Vec::new();
                }
                let old = self.addresses.insert(name, addresses).unwrap_or_default();
                vec![LinkChange::Addresses { name, old }]
            }
        }
    }

    fn set(&mut self, name: InterfaceName, link: Option<Link>) -> Vec<LinkChange> {
        let old = match link {
            Some(link) => self.links.insert(name, link),
            None => self.links.remove(&name),
        };
        if old == link {
            return Vec::new();
        }
        if let Some(old) = old
            && self.names.get(&old.index) == Some(&name)
        {
            self.names.remove(&old.index);
        }
        if let Some(link) = link {
            self.names.insert(link.index, name);
        }
        vec![LinkChange::State(name)]
    }

    pub(crate) fn get(&self, name: InterfaceName) -> Option<Link> {
        self.links.get(&name).copied()
    }

    pub(crate) fn is_up(&self, name: InterfaceName) -> bool {
        self.get(name).is_some_and(|link| link.is_up)
    }

    /// Returns the name of the interface with this index.
    pub(crate) fn name(&self, index: u32) -> Option<InterfaceName> {
        self.names.get(&index).copied()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (InterfaceName, Link)> {
        self.links.iter().map(|(name, link)| (*name, *link))
    }

    /// Returns the addresses of an interface; none if they are unknown.
    pub(crate) fn addresses_of(&self, name: InterfaceName) -> BTreeSet<IpAddr> {
        self.addresses.get(&name).cloned().unwrap_or_default()
    }

    /// Returns the interfaces whose addresses are known, up or not.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = (InterfaceName, &BTreeSet<IpAddr>)> {
        self.addresses.iter().map(|(name, addresses)| (*name, addresses))
    }
}
