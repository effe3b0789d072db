//! Comparison with what the original emitted for the same input.
#![allow(clippy::disallowed_methods, reason = "tests read their data from files")]
#![allow(clippy::unwrap_used, reason = "a test may stop at what cannot be")]

mod expand;
mod feed;
mod random;
mod replay;
mod states;

use std::io::Read as _;
use std::path::Path;

/// The unpacked text of a file of recordings.
fn recording(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name);
    let mut text = String::new();
    flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap()).read_to_string(&mut text).unwrap();
    text
}
