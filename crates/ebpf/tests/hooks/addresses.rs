//! IPv6 addresses are looked up in the hash table first, and then in the trie to which the table
//! leads.

use tortie_ebpf::Cell;
use tortie_ebpf::hooks::{Attachment, Hook, HookSettings};
use tortie_ebpf::layout::{ExactRecord, MapKind, exact_bucket, roots};
use tortie_model::Family;

use crate::{Bench, DESTINATION_CLASS, Expected, PORTS, V6, attachments, v6};

const BUCKETS: u32 = 64;
const OF_V6: u32 = 1 << 23;
/// Class of all networks, none of whose packets are allowed.
const OTHER_CLASS: u32 = 7;

/// An entry of a bucket: an address, its class, and whether it is open.
type Entry = ([u8; 16], u32, bool);

fn bucket(entries: [Option<Entry>; ExactRecord::WAYS], is_complete: bool) -> Vec<u8> {
    let entries = entries.map(Option::unwrap_or_default);
    let addresses = entries.iter().flat_map(|(address, ..)| *address);
    let classes = entries.iter().flat_map(|(_, class, is_open)| {
        let open = if *is_open { ExactRecord::OPEN } else { 0 };
        (class | open).to_ne_bytes()
    });
    addresses.chain(classes).chain(u32::from(is_complete).to_ne_bytes()).collect()
}

/// Allows packets to the destination while it has its class of the trie of all addresses.
fn bench(attachment: Attachment) -> Bench {
    let bench = Bench::at_hook(attachment, Hook::Output, Family::V6, HookSettings::default());
    let expected = Expected { protocol: 17, detail: Some(80), source_port: Some(0x0611) };
    bench.expect(&V6[0], &V6[1], expected);
    let (_, map) = bench.maps.arrays.iter().find(|(kind, _)| *kind == MapKind::Roots).unwrap();
    let mut record = [0; roots::SIZE];
    map.read(2, &mut record).unwrap();
    let shift = 64 - BUCKETS.trailing_zeros();
    let parts = [
        (roots::EXACT_BUCKETS, BUCKETS),
        (roots::EXACT_SHIFT, shift),
        (roots::NETWORKS, Cell::value(OTHER_CLASS | OF_V6).bits()),
    ];
    for (offset, number) in parts {
        let offset = usize::try_from(offset).unwrap();
        record[offset..offset + 4].copy_from_slice(&number.to_ne_bytes());
    }
    bench.write(MapKind::Roots, 2, &record);
    bench
}

#[test]
fn an_address_is_looked_up_in_the_hash_table_and_then_in_the_tries() {
    let [source, destination] = V6;
    let at = exact_bucket(&destination, BUCKETS);
    assert_ne!(exact_bucket(&source, BUCKETS), at, "the source is in the tree of all");
    let (right, wrong) = (DESTINATION_CLASS | OF_V6, OTHER_CLASS | OF_V6);
    let other_network = [&source[..8], &destination[8..]].concat().try_into().unwrap();
    let other_host = [&destination[..8], &source[8..]].concat().try_into().unwrap();
    for attachment in attachments() {
        let bench = bench(attachment);
        let passes = |entries, is_complete| {
            bench.write(MapKind::Exact, at, &bucket(entries, is_complete));
            bench.passes(&v6(17, &PORTS))
        };
        assert!(passes([None; 3], false), "an incomplete bucket falls back to the full address trie");
        assert!(!passes([None; 3], true), "one that is complete leads to that of networks");
        for way in 0..ExactRecord::WAYS {
            let only = |address, class, is_open| {
                let mut entries = [None; 3];
                entries[way] = Some((address, class, is_open));
                entries
            };
            for is_complete in [false, true] {
                assert!(passes(only(destination, right, true), is_complete), "open");
                assert!(!passes(only(destination, wrong, true), is_complete), "its class counts");
                assert!(passes(only(destination, wrong, false), is_complete), "closed");
            }
            for other in [other_network, other_host] {
                assert!(!passes(only(other, right, true), true), "another address");
                assert!(passes(only(other, wrong, true), false), "another address");
            }
            let mut twice = only(destination, right, true);
            twice[(way + 1) % 3] = Some((destination, wrong, false));
            assert!(passes(twice, true), "the open one counts");
            twice[way] = Some((destination, wrong, true));
            assert!(!passes(twice, true), "the open one counts");
        }
    }
}
