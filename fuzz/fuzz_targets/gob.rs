#![no_main]

#[path = "../checks/gob.rs"]
mod gob;

libfuzzer_sys::fuzz_target!(|data: &[u8]| gob::check(data));
