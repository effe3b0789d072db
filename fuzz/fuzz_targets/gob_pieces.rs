#![no_main]

#[path = "../checks/gob_pieces.rs"]
mod gob_pieces;

libfuzzer_sys::fuzz_target!(|data: &[u8]| gob_pieces::check(data));
