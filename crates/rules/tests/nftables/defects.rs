//! What the original's nftables mode does wrong, one test for each defect, on a real kernel: what it does, that the kernel
//! answers so, and that ours does not. D12 and D16 are about who talks to the kernel, and are tested with the agent
//! (`crates/agent/tests/node/nftables.rs`, `crates/linux/src/leftovers/tests.rs`).
#![allow(clippy::disallowed_methods, reason = "asks the real nft and sends packets, in private network namespaces")]

mod state;
mod words;
