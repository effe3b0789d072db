#![no_main]

#[path = "../checks/cluster_cost.rs"]
mod cluster_cost;

libfuzzer_sys::fuzz_target!(|data: &[u8]| cluster_cost::check(data));
