//! The running agent: one thread that owns all state.
//!
//! Events come in from the datastore, from network interfaces and from signals; after each, the calculation says what
//! has changed for this node, and the dataplane applies it. A change of the configuration begins a new [`Session`] in
//! the same process, which finds in the kernel what the old one left there.

mod latency;
mod observe;
mod session;
mod throttle;

pub use session::{End, Input, Inputs, Session, SessionError, Setup};
