//! Replays stored fuzzing inputs through the checks of the fuzz target.

#[path = "../../../fuzz/checks/nftables_message.rs"]
mod nftables_message;

#[test]
#[allow(clippy::disallowed_methods, reason = "the test reads its committed inputs")]
fn nftables_message() {
    let inputs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/regressions/nftables_message");
    let mut replayed = 0;
    for entry in std::fs::read_dir(inputs).expect("the inputs are committed") {
        let path = entry.expect("readable").path();
        println!("{}", path.display());
        nftables_message::check(&std::fs::read(path).expect("readable"));
        replayed += 1;
    }
    assert!(replayed >= 4, "{replayed} inputs");
}
