//! Claims of the writers on routes, and the choice among conflicting claims.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use tortie_model::{Cidr, InterfaceName};

use crate::links::KnownLinks;
use crate::route::{RouteKey, RouteTarget};

/// Writer of a route. Among several claims on one key, the first class in this order wins
/// (`felix/routetable/defs.go`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RouteClass {
    /// To a workload of this node.
    LocalWorkload,
    /// Through an encrypted tunnel, or bypassing it.
    Wireguard,
    /// To another node of this subnet, for a pool with VXLAN.
    VxlanSameSubnet,
    /// Through a VXLAN tunnel.
    VxlanTunnel,
    /// To another node of this subnet, for a pool with IP-in-IP.
    IpipSameSubnet,
    /// Through an IP-in-IP tunnel.
    IpipTunnel,
    /// To another node, for a pool without encapsulation.
    NoEncap,
    /// To unassigned addresses of this node's IPAM blocks, of a pool with VXLAN.
    BlackholeVxlan,
    /// To unassigned addresses of this node's IPAM blocks, of a pool with IP-in-IP.
    BlackholeIpip,
    /// To unassigned addresses of this node's IPAM blocks, of a pool without encapsulation.
    BlackholeNoEncap,
}

/// The routes of one class that leave by one interface, or by none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot {
    pub(crate) class: RouteClass,
    pub(crate) interface: Option<InterfaceName>,
}

/// Claims of all writers. Their targets have no interface index: the slot's interface provides it
/// once it exists.
#[derive(Debug, Default)]
pub(super) struct Slots {
    slots: BTreeMap<Slot, BTreeSet<RouteKey>>,
    claims: BTreeMap<RouteKey, Vec<(Slot, RouteTarget)>>,
    by_interface: BTreeMap<InterfaceName, BTreeSet<Slot>>,
}

impl Slots {
    /// Sets or removes the slot's claim on a key. Returns whether the claim changed.
    pub(super) fn set(&mut self, slot: &Slot, key: RouteKey, target: Option<RouteTarget>) -> bool {
        let claims = self.claims.entry(key).or_default();
        let at = claims.iter().position(|(other, _)| other == slot);
        let is_new = match (at.and_then(|at| claims.get_mut(at)), target) {
            (Some((_, old)), Some(new)) => {
                let is_new = *old != new;
                *old = new;
                is_new
            }
            (None, Some(new)) => {
                claims.push((*slot, new));
                self.slots.entry(*slot).or_default().insert(key);
                if let Some(interface) = slot.interface {
                    self.by_interface.entry(interface).or_default().insert(*slot);
                }
                true
            }
            (Some(_), None) => {
                claims.retain(|(other, _)| other != slot);
                self.remove_key(slot, &key);
                true
            }
            (None, None) => false,
        };
        if self.claims.get(&key).is_some_and(Vec::is_empty) {
            self.claims.remove(&key);
        }
        is_new
    }

    fn remove_key(&mut self, slot: &Slot, key: &RouteKey) {
        let Some(keys) = self.slots.get_mut(slot) else { return };
        keys.remove(key);
        if !keys.is_empty() {
            return;
        }
        self.slots.remove(slot);
        if let Some(interface) = &slot.interface
            && let Some(slots) = self.by_interface.get_mut(interface)
        {
            slots.remove(slot);
            if slots.is_empty() {
                self.by_interface.remove(interface);
            }
        }
    }

    /// Returns the keys that a slot claims.
    pub(super) fn keys(&self, slot: &Slot) -> impl Iterator<Item = RouteKey> {
        self.slots.get(slot).into_iter().flatten().copied()
    }

    /// Reports whether any slot has the interface.
    pub(super) fn uses(&self, interface: InterfaceName) -> bool {
        self.by_interface.contains_key(&interface)
    }

    /// Returns the keys that the slots of an interface claim.
    pub(super) fn keys_of_interface(&self, interface: InterfaceName) -> impl Iterator<Item = RouteKey> {
        self.by_interface.get(&interface).into_iter().flatten().flat_map(|slot| self.keys(slot))
    }

    /// Reports whether any slot claims a route to the destination.
    pub(super) fn has_claim_to(&self, destination: Cidr) -> bool {
        self.claims.range(keys_to(destination)).next().is_some()
    }

    /// Returns the claimed keys of the destination.
    pub(super) fn keys_to(&self, destination: Cidr) -> impl Iterator<Item = &RouteKey> {
        self.claims.range(keys_to(destination)).map(|(key, _)| key)
    }

    /// Returns the interfaces of the slots that claim a route to the destination.
    pub(super) fn interfaces_to(&self, destination: Cidr) -> impl Iterator<Item = InterfaceName> {
        let claims = self.claims.range(keys_to(destination)).flat_map(|(_, claims)| claims);
        claims.filter_map(|(slot, _)| slot.interface)
    }

    /// Returns the winning route of a key. Claims on interfaces that are missing or down do not
    /// count. Among claims of one class, the interface with the highest index wins: it is the
    /// youngest, to which the address has moved.
    pub(super) fn winner(&self, key: &RouteKey, links: &KnownLinks) -> Option<RouteTarget> {
        let claims = self.claims.get(key).into_iter().flatten();
        let usable = claims.filter_map(|(slot, target)| match slot.interface {
            None => Some((slot.class, None, target)),
            Some(name) => {
                let link = links.get(name).filter(|link| link.is_up)?;
                Some((slot.class, Some(link.index), target))
            }
        });
        let first = usable.min_by_key(|(class, interface, _)| (*class, Reverse(*interface)));
        first.map(|(_, interface, target)| RouteTarget { interface, ..target.clone() })
    }
}

/// Returns the range of all keys of one destination.
fn keys_to(destination: Cidr) -> std::ops::RangeInclusive<RouteKey> {
    let first = RouteKey { destination, tos: 0, metric: 0 };
    first..=RouteKey { tos: u8::MAX, metric: u32::MAX, ..first }
}
