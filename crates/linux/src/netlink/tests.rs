use std::net::IpAddr;
use std::time::Duration;

use proptest::prelude::*;
use rustix::io::Errno;
use tortie_dataplane::{
    FdbEntry, Neighbour, NeighbourChange, Route, RouteChange, RouteKey, RouteKind, RouteProtocol, RouteScope,
    RouteTableIndex, RouteTarget,
};
use tortie_lab::kernel_test;
use tortie_lab::netns::Namespace;
use tortie_model::{Cidr, Family, Mac, with_causes};

use super::wire::{self, Frame, Request};
use super::{LinkState, Netlink, NetlinkError, Notice, OddLink, device, link, neighbour, route};

mod devices;
mod lists;
mod rules;
mod wireguard;

/// The only message of a request, with further attributes behind it.
fn payload(request: Request, attributes: &[u8]) -> Vec<u8> {
    let bytes = request.encode(0, 1);
    let mut payload = wire::frames(&bytes).next().unwrap().unwrap().payload.to_vec();
    payload.extend_from_slice(attributes);
    payload
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = u16::try_from(value.len() + 4).unwrap().to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn link_payload(family: u8, index: u32, flags: u32, attributes: &[u8]) -> Vec<u8> {
    let mut bytes = vec![family, 0, 0, 0];
    bytes.extend(index.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend(attributes);
    bytes
}

fn route_to(destination: &str, target: RouteTarget) -> Route {
    Route { key: RouteKey { destination: destination.parse().unwrap(), tos: 0, metric: 1024 }, target }
}

fn via(interface: u32, scope: RouteScope) -> RouteTarget {
    RouteTarget {
        kind: RouteKind::Unicast,
        interface: Some(interface),
        scope,
        protocol: RouteProtocol::BOOT,
        gateway: None,
        on_link: false,
        mtu: None,
        source: None,
    }
}

/// Returns the outcome of a single change.
fn change(netlink: &mut Netlink, change: RouteChange) -> Result<(), NetlinkError> {
    let mut outcomes = netlink.change_routes(RouteTableIndex::MAIN, &[change]).unwrap();
    assert_eq!(outcomes.len(), 1);
    outcomes.remove(0)
}

fn set_neighbour(netlink: &mut Netlink, neighbour: Neighbour) -> Result<(), NetlinkError> {
    netlink.change_neighbours(&[NeighbourChange::Set(neighbour)]).unwrap().remove(0)
}

#[test]
fn unknown_link_attributes_are_skipped() {
    let mtu = attribute(4, &1450_u32.to_ne_bytes());
    let attributes = [attribute(0x0fff, b"news"), attribute(3, b"cali1\0"), mtu, attribute(0x3ffe, &[])].concat();
    let link = link::parse(wire::RTM_NEWLINK, &link_payload(0, 7, 0x40, &attributes)).unwrap();
    assert_eq!(
        link,
        Some(Ok(LinkState { index: 7, name: "cali1".parse().unwrap(), is_up: false, is_running: true, mtu: 1450 }))
    );
}

#[test]
fn a_link_with_an_odd_name_is_reported_as_odd() {
    for (bytes, name) in
        [("!x\0".as_bytes(), "!x"), ("é\0".as_bytes(), "é"), (b"eth+\0", "eth+"), (b"\xff\0", "\u{fffd}")]
    {
        let payload = link_payload(0, 7, 0x40, &attribute(3, bytes));
        let odd = OddLink { index: 7, name: name.to_owned() };
        assert_eq!(link::parse(wire::RTM_NEWLINK, &payload).unwrap(), Some(Err(odd.clone())));
        let frame = Frame { kind: wire::RTM_NEWLINK, flags: 0, sequence: 0, payload: &payload };
        assert_eq!(Notice::parse(&frame).unwrap(), Some(Notice::OddLink(odd)));
    }
}

#[test]
fn a_link_as_a_member_of_a_bridge_is_not_the_link() {
    let bytes = link_payload(7, 7, 0, &attribute(3, b"cali1\0"));
    for kind in [wire::RTM_NEWLINK, wire::RTM_DELLINK] {
        let frame = Frame { kind, flags: 0, sequence: 0, payload: &bytes };
        assert_eq!(Notice::parse(&frame).unwrap(), None);
    }
}

#[test]
fn a_link_without_a_name_is_an_error() {
    let result = link::parse(wire::RTM_NEWLINK, &link_payload(0, 7, 0, &[]));
    assert!(matches!(result, Err(NetlinkError::Malformed { subject: "link" })));
}

#[test]
fn a_datagram_that_is_cut_off_is_an_error() {
    let bytes = link::dump_request().encode(0, 1);
    let frames: Vec<_> = wire::frames(&bytes[..bytes.len() - 1]).collect();
    assert!(matches!(frames[..], [Err(NetlinkError::Malformed { .. })]));
}

#[test]
fn a_refusal_has_the_kernels_words() {
    let mut payload = (-19_i32).to_ne_bytes().to_vec();
    payload.extend([0; 16]);
    payload.extend(attribute(1, b"Device does not exist\0"));
    let frame = Frame { kind: wire::NLMSG_ERROR, flags: 0x300, sequence: 1, payload: &payload };
    let error = wire::parse_ack("route replace", &frame).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::NODEV));
    assert!(error.is_not_found());
    assert_eq!(with_causes(&error), "route replace: Device does not exist: No such device (os error 19)");
}

#[test]
fn a_neighbour_is_read_as_it_is_written() {
    let written = Neighbour { interface: 7, address: "10.0.0.1".parse().unwrap(), mac: Mac([2, 0, 0, 0, 0, 1]) };
    let bytes = payload(neighbour::change_request(&NeighbourChange::Set(written)), &[]);
    assert_eq!(neighbour::parse(Family::V4, wire::RTM_NEWNEIGH, &bytes).unwrap(), Some(written));
    assert_eq!(neighbour::parse(Family::V6, wire::RTM_NEWNEIGH, &bytes).unwrap(), None);
    assert_eq!(neighbour::parse_fdb(7, wire::RTM_NEWNEIGH, &bytes).unwrap(), None);

    let written = FdbEntry { interface: 7, mac: written.mac, destination: "fd00::1".parse().unwrap() };
    let bytes = payload(neighbour::change_request(&NeighbourChange::SetFdb(written)), &[]);
    assert_eq!(neighbour::parse_fdb(7, wire::RTM_NEWNEIGH, &bytes).unwrap(), Some(written));
    assert_eq!(neighbour::parse_fdb(8, wire::RTM_NEWNEIGH, &bytes).unwrap(), None);
}

fn address(family: Family) -> impl Strategy<Value = IpAddr> {
    any::<u128>().prop_map(move |bits| match family {
        Family::V4 => {
            IpAddr::V4(std::net::Ipv4Addr::from(bits.to_be_bytes()[..4].try_into().map(u32::from_be_bytes).unwrap()))
        }
        Family::V6 => IpAddr::V6(bits.into()),
    })
}

fn any_route() -> impl Strategy<Value = Route> {
    prop_oneof![Just(Family::V4), Just(Family::V6)].prop_flat_map(|family| {
        let destination = (address(family), 0..=family.max_prefix_len())
            .prop_map(|(address, length)| Cidr::new(address, length).unwrap().masked());
        let key = (destination, any::<u8>(), any::<u32>()).prop_map(|(destination, tos, metric)| RouteKey {
            destination,
            tos,
            metric,
        });
        let hop = (proptest::option::of(1..u32::MAX), proptest::option::of(address(family)));
        let path = (any::<bool>(), proptest::option::of(any::<u32>()));
        (key, hop, path, any::<u8>(), any::<u8>(), proptest::option::of(address(family))).prop_map(
            |(key, (interface, gateway), (on_link, mtu), scope, protocol, source)| Route {
                key,
                target: RouteTarget {
                    kind: if interface.is_some() { RouteKind::Unicast } else { RouteKind::Blackhole },
                    interface,
                    scope: RouteScope(scope),
                    protocol: RouteProtocol(protocol),
                    gateway,
                    on_link,
                    mtu,
                    source,
                },
            },
        )
    })
}

proptest! {
    #[test]
    fn a_route_is_read_as_it_is_written(written in any_route()) {
        let family = written.key.destination.family();
        let bytes = payload(route::replace_request(RouteTableIndex::MAIN, &written), &[]);
        prop_assert_eq!(route::parse(family, RouteTableIndex::MAIN, wire::RTM_NEWROUTE, &bytes).unwrap(), Some(written));
    }

    #[test]
    fn no_bytes_upset_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..120), kind in 0..40_u16) {
        for frame in wire::frames(&bytes).flatten() {
            let _ = Notice::parse(&frame);
        }
        let frame = Frame { kind, flags: 0x200, sequence: 0, payload: &bytes };
        let _ = Notice::parse(&frame);
        for family in Family::ALL {
            let _ = neighbour::parse(family, kind, &bytes);
            let _ = device::parse_address(7, family, kind, &bytes);
        }
        let _ = neighbour::parse_fdb(7, kind, &bytes);
        let _ = device::parse(kind, &bytes);
        let _ = wire::parse_ack("request", &frame);
        let _ = wire::parse_done("listing", &frame);
    }
}

#[track_caller]
fn eventually(mut is_so: impl FnMut() -> bool) {
    for _ in 0..200 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("not within four seconds");
}

/// Runs `body` in a namespace with the veth pair `w0` and `w1`, both up, and their indices.
fn in_namespace(body: impl FnOnce(&Namespace, &mut Netlink, [u32; 2]) + Send) {
    let namespace = Namespace::new().unwrap();
    namespace.ip(["link add w0 type veth peer name w1", "link set w0 up", "link set w1 up"]).unwrap();
    namespace
        .run(|| {
            let mut netlink = Netlink::open(Duration::from_secs(10)).unwrap();
            let links = netlink.links().unwrap();
            let index = |name: &str| links.iter().find(|link| link.name.as_str() == name).unwrap().index;
            body(&namespace, &mut netlink, [index("w0"), index("w1")]);
        })
        .unwrap();
}

kernel_test! {
    fn links_and_their_states() {
        in_namespace(|namespace, netlink, [w0, w1]| {
            let running = |netlink: &mut Netlink| {
                let links = netlink.links().unwrap();
                links.iter().filter(|link| [w0, w1].contains(&link.index) && link.is_running).count()
            };
            // The kernel takes a moment to notice that both ends are up.
            eventually(|| running(netlink) == 2);
            namespace.ip(["link set w0 down"]).unwrap();
            eventually(|| running(netlink) == 0);
        });
    }

    fn local_addresses_of_both_families() {
        in_namespace(|namespace, netlink, [w0, _]| {
            namespace.ip(["addr add 10.0.0.1/24 dev w0", "addr add fd00::1/64 dev w0 nodad"]).unwrap();
            let expected: [IpAddr; 2] = ["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
            eventually(|| {
                let addresses = netlink.local_addresses(None).unwrap();
                expected.iter().all(|address| addresses[&w0].contains(address))
            });
            let addresses = netlink.local_addresses(None).unwrap();
            let broadcast: IpAddr = "10.0.0.255".parse().unwrap();
            assert!(!addresses[&w0].contains(&broadcast), "{addresses:?}");
            assert_eq!(netlink.local_addresses(Some(w0)).unwrap().get(&w0), addresses.get(&w0));
            assert_eq!(netlink.local_addresses(Some(9999)).unwrap().len(), 0);
        });
    }

    fn routes_of_both_families_are_made_moved_and_removed() {
        in_namespace(|_, netlink, [w0, w1]| {
            for (family, destination, scope) in
                [(Family::V4, "10.65.0.2/32", RouteScope::LINK), (Family::V6, "fd00:65::2/128", RouteScope::UNIVERSE)]
            {
                let found = |netlink: &mut Netlink| -> Vec<Route> {
                    let mut routes = netlink.routes(family, RouteTableIndex::MAIN).unwrap();
                    routes.retain(|route| route.key.destination == destination.parse().unwrap());
                    routes
                };
                let first = route_to(destination, via(w0, scope));
                change(netlink, RouteChange::Replace(first.clone())).unwrap();
                assert_eq!(found(netlink), [first]);
                let moved = route_to(destination, via(w1, scope));
                change(netlink, RouteChange::Replace(moved.clone())).unwrap();
                assert_eq!(found(netlink), std::slice::from_ref(&moved));
                change(netlink, RouteChange::Delete(moved.clone())).unwrap();
                assert_eq!(found(netlink), []);
                assert!(change(netlink, RouteChange::Delete(moved)).unwrap_err().is_not_found());
            }
        });
    }

    fn a_route_with_a_source_and_one_to_nowhere() {
        in_namespace(|namespace, netlink, [w0, _]| {
            namespace.ip(["addr add 10.0.0.1/32 dev w0"]).unwrap();
            let source = Some("10.0.0.1".parse().unwrap());
            let with_source = route_to("10.65.0.2/32", RouteTarget { source, ..via(w0, RouteScope::LINK) });
            let nowhere = RouteTarget {
                kind: RouteKind::Blackhole,
                interface: None,
                protocol: RouteProtocol::CALICO,
                ..via(0, RouteScope::UNIVERSE)
            };
            for route in [with_source, route_to("10.66.0.0/26", nowhere.clone()), route_to("fd00:66::/122", nowhere)] {
                change(netlink, RouteChange::Replace(route.clone())).unwrap();
                let family = route.key.destination.family();
                assert!(netlink.routes(family, RouteTableIndex::MAIN).unwrap().contains(&route), "{:?}", netlink.routes(family, RouteTableIndex::MAIN));
                change(netlink, RouteChange::Delete(route.clone())).unwrap();
                assert!(!netlink.routes(family, RouteTableIndex::MAIN).unwrap().contains(&route));
            }
        });
    }

    fn marked_addresses_are_found_by_others_and_no_packet_goes_by_them() {
        in_namespace(|_, netlink, _| {
            for address in ["10.65.0.9", "fd00:65::9"] {
                let address: IpAddr = address.parse().unwrap();
                let family = Cidr::host(address).family();
                let main = netlink.routes(family, RouteTableIndex::MAIN).unwrap();
                assert_eq!(netlink.marked_addresses(family).unwrap(), [] as [IpAddr; 0]);
                assert!(netlink.mark_address(address, false).unwrap_err().is_not_found());
                netlink.mark_address(address, true).unwrap();
                netlink.mark_address(address, true).unwrap();
                let mut other = Netlink::open(Duration::from_secs(10)).unwrap();
                assert_eq!(other.marked_addresses(family).unwrap(), [address]);
                assert_eq!(netlink.routes(family, RouteTableIndex::MAIN).unwrap(), main);
                netlink.mark_address(address, false).unwrap();
                assert_eq!(netlink.marked_addresses(family).unwrap(), [] as [IpAddr; 0]);
            }
        });
    }

    fn routes_by_interfaces_that_are_down_or_gone() {
        in_namespace(|namespace, netlink, [w0, w1]| {
            namespace.ip(["link set w0 down"]).unwrap();
            let down = route_to("10.65.0.2/32", via(w0, RouteScope::LINK));
            assert!(change(netlink, RouteChange::Replace(down)).unwrap_err().is_link_down());
            namespace.ip(["link del w1"]).unwrap();
            let gone = route_to("10.65.0.2/32", via(w1, RouteScope::LINK));
            assert!(change(netlink, RouteChange::Replace(gone)).unwrap_err().is_not_found());
        });
    }

    fn permanent_neighbours_are_made_and_replaced() {
        in_namespace(|namespace, netlink, [w0, _]| {
            namespace.ip(["neigh add 10.0.0.9 dev w0 lladdr 02:00:00:00:00:09 nud reachable"]).unwrap();
            assert_eq!(netlink.neighbours(Family::V4).unwrap(), []);
            let address = "10.65.0.2".parse().unwrap();
            for last in [1, 2] {
                let neighbour = Neighbour { interface: w0, address, mac: Mac([2, 0, 0, 0, 0, last]) };
                set_neighbour(netlink, neighbour).unwrap();
                assert_eq!(netlink.neighbours(Family::V4).unwrap(), [neighbour]);
            }
            let nowhere = Neighbour { interface: 9999, address, mac: Mac([2, 0, 0, 0, 0, 1]) };
            assert!(set_neighbour(netlink, nowhere).unwrap_err().is_not_found());
        });
    }
}
