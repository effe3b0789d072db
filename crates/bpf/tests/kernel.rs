//! Maps and programs in this kernel; it takes root.
#![allow(clippy::unwrap_used, reason = "what cannot be fails the test")]

use std::io::ErrorKind;

use tortie_bpf::{ArrayMap, Program};

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
fn programs_run() {
    let program = Program::load_classifier("returns", &returns(5)).unwrap();
    let run = program.test_run(&[0; 64], 10).unwrap();
    assert_eq!(run.result, 5);
    assert!(program.test_run(&[0; 3], 1).is_err(), "no Ethernet header");
}

#[test]
fn what_the_verifier_says_is_told() {
    // exit, without a result
    let error = Program::load_classifier("empty", &[0x95, 0, 0, 0, 0, 0, 0, 0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert!(error.to_string().contains("R0 !read_ok"), "{error}");
    assert!(Program::load_classifier("none", &[]).is_err());
}
