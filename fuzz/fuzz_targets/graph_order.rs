#![no_main]

#[path = "../checks/graph_order.rs"]
mod graph_order;

libfuzzer_sys::fuzz_target!(|data: &[u8]| graph_order::check(data));
