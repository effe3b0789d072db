#![no_main]

#[path = "../checks/driver_message.rs"]
mod driver_message;

libfuzzer_sys::fuzz_target!(|data: &[u8]| driver_message::check(data));
