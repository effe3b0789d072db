//! The running agent: one thread that owns all state.
//!
//! Events come from the datastore, from network interfaces and from signals. After each, the
//! calculation returns the changes of this node's desired state, and an [`Enforcement`] brings them
//! into force: [`InKernel`] itself, or a driver through another program. A change of the
//! configuration begins a new [`Session`] in the same process, which finds in the kernel the state
//! that the old one left.

mod enforcement;
mod events;
mod hold;
mod host_cut;
mod in_kernel;
mod input_problems;
pub mod inspect;
mod latency;
mod observe;
mod policy_changes;
mod session;
mod simulated_faults;
mod throttle;
mod turn_times;

pub(crate) use enforcement::HEARTBEAT;
pub use enforcement::{
    Applied, EnforcedBy, Enforcement, EnforcementReport, Listing, Observer, ProcessStatus, Progress,
};
pub use events::{EventSender, event_queue};
pub use in_kernel::{Companions, InKernel};
pub(crate) use observe::log_status;
pub use session::{Input, Inputs, Session, SessionEnd, SessionError, Setup, Unreadable};
pub use simulated_faults::DataplaneFaults;

/// Objects that the calculation ignores. A node that no object names is a reason to hold
/// ([`hold::Hold`]) instead.
fn ignored_objects(graph: &tortie_calc::Graph) -> impl Iterator<Item = tortie_calc::IgnoredObject> + use<> {
    graph.problems().filter(|problem| problem.reason != tortie_calc::Reason::UnknownHost)
}

/// Describes an object that the calculation ignores by its path in a datastore and the problem.
#[must_use]
pub fn describe_ignored(problem: &tortie_calc::IgnoredObject) -> String {
    let tortie_calc::IgnoredObject { key, reason, .. } = problem;
    let path = tortie_resources::path::to_path(key).unwrap_or_else(|_| key.to_string());
    format!("{path}: {reason}")
}
