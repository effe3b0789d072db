//! Policy that eBPF programs at the hooks of netfilter enforce, in place of chains (`BPFEnabled`).
//!
//! What the maps of the programs are to hold is `tortie-ebpf`'s business, and how programs are loaded `tortie-bpf`'s. Here one set
//! of maps and programs takes the place of another (`generations`), the state of the kernel is checked from time to time, and
//! whatever goes wrong is tried again while what was in force stays in force.

mod attach;
pub mod edge;
#[cfg(test)]
mod fake;
mod generations;
mod interfaces;
mod kernel;
mod log;
mod policy;
mod superseded;

pub use attach::LinuxLink;
pub use generations::EdgeError;
pub use kernel::LinuxEdge;
pub use kernel::{read_layout, remove_all};
pub use log::{Decided, DecidedPacket, LogSource, PacketLog};
pub use policy::{CountsError, DecisionCount, PolicyPrograms, PolicyState, PolicyStats, ProgramPolicy};
pub use superseded::Superseded;
