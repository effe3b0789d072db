//! Nodes.

use std::sync::Arc;

use tortie_model::{Cidr, Family, LabelInterner, Node, NodeAddress, NodeAddressKind, NodeBgp};

use crate::manifest::{Contributions, Object};
use crate::scalar;
use crate::tree::Sink;
use crate::v3::{NodeFacts, node_contributions, parse_as_number};

/// Converts a `Node` of Kubernetes, whose annotations hold what Calico knows of it
/// (`libcalico-go/lib/backend/k8s/resources/node.go`).
pub(crate) fn node(object: &Object<'_, '_>, labels: &mut LabelInterner, sink: &mut Sink) -> Option<Contributions> {
    let annotation = |name: &str| object.meta.annotation(&format!("projectcalico.org/{name}")).unwrap_or_default();
    let mut network = |name: &str, family: Family| {
        let text = annotation(name);
        let valid = text.contains('/') && text.parse::<Cidr>().is_ok_and(|net| net.family() == family);
        if !valid && !text.is_empty() {
            object.root.warn(sink, format!("annotation projectcalico.org/{name}: `{text}` is not a network; not used"));
        }
        Arc::<str>::from(if valid { text } else { "" })
    };
    let bgp = NodeBgp {
        ipv4_address: network("IPv4Address", Family::V4),
        ipv6_address: network("IPv6Address", Family::V6),
        as_number: parse_as_number(annotation("ASNumber")).map(|number| number.to_string().into()),
        has_other_fields: !annotation("IPv4IPIPTunnelAddr").is_empty()
            || !annotation("RouteReflectorClusterID").is_empty(),
    };
    let mut addresses = Vec::new();
    for net in [&bgp.ipv4_address, &bgp.ipv6_address] {
        if !net.is_empty() {
            addresses.push(NodeAddress { address: Arc::clone(net), kind: NodeAddressKind::CalicoNodeIp });
        }
    }
    if let Some(status) = object.map.field("status").and_then(|status| status.map(sink)) {
        addresses.extend(status.list("addresses", sink, |address, sink| {
            let map = address.map(sink)?;
            let kind = match map.text_or_empty("type", sink) {
                "InternalIP" => NodeAddressKind::InternalIp,
                "ExternalIP" => NodeAddressKind::ExternalIp,
                _ => return None,
            };
            Some(NodeAddress { address: map.text_or_empty("address", sink).into(), kind })
        }));
    }
    let facts = NodeFacts {
        ipip_address: annotation("IPv4IPIPTunnelAddr"),
        vxlan_address: annotation("IPv4VXLANTunnelAddr"),
        vxlan_mac: annotation("VXLANTunnelMACAddr"),
        vxlan_address_v6: annotation("IPv6VXLANTunnelAddr"),
        vxlan_mac_v6: annotation("VXLANTunnelMACAddrV6"),
        wireguard_address: annotation("IPv4WireguardInterfaceAddr"),
        wireguard_address_v6: annotation("IPv6WireguardInterfaceAddr"),
        wireguard_key: annotation("WireguardPublicKey"),
        wireguard_key_v6: annotation("WireguardPublicKeyV6"),
    };
    let node = Node {
        bgp: (bgp != NodeBgp::default()).then_some(bgp),
        addresses: addresses.into(),
        labels: scalar::interned(&object.root, object.meta.labels.iter().copied(), labels, sink),
    };
    Some(node_contributions(object, node, &facts, sink))
}
