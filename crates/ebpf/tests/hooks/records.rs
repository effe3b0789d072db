//! Behaviour of programs without records, and for known connections.

use tortie_ebpf::classes::evaluate::{FailsafePort, Settings};
use tortie_ebpf::hooks::{Hook, HookSettings};
use tortie_ebpf::layout::{EndpointKind, EndpointRecord, MapKind, RootsRecord};
use tortie_ebpf::{Assignment, Blocks, Cell};
use tortie_model::{Family, Protocol};

use crate::{Bench, PORTS, attachments, v4, v6};

/// UDP port 22 is always open.
fn failsafe_settings(workload_prefixes: &[&str]) -> HookSettings {
    let port = FailsafePort { protocol: Protocol::UDP, port: 22, net: None };
    let policy = Settings { failsafe_inbound: vec![port], failsafe_outbound: vec![port], ..Settings::default() };
    let workload_prefixes = workload_prefixes.iter().map(|prefix| (*prefix).to_owned()).collect();
    HookSettings { workload_prefixes, policy, ..HookSettings::default() }
}

/// Map values by which a program does not find the state in force: no index, one out of range,
/// missing records, or records that lead to missing ones.
fn without_records() -> Vec<(&'static str, MapKind, u32, Vec<u8>)> {
    let roots = RootsRecord { is_in_force: true, ..RootsRecord::default() };
    let current = [1_u64, 3, 4, 255, u64::MAX];
    let mut all: Vec<_> =
        current.iter().map(|slot| ("no roots", MapKind::Current, 0, slot.to_ne_bytes().to_vec())).collect();
    let with = |roots: RootsRecord| (MapKind::Roots, 2, roots.to_bytes().to_vec());
    let nowhere = |case, roots| {
        let (map, index, value) = with(roots);
        (case, map, index, value)
    };
    all.push(nowhere("roots that are not in force", RootsRecord { is_in_force: false, ..roots }));
    all.push(nowhere("no endpoint of all interfaces", RootsRecord { all_interfaces: 64, ..roots }));
    // A block behind the end of the map.
    let mut blocks = Blocks::new();
    all.push(nowhere("no endpoint of the interface", roots.with_interfaces(Cell::value(64), &blocks)));
    let mut tree = |value| blocks.assign(Cell::value(0), &[Assignment { key: &[0, 0, 0, 1], bits: 32, value }]);
    let beyond = (1..=65).map(&mut tree).last().unwrap();
    all.push(nowhere("a tree of interfaces that is not there", roots.with_interfaces(beyond, &blocks)));
    all
}

#[test]
fn the_host_has_failsafe_ports_only_where_a_record_is_missing() {
    for attachment in attachments() {
        const TO_22: [u8; 8] = [0, 80, 0, 22, 0, 0, 0, 0];
        for hook in [Hook::Input, Hook::Output, Hook::Forward, Hook::Prerouting] {
            for family in Family::ALL {
                let bench = Bench::at_hook(attachment, hook, family, failsafe_settings(&["cali"]));
                let packet = |protocol, payload: &[u8]| match family {
                    Family::V4 => v4(protocol, 0, 0, payload),
                    Family::V6 => v6(protocol, payload),
                };
                let (icmp, neighbour) = if family == Family::V4 { (1, [8, 0]) } else { (58, [135, 0]) };
                let expect = |case: &str| {
                    let of_host = matches!(hook, Hook::Input | Hook::Output);
                    let evaluated_later = hook == Hook::Prerouting;
                    let found = [
                        bench.passes(&packet(17, &TO_22)),
                        bench.passes(&packet(6, &TO_22)),
                        bench.passes(&packet(17, &PORTS)),
                        bench.passes(&packet(50, &[])),
                        bench.passes(&packet(icmp, &neighbour)),
                    ];
                    let finds_neighbours = of_host && family == Family::V6;
                    let expected =
                        [of_host, false, false, false, finds_neighbours].map(|passes| passes || evaluated_later);
                    assert_eq!(found, expected, "{hook:?} {family:?}: {case}");
                };
                expect("nothing has been written");
                for (case, map, index, value) in without_records() {
                    bench.write(MapKind::Current, 0, &2_u64.to_ne_bytes());
                    bench.write(map, index, &value);
                    expect(case);
                }
                let dropped = bench.counted(0).packets;
                assert_eq!(dropped > 0, hook != Hook::Prerouting, "dropped packets are counted");
                let roots = RootsRecord { is_in_force: true, ..RootsRecord::default() };
                bench.write(MapKind::Roots, 2, &roots.to_bytes());
                bench.write(MapKind::Current, 0, &2_u64.to_ne_bytes());
                assert!(bench.passes(&packet(17, &PORTS)), "{hook:?} {family:?}: the interface has no endpoint");
            }
        }
    }
}

#[test]
fn workloads_have_nothing_where_a_record_is_missing() {
    for attachment in attachments() {
        for hook in Hook::ALL {
            for family in Family::ALL {
                // Test runs are at the loopback interface, whose name has a workload prefix here.
                let bench = Bench::at_hook(attachment, hook, family, failsafe_settings(&["lo"]));
                let to_22 = [0, 80, 0, 22, 0, 0, 0, 0];
                let packets = match family {
                    Family::V4 => [v4(17, 0, 0, &to_22), v4(17, 0, 0, &PORTS), v4(1, 0, 0, &[8, 0])],
                    Family::V6 => [v6(17, &to_22), v6(17, &PORTS), v6(58, &[135, 0])],
                };
                assert!(
                    !packets.iter().any(|packet| bench.passes(packet)),
                    "{hook:?} {family:?}: nothing has been written"
                );
                for (case, map, index, value) in without_records() {
                    bench.write(MapKind::Current, 0, &2_u64.to_ne_bytes());
                    bench.write(map, index, &value);
                    assert!(!packets.iter().any(|packet| bench.passes(packet)), "{hook:?} {family:?}: {case}");
                }
            }
        }
    }
}

#[test]
fn known_connections_pass_except_with_untracked_policy_or_on_interfaces_without_endpoint() {
    for attachment in attachments() {
        for hook in Hook::ALL {
            for family in Family::ALL {
                let [cali, lo] = ["cali", "lo"].map(|prefix| failsafe_settings(&[prefix]));
                let packet = if family == Family::V4 { v4(17, 0, 0, &PORTS) } else { v6(17, &PORTS) };
                let case = format!("{hook:?} {family:?}");
                let bench = Bench::of_known(attachment, hook, family, &cali);
                assert!(bench.passes(&packet), "{case}: a record is missing");
                let roots = RootsRecord { is_in_force: true, all_interfaces: 1, ..RootsRecord::default() };
                let all_of = |layers: u32| EndpointRecord {
                    kind: EndpointKind::Host,
                    evaluated: layers,
                    groups: [0; 8],
                    ..EndpointRecord::default()
                };
                // Group 0 is closed: any evaluated packet is denied.
                bench.write(MapKind::Endpoints, 1, &all_of(0b1100_1111).to_bytes());
                bench.write(MapKind::Current, 0, &2_u64.to_ne_bytes());
                for bytes in [roots.to_bytes(), roots.to_bytes_without_untracked()] {
                    bench.write(MapKind::Roots, 2, &bytes);
                    assert!(bench.passes(&packet), "{case}: nothing is asked");
                }
                // The specific endpoint of the interface has untracked policy.
                bench.write(MapKind::Endpoints, 1, &all_of(0b0011_1111).to_bytes());
                let mut blocks = Blocks::new();
                let interfaces =
                    blocks.assign(Cell::value(0), &[Assignment { key: &[0, 0, 0, 1], bits: 32, value: 1 }]);
                for number in blocks.take_written() {
                    let cells = blocks.cells(number).expect("a new block is in use");
                    bench.write(MapKind::Blocks, number, &cells.map(|cell| cell.bits().to_ne_bytes()).concat());
                }
                bench.write(MapKind::Roots, 2, &roots.with_interfaces(interfaces, &blocks).to_bytes());
                let is_evaluated = matches!(hook, Hook::Prerouting | Hook::Output);
                assert_eq!(bench.passes(&packet), !is_evaluated, "{case}: untracked policy");

                let nobodys = Bench::of_known(attachment, hook, family, &lo);
                nobodys.write(MapKind::Current, 0, &2_u64.to_ne_bytes());
                let roots = RootsRecord { all_interfaces: 0, ..roots };
                for bytes in [roots.to_bytes(), roots.to_bytes_without_untracked()] {
                    nobodys.write(MapKind::Roots, 2, &bytes);
                    // The host reaches all interfaces.
                    assert_eq!(
                        nobodys.passes(&packet),
                        hook == Hook::Output,
                        "{case}: an interface without an endpoint"
                    );
                }
            }
        }
    }
}
