//! Programs with trie lookups, in `rbpf` with a map in the kernel's format.
#![allow(clippy::unwrap_used, reason = "a failed conversion fails the test")]

use std::cell::RefCell;

use proptest::prelude::*;
use tortie_ebpf::{Assembler, Assignment, Base, Blocks, BlocksPlace, CELLS, Cell, MapId, Program, Register, Walk};

/// Result of a program that does not find a block.
const MISSING: i32 = -1;

thread_local! {
    /// Blocks, one behind the other.
    static MAP: RefCell<Vec<[u32; CELLS]>> = const { RefCell::new(Vec::new()) };
}

/// A program with a trie lookup: its memory has the root in the first four bytes, and then the key.
fn program(bytes: u8, count: u32) -> Program {
    let mut program = Assembler::new();
    let missing = program.label();
    let blocks = BlocksPlace { map: MapId(0), register: Register::R5, count };
    let walk = Walk { blocks, cell: Register::R6, key: Base::Register(Register::R7), offset: 4, bytes };
    program.set(Register::R7, Register::R1).find_blocks(blocks).load(
        tortie_ebpf::Size::U32,
        Register::R6,
        Register::R7,
        0,
    );
    program.walk(&walk, missing).set(Register::R0, Register::R6).exit();
    program.place(missing).set(Register::R0, MISSING).exit();
    program.assemble().unwrap()
}

fn run(program: &Program, root: Cell, key: &[u8]) -> u64 {
    let bytes = program.bytes_with_addresses(|_| MAP.with_borrow(|map| map.as_ptr() as u64));
    let mut machine = rbpf::EbpfVmRaw::new(Some(&bytes)).unwrap();
    MAP.with_borrow(|map| {
        let all = map.as_ptr_range();
        machine.register_allowed_memory(all.start as u64..all.end as u64);
    });
    let mut memory = [&root.bits().to_ne_bytes()[..], key].concat();
    machine.execute_program(&mut memory).unwrap()
}

/// Writes new blocks to the map.
fn write(blocks: &mut Blocks) {
    let extent = blocks.extent();
    MAP.with_borrow_mut(|map| {
        map.resize(extent.max(1), [0; CELLS]);
        for number in blocks.take_written() {
            let cells = blocks.cells(number).expect("a new block is in use");
            map[number as usize] = cells.map(Cell::bits);
        }
    });
}

/// Returns the number of blocks.
fn count() -> u32 {
    MAP.with_borrow(|map| u32::try_from(map.len()).unwrap())
}

#[test]
fn missing_blocks_are_reported() {
    let mut blocks = Blocks::new();
    let root = blocks.assign(Cell::value(0), &[Assignment { key: &[1, 2, 3, 4], bits: 32, value: 9 }]);
    write(&mut blocks);
    assert_eq!(run(&program(4, count()), root, &[1, 2, 3, 4]), 9);
    assert_eq!(run(&program(4, count()), root, &[1, 2, 3, 5]), 0);
    assert_eq!(run(&program(4, count()), Cell::value(5), &[1, 2, 3, 4]), 5, "nothing is to be followed");
    assert_eq!(run(&program(2, count()), root, &[1, 2]), u64::MAX, "the tree leads on behind the key");
    assert_eq!(run(&program(4, count() - 1), root, &[1, 2, 3, 4]), u64::MAX, "the last block is not there");
    assert_eq!(run(&program(4, 0), root, &[1, 2, 3, 4]), u64::MAX, "there are no blocks");
    MAP.with_borrow_mut(|map| map.fill([0; CELLS]));
    assert_eq!(run(&program(4, count()), root, &[1, 2, 3, 4]), u64::MAX, "nothing has been written");
}

proptest! {
    #[test]
    fn programs_find_assigned_values(
        nets in prop::collection::vec((any::<[u8; 4]>(), 0..=32_u8, 0..1000_u32), 0..40),
        others in prop::collection::vec(any::<[u8; 4]>(), 8),
    ) {
        let mut blocks = Blocks::new();
        let assignments: Vec<_> =
            nets.iter().map(|(key, bits, value)| Assignment { key, bits: *bits, value: *value }).collect();
        let root = blocks.assign(Cell::value(0), &assignments);
        write(&mut blocks);
        let program = program(4, count());
        for key in nets.iter().map(|(key, ..)| key).chain(&others) {
            let within = |(net, bits, _): &&([u8; 4], u8, u32)| {
                let mask = u32::MAX.checked_shl(32 - u32::from(*bits)).unwrap_or(0);
                u32::from_be_bytes(*net) & mask == u32::from_be_bytes(*key) & mask
            };
            let expected = nets.iter().rev().find(within).map_or(0, |(_, _, value)| *value);
            prop_assert_eq!(run(&program, root, key), u64::from(expected), "{:?}", key);
        }
    }
}
