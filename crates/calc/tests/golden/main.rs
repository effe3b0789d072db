//! Comparison with Felix's recorded output for the same input.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod expand;
mod feed;
mod random;
mod replay;
mod states;

/// Returns the unpacked text of a file of recordings; `None` if the recordings are elsewhere,
/// without this one.
fn recording(name: &str) -> Option<String> {
    tortie_testkit::golden::text(env!("CARGO_MANIFEST_DIR"), name)
}
