use tortie_model::{Family, Labels, Node, NodeAddress, NodeAddressKind, NodeBgp};

use super::{address, metadata};

fn node(bgp: Option<&str>, addresses: &[(&str, NodeAddressKind)]) -> Node {
    Node {
        bgp: bgp.map(|text| NodeBgp { ipv4_address: text.into(), ..NodeBgp::default() }),
        addresses: addresses.iter().map(|&(text, kind)| NodeAddress { address: text.into(), kind }).collect(),
        tunnels: None,
        pod_networks: [].into(),
        labels: Labels::default(),
    }
}

#[test]
fn bgp_addresses_count_only_in_cidr_notation() {
    let internal = [("10.0.0.2", NodeAddressKind::InternalIp)];
    assert_eq!(&*address(&node(Some("10.0.0.1/24"), &internal), Family::V4), "10.0.0.1/24");
    assert_eq!(&*address(&node(Some("10.0.0.1"), &internal), Family::V4), "10.0.0.2/32");
    assert_eq!(&*address(&node(None, &internal), Family::V6), "");
}

#[test]
fn internal_addresses_come_before_external_ones() {
    let addresses = [
        ("192.0.2.1", NodeAddressKind::ExternalIp),
        ("fd00::1", NodeAddressKind::InternalIp),
        ("10.0.0.2", NodeAddressKind::InternalIp),
    ];
    assert_eq!(&*address(&node(None, &addresses), Family::V4), "10.0.0.2/32");
    assert_eq!(&*address(&node(None, &addresses[..1]), Family::V4), "192.0.2.1/32");
}

#[test]
fn an_empty_bgp_section_hides_the_node() {
    assert!(metadata(&node(Some(""), &[])).is_none());
    assert!(metadata(&node(None, &[])).is_some());
}
