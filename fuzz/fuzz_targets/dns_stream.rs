#![no_main]

#[path = "../checks/dns_stream.rs"]
mod dns_stream;

libfuzzer_sys::fuzz_target!(|data: &[u8]| dns_stream::check(data));
