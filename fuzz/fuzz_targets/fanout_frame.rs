#![no_main]

#[path = "../checks/fanout_frame.rs"]
mod fanout_frame;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fanout_frame::check(data));
