//! Policy enforcement by eBPF programs at netfilter hooks, in place of chains (`BPFEnabled`).
//!
//! `tortie-ebpf` defines the contents of the programs' maps, and `tortie-bpf` loads programs. This
//! module replaces one set of maps and programs by another (`generations`) and checks the state of
//! the kernel periodically. After an error it retries; meanwhile the former policy stays in force.

mod attach;
pub mod edge;
#[cfg(test)]
mod fake;
mod generations;
mod interfaces;
mod kernel;
mod log;
mod policy;
mod shared;
mod superseded;
mod unanswered;

pub use attach::LinuxLink;
pub use generations::EdgeError;
pub use kernel::LinuxEdge;
pub use kernel::{read_layout, remove_all};
pub use log::{Decided, DecidedPacket, LogSource, PacketLog};
pub use policy::{CountsError, DecisionCount, PolicyPrograms, PolicyState, PolicyStats, ProgramPolicy};
pub use shared::{LearnedAddresses, SharedPrograms};
pub use superseded::Superseded;
pub use tortie_ebpf::layout::LEARNED_ENTRIES;
pub use tortie_ebpf::{LearnedMember, Learner};
