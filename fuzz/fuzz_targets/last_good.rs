#![no_main]

#[path = "../checks/last_good.rs"]
mod last_good;

libfuzzer_sys::fuzz_target!(|data: &[u8]| last_good::check(data));
