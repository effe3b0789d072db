#![no_main]

#[path = "../checks/key_path.rs"]
mod key_path;

libfuzzer_sys::fuzz_target!(|data: &[u8]| key_path::check(data));
