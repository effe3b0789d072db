//! Nodes.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use tortie_model::{Cidr, Family, Interner, Node, NodeAddress, NodeAddressKind, NodeBgp};

use crate::ipam_block;
use crate::object::BlockSource;
use crate::object::{Contributions, Object};
use crate::scalar;
use crate::tree::{Map, Sink};
use crate::v3::{NodeFacts, node_contributions, parse_as_number};

/// Converts a Kubernetes `Node`, whose annotations hold Calico's data of the node
/// (`libcalico-go/lib/backend/k8s/resources/node.go`).
pub(crate) fn node(object: &Object<'_, '_>, labels: &mut Interner, sink: &mut Sink) -> Option<Contributions> {
    let annotation = |name: &str| object.meta.annotation(&format!("projectcalico.org/{name}")).unwrap_or_default();
    let pods = if object.options.block_source == BlockSource::PodCidrs {
        PodNetworks::of(object, sink)
    } else {
        PodNetworks::default()
    };
    // With pod networks, tunnels have the first address of the node's network, and their
    // annotations are ignored.
    let tunnel = |name: &str| match &pods.tunnel {
        Some(address) => address,
        None => annotation(name),
    };
    let ipip_address = tunnel("IPv4IPIPTunnelAddr");
    let wireguard_key = annotation("WireguardPublicKey");
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
        has_other_fields: !ipip_address.is_empty() || !annotation("RouteReflectorClusterID").is_empty(),
    };
    let addresses = addresses(object, &bgp, sink);
    let facts = NodeFacts {
        ipip_address,
        vxlan_address: annotation("IPv4VXLANTunnelAddr"),
        vxlan_mac: annotation("VXLANTunnelMACAddr"),
        vxlan_address_v6: annotation("IPv6VXLANTunnelAddr"),
        vxlan_mac_v6: annotation("VXLANTunnelMACAddrV6"),
        wireguard_address: if pods.tunnel.is_some() && wireguard_key.is_empty() {
            ""
        } else {
            tunnel("IPv4WireguardInterfaceAddr")
        },
        wireguard_address_v6: if pods.tunnel.is_some() { "" } else { annotation("IPv6WireguardInterfaceAddr") },
        wireguard_key,
        wireguard_key_v6: annotation("WireguardPublicKeyV6"),
    };
    let node = Node {
        bgp: (bgp != NodeBgp::default()).then_some(bgp),
        addresses: addresses.into(),
        tunnels: facts.tunnels(),
        pod_networks: pod_networks(object, sink),
        labels: scalar::interned(&object.root, object.meta.labels.iter().copied(), labels, sink),
    };
    let mut contributions = node_contributions(object, node, &facts, sink)?;
    contributions.extend(ipam_block::pod_blocks(object, &pods.cidrs, sink));
    Some(contributions)
}

/// Returns the addresses of the node: those of BGP, and those of its status.
fn addresses(object: &Object<'_, '_>, bgp: &NodeBgp, sink: &mut Sink) -> Vec<NodeAddress> {
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
    addresses
}

/// Returns the networks of the node's pods, without unreadable ones.
fn pod_networks(object: &Object<'_, '_>, sink: &mut Sink) -> Box<[Cidr]> {
    let Some(spec) = object.map.field("spec").and_then(|spec| spec.map(sink)) else { return Box::default() };
    pod_cidrs(spec, sink).iter().filter_map(|text| text.parse().ok()).collect()
}

/// Returns the networks of the node's pods as text. The API server makes each of the two fields of
/// the other one.
pub(crate) fn pod_cidrs<'n>(spec: Map<'n, '_>, sink: &mut Sink) -> Vec<&'n str> {
    let all = spec.texts("podCIDRs", sink);
    let first = spec.text_or_empty("podCIDR", sink);
    if all.is_empty() && !first.is_empty() { vec![first] } else { all }
}

/// Networks of the node's pods, for clusters without Calico's IPAM.
#[derive(Default)]
pub(crate) struct PodNetworks<'n> {
    cidrs: Vec<&'n str>,
    /// Address of the tunnels; `None` without a pod network, empty if it is not an IPv4 network.
    pub(crate) tunnel: Option<String>,
}

impl<'n> PodNetworks<'n> {
    pub(crate) fn of(object: &Object<'n, '_>, sink: &mut Sink) -> Self {
        let Some(spec) = object.map.field("spec").and_then(|spec| spec.map(sink)) else { return Self::default() };
        let cidrs = pod_cidrs(spec, sink);
        let tunnel = cidrs.first().map(|first| match first.parse::<Cidr>().map(Cidr::address) {
            Ok(IpAddr::V4(address)) => {
                let [a, b, c, d] = address.octets();
                Ipv4Addr::new(a, b, c, d.wrapping_add(1)).to_string()
            }
            _ => String::new(),
        });
        Self { cidrs, tunnel }
    }
}
