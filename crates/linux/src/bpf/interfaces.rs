//! Network interfaces by index, each with its name and all addresses, as enforcement needs them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tortie_dataplane::LinkEvent;
use tortie_model::InterfaceName;

/// Change that follows from an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum InterfaceChange {
    /// An interface has this index, name and these addresses.
    Is {
        /// Its index.
        index: u32,
        /// Its name.
        name: InterfaceName,
        /// Its addresses.
        addresses: Vec<IpAddr>,
    },
    /// No interface has this index any more.
    Gone(u32),
}

/// Known interfaces.
#[derive(Debug, Default)]
pub(super) struct Interfaces {
    indices: BTreeMap<InterfaceName, u32>,
    addresses: BTreeMap<InterfaceName, BTreeSet<IpAddr>>,
}

impl Interfaces {
    pub(super) fn apply(&mut self, event: &LinkEvent) -> Vec<InterfaceChange> {
        match event {
            LinkEvent::Up { name, index } | LinkEvent::Down { name, index } => {
                let before = self.indices.insert(*name, *index);
                if before == Some(*index) {
                    return Vec::new();
                }
                let gone = before.and_then(|before| self.gone(before));
                gone.into_iter().chain(self.is(*name)).collect()
            }
            LinkEvent::Gone { name } => {
                self.addresses.remove(name);
                let gone = self.indices.remove(name).and_then(|index| self.gone(index));
                gone.into_iter().collect()
            }
            LinkEvent::Addresses { name, addresses } => {
                let before = self.addresses.insert(*name, addresses.clone());
                if before.as_ref() == Some(addresses) { Vec::new() } else { self.is(*name).into_iter().collect() }
            }
        }
    }

    fn is(&self, name: InterfaceName) -> Option<InterfaceChange> {
        let index = *self.indices.get(&name)?;
        let addresses = self.addresses.get(&name).into_iter().flatten().copied().collect();
        Some(InterfaceChange::Is { index, name, addresses })
    }

    /// Returns the removal of an index unless it is still in use: a renamed interface appears under
    /// its new name before the old name disappears.
    fn gone(&self, index: u32) -> Option<InterfaceChange> {
        let is_used = self.indices.values().any(|used| *used == index);
        (!is_used).then_some(InterfaceChange::Gone(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is(index: u32, name: &str, addresses: &[&str]) -> InterfaceChange {
        let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
        InterfaceChange::Is { index, name: name.parse().unwrap(), addresses }
    }

    #[test]
    fn interfaces_are_reported_completely_and_only_if_changed() {
        let mut interfaces = Interfaces::default();
        let up = |name: &str, index| LinkEvent::Up { name: name.parse().unwrap(), index };
        let has = |name: &str, address: &str| LinkEvent::Addresses {
            name: name.parse().unwrap(),
            addresses: [address.parse().unwrap()].into(),
        };
        // Addresses may be known before.
        assert_eq!(interfaces.apply(&has("eth0", "192.0.2.1")), []);
        assert_eq!(interfaces.apply(&up("eth0", 2)), [is(2, "eth0", &["192.0.2.1"])]);
        assert_eq!(interfaces.apply(&up("eth0", 2)), []);
        assert_eq!(interfaces.apply(&LinkEvent::Down { name: "eth0".parse().unwrap(), index: 2 }), []);
        assert_eq!(interfaces.apply(&has("eth0", "192.0.2.2")), [is(2, "eth0", &["192.0.2.2"])]);
        assert_eq!(interfaces.apply(&has("eth0", "192.0.2.2")), []);
        // Replaced by another one.
        assert_eq!(interfaces.apply(&up("eth0", 7)), [InterfaceChange::Gone(2), is(7, "eth0", &["192.0.2.2"])]);
        // Renamed.
        assert_eq!(interfaces.apply(&up("lan", 7)), [is(7, "lan", &[])]);
        assert_eq!(interfaces.apply(&LinkEvent::Gone { name: "eth0".parse().unwrap() }), []);
        assert_eq!(interfaces.apply(&LinkEvent::Gone { name: "lan".parse().unwrap() }), [InterfaceChange::Gone(7)]);
        assert_eq!(interfaces.apply(&LinkEvent::Gone { name: "lan".parse().unwrap() }), []);
    }
}
