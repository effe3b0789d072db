#![no_main]

#[path = "../checks/graph_oracle.rs"]
mod graph_oracle;

libfuzzer_sys::fuzz_target!(|data: &[u8]| graph_oracle::check(data));
