//! A change in the datastore that is taken back unless it is confirmed in time; see `tortie_store::pending`.

#[cfg(feature = "etcd")]
mod clock;
mod summary;
#[cfg(feature = "etcd")]
mod watch;

#[cfg(feature = "etcd")]
pub use clock::now;
pub use summary::PendingSummary;
#[cfg(feature = "etcd")]
pub use watch::{Until, watch};

/// Where programs keep what must outlive them, if nothing else is said.
pub const STATE_DIR: &str = "/var/lib/tortie";
