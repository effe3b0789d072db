use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn assignment(key: &[u8], bits: u8, value: u32) -> Assignment<'_> {
    Assignment { key, bits, value }
}

#[test]
fn the_longest_prefix_that_is_assigned_last_counts() {
    let mut blocks = Blocks::new();
    let root = blocks.assign(
        Cell::value(0),
        &[assignment(&[10], 8, 1), assignment(&[10, 1, 2, 3], 32, 2), assignment(&[10, 64], 10, 3)],
    );
    let value = |blocks: &Blocks, key: [u8; 4]| blocks.get(root, &key);
    assert_eq!(value(&blocks, [11, 0, 0, 0]), 0);
    assert_eq!(value(&blocks, [10, 0, 0, 0]), 1);
    assert_eq!(value(&blocks, [10, 1, 2, 3]), 2);
    assert_eq!(value(&blocks, [10, 1, 2, 4]), 1);
    assert_eq!((value(&blocks, [10, 127, 9, 9]), value(&blocks, [10, 128, 9, 9])), (3, 1));
    assert_eq!(blocks.len(), 4);
    // The assignment covers all keys, so one value remains.
    let none = blocks.assign(root, &[assignment(&[], 0, 7)]);
    assert_eq!((none, blocks.get(root, &[10, 1, 2, 3])), (Cell::value(7), 2), "the earlier tree is as it was");
    blocks.release(root);
    assert!(blocks.is_empty());
}

#[test]
fn equal_blocks_are_shared_and_numbers_are_reused_after_a_while() {
    let mut blocks = Blocks::new();
    let one = blocks.assign(Cell::value(0), &[assignment(&[1, 1], 16, 5), assignment(&[2, 1], 16, 5)]);
    assert_eq!(blocks.len(), 2, "both second bytes lead to the same block");
    let same = blocks.assign(Cell::value(0), &[assignment(&[1, 1], 16, 5), assignment(&[2, 1], 16, 5)]);
    assert_eq!((one, blocks.len()), (same, 2));
    let map = blocks.take_written();
    assert_eq!(map.len(), 2);
    assert!(blocks.take_written().is_empty());
    blocks.release(one);
    assert_eq!(blocks.len(), 2, "the other use");
    blocks.release(same);
    assert!(blocks.is_empty());
    let other = blocks.assign(Cell::value(0), &[assignment(&[9], 8, 1)]);
    assert!(other.as_block().is_some_and(|number| !map.contains(&number)), "a program may still read the old block");
    blocks.reclaim();
    let third = blocks.assign(Cell::value(0), &[assignment(&[8], 8, 1)]);
    assert!(third.as_block().is_some_and(|number| map.contains(&number)));
    assert_eq!(blocks.extent(), 4, "number 0 is never given out");
}

/// Model of the map: blocks by number, as written.
#[derive(Default)]
struct ModelMap(BTreeMap<u32, [Cell; CELLS]>);

impl ModelMap {
    fn take(&mut self, blocks: &mut Blocks) {
        self.0.extend(blocks.take_written().into_iter().map(|number| (number, blocks.cells(number).unwrap())));
    }

    fn get(&self, root: Cell, key: &[u8]) -> u32 {
        let next = |cell: Cell, byte: &u8| cell.as_block().map_or(cell, |number| self.0[&number][usize::from(*byte)]);
        key.iter().fold(root, next).as_value()
    }
}

/// Keys of two bytes, so that all of them can be checked.
fn change() -> impl Strategy<Value = ([u8; 2], u8, u32)> {
    let byte = prop_oneof![0..4_u8, any::<u8>()];
    ((byte.clone(), byte), 0..=16_u8, 0..4_u32)
        .prop_map(|((first, second), bits, value)| ([first, second], bits, value))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_history_ends_at_the_last_assignment(
        history in prop::collection::vec((prop::collection::vec(change(), 1..6), any::<bool>()), 1..12),
    ) {
        let (mut blocks, mut map) = (Blocks::new(), ModelMap::default());
        let mut model = vec![0_u32; 1 << 16];
        let (mut root, mut earlier) = (Cell::value(0), None::<(Cell, Vec<u32>)>);
        for (changes, keep) in &history {
            let assignments: Vec<_> =
                changes.iter().map(|(key, bits, value)| assignment(key, *bits, *value)).collect();
            let next = blocks.assign(root, &assignments);
            map.take(&mut blocks);
            if let Some((earlier, model)) = earlier.take() {
                // Until it is released and its numbers are reclaimed, readers see the whole earlier
                // trie.
                for (key, value) in (0..=u16::MAX).zip(&model).step_by(97) {
                    prop_assert_eq!(map.get(earlier, &key.to_be_bytes()), *value);
                }
                blocks.release(earlier);
                blocks.reclaim();
            }
            if *keep {
                earlier = Some((root, model.clone()));
            } else {
                blocks.release(root);
                blocks.reclaim();
            }
            root = next;
            for (key, bits, value) in changes {
                let mask = u16::MAX.checked_shl(16 - u32::from(*bits)).unwrap_or(0);
                let first = u16::from_be_bytes(*key) & mask;
                model[usize::from(first)..=usize::from(first | !mask)].fill(*value);
            }
            for (key, value) in (0..=u16::MAX).zip(&model) {
                prop_assert_eq!(blocks.get(root, &key.to_be_bytes()), *value);
                prop_assert_eq!(map.get(root, &key.to_be_bytes()), *value);
            }
        }
        // The same assignments at once give the same trie.
        let keys: Vec<[u8; 2]> = (0..=u16::MAX).map(u16::to_be_bytes).collect();
        let all: Vec<_> = keys.iter().zip(&model).map(|(key, value)| assignment(key, 16, *value)).collect();
        let at_once = blocks.assign(Cell::value(0), &all);
        prop_assert_eq!(at_once, root);
        for cell in [root, at_once].into_iter().chain(earlier.map(|(cell, _)| cell)) {
            blocks.release(cell);
        }
        prop_assert!(blocks.is_empty());
    }

    #[test]
    fn ranges_are_the_trie_of_their_numbers_whatever_came_before(
        history in prop::collection::vec(prop::collection::btree_map(0..1_u32 << 16, 0..4_u32, 0..40), 1..6),
    ) {
        let mut blocks = Blocks::new();
        let mut before: Option<(Vec<(u32, u32)>, Cell)> = None;
        for starts in &history {
            let starts: Vec<(u32, u32)> = starts.iter().map(|(start, value)| (*start, *value)).collect();
            let root = blocks.ranges(&starts, 2, before.as_ref().map(|(starts, root)| (&starts[..], *root)));
            let alone = blocks.ranges(&starts, 2, None);
            prop_assert_eq!(root, alone, "equal tries have equal roots");
            for key in 0..1_u32 << 16 {
                let [.., high, low] = key.to_be_bytes();
                let value = starts.iter().rev().find(|(start, _)| *start <= key).map_or(0, |(_, value)| *value);
                prop_assert_eq!(blocks.get(root, &[high, low]), value, "{}", key);
            }
            blocks.release(alone);
            if let Some((_, root)) = before.replace((starts, root)) {
                blocks.release(root);
            }
        }
        blocks.release(before.map_or(Cell::value(0), |(_, root)| root));
        prop_assert!(blocks.is_empty());
    }
}
