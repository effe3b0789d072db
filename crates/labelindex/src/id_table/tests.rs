use std::collections::BTreeSet;

use super::*;

/// Hashes that crowd both ends of the table and many that are equal.
fn crowded(n: u32) -> u32 {
    match n % 4 {
        0 => u32::MAX - n % 3,
        1 => n % 5,
        2 => 0x8000_0000,
        _ => n.wrapping_mul(0x9e37_79b9),
    }
}

fn check(table: &IdTable, expected: &BTreeSet<(u32, u32)>) {
    for &(hash, id) in expected {
        assert_eq!(table.find(hash, |other| other == id), Some(id), "{hash:x} {id}");
        let mut all: Vec<u32> = table.find_all(hash).collect();
        all.sort_unstable();
        assert!(all.iter().eq(expected.range((hash, 0)..=(hash, u32::MAX)).map(|(_, id)| id)));
    }
    assert_eq!(table.is_empty(), expected.is_empty());
    assert!(table.slots.iter().filter(|&&entry| entry != VACANT).is_sorted_by_key(|&(hash, _)| hash));
}

#[test]
fn ids_are_found_until_they_are_removed() {
    let (mut table, mut expected) = (IdTable::default(), BTreeSet::new());
    for id in 0..2_000 {
        assert_eq!(table.find(crowded(id), |other| other == id), None);
        table.insert(crowded(id), id);
        expected.insert((crowded(id), id));
        if id % 3 == 0 {
            let gone = id * 7 / 11;
            table.remove(crowded(gone), gone);
            expected.remove(&(crowded(gone), gone));
        }
        if id % 250 == 0 {
            check(&table, &expected);
        }
    }
    for id in 0..2_000 {
        if expected.remove(&(crowded(id), id)) {
            table.remove(crowded(id), id);
        }
        if id % 250 == 0 {
            check(&table, &expected);
        }
    }
    assert!(table.is_empty() && table.slots.capacity() == 0);
}

#[test]
fn room_can_be_made_in_advance() {
    let mut table = IdTable::default();
    table.insert(7, 1);
    table.reserve(1_000);
    let capacity = table.slots.capacity();
    (2..1_000_u32).for_each(|id| table.insert(id.wrapping_mul(0x9e37_79b9), id));
    assert_eq!(table.find(7, |_| true), Some(1));
    assert!(table.slots.capacity() < capacity + 64, "{} slots instead of {capacity}", table.slots.capacity());
}
