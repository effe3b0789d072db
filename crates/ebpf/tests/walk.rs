//! Programs that follow trees, in `rbpf` with a map as the kernel would have it.
#![allow(unsafe_code, reason = "`rbpf` hands addresses to what stands for the kernel's functions")]
#![allow(clippy::unwrap_used, reason = "what cannot be fails the test")]

use std::cell::RefCell;

use proptest::prelude::*;
use tortie_ebpf::{Assembler, Assignment, Base, Blocks, CELLS, Cell, Helper, MapId, Program, Register, Walk};

/// What a program returns that does not find a block.
const MISSING: i32 = -1;

type Block = Box<[u32; CELLS]>;

thread_local! {
    /// The blocks by number, as many as the map has entries.
    static MAP: RefCell<Vec<Option<Block>>> = const { RefCell::new(Vec::new()) };
}

/// `bpf_map_lookup_elem` of an array: the address of a value, or 0 behind its end.
fn lookup(_map: u64, key: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: the program passes the address of four bytes on its stack.
    let number = unsafe { (key as *const u32).read_unaligned() };
    MAP.with_borrow(|map| map.get(number as usize).and_then(Option::as_ref).map_or(0, |block| block.as_ptr() as u64))
}

/// Follows the tree whose root is in the first four bytes of its memory by the key behind.
fn program(bytes: u8) -> Program {
    let mut program = Assembler::new();
    let missing = program.label();
    let walk =
        Walk { blocks: MapId(0), cell: Register::R6, key: Base::Register(Register::R7), offset: 4, bytes, scratch: -4 };
    program.set(Register::R7, Register::R1).load(tortie_ebpf::Size::U32, Register::R6, Register::R7, 0);
    program.walk(&walk, missing).set(Register::R0, Register::R6).exit();
    program.place(missing).set(Register::R0, MISSING).exit();
    program.assemble().unwrap()
}

fn run(program: &Program, root: Cell, key: &[u8]) -> u64 {
    let bytes = program.bytes(|_| 1);
    let mut machine = rbpf::EbpfVmRaw::new(Some(&bytes)).unwrap();
    machine.register_helper(u32::try_from(Helper::MapLookup.number()).unwrap(), lookup).unwrap();
    MAP.with_borrow(|map| {
        for block in map.iter().flatten() {
            let begin = block.as_ptr() as u64;
            machine.register_allowed_memory(begin..begin + 4 * CELLS as u64);
        }
    });
    let mut memory = [&root.bits().to_ne_bytes()[..], key].concat();
    machine.execute_program(&mut memory).unwrap()
}

/// Writes what is new, as a map is written.
fn write(blocks: &mut Blocks) {
    let extent = blocks.extent();
    MAP.with_borrow_mut(|map| {
        map.resize(extent, None);
        for (number, cells) in blocks.take_written() {
            map[number as usize] = Some(Box::new(cells.map(Cell::bits)));
        }
    });
}

#[test]
fn what_is_missing_is_told() {
    let mut blocks = Blocks::new();
    let root = blocks.assign(Cell::value(0), &[Assignment { key: &[1, 2, 3, 4], bits: 32, value: 9 }]);
    write(&mut blocks);
    assert_eq!(run(&program(4), root, &[1, 2, 3, 4]), 9);
    assert_eq!(run(&program(4), root, &[1, 2, 3, 5]), 0);
    assert_eq!(run(&program(4), Cell::value(5), &[1, 2, 3, 4]), 5, "nothing is to be followed");
    assert_eq!(run(&program(2), root, &[1, 2]), u64::MAX, "the tree leads on behind the key");
    MAP.with_borrow_mut(|map| *map.last_mut().unwrap() = None);
    assert_eq!(run(&program(4), root, &[1, 2, 3, 4]), u64::MAX);
}

proptest! {
    #[test]
    fn programs_find_what_is_assigned(
        nets in prop::collection::vec((any::<[u8; 4]>(), 0..=32_u8, 0..1000_u32), 0..40),
        others in prop::collection::vec(any::<[u8; 4]>(), 8),
    ) {
        let mut blocks = Blocks::new();
        let assignments: Vec<_> =
            nets.iter().map(|(key, bits, value)| Assignment { key, bits: *bits, value: *value }).collect();
        let root = blocks.assign(Cell::value(0), &assignments);
        write(&mut blocks);
        let program = program(4);
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
