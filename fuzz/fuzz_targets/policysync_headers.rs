#![no_main]

#[path = "../checks/policysync_headers.rs"]
mod policysync_headers;

libfuzzer_sys::fuzz_target!(|data: &[u8]| policysync_headers::check(data));
