//! The addresses that workloads may send from.

use std::net::IpAddr;

use tortie_ebpf::hooks::{Hook, HookSettings};
use tortie_ebpf::layout::{EndpointKind, EndpointRecord, MapKind, RootsRecord};
use tortie_ebpf::{Assignment, Blocks, Cell};
use tortie_model::Family;

use crate::{Bench, PORTS, attachments, v4, v6};

/// A UDP packet from one address to another.
fn packet(source: &str, destination: &str) -> Vec<u8> {
    match [source, destination].map(|address| address.parse().unwrap()) {
        [IpAddr::V4(source), IpAddr::V4(destination)] => {
            let mut packet = v4(17, 0, 0, &PORTS);
            packet[12..20].copy_from_slice(&[source.octets(), destination.octets()].concat());
            packet
        }
        [IpAddr::V6(source), IpAddr::V6(destination)] => {
            let mut packet = v6(17, &PORTS);
            packet[8..40].copy_from_slice(&[source.octets(), destination.octets()].concat());
            packet
        }
        _ => panic!("{source} and {destination} are of one family"),
    }
}

/// A workload at the loopback interface, where test runs are, that has no address.
fn workload(bench: &Bench) {
    let mut blocks = Blocks::new();
    let interfaces = blocks.assign(Cell::value(0), &[Assignment { key: &[0, 0, 0, 1], bits: 32, value: 1 }]);
    for number in blocks.take_written() {
        let cells = blocks.cells(number).expect("a new block is in use");
        bench.write(MapKind::Blocks, number, &cells.map(|cell| cell.bits().to_ne_bytes()).concat());
    }
    let record = EndpointRecord { kind: EndpointKind::Workload, ..EndpointRecord::default() };
    bench.write(MapKind::Endpoints, 1, &record.to_bytes());
    let roots = RootsRecord { is_in_force: true, ..RootsRecord::default() };
    bench.write(MapKind::Roots, 2, &roots.with_interfaces(interfaces, &blocks).to_bytes());
    bench.write(MapKind::Current, 0, &2_u64.to_ne_bytes());
}

#[test]
fn a_workload_without_addresses_may_ask_for_one_and_find_its_neighbours() {
    let v4 = [
        ("0.0.0.0", "255.255.255.255", true),
        ("0.255.255.255", "224.0.0.255", true),
        ("0.0.0.0", "255.255.255.254", false),
        ("0.0.0.0", "224.0.1.0", false),
        ("1.0.0.0", "255.255.255.255", false),
        ("10.0.0.1", "10.0.0.2", false),
    ];
    let v6 = [
        ("::", "ff02::1", true),
        ("fe80::ffff:ffff:ffff:ffff", "fd00::1", true),
        ("fe80:0:0:1::", "fd00::1", false),
        ("::1", "fd00::1", false),
        ("fd00::2", "fd00::1", false),
    ];
    for attachment in attachments() {
        let settings = HookSettings { workload_prefixes: vec!["lo".to_owned()], ..HookSettings::default() };
        for (family, packets) in [(Family::V4, &v4[..]), (Family::V6, &v6[..])] {
            let bench = Bench::at_hook(attachment, Hook::Prerouting, family, settings.clone());
            workload(&bench);
            for (source, destination, passes) in packets {
                assert_eq!(bench.passes(&packet(source, destination)), *passes, "from {source} to {destination}");
            }
        }
    }
}
