#![no_main]

#[path = "../checks/netfilter_message.rs"]
mod netfilter_message;

libfuzzer_sys::fuzz_target!(|data: &[u8]| netfilter_message::check(data));
