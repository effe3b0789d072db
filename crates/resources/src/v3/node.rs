//! Nodes.

use std::net::IpAddr;
use std::sync::Arc;

use tortie_model::{
    Cidr, ConfigName, Family, HostConfigKey, Hostname, Interner, Mac, Node, NodeAddress, NodeAddressKind, NodeBgp,
    NodeTunnels, Update, Wireguard, parse_address,
};

use crate::ipam_block;
use crate::object::BlockSource;
use crate::object::{Contributions, Object};
use crate::scalar;
use crate::tree::{Content, Cursor, Map, Sink};

/// Reads the fields of a `Node` of `projectcalico.org/v3` that the model keeps.
pub(crate) fn node(root: &Cursor<'_, '_>, map: Map<'_, '_>, labels: &mut Interner, sink: &mut Sink) -> Node {
    let metadata = map.field("metadata").and_then(|metadata| metadata.map(sink));
    let pairs = match &metadata {
        Some(metadata) => metadata.field("labels").map(|labels| labels.text_map(sink)).unwrap_or_default(),
        None => Vec::new(),
    };
    let labels = scalar::interned(root, pairs, labels, sink);
    let status = map.field("status").and_then(|status| status.map(sink));
    // An unreadable network is left out.
    let pod_networks = status.map(|status| status.texts("podCIDRs", sink)).unwrap_or_default();
    let pod_networks = pod_networks.iter().filter_map(|text| text.parse().ok()).collect();
    let Some(spec) = map.field("spec").and_then(|spec| spec.map(sink)) else {
        return Node { bgp: None, addresses: Box::default(), tunnels: None, pod_networks, labels };
    };
    let section = spec.field("bgp").and_then(|bgp| bgp.map(sink));
    Node {
        bgp: section.map(|map| bgp(map, sink)),
        addresses: spec.list("addresses", sink, address).into(),
        tunnels: NodeFacts::of_spec(spec, sink).tunnels(),
        pod_networks,
        labels,
    }
}

fn bgp(map: Map<'_, '_>, sink: &mut Sink) -> NodeBgp {
    let mut other = |name: &str| !map.text_or_empty(name, sink).is_empty();
    let has_other_fields = other("ipv4IPIPTunnelAddr") | other("routeReflectorClusterID");
    NodeBgp {
        ipv4_address: map.text_or_empty("ipv4Address", sink).into(),
        ipv6_address: map.text_or_empty("ipv6Address", sink).into(),
        as_number: map.field("asNumber").and_then(|number| as_number(number, sink)),
        has_other_fields,
    }
}

/// Reads an AS number: 32 bits, or two halves with a dot between them
/// (`api/pkg/lib/numorstring/asnumber.go`).
pub(crate) fn as_number(cursor: Cursor<'_, '_>, sink: &mut Sink) -> Option<Arc<str>> {
    let Content::Text(text) = cursor.content() else {
        return cursor.int::<u32>(0, i64::from(u32::MAX), sink).map(|n| n.to_string().into());
    };
    let number = parse_as_number(text);
    if number.is_none() {
        cursor.error(sink, format!("`{text}` is not an AS number"));
    }
    number.map(|n| n.to_string().into())
}

pub(crate) fn parse_as_number(text: &str) -> Option<u32> {
    let Some((high, low)) = text.split_once('.') else { return text.parse().ok() };
    let (high, low) = (high.parse::<u16>().ok()?, low.parse::<u16>().ok()?);
    Some(u32::from(high) << 16 | u32::from(low))
}

fn address(cursor: Cursor<'_, '_>, sink: &mut Sink) -> Option<NodeAddress> {
    let map = cursor.map(sink)?;
    let address: Arc<str> = map.text_or_empty("address", sink).into();
    let kind = match map.text_or_empty("type", sink) {
        "CalicoNodeIP" => NodeAddressKind::CalicoNodeIp,
        "InternalIP" => NodeAddressKind::InternalIp,
        "ExternalIP" => NodeAddressKind::ExternalIp,
        // Any address belongs to the node; host names and other types are not used.
        _ if address.parse::<Cidr>().is_ok() => NodeAddressKind::Other,
        _ => return None,
    };
    Some(NodeAddress { address, kind })
}

/// Further contributions of a node: tunnel addresses and `WireGuard` keys.
#[derive(Default)]
pub(crate) struct NodeFacts<'n> {
    pub(crate) ipip_address: &'n str,
    pub(crate) vxlan_address: &'n str,
    pub(crate) vxlan_mac: &'n str,
    pub(crate) vxlan_address_v6: &'n str,
    pub(crate) vxlan_mac_v6: &'n str,
    pub(crate) wireguard_address: &'n str,
    pub(crate) wireguard_address_v6: &'n str,
    pub(crate) wireguard_key: &'n str,
    pub(crate) wireguard_key_v6: &'n str,
}

impl<'n> NodeFacts<'n> {
    /// Reads them from the specification of a `Node` of `projectcalico.org/v3`.
    fn of_spec(spec: Map<'n, '_>, sink: &mut Sink) -> Self {
        let mut facts = Self {
            vxlan_address: spec.text_or_empty("ipv4VXLANTunnelAddr", sink),
            vxlan_mac: spec.text_or_empty("vxlanTunnelMACAddr", sink),
            vxlan_address_v6: spec.text_or_empty("ipv6VXLANTunnelAddr", sink),
            vxlan_mac_v6: spec.text_or_empty("vxlanTunnelMACAddrV6", sink),
            ..Self::default()
        };
        if let Some(bgp) = spec.field("bgp").and_then(|bgp| bgp.map(sink)) {
            facts.ipip_address = bgp.text_or_empty("ipv4IPIPTunnelAddr", sink);
        }
        if let Some(wireguard) = spec.field("wireguard").and_then(|field| field.map(sink)) {
            facts.wireguard_address = wireguard.text_or_empty("interfaceIPv4Address", sink);
            facts.wireguard_address_v6 = wireguard.text_or_empty("interfaceIPv6Address", sink);
        }
        facts
    }

    /// Returns the valid tunnel addresses.
    pub(crate) fn tunnels(&self) -> Option<Box<NodeTunnels>> {
        let address = parse_address;
        let tunnels = NodeTunnels {
            ipip: address(self.ipip_address),
            vxlan: address(self.vxlan_address),
            vxlan_v6: address(self.vxlan_address_v6),
            wireguard: address(self.wireguard_address),
            wireguard_v6: address(self.wireguard_address_v6),
        };
        (tunnels != NodeTunnels::default()).then(|| tunnels.into())
    }
}

/// Returns all contributions of a node
/// (`libcalico-go/lib/backend/syncersv1/updateprocessors/felixnodeprocessor.go`).
pub(crate) fn node_contributions(
    object: &Object<'_, '_>,
    node: Node,
    facts: &NodeFacts<'_>,
    sink: &mut Sink,
) -> Option<Contributions> {
    let host = Hostname::new(Arc::clone(&object.id.name));
    let mut contributions = vec![Update::Node(host.clone(), Some(object.root.valid(node, sink)?))];
    for (name, text, is_address) in [
        ("IpInIpTunnelAddr", facts.ipip_address, true),
        ("IPv4VXLANTunnelAddr", facts.vxlan_address, true),
        ("VXLANTunnelMACAddr", facts.vxlan_mac, false),
        ("IPv6VXLANTunnelAddr", facts.vxlan_address_v6, true),
        ("VXLANTunnelMACAddrV6", facts.vxlan_mac_v6, false),
    ] {
        if text.is_empty() {
            continue;
        }
        let value: Option<Arc<str>> = if is_address {
            parse_address(text).map(|address| address.to_string().into())
        } else {
            text.parse::<Mac>().is_ok().then(|| text.into())
        };
        if let Some(value) = value {
            let key = HostConfigKey { host: host.clone(), name: ConfigName::from(name) };
            contributions.push(Update::HostConfig(key, Some(value)));
        } else {
            let message = if is_address { "an IP address" } else { "an Ethernet address" };
            object.root.warn(sink, format!("`{text}` is not {message} for a tunnel; it is not used"));
        }
    }
    let mut key = |text: &str| {
        let valid = is_wireguard_key(text);
        if !valid && !text.is_empty() {
            object.root.warn(sink, format!("`{text}` is not a WireGuard public key; it is not used"));
        }
        Arc::from(if valid { text } else { "" })
    };
    let wireguard = Wireguard {
        public_key: key(facts.wireguard_key),
        public_key_v6: key(facts.wireguard_key_v6),
        ipv4_address: tunnel_address(object, facts.wireguard_address, sink),
        ipv6_address: tunnel_address(object, facts.wireguard_address_v6, sink),
    };
    if wireguard != Wireguard::default() {
        contributions.push(Update::Wireguard(host, Some(wireguard.into())));
    }
    Some(contributions)
}

fn tunnel_address(object: &Object<'_, '_>, text: &str, sink: &mut Sink) -> Option<IpAddr> {
    let address = parse_address(text);
    if address.is_none() && !text.is_empty() {
        object.root.warn(sink, format!("`{text}` is not an address for WireGuard; it is not used"));
    }
    address
}

/// Reports whether a text is a key: 32 bytes in base64.
fn is_wireguard_key(text: &str) -> bool {
    text.len() == 44
        && text.ends_with('=')
        && text[..43].bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/'))
}

/// Converts a `Node` of `projectcalico.org/v3`.
pub(crate) fn calico_node(object: &Object<'_, '_>, labels: &mut Interner, sink: &mut Sink) -> Option<Contributions> {
    let mut facts = NodeFacts::default();
    let mut pod_cidrs = Vec::new();
    if let Some(spec) = object.map.field("spec").and_then(|spec| spec.map(sink)) {
        spec.expect_only(
            &[
                "bgp",
                "ipv4VXLANTunnelAddr",
                "vxlanTunnelMACAddr",
                "ipv6VXLANTunnelAddr",
                "vxlanTunnelMACAddrV6",
                "orchRefs",
                "wireguard",
                "addresses",
                "interfaces",
            ],
            sink,
        );
        facts = NodeFacts::of_spec(spec, sink);
        if let Some(bgp) = spec.field("bgp").and_then(|bgp| bgp.map(sink)) {
            if bgp.is_empty() {
                bgp.error(sink, "must not be empty");
            }
            for (name, family) in [("ipv4Address", Family::V4), ("ipv6Address", Family::V6)] {
                if let Some(field) = bgp.field(name) {
                    let net = scalar::cidr(field, sink);
                    if net.is_some_and(|net| net.family() != family) {
                        field.error(sink, format!("is not an IPv{} network", family.number()));
                    }
                }
            }
        }
    }
    if let Some(status) = object.map.field("status").and_then(|status| status.map(sink)) {
        facts.wireguard_key = status.text_or_empty("wireguardPublicKey", sink);
        facts.wireguard_key_v6 = status.text_or_empty("wireguardPublicKeyV6", sink);
        if object.options.block_source == BlockSource::PodCidrs {
            pod_cidrs = status.texts("podCIDRs", sink);
        }
    }
    let node = node(&object.root, object.map, labels, sink);
    let mut contributions = node_contributions(object, node, &facts, sink)?;
    contributions.extend(ipam_block::pod_blocks(object, &pod_cidrs, sink));
    Some(contributions)
}
