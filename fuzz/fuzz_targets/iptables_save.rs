#![no_main]

#[path = "../checks/iptables_save.rs"]
mod iptables_save;

libfuzzer_sys::fuzz_target!(|data: &[u8]| iptables_save::check(data));
