//! Calico's resources, read and written one by one.
//!
//! * [`ResourceStore`]: a datastore that resources can be written to, with errors that distinguish
//!   conflicts from failures.
//! * [`TextStore`]: the other values that it keeps under paths, such as IPAM blocks; several are
//!   replaced in one transaction.
//! * [`ResourceWatch`]: the resources of a kind, and their changes.
//! * [`apply`](mod@apply): resources in the form that users write, with the rules that hold between
//!   them.
//! * [`pending`]: changes of several resources that are rolled back unless they are confirmed in
//!   time.
//! * [`StagedStore`]: the effect of writes, without making them.
//! * [`MemoryStore`]: both stores in memory, with injected faults.
//! * `etcd` (feature `etcd`): the store in etcd v3.
//!
//! ```
//! use serde_json::json;
//! use tortie_resources::stored::{ResourceKey, ResourceKind};
//! use tortie_datastore::store::apply::{Applied, apply};
//! use tortie_datastore::store::{MemoryStore, ResourceStore};
//!
//! let store = MemoryStore::default();
//! let tier = ResourceKey::new(ResourceKind::Tier, "", "platform")?;
//! assert_eq!(apply(&store, &tier, &json!({"spec": {"order": 5}}))?, Applied::Created);
//! assert_eq!(apply(&store, &tier, &json!({"spec": {"order": 5}}))?, Applied::Unchanged);
//! assert_eq!(store.get(&tier)?.object["spec"]["defaultAction"], "Deny");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod apply;
mod contract;
#[cfg(feature = "etcd")]
pub mod etcd;
mod memory_store;
pub mod pending;
mod staged;
mod stamp;
mod texts;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
mod watch;

pub use contract::{Listing, ResourceStore, ResourceWatch, StoreError, StoredResource, Verb, WatchEvent};
pub use memory_store::{DryRun, Fault, MemoryStore};
pub use staged::{StagedStore, StagedWrite};
pub use stamp::timestamp;
pub use texts::{StoredText, TextChange, TextStore};
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
pub(crate) use watch::Known;
