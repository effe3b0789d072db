//! Test of the fault list. Cargo builds the program of this package together with this test, and
//! `cargo xtask test` runs it.
#![allow(clippy::unwrap_used, reason = "a failure here fails the test")]
#![allow(clippy::disallowed_methods, reason = "the test runs the program")]

use std::collections::BTreeSet;
use std::process::Command;

#[test]
fn the_program_lists_every_fault_once() {
    let output = Command::new(env!("CARGO_BIN_EXE_faults")).args(["--agent", "none", "--list"]).output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let printed: Vec<&str> = text.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(printed, tortie_faults::list().map(|(name, _)| name).collect::<Vec<_>>());
    assert_eq!(printed.iter().collect::<BTreeSet<_>>().len(), printed.len());
}
