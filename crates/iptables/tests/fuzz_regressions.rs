//! Replays the inputs that fuzzing has found, through the checks of the fuzz target.

#[path = "../../../fuzz/checks/iptables_save.rs"]
mod iptables_save;

#[test]
#[allow(clippy::disallowed_methods, reason = "the test reads its committed inputs")]
fn iptables_save() {
    let inputs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/regressions/iptables_save");
    let mut replayed = 0;
    for entry in std::fs::read_dir(inputs).expect("the inputs are committed") {
        let path = entry.expect("readable").path();
        println!("{}", path.display());
        iptables_save::check(&std::fs::read(path).expect("readable"));
        replayed += 1;
    }
    assert!(replayed >= 11, "{replayed} inputs");
}
