//! Inputs that fuzzing found, or that are worth keeping, replayed.
#![allow(clippy::disallowed_methods, reason = "tests read their inputs and a clock")]

#[path = "../../../fuzz/checks/gob.rs"]
mod gob;

use proptest::prelude::*;

fn inputs(target: &str) -> Vec<Vec<u8>> {
    let directory = format!("{}/../../fuzz/regressions/{target}", env!("CARGO_MANIFEST_DIR"));
    let mut paths: Vec<_> = std::fs::read_dir(directory)
        .expect("committed inputs are readable")
        .map(|entry| entry.expect("committed inputs are readable").path())
        .collect();
    paths.sort();
    assert!(!paths.is_empty());
    let read = |path| std::fs::read(path).expect("committed inputs are readable");
    paths.into_iter().map(read).collect()
}

#[test]
fn gob_inputs() {
    for input in inputs("gob") {
        gob::check(&input);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// The same, damaged.
    #[test]
    fn damaged_gob_inputs(
        which in any::<prop::sample::Index>(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
    ) {
        let inputs = inputs("gob");
        let mut input = inputs[which.index(inputs.len())].clone();
        for (at, byte) in damage {
            let at = at.index(input.len());
            input[at] = byte;
        }
        gob::check(&input);
    }
}
