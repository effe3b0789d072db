//! Replays the inputs that fuzzing has found, through the checks of the fuzz targets.

#[path = "../../../fuzz/checks/iptables_entries.rs"]
mod iptables_entries;
#[path = "../../../fuzz/checks/iptables_save.rs"]
mod iptables_save;

#[allow(clippy::disallowed_methods, reason = "the tests read their committed inputs")]
fn replay(target: &str, at_least: usize, check: fn(&[u8])) {
    let inputs = format!("{}/../../fuzz/regressions/{target}", env!("CARGO_MANIFEST_DIR"));
    let mut replayed = 0;
    for entry in std::fs::read_dir(inputs).expect("the inputs are committed") {
        let path = entry.expect("readable").path();
        println!("{}", path.display());
        check(&std::fs::read(path).expect("readable"));
        replayed += 1;
    }
    assert!(replayed >= at_least, "{replayed} inputs");
}

#[test]
fn iptables_save() {
    replay("iptables_save", 11, iptables_save::check);
}

#[test]
fn iptables_entries() {
    replay("iptables_entries", 6, iptables_entries::check);
}
