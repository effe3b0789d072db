//! Addresses that the endpoint has learned have the class of their entry.

use std::net::IpAddr;

use tortie_ebpf::hooks::{Attachment, Hook, HookSettings};
use tortie_ebpf::layout::{HOST_LEARNER, LearnedKey, LearnedRecord, MapKind, endpoint, roots};
use tortie_model::Family;

use crate::{Bench, DESTINATION_CLASS, Expected, PORTS, V4, V6, attachments, v4, v6};

/// Class whose packets are not allowed.
const OTHER_CLASS: u32 = 7;
/// Index of the roots.
const SLOT: usize = 2;

/// Allows packets to an address, which is that of packets or another one.
fn bench(attachment: Attachment, family: Family, is_allowed: bool) -> Bench {
    let bench = Bench::at_hook(attachment, Hook::Output, family, HookSettings::default());
    let expected = Expected { protocol: 17, detail: Some(80), source_port: Some(0x0611) };
    let (source, mut destination) = match family {
        Family::V4 => (V4[0].to_vec(), V4[1].to_vec()),
        Family::V6 => (V6[0].to_vec(), V6[1].to_vec()),
    };
    destination[0] ^= u8::from(!is_allowed);
    bench.expect(&source, &destination, expected);
    set(&bench, (MapKind::Roots, 2), roots::FLAGS, (roots::IN_FORCE | 2 << roots::SLOT_SHIFT).unsigned_abs());
    set(&bench, (MapKind::Endpoints, 1), endpoint::DOMAINS, HOST_LEARNER);
    bench
}

fn set(bench: &Bench, (kind, index): (MapKind, u32), offset: i16, number: u32) {
    let (_, map) = bench.maps.arrays.iter().find(|(of, _)| *of == kind).unwrap();
    let mut record = [0; 64];
    map.read(index, &mut record).unwrap();
    let offset = usize::try_from(offset).unwrap();
    record[offset..offset + 4].copy_from_slice(&number.to_ne_bytes());
    bench.write(kind, index, &record);
}

fn key(family: Family) -> LearnedKey {
    let address: IpAddr = if family == Family::V4 { V4[1].into() } else { V6[1].into() };
    LearnedKey { endpoint: HOST_LEARNER, address }
}

fn record(slot: usize, class: u32) -> LearnedRecord {
    let mut record = LearnedRecord::default();
    record.classes[slot] = class;
    record
}

#[test]
fn the_class_of_an_entry_comes_before_that_of_everyone() {
    for (attachment, family) in attachments().into_iter().flat_map(|at| Family::ALL.map(|family| (at, family))) {
        let of_family = |class: u32| if family == Family::V6 { class | 1 << 23 } else { class } | LearnedRecord::OPEN;
        let packet = if family == Family::V4 { v4(17, 0, 0, &PORTS) } else { v6(17, &PORTS) };
        for is_allowed in [true, false] {
            let bench = bench(attachment, family, is_allowed);
            let passes = |key: LearnedKey, record: LearnedRecord| {
                bench.maps.learned.insert(&key.to_bytes(), &record.to_bytes()).unwrap();
                let passes = bench.passes(&packet);
                assert!(bench.maps.learned.remove(&key.to_bytes()).unwrap());
                passes
            };
            let (key, case) = (key(family), format!("{attachment:?} {family:?} {is_allowed}"));
            let other = of_family(if is_allowed { OTHER_CLASS } else { DESTINATION_CLASS });
            assert_eq!(bench.passes(&packet), is_allowed, "{case}: no entry");
            assert_eq!(passes(key, record(SLOT, other)), !is_allowed, "{case}: the class of the entry");
            for slot in [0, 1, 3] {
                assert_eq!(passes(key, record(slot, other)), is_allowed, "{case}: of other roots");
            }
            let closed = other & !LearnedRecord::OPEN;
            assert_eq!(passes(key, record(SLOT, closed)), is_allowed, "{case}: not in force");
            let of_others = [
                LearnedKey { endpoint: 1, ..key },
                LearnedKey { address: if family == Family::V4 { [192, 0, 2, 78].into() } else { V6[0].into() }, ..key },
            ];
            for of_other in of_others {
                assert_eq!(passes(of_other, record(SLOT, other)), is_allowed, "{case}: {of_other:?}");
            }
            set(&bench, (MapKind::Endpoints, 1), endpoint::DOMAINS, 0);
            assert_eq!(passes(key, record(SLOT, other)), is_allowed, "{case}: an endpoint that does not learn");
        }
    }
}
