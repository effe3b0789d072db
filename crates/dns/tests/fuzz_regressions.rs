//! Replays the inputs that fuzzing has found, through the checks of the fuzz targets.

#[path = "../../../fuzz/checks/dns_cache.rs"]
mod dns_cache;
#[path = "../../../fuzz/checks/dns_message.rs"]
mod dns_message;
#[path = "../../../fuzz/checks/dns_stream.rs"]
mod dns_stream;

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
fn dns_message() {
    replay("dns_message", 9, dns_message::check);
}

#[test]
fn dns_stream() {
    replay("dns_stream", 5, dns_stream::check);
}

#[test]
fn dns_cache() {
    replay("dns_cache", 6, dns_cache::check);
}
