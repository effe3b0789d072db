#![no_main]

#[path = "../checks/selector_parse.rs"]
mod selector_parse;

libfuzzer_sys::fuzz_target!(|data: &[u8]| selector_parse::check(data));
