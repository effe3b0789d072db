#![no_main]

#[path = "../checks/agent_config.rs"]
mod agent_config;

libfuzzer_sys::fuzz_target!(|data: &[u8]| agent_config::check(data));
