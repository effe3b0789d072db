#![no_main]

#[path = "../checks/nftables_message.rs"]
mod nftables_message;

libfuzzer_sys::fuzz_target!(|data: &[u8]| nftables_message::check(data));
