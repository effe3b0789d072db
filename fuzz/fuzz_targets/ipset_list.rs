#![no_main]

#[path = "../checks/ipset_list.rs"]
mod ipset_list;

libfuzzer_sys::fuzz_target!(|data: &[u8]| ipset_list::check(data));
