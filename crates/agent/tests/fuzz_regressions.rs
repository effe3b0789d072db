//! Replays inputs that fuzzing has found, or that are worth keeping, through the check of the fuzz
//! target.
#![allow(clippy::disallowed_methods, reason = "the test reads its committed inputs")]

#[path = "../../../fuzz/checks/agent_config.rs"]
mod agent_config;
#[path = "../../../fuzz/checks/netfilter_message.rs"]
mod netfilter_message;
#[path = "../../../fuzz/checks/policysync_headers.rs"]
mod policysync_headers;

/// Puts the inputs of a target through its check.
fn replay(target: &str, check: fn(&[u8]), at_least: usize) {
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
fn agent_config() {
    replay("agent_config", agent_config::check, 7);
}

#[test]
fn netfilter_message() {
    replay("netfilter_message", netfilter_message::check, 24);
}

#[test]
fn policysync_headers() {
    replay("policysync_headers", policysync_headers::check, 3);
}
