//! Maps and programs in the running kernel; requires root.
#![allow(clippy::unwrap_used, reason = "an unexpected error fails the test")]

use std::io::ErrorKind;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tortie_bpf::{ArrayMap, HashMap, NetfilterPosition, PerCpuArrayMap, Program, RingBuffer};

/// `r0 = NUMBER; exit`
fn returns(number: i32) -> Vec<u8> {
    let [a, b, c, d] = number.to_ne_bytes();
    [[0xb7, 0, 0, 0, a, b, c, d], [0x95, 0, 0, 0, 0, 0, 0, 0]].concat()
}

#[test]
fn values_are_written_and_read() {
    let map = ArrayMap::create("a_name_of_more_than_15_bytes", 12, 3).unwrap();
    let mut value = [7; 12];
    map.read(2, &mut value).unwrap();
    assert_eq!(value, [0; 12]);
    map.write(2, b"twelve bytes").unwrap();
    map.read(2, &mut value).unwrap();
    assert_eq!(&value, b"twelve bytes");
    assert_eq!(map.write(2, b"too few").unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(map.read(2, &mut [0; 16]).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert!(map.write(3, b"twelve bytes").is_err(), "there is no fourth");
}

#[test]
fn many_values_are_written_at_once() {
    let map = ArrayMap::create("batch", 8, 5).unwrap();
    map.write_all(&[4, 0, 4], &[1_u64, 2, 3].map(u64::to_ne_bytes).concat()).unwrap();
    let mut value = [0; 8];
    for (index, expected) in [(0, 2_u64), (1, 0), (4, 3)] {
        map.read(index, &mut value).unwrap();
        assert_eq!(u64::from_ne_bytes(value), expected, "value {index}");
    }
    map.write_all(&[], &[]).unwrap();
    assert_eq!(map.write_all(&[1, 2], &[0; 8]).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert!(map.write_all(&[5], &[0; 8]).is_err(), "there is no sixth");
    let info = map.info();
    assert_eq!((info.value_size, info.entries), (8, 5));
    assert_ne!(info.id, 0);
}

#[test]
fn joined_values_are_one_to_the_kernel() {
    let map = ArrayMap::create_joined("joined", 1024, 6).unwrap();
    assert_eq!((map.info().value_size, map.info().entries), (1024, 6));
    let mut value = [7; 1024];
    map.read(5, &mut value).unwrap();
    assert_eq!(value, [0; 1024]);
    map.write(5, &[5; 1024]).unwrap();
    map.write_all(&[0, 4], &[[1; 1024], [4; 1024]].concat()).unwrap();
    for (index, expected) in [(0, 1), (1, 0), (4, 4), (5, 5)] {
        map.read(index, &mut value).unwrap();
        assert_eq!(value, [expected; 1024], "value {index}");
    }
    assert!(map.write(6, &[0; 1024]).is_err() && map.read(u32::MAX, &mut value).is_err(), "there is no seventh");
    assert_eq!(map.write(0, &[0; 8]).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert!(ArrayMap::create_joined("too_large", u32::MAX, 2).is_err());
    // r0 = the fourth byte of the last value, addressed relative to the first
    let bytes = [
        [0x62, 0x0a, 0xfc, 0xff, 0, 0, 0, 0],
        [0xbf, 0xa2, 0, 0, 0, 0, 0, 0],
        [0x07, 0x02, 0, 0, 0xfc, 0xff, 0xff, 0xff],
        [0x18, 0x11, 0, 0, 0, 0, 0, 0],
        [0; 8],
        [0x85, 0, 0, 0, 1, 0, 0, 0],
        [0x15, 0, 1, 0, 0, 0, 0, 0],
        [0x71, 0x00, 0x03, 0x14, 0, 0, 0, 0],
        [0x95, 0, 0, 0, 0, 0, 0, 0],
    ];
    let mut bytes = bytes.concat();
    bytes[28..32].copy_from_slice(&map.descriptor().to_ne_bytes());
    let program = Program::load_classifier("last", &bytes).unwrap();
    assert_eq!(program.test_run(&[0; 64], 1).unwrap().result, 5);
}

#[test]
fn each_cpu_has_values() {
    let map = PerCpuArrayMap::create("cpus", 12, 2).unwrap();
    let values = map.read(1).unwrap();
    assert!(!values.is_empty() && values.iter().all(|byte| *byte == 0), "{values:?}");
    assert_eq!(values.len() % 16, 0, "values are filled up");
    map.clear(1).unwrap();
    assert!(map.read(2).is_err(), "there is no third");
    assert_eq!((map.info().value_size, map.info().entries), (12, 2));
}

/// Returns a program that writes an 8-byte number from its stack into a ring and returns the
/// kernel's result.
#[test]
fn entries_are_added_replaced_and_removed() {
    let map = HashMap::create("learned", 4, 8, 3).unwrap();
    assert_eq!((map.sizes(), map.entries(), map.keys().unwrap()), ((4, 8), 3, vec![]));
    for (key, value) in [(1_u32, 10_u64), (2, 20), (1, 11), (3, 30)] {
        map.insert(&key.to_ne_bytes(), &value.to_ne_bytes()).unwrap();
    }
    let of = |key: u32| map.get(&key.to_ne_bytes()).unwrap();
    let value = |number: u64| Some(number.to_ne_bytes().to_vec());
    assert_eq!((of(1), of(2), of(3), of(4)), (value(11), value(20), value(30), None));
    let mut keys = map.keys().unwrap();
    keys.sort_unstable();
    assert_eq!(keys, [1_u32, 2, 3].map(|key| key.to_ne_bytes().to_vec()));
    let full = map.insert(&4_u32.to_ne_bytes(), &[0; 8]).unwrap_err();
    assert_eq!(full.raw_os_error(), Some(7), "E2BIG: {full}");
    map.insert(&3_u32.to_ne_bytes(), &31_u64.to_ne_bytes()).unwrap();
    assert_eq!((map.remove(&2_u32.to_ne_bytes()).unwrap(), map.remove(&2_u32.to_ne_bytes()).unwrap()), (true, false));
    map.insert(&4_u32.to_ne_bytes(), &[0; 8]).unwrap();
    assert_eq!((of(2), of(3), of(4)), (None, value(31), value(0)));
    for wrong in [map.insert(&[0; 3], &[0; 8]), map.insert(&[0; 4], &[0; 7]), map.remove(&[0; 5]).map(drop)] {
        assert_eq!(wrong.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}

fn program_that_writes(ring: &RingBuffer, number: i32) -> Program {
    let [a, b, c, d] = number.to_ne_bytes();
    let bytes = [
        // *(u64 *)(r10 - 8) = NUMBER
        [0x7a, 0x0a, 0xf8, 0xff, a, b, c, d],
        // r2 = r10 - 8
        [0xbf, 0xa2, 0, 0, 0, 0, 0, 0],
        [0x07, 0x02, 0, 0, 0xf8, 0xff, 0xff, 0xff],
        [0x18, 0x11, 0, 0, 0, 0, 0, 0],
        [0; 8],
        [0xb7, 0x03, 0, 0, 8, 0, 0, 0],
        [0xb7, 0x04, 0, 0, 0, 0, 0, 0],
        // bpf_ringbuf_output
        [0x85, 0, 0, 0, 130, 0, 0, 0],
        [0x95, 0, 0, 0, 0, 0, 0, 0],
    ];
    let mut bytes = bytes.concat();
    bytes[28..32].copy_from_slice(&ring.descriptor().to_ne_bytes());
    Program::load_classifier("tells", &bytes).unwrap()
}

fn read_numbers(ring: &mut RingBuffer) -> Vec<u64> {
    let mut numbers = Vec::new();
    ring.read(|record| numbers.push(u64::from_ne_bytes(record.try_into().unwrap()))).unwrap();
    numbers
}

#[test]
fn records_of_programs_are_read_once_and_in_order() {
    const BYTES: u32 = 4096;
    let is_readable = |ring: &RingBuffer| {
        let mut fds = [PollFd::new(ring, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 200_000_000 })).unwrap() == 1
    };
    let mut ring = RingBuffer::create("ring", BYTES).unwrap();
    assert_eq!(ring.info().entries, BYTES);
    assert!(read_numbers(&mut ring).is_empty() && !is_readable(&ring));
    let write_number =
        |ring: &RingBuffer, number| program_that_writes(ring, number).test_run(&[0; 64], 1).unwrap().result;
    assert_eq!((write_number(&ring, 7), write_number(&ring, 8)), (0, 0));
    assert!(is_readable(&ring));
    assert_eq!(read_numbers(&mut ring), [7, 8]);
    assert!(read_numbers(&mut ring).is_empty() && !is_readable(&ring));
    // Wrap around the end several times: each record occupies 16 bytes.
    for round in 0..600 {
        assert_eq!((write_number(&ring, round), read_numbers(&mut ring)), (0, vec![u64::try_from(round).unwrap()]));
    }
    // In a full ring, new records are dropped and unread ones are kept.
    let many = program_that_writes(&ring, 5).test_run(&[0; 64], 300).unwrap();
    assert_ne!(many.result, 0);
    let read = read_numbers(&mut ring);
    assert!(read.iter().all(|number| *number == 5));
    assert!((240..=256).contains(&read.len()), "{}", read.len());
    assert_eq!((write_number(&ring, 9), read_numbers(&mut ring)), (0, vec![9]));
    assert_eq!(write_number(&ring, 10), 0);
    let mut other = ring.try_clone().unwrap();
    assert_eq!(
        (read_numbers(&mut other), read_numbers(&mut ring)),
        (vec![10], vec![]),
        "it is known how far it was read"
    );
    assert!(RingBuffer::create("odd", BYTES + 1).is_err(), "no power of two");
}

#[test]
fn programs_for_hooks_run() {
    let program = Program::load_netfilter("accept", c"Apache-2.0", &returns(1)).unwrap();
    let at = NetfilterPosition { family: 2, hook: 3, priority: 0, defragment: false };
    let mut packet = [0; 20];
    packet[0] = 0x45;
    assert_eq!(program.test_run_netfilter(at, &packet, 10).unwrap().result, 1);
    assert!(program.test_run_netfilter(at, &packet[..19], 10).is_err(), "no IP header");
    let info = program.info().unwrap();
    assert_ne!(info.id, 0);
    assert_eq!(info.verified, 2);
    // The verifier rejects NF_STOLEN: the packet would be lost.
    let error = Program::load_netfilter("steal", c"Apache-2.0", &returns(2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
}

#[test]
fn programs_run() {
    let program = Program::load_classifier("returns", &returns(5)).unwrap();
    let run = program.test_run(&[0; 64], 10).unwrap();
    assert_eq!(run.result, 5);
    assert!(program.test_run(&[0; 3], 1).is_err(), "no Ethernet header");
}

#[test]
fn errors_contain_the_output_of_the_verifier() {
    // exit, without a result
    let error = Program::load_classifier("empty", &[0x95, 0, 0, 0, 0, 0, 0, 0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert!(error.to_string().contains("R0 !read_ok"), "{error}");
    let empty = Program::load_classifier("none", &[]).unwrap_err();
    assert_eq!(
        empty.to_string(),
        std::io::Error::from_raw_os_error(7).to_string(),
        "it did not get as far as the verifier"
    );
}
