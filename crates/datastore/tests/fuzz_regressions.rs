//! Replays the inputs that fuzzing has found, or that are worth keeping, through the check of the
//! fuzz target.
#![allow(clippy::disallowed_methods, reason = "the test reads its committed inputs")]

#[path = "../../../fuzz/checks/last_good.rs"]
mod last_good;
#[path = "../../../fuzz/checks/recording.rs"]
mod recording;

fn replay(name: &str, check: fn(&[u8]), least: usize) {
    let inputs = format!("{}/../../fuzz/regressions/{name}", env!("CARGO_MANIFEST_DIR"));
    let mut replayed = 0;
    for entry in std::fs::read_dir(inputs).expect("the inputs are committed") {
        let path = entry.expect("readable").path();
        println!("{}", path.display());
        check(&std::fs::read(path).expect("readable"));
        replayed += 1;
    }
    assert!(replayed >= least, "{replayed} inputs");
}

#[test]
fn last_good() {
    replay("last_good", last_good::check, 14);
}

#[test]
fn recording() {
    replay("recording", recording::check, 7);
}
