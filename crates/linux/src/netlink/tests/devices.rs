//! Tunnel devices, their forwarding and neighbour entries, and routes through them.

use std::time::Instant;

use tortie_dataplane::{Device, DeviceChange, DeviceKind, Vxlan};

use super::*;

fn vxlan(parent: u32, source: &str) -> Vxlan {
    Vxlan { vni: 4096, port: 4789, parent: Some(parent), source: Some(source.parse().unwrap()), ..Vxlan::default() }
}

fn create(name: &str, mac: Mac, kind: &Vxlan) -> DeviceChange {
    DeviceChange::Create { name: name.parse().unwrap(), mac: Some(mac), kind: DeviceKind::Vxlan(kind.clone()) }
}

const MAC: Mac = Mac([0x66, 1, 2, 3, 4, 5]);

#[test]
fn a_device_is_written_as_the_kernel_takes_it() {
    let (request, _) = device::change_request(&create("vxlan.calico", MAC, &vxlan(3, "10.0.0.1")));
    let nested = |kind, parts: &[Vec<u8>]| attribute(kind, &parts.concat());
    let expected = [
        attribute(3, b"vxlan.calico\0"),
        attribute(1, &MAC.0),
        nested(
            18,
            &[
                attribute(1, b"vxlan\0"),
                nested(
                    2,
                    &[
                        attribute(1, &4096_u32.to_ne_bytes()),
                        attribute(15, &4789_u16.to_be_bytes()),
                        attribute(7, &[0]),
                        attribute(3, &3_u32.to_ne_bytes()),
                        attribute(4, &[10, 0, 0, 1]),
                    ],
                ),
            ],
        ),
    ];
    let mut bytes = payload(request, &[]);
    let attributes = bytes.split_off(16);
    // Nested attributes may have the flag for nesting.
    let plain = |bytes: &[u8]| bytes.iter().map(|byte| byte & 0x7f).collect::<Vec<u8>>();
    assert_eq!(plain(&attributes), plain(&expected.concat()));
    assert_eq!(device::parse(wire::RTM_NEWLINK, &[bytes, attributes].concat()).unwrap().unwrap().mac, Some(MAC));
}

kernel_test! {
    fn a_vxlan_device_is_made_changed_and_removed() {
        in_namespace(|namespace, netlink, [w0, _]| {
            namespace.ip(["addr add 10.0.0.1/24 dev w0", "addr add fd00::1/64 dev w0 nodad"]).unwrap();
            assert_eq!(netlink.device("vxlan.calico").unwrap(), None);
            let pairs = [("vxlan.calico", "10.0.0.1", "10.65.0.1/32"), ("vxlan-v6.calico", "fd00::1", "fd00:65::1/128")];
            for (name, source, address) in pairs {
                let wanted = vxlan(w0, source);
                netlink.change_device(&create(name, MAC, &wanted)).unwrap();
                assert!(netlink.change_device(&create(name, MAC, &wanted)).unwrap_err().already_exists());
                let Device { index, mac, kind, is_up, .. } = netlink.device(name).unwrap().unwrap();
                assert_eq!((mac, kind, is_up), (Some(MAC), DeviceKind::Vxlan(wanted), false));

                netlink.change_device(&DeviceChange::SetMtu(index, 1390)).unwrap();
                netlink.change_device(&DeviceChange::SetUp(index)).unwrap();
                let device = netlink.device(name).unwrap().unwrap();
                assert_eq!((device.mtu, device.is_up), (1390, true));

                let address: Cidr = address.parse().unwrap();
                let family = address.family();
                netlink.change_device(&DeviceChange::AddAddress(index, address)).unwrap();
                let again = netlink.change_device(&DeviceChange::AddAddress(index, address));
                assert!(again.unwrap_err().already_exists());
                assert!(netlink.addresses(index, family).unwrap().contains(&address));
                netlink.change_device(&DeviceChange::DeleteAddress(index, address)).unwrap();
                assert!(!netlink.addresses(index, family).unwrap().contains(&address));
                if family == Family::V4 {
                    netlink.change_device(&DeviceChange::AddLinkAddress(index, address)).unwrap();
                    let shown = namespace.shell(&format!("ip -o -4 addr show dev {name}")).unwrap();
                    assert!(shown.contains("scope link"), "{shown}");
                    netlink.change_device(&DeviceChange::DeleteAddress(index, address)).unwrap();
                    assert!(!netlink.addresses(index, family).unwrap().contains(&address));
                }

                netlink.change_device(&DeviceChange::Delete(index)).unwrap();
                assert_eq!(netlink.device(name).unwrap(), None);
                assert!(netlink.change_device(&DeviceChange::Delete(index)).unwrap_err().is_not_found());
                assert!(netlink.change_device(&DeviceChange::SetUp(index)).unwrap_err().is_not_found());
            }
        });
    }

    fn neighbours_and_forwarding_entries_of_a_device() {
        in_namespace(|namespace, netlink, [w0, _]| {
            namespace.ip(["addr add 10.0.0.1/24 dev w0"]).unwrap();
            netlink.change_device(&create("vxlan.calico", MAC, &vxlan(w0, "10.0.0.1"))).unwrap();
            let interface = netlink.device("vxlan.calico").unwrap().unwrap().index;
            netlink.change_device(&DeviceChange::SetUp(interface)).unwrap();
            assert_eq!(netlink.fdb(interface).unwrap(), []);
            let mac = |last| Mac([2, 0, 0, 0, 0, last]);
            let fdb = |last: u8| FdbEntry { interface, mac: mac(last), destination: [10, 0, 0, last].into() };
            let v4 = |last: u8| Neighbour { interface, address: [10, 65, 0, last].into(), mac: mac(last) };
            let v6 = Neighbour { interface, address: "fd00:65::2".parse().unwrap(), mac: mac(2) };
            let nowhere = Neighbour { interface: 9999, ..v6 };
            let changes = [
                NeighbourChange::SetFdb(fdb(2)),
                NeighbourChange::Set(v4(2)),
                NeighbourChange::Set(nowhere),
                NeighbourChange::Set(v6),
                NeighbourChange::SetFdb(fdb(3)),
            ];
            let outcomes = netlink.change_neighbours(&changes).unwrap();
            let failed: Vec<usize> = (0..5).filter(|at| outcomes[*at].is_err()).collect();
            assert_eq!(failed, [2], "one that fails does not stop those behind it");
            assert_eq!(netlink.fdb(interface).unwrap(), [fdb(2), fdb(3)]);
            assert_eq!(netlink.neighbours(Family::V4).unwrap(), [v4(2)]);
            assert_eq!(netlink.neighbours(Family::V6).unwrap(), [v6]);

            let moved = FdbEntry { destination: [10, 0, 0, 9].into(), ..fdb(2) };
            let changes = [
                NeighbourChange::SetFdb(moved),
                NeighbourChange::DeleteFdb(fdb(3)),
                NeighbourChange::DeleteFdb(fdb(3)),
                NeighbourChange::Delete(v4(2)),
                NeighbourChange::Delete(v6),
            ];
            let outcomes = netlink.change_neighbours(&changes).unwrap();
            assert!(outcomes[2].as_ref().unwrap_err().is_not_found());
            assert_eq!(netlink.fdb(interface).unwrap(), [moved]);
            assert_eq!(netlink.neighbours(Family::V4).unwrap(), []);
            assert_eq!(netlink.neighbours(Family::V6).unwrap(), []);
        });
    }

    fn a_large_table_is_written_in_batches() {
        in_namespace(|namespace, netlink, [w0, _]| {
            const COUNT: u32 = 20_000;
            namespace.ip(["addr add 10.0.0.1/24 dev w0"]).unwrap();
            netlink.change_device(&create("vxlan.calico", MAC, &vxlan(w0, "10.0.0.1"))).unwrap();
            let interface = netlink.device("vxlan.calico").unwrap().unwrap().index;
            netlink.change_device(&DeviceChange::SetUp(interface)).unwrap();
            let route = |at: u32| {
                let destination = Cidr::new(std::net::Ipv4Addr::from(0x0b00_0000 + at * 64).into(), 26).unwrap();
                let gateway = Some(std::net::Ipv4Addr::from(0x0c00_0000 + at % 250).into());
                let target = RouteTarget {
                    gateway,
                    on_link: true,
                    mtu: Some(1410),
                    protocol: RouteProtocol::CALICO,
                    ..via(interface, RouteScope::UNIVERSE)
                };
                Route { key: RouteKey { destination, tos: 0, metric: 0 }, target }
            };
            let mut wanted: Vec<Route> = (0..COUNT).map(route).collect();
            wanted.sort();
            let apply = |netlink: &mut Netlink, change: fn(Route) -> RouteChange| {
                let begin = Instant::now();
                let changes: Vec<RouteChange> = wanted.iter().cloned().map(change).collect();
                for batch in changes.chunks(128) {
                    for outcome in netlink.change_routes(RouteTableIndex::MAIN, batch).unwrap() {
                        outcome.unwrap();
                    }
                }
                begin.elapsed()
            };
            let made = apply(netlink, RouteChange::Replace);
            let begin = Instant::now();
            let mut found = netlink.routes(Family::V4, RouteTableIndex::MAIN).unwrap();
            let read = begin.elapsed();
            found.retain(|route| route.target.interface == Some(interface));
            assert_eq!(found, wanted);
            let removed = apply(netlink, RouteChange::Delete);
            println!("{COUNT} routes made in {made:?}, read in {read:?}, removed in {removed:?}");
        });
    }
}
