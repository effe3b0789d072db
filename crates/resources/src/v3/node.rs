//! Nodes.

use std::sync::Arc;

use tortie_model::{LabelInterner, Node, NodeAddress, NodeAddressKind, NodeBgp};

use crate::scalar;
use crate::tree::{Content, Cursor, Map, Sink};

/// What the model keeps of a `Node` of `projectcalico.org/v3`.
pub(crate) fn node(root: &Cursor<'_, '_>, map: Map<'_, '_>, labels: &mut LabelInterner, sink: &mut Sink) -> Node {
    let metadata = map.field("metadata").and_then(|metadata| metadata.map(sink));
    let pairs = match &metadata {
        Some(metadata) => metadata.field("labels").map(|labels| labels.text_map(sink)).unwrap_or_default(),
        None => Vec::new(),
    };
    let labels = scalar::interned(root, pairs, labels, sink);
    let Some(spec) = map.field("spec").and_then(|spec| spec.map(sink)) else {
        return Node { bgp: None, addresses: Box::default(), labels };
    };
    Node {
        bgp: spec.field("bgp").and_then(|bgp| bgp.map(sink)).map(|map| bgp(map, sink)),
        addresses: spec.list("addresses", sink, address).into(),
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

/// An AS number: 32 bits, or two halves with a dot between them (`api/pkg/lib/numorstring/asnumber.go`).
fn as_number(cursor: Cursor<'_, '_>, sink: &mut Sink) -> Option<Arc<str>> {
    let Content::Text(text) = cursor.content() else {
        return cursor.int::<u32>(0, i64::from(u32::MAX), sink).map(|n| n.to_string().into());
    };
    let number = match text.split_once('.') {
        None => text.parse::<u32>().ok(),
        Some((high, low)) => match (high.parse::<u16>(), low.parse::<u16>()) {
            (Ok(high), Ok(low)) => Some(u32::from(high) << 16 | u32::from(low)),
            _ => None,
        },
    };
    if number.is_none() {
        cursor.error(sink, format!("`{text}` is not an AS number"));
    }
    number.map(|n| n.to_string().into())
}

fn address(cursor: Cursor<'_, '_>, sink: &mut Sink) -> Option<NodeAddress> {
    let map = cursor.map(sink)?;
    let address: Arc<str> = map.text_or_empty("address", sink).into();
    let kind = match map.text_or_empty("type", sink) {
        "CalicoNodeIP" => NodeAddressKind::CalicoNodeIp,
        "InternalIP" => NodeAddressKind::InternalIp,
        "ExternalIP" => NodeAddressKind::ExternalIp,
        // Host names and the like say nothing that is used.
        _ => return None,
    };
    Some(NodeAddress { address, kind })
}
