//! VXLAN tunnel endpoints (VTEPs) of one family (`felix/dataplane/linux/vxlan_mgr.go`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tortie_model::desired::VtepAddresses;
use tortie_model::{Hostname, Mac};

use crate::vtep_entries::VtepEntries;

/// VTEPs of the other nodes. Two nodes may claim the same address while one takes it over from the
/// other; then the first by name has it.
#[derive(Debug, Default)]
pub(crate) struct Vteps {
    vteps: BTreeMap<Hostname, VtepAddresses>,
    by_address: BTreeMap<IpAddr, BTreeSet<Hostname>>,
    by_mac: BTreeMap<Mac, BTreeSet<Hostname>>,
    dirty: BTreeSet<Hostname>,
    dirty_addresses: BTreeSet<IpAddr>,
    dirty_macs: BTreeSet<Mac>,
}

impl Vteps {
    /// Sets or removes the VTEP of another node.
    pub(crate) fn set(&mut self, node: &Hostname, vtep: Option<VtepAddresses>) {
        let old = match vtep {
            Some(vtep) => self.vteps.insert(node.clone(), vtep),
            None => self.vteps.remove(node),
        };
        if old == vtep {
            return;
        }
        if let Some(old) = old {
            remove_node(&mut self.by_address, &old.tunnel, node);
            remove_node(&mut self.by_mac, &old.mac, node);
        }
        if let Some(new) = vtep {
            self.by_address.entry(new.tunnel).or_default().insert(node.clone());
            self.by_mac.entry(new.mac).or_default().insert(node.clone());
        }
        for vtep in old.into_iter().chain(vtep) {
            self.dirty_addresses.insert(vtep.tunnel);
            self.dirty_macs.insert(vtep.mac);
        }
        self.dirty.insert(node.clone());
    }

    /// Returns the tunnel address of a node.
    pub(crate) fn gateway(&self, node: &Hostname) -> Option<IpAddr> {
        self.vteps.get(node).map(|vtep| vtep.tunnel)
    }

    /// Returns the allowed source addresses of tunnel packets.
    pub(crate) fn parents(&self) -> impl Iterator<Item = IpAddr> {
        self.vteps.values().map(|vtep| vtep.parent)
    }

    /// Updates the device's entries; returns the nodes that changed.
    pub(crate) fn complete(&mut self, entries: &mut VtepEntries) -> BTreeSet<Hostname> {
        let Self { vteps, by_address, by_mac, .. } = self;
        let first =
            |nodes: Option<&BTreeSet<Hostname>>| nodes.and_then(BTreeSet::first).and_then(|node| vteps.get(node));
        for address in std::mem::take(&mut self.dirty_addresses) {
            entries.set_neighbour(address, first(by_address.get(&address)).map(|vtep| vtep.mac));
        }
        for mac in std::mem::take(&mut self.dirty_macs) {
            entries.set_destination(mac, first(by_mac.get(&mac)).map(|vtep| vtep.parent));
        }
        std::mem::take(&mut self.dirty)
    }
}

fn remove_node<K: Ord>(index: &mut BTreeMap<K, BTreeSet<Hostname>>, key: &K, node: &Hostname) {
    if let Some(nodes) = index.get_mut(key) {
        nodes.remove(node);
        if nodes.is_empty() {
            index.remove(key);
        }
    }
}
