#![no_main]

#[path = "../checks/v1_value.rs"]
mod v1_value;

libfuzzer_sys::fuzz_target!(|data: &[u8]| v1_value::check(data));
