#![no_main]

#[path = "../checks/yaml_aliases.rs"]
mod yaml_aliases;

libfuzzer_sys::fuzz_target!(|data: &[u8]| yaml_aliases::check(data));
