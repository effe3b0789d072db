//! Replays the inputs that fuzzing has found, or that are worth keeping, through the check of the fuzz target.
#![allow(clippy::disallowed_methods, reason = "the test reads its committed inputs")]

#[path = "../../../fuzz/checks/agent_config.rs"]
mod agent_config;

#[test]
fn agent_config() {
    let inputs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/regressions/agent_config");
    let mut replayed = 0;
    for entry in std::fs::read_dir(inputs).expect("the inputs are committed") {
        let path = entry.expect("readable").path();
        println!("{}", path.display());
        agent_config::check(&std::fs::read(path).expect("readable"));
        replayed += 1;
    }
    assert!(replayed >= 7, "{replayed} inputs");
}
