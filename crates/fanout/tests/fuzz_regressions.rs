//! Replay of inputs that fuzzing found, or that are worth keeping.
#![allow(clippy::disallowed_methods, reason = "tests read their inputs and a clock")]

#[path = "../../../fuzz/checks/fanout_frame.rs"]
mod fanout_frame;
#[path = "../../../fuzz/checks/gob.rs"]
mod gob;
#[path = "../../../fuzz/checks/gob_pieces.rs"]
mod gob_pieces;

use proptest::prelude::*;
use tortie_fanout::protocol::frame::{self, Compression};
use tortie_fanout::protocol::{Batch, Settled, ToClient, WireEntry, server};

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
fn fanout_frame_inputs() {
    for input in inputs("fanout_frame") {
        fanout_frame::check(&input);
    }
}

#[test]
fn gob_inputs() {
    for input in inputs("gob") {
        gob::check(&input);
    }
}

#[test]
fn gob_pieces_inputs() {
    for input in inputs("gob_pieces") {
        gob_pieces::check(&input);
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

    /// Frames, damaged.
    #[test]
    fn damaged_frames(
        values in prop::collection::vec("[a-z]{0,400}", 0..6),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        step in 1..50u8,
    ) {
        let mut bytes = vec![step];
        for value in values {
            let entry = WireEntry { path: "/calico/v1/config/A".into(), value: Some(value.repeat(3).into_bytes().into()), ..WireEntry::default() };
            let settled = Some(Settled { sequence: 1, status: 2 });
            let batch = Batch { entries: vec![entry.clone(), entry], own: false, settled };
            let message = ToClient { message: Some(server::Message::Batch(batch)) };
            bytes.extend_from_slice(&frame::encode(&message, Compression::Fast));
        }
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        fanout_frame::check(&bytes);
    }
}
