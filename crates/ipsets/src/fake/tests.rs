//! Tests of behaviour that `tests/kernel.rs` does not compare with a real kernel.

use super::*;

#[test]
fn restore_keeps_lines_before_the_error() {
    let mut kernel = FakeIpset::new();
    let result = kernel.restore("create a hash:ip\nadd a 10.0.0.1\nadd a 10.0.0.1\nadd a 10.0.0.2\nCOMMIT\n");
    let error = result.unwrap_err();
    assert_eq!(error.line(), Some(3));
    assert_eq!(kernel.members("a"), ["10.0.0.1"]);
    assert_eq!(kernel.counts().lines, 2);
}

#[test]
fn sets_in_use_stay() {
    let mut kernel = FakeIpset::new();
    kernel.edit("create a hash:ip\ncreate b hash:ip\nadd b 10.0.0.1").unwrap();
    kernel.set_in_use("a", true);
    assert!(kernel.edit("destroy a").is_err());
    assert!(kernel.edit("rename a c").is_err());
    kernel.edit("swap a b").unwrap();
    assert_eq!(kernel.members("a"), ["10.0.0.1"]);
    assert!(kernel.edit("destroy a").is_err());
    kernel.edit("destroy b").unwrap();
    assert_eq!(kernel.names(), ["a"]);
}

#[test]
fn faults_happen_once() {
    let mut kernel = FakeIpset::new();
    kernel.inject(Fault::LateRestore);
    kernel.inject(Fault::CutRestore(1));
    assert!(kernel.restore("create a hash:ip\nCOMMIT\n").is_err());
    assert!(kernel.restore("create b hash:ip\nadd b 10.0.0.1\nCOMMIT\n").is_err());
    assert!(kernel.restore("add b 10.0.0.2\nCOMMIT\n").is_ok());
    assert_eq!(kernel.names(), ["a", "b"]);
    assert_eq!(kernel.members("b"), ["10.0.0.2"]);
}
