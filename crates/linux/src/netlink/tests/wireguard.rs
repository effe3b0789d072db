//! `WireGuard` devices over generic netlink.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::time::Duration;

use proptest::prelude::*;
use tortie_dataplane::{DevicePeer, PeerChange, WireguardChange, WireguardDevice, WireguardKey};
use tortie_lab::kernel_test;
use tortie_model::Cidr;

use super::in_namespace;
use crate::netlink::wire::{self, attribute};
use crate::netlink::wireguard::{PrivateKey, get_request, merge, parse, parse_family, set_requests};
use crate::netlink::{Netlink, NetlinkError, WireguardNetlink};

fn key(number: u8) -> WireguardKey {
    WireguardKey([number; 32])
}

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

fn networks(count: u32) -> BTreeSet<Cidr> {
    (0..count).map(|n| Cidr::host(std::net::Ipv4Addr::from(0x0a00_0000 + n).into())).collect()
}

/// Returns the state of a device after these requests, which have the form in which devices are
/// listed.
fn carried_out(payloads: &[Vec<u8>]) -> WireguardDevice {
    merge(payloads.iter().map(|payload| parse(payload).unwrap()).collect())
}

#[test]
fn a_family_is_known_by_its_number() {
    let header = vec![1, 2, 0, 0];
    let name = attribute(2, b"wireguard\0");
    let id = attribute(1, &27_u16.to_ne_bytes());
    assert_eq!(parse_family(&[header.clone(), name.clone(), id].concat()).unwrap(), 27);
    assert!(matches!(parse_family(&[header, name].concat()), Err(NetlinkError::Malformed { .. })));
}

/// The bytes were assembled by hand from `linux/wireguard.h`.
#[cfg(target_endian = "little")]
#[test]
fn a_change_has_the_form_that_the_kernel_documents() {
    assert_eq!(get_request(7), [0, 1, 0, 0, 8, 0, 1, 0, 7, 0, 0, 0]);
    let peer = DevicePeer {
        endpoint: Some("192.0.2.2:51820".parse().unwrap()),
        keep_alive: 25,
        allowed: [cidr("10.65.1.0/26")].into(),
    };
    let change = WireguardChange {
        new_key: false,
        port: Some(51820),
        mark: Some(0x20_0000),
        peers: vec![PeerChange::Replace(key(2), peer), PeerChange::Remove(key(3))],
    };
    let mut expected = vec![1, 1, 0, 0, 8, 0, 1, 0, 7, 0, 0, 0, 8, 0, 7, 0, 0, 0, 32, 0, 6, 0, 6, 0, 108, 202, 0, 0];
    expected.extend([160, 0, 8, 128, 108, 0, 0, 128, 36, 0, 1, 0]);
    expected.extend([2; 32]);
    expected.extend([8, 0, 3, 0, 2, 0, 0, 0, 20, 0, 4, 0, 2, 0, 202, 108, 192, 0, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend([6, 0, 5, 0, 25, 0, 0, 0, 32, 0, 9, 128, 28, 0, 0, 128]);
    expected.extend([6, 0, 1, 0, 2, 0, 0, 0, 8, 0, 2, 0, 10, 65, 1, 0, 5, 0, 3, 0, 26, 0, 0, 0]);
    expected.extend([48, 0, 0, 128, 36, 0, 1, 0]);
    expected.extend([3; 32]);
    expected.extend([8, 0, 3, 0, 1, 0, 0, 0]);
    assert_eq!(set_requests(7, None, &change), [expected]);
}

#[test]
fn a_private_key_is_on_the_curve_and_never_the_same() {
    let PrivateKey(zero) = PrivateKey::clamped([0xff; 32]);
    assert_eq!((zero[0], zero[31], zero[1]), (248, 127, 255));
    let (PrivateKey(one), PrivateKey(other)) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
    assert_ne!(one, other);
    assert_eq!((one[0] & 7, one[31] >> 6), (0, 1));
    let requests = set_requests(7, Some(&PrivateKey(one)), &WireguardChange::default());
    assert!(requests.len() == 1 && requests[0].windows(32).any(|bytes| bytes == one));
}

#[test]
fn large_changes_are_split_into_messages_that_fit() {
    let peer = |count| DevicePeer { endpoint: None, keep_alive: 0, allowed: networks(count) };
    let mut peers: Vec<PeerChange> = (0..=250).map(|number| PeerChange::Replace(key(number), peer(20))).collect();
    peers.push(PeerChange::Replace(key(251), peer(5000)));
    let change = WireguardChange { new_key: false, port: Some(7), mark: None, peers };
    let requests = set_requests(7, None, &change);
    assert!(requests.len() > 5, "{}", requests.len());
    assert!(requests.iter().all(|request| request.len() < 48 * 1024));
    let device = carried_out(&requests);
    assert_eq!((device.port, device.peers.len()), (7, 252));
    assert_eq!(device.peers[&key(251)].allowed, networks(5000));
    assert_eq!(device.peers[&key(7)].allowed.len(), 20);
    // Only the first part replaces the networks, and only the first message has more than peers.
    let replacing = |request: &Vec<u8>| {
        let flags = attribute(3, &2_u32.to_ne_bytes());
        let of_key = [attribute(1, &[251; 32]), flags].concat();
        request.windows(of_key.len()).filter(|bytes| **bytes == of_key).count()
    };
    assert_eq!(requests.iter().map(replacing).sum::<usize>(), 1);
    let port = attribute(6, &7_u16.to_ne_bytes());
    assert_eq!(requests.iter().filter(|request| request.windows(8).any(|bytes| *bytes == port)).count(), 1);
}

#[test]
fn a_device_without_key_and_unknown_attributes_are_parsed() {
    let header = vec![0, 1, 0, 0];
    assert_eq!(parse(&header).unwrap(), WireguardDevice::default());
    let unknown = attribute(99, b"news");
    let listed = [header.clone(), unknown, attribute(4, &[9; 32])].concat();
    assert_eq!(parse(&listed).unwrap().public_key, Some(key(9)));
    assert!(parse(&[0, 1]).is_err());
    assert!(parse(&[header, attribute(4, &[9; 31])].concat()).is_err());
}

fn any_peer() -> impl Strategy<Value = DevicePeer> {
    let endpoint = prop::option::of((any::<std::net::IpAddr>(), 1..=u16::MAX).prop_map(Into::into));
    let network = (any::<std::net::IpAddr>(), 0..=32_u8)
        .prop_map(|(address, length)| Cidr::new(address, length).map(Cidr::masked).unwrap());
    (endpoint, any::<u16>(), prop::collection::btree_set(network, 0..600))
        .prop_map(|(endpoint, keep_alive, allowed)| DevicePeer { endpoint, keep_alive, allowed })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// Encoded peers are decoded unchanged, in however many messages.
    #[test]
    fn peers_are_read_as_they_are_written(
        peers in prop::collection::btree_map(any::<[u8; 32]>().prop_map(WireguardKey), any_peer(), 0..8),
        port in any::<u16>(),
        mark in any::<u32>(),
    ) {
        let changes = peers.iter().map(|(key, peer)| PeerChange::Replace(*key, peer.clone())).collect();
        let change = WireguardChange { new_key: false, port: Some(port), mark: Some(mark), peers: changes };
        let requests = set_requests(7, None, &change);
        prop_assert!(requests.iter().all(|request| request.len().is_multiple_of(4)));
        prop_assert_eq!(carried_out(&requests), WireguardDevice { public_key: None, port, mark, peers });
    }

    /// Any bytes of the kernel are either decoded or refused.
    #[test]
    fn no_bytes_are_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(&bytes);
        let _ = parse_family(&bytes);
        let _ = wire::frames(&bytes).count();
    }
}

/// Creates a device, if the kernel supports it; prints a note if it does not.
fn device(netlink: &mut Netlink) -> Option<(WireguardNetlink, u32)> {
    let create = tortie_dataplane::DeviceChange::Create {
        name: "wg-test".parse().unwrap(),
        mac: None,
        kind: tortie_dataplane::DeviceKind::Other("wireguard".to_owned()),
    };
    match netlink.change_device(&create) {
        Err(error) if error.is_unsupported() => {
            let found = WireguardNetlink::open(Duration::from_secs(10)).unwrap_err();
            assert!(found.is_not_found(), "{found}");
            // Not eprintln!: the test harness would swallow it.
            let _ = writeln!(std::io::stderr(), "not run: this kernel has no WireGuard, so that no device was made");
            None
        }
        result => {
            result.unwrap();
            let index = netlink.device("wg-test").unwrap().unwrap().index;
            Some((WireguardNetlink::open(Duration::from_secs(10)).unwrap(), index))
        }
    }
}

kernel_test! {
    fn a_device_of_the_kernel_is_changed_and_read() {
        in_namespace(|_, netlink, _| {
            let Some((mut wireguard, index)) = device(netlink) else { return };
            assert_eq!(wireguard.device(index).unwrap().public_key, None);
            let peer = DevicePeer {
                endpoint: Some("192.0.2.2:51820".parse().unwrap()),
                keep_alive: 25,
                allowed: networks(5000),
            };
            let peers = vec![PeerChange::Replace(key(2), peer.clone())];
            let change = WireguardChange { new_key: true, port: Some(51820), mark: Some(0x20_0000), peers };
            wireguard.change(index, &change).unwrap();
            let found = wireguard.device(index).unwrap();
            assert!(found.public_key.is_some());
            assert_eq!((found.port, found.mark, &found.peers), (51820, 0x20_0000, &[(key(2), peer)].into()));
            let peers = vec![PeerChange::Remove(key(2))];
            wireguard.change(index, &WireguardChange { peers, ..WireguardChange::default() }).unwrap();
            let without = wireguard.device(index).unwrap();
            assert_eq!((without.public_key, without.peers.len()), (found.public_key, 0));
        });
    }
}
