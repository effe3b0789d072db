//! The network interfaces of the node, as an observer of the kernel reports them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tortie_iptables::InterfaceName;
use tortie_model::IfaceName;

/// A change of a network interface. Deliberately exhaustive: these are all there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// The interface exists and can carry traffic (`IFF_RUNNING`).
    Up {
        /// Its name.
        name: IfaceName,
        /// Its index; another one under the same name is another interface.
        index: u32,
    },
    /// The interface exists but cannot carry traffic.
    Down {
        /// Its name.
        name: IfaceName,
        /// Its index.
        index: u32,
    },
    /// There is no interface of that name.
    Gone {
        /// The name.
        name: IfaceName,
    },
    /// All addresses of the interface; also known while it is down.
    Addresses {
        /// Its name.
        name: IfaceName,
        /// All of them.
        addresses: BTreeSet<IpAddr>,
    },
}

/// An interface that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) is_up: bool,
}

/// Whether an interface bears one of the prefixes of workload interfaces.
pub(crate) fn is_workload(prefixes: &[InterfaceName], interface: &str) -> bool {
    prefixes.iter().any(|prefix| interface.starts_with(prefix.as_str()))
}

/// All that is known of interfaces.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownLinks {
    links: BTreeMap<IfaceName, Link>,
    addresses: BTreeMap<IfaceName, BTreeSet<IpAddr>>,
    names: BTreeMap<u32, IfaceName>,
}

/// What an event changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LinkChange {
    /// Index or state.
    State(IfaceName),
    Addresses(IfaceName),
}

impl KnownLinks {
    pub(crate) fn apply(&mut self, event: LinkEvent) -> Vec<LinkChange> {
        match event {
            LinkEvent::Up { name, index } => self.set(name, Some(Link { index, is_up: true })),
            LinkEvent::Down { name, index } => self.set(name, Some(Link { index, is_up: false })),
            LinkEvent::Gone { name } => {
                let mut changes = self.set(name.clone(), None);
                if self.addresses.remove(&name).is_some() {
                    changes.push(LinkChange::Addresses(name));
                }
                changes
            }
            LinkEvent::Addresses { name, addresses } => {
                if self.addresses.get(&name) == Some(&addresses) {
                    return Vec::new();
                }
                self.addresses.insert(name.clone(), addresses);
                vec![LinkChange::Addresses(name)]
            }
        }
    }

    fn set(&mut self, name: IfaceName, link: Option<Link>) -> Vec<LinkChange> {
        let old = match link {
            Some(link) => self.links.insert(name.clone(), link),
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
            self.names.insert(link.index, name.clone());
        }
        vec![LinkChange::State(name)]
    }

    pub(crate) fn get(&self, name: &str) -> Option<Link> {
        self.links.get(name).copied()
    }

    pub(crate) fn is_up(&self, name: &str) -> bool {
        self.get(name).is_some_and(|link| link.is_up)
    }

    /// The name of the interface with this index.
    pub(crate) fn name(&self, index: u32) -> Option<&IfaceName> {
        self.names.get(&index)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&IfaceName, Link)> {
        self.links.iter().map(|(name, link)| (name, *link))
    }

    /// The addresses of an interface; none if they are not known.
    pub(crate) fn addresses_of(&self, name: &IfaceName) -> BTreeSet<IpAddr> {
        self.addresses.get(name).cloned().unwrap_or_default()
    }

    /// Interfaces whose addresses are known, up or not.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = (&IfaceName, &BTreeSet<IpAddr>)> {
        self.addresses.iter()
    }
}
