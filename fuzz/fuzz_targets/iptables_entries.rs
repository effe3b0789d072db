#![no_main]

#[path = "../checks/iptables_entries.rs"]
mod iptables_entries;

libfuzzer_sys::fuzz_target!(|data: &[u8]| iptables_entries::check(data));
