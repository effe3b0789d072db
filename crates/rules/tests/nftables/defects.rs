//! Defects of Felix's nftables mode, one test for each, on a real kernel. A test shows that the
//! kernel refuses or misapplies Felix's output, and that Tortie avoids the defect. D12 and D16
//! concern the processes that write to the kernel, and are tested with the agent
//! (`crates/agent/tests/node/nftables.rs`, `crates/linux/src/leftovers/tests.rs`).
#![allow(clippy::disallowed_methods, reason = "asks the real nft and sends packets, in private network namespaces")]

mod state;
mod words;
