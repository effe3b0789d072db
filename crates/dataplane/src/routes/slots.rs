//! Who wants which route, and who gets it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use tortie_model::{Cidr, InterfaceName};

use crate::links::KnownLinks;
use crate::route::{RouteKey, RouteTarget};

/// Who wants a route. Of several that want the same the first in this order has it (`felix/routetable/defs.go`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RouteClass {
    /// To a workload of this node.
    LocalWorkload,
    /// Through an encrypted tunnel, or around it.
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
    /// To addresses of this node that no workload has, of a pool with VXLAN.
    BlackholeVxlan,
    /// The same with IP-in-IP.
    BlackholeIpip,
    /// The same without encapsulation.
    BlackholeNoEncap,
}

/// The routes of one class that leave by one interface, or by none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot {
    pub(crate) class: RouteClass,
    pub(crate) interface: Option<InterfaceName>,
}

/// What all writers want. Targets have no interface yet: that is the slot's, as soon as it exists.
#[derive(Debug, Default)]
pub(super) struct Slots {
    slots: BTreeMap<Slot, BTreeSet<RouteKey>>,
    claims: BTreeMap<RouteKey, Vec<(Slot, RouteTarget)>>,
    by_interface: BTreeMap<InterfaceName, BTreeSet<Slot>>,
}

impl Slots {
    /// The slot wants this route for the key, or none any more. Returns whether that is new.
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
                self.forget(slot, &key);
                true
            }
            (None, None) => false,
        };
        if self.claims.get(&key).is_some_and(Vec::is_empty) {
            self.claims.remove(&key);
        }
        is_new
    }

    fn forget(&mut self, slot: &Slot, key: &RouteKey) {
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

    /// What a slot wants.
    pub(super) fn keys(&self, slot: &Slot) -> impl Iterator<Item = RouteKey> {
        self.slots.get(slot).into_iter().flatten().copied()
    }

    /// Whether any slot is of the interface.
    pub(super) fn uses(&self, interface: InterfaceName) -> bool {
        self.by_interface.contains_key(&interface)
    }

    /// What the slots of an interface want.
    pub(super) fn keys_of_interface(&self, interface: InterfaceName) -> impl Iterator<Item = RouteKey> {
        self.by_interface.get(&interface).into_iter().flatten().flat_map(|slot| self.keys(slot))
    }

    /// Whether anybody wants a route to the destination.
    pub(super) fn wants(&self, destination: Cidr) -> bool {
        self.claims.range(keys_to(destination)).next().is_some()
    }

    /// The routes that somebody wants to the destination.
    pub(super) fn keys_to(&self, destination: Cidr) -> impl Iterator<Item = &RouteKey> {
        self.claims.range(keys_to(destination)).map(|(key, _)| key)
    }

    /// The interfaces by which somebody wants to reach the destination.
    pub(super) fn interfaces_to(&self, destination: Cidr) -> impl Iterator<Item = InterfaceName> {
        let claims = self.claims.range(keys_to(destination)).flat_map(|(_, claims)| claims);
        claims.filter_map(|(slot, _)| slot.interface)
    }

    /// The route that counts: what is on interfaces that are missing or down does not. Of several of the same class the
    /// youngest interface wins: it is the one that an address has moved to.
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

/// All keys of one destination.
fn keys_to(destination: Cidr) -> std::ops::RangeInclusive<RouteKey> {
    let first = RouteKey { destination, tos: 0, metric: 0 };
    first..=RouteKey { tos: u8::MAX, metric: u32::MAX, ..first }
}
