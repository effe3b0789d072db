//! Data of the cluster's nodes for the dataplane (`felix/calc/dataplane_passthru.go`).

use std::sync::Arc;

use ahash::AHashMap;
use tortie_model::desired::{HostMetadata, WireguardPeer};
use tortie_model::{Cidr, Family, Hostname, Node, NodeAddressKind, NodeBgp, Wireguard};

use crate::sequencer::Sequencer;

/// Remembers the sent metadata of each node, so that changes of other fields are not passed on.
#[derive(Debug, Default)]
pub(crate) struct Hosts {
    known: AHashMap<Hostname, HostMetadata>,
}

impl Hosts {
    /// Records a node; `None` removes it.
    pub(crate) fn on_node(&mut self, name: &Hostname, node: Option<&Node>, sequencer: &mut Sequencer) {
        let Some(metadata) = node.and_then(metadata) else {
            if self.known.remove(name).is_some() {
                sequencer.hosts.remove(name.clone());
            }
            return;
        };
        if self.known.get(name) != Some(&metadata) {
            self.known.insert(name.clone(), metadata.clone());
            sequencer.hosts.update(name.clone(), metadata);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }
}

/// Records a node's `WireGuard` identity; `None` removes it. A family without a key is left out.
pub(crate) fn on_wireguard(name: &Hostname, wireguard: Option<&Wireguard>, sequencer: &mut Sequencer) {
    let peer =
        |key: &Arc<str>, address| (!key.is_empty()).then(|| WireguardPeer { public_key: Arc::clone(key), address });
    match wireguard.and_then(|w| peer(&w.public_key, w.ipv4_address)) {
        Some(peer) => sequencer.wireguard.update(name.clone(), peer),
        None => sequencer.wireguard.remove(name.clone()),
    }
    match wireguard.and_then(|w| peer(&w.public_key_v6, w.ipv6_address)) {
        Some(peer) => sequencer.wireguard_v6.update(name.clone(), peer),
        None => sequencer.wireguard_v6.remove(name.clone()),
    }
}

/// Returns `None` for a node whose BGP section is present but empty: it counts as deleted.
fn metadata(node: &Node) -> Option<HostMetadata> {
    let bgp = node.bgp.as_ref();
    if bgp.is_some_and(|bgp| *bgp == NodeBgp::default()) {
        return None;
    }
    Some(HostMetadata {
        ipv4_addr: address(node, Family::V4),
        ipv6_addr: address(node, Family::V6),
        as_number: bgp.and_then(|bgp| bgp.as_number.clone()).unwrap_or_default(),
        labels: node.labels.clone(),
    })
}

/// Returns the BGP address if it is in CIDR notation, otherwise the first internal address of the
/// family, otherwise the first external one.
fn address(node: &Node, family: Family) -> Arc<str> {
    let bgp = node.bgp.as_ref().map(|bgp| match family {
        Family::V4 => &*bgp.ipv4_address,
        Family::V6 => &*bgp.ipv6_address,
    });
    let from_bgp = bgp.filter(|text| text.contains('/')).and_then(|text| text.parse::<Cidr>().ok());
    let from_list = |kind| {
        node.addresses
            .iter()
            .filter(|address| address.kind == kind)
            .filter_map(|address| address.address.parse::<Cidr>().ok())
            .find(|cidr| cidr.family() == family)
    };
    from_bgp
        .or_else(|| from_list(NodeAddressKind::InternalIp))
        .or_else(|| from_list(NodeAddressKind::ExternalIp))
        .map(|cidr| cidr.to_string().into())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
