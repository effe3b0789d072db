//! Replays inputs that fuzzing found, or that are worth keeping, through the check of the fuzz
//! target.
#![allow(clippy::disallowed_methods, reason = "the test reads its committed inputs")]

#[path = "../../../fuzz/checks/driver_message.rs"]
mod driver_message;

#[test]
fn driver_message() {
    let inputs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/regressions/driver_message");
    let mut replayed = 0;
    for entry in std::fs::read_dir(inputs).expect("the inputs are committed") {
        let path = entry.expect("readable").path();
        println!("{}", path.display());
        driver_message::check(&std::fs::read(path).expect("readable"));
        replayed += 1;
    }
    assert!(replayed >= 10, "{replayed} inputs");
}
