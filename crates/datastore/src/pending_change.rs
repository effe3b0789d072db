//! A change in the datastore that is rolled back unless it is confirmed in time; see
//! `store::pending`.

#[cfg(any(feature = "etcd", feature = "kubernetes"))]
mod clock;
mod summary;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
mod watch;

#[cfg(any(feature = "etcd", feature = "kubernetes"))]
pub use clock::now;
pub use summary::PendingSummary;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
pub use watch::{Until, watch};

/// Default directory for persistent state of the programs.
pub const STATE_DIR: &str = "/var/lib/tortie";
