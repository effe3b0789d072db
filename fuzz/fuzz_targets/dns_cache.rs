#![no_main]

#[path = "../checks/dns_cache.rs"]
mod dns_cache;

libfuzzer_sys::fuzz_target!(|data: &[u8]| dns_cache::check(data));
