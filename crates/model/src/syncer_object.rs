//! Objects that other components than Felix read through Typha.

use std::sync::Arc;

/// An object of the syncers for Calico's BGP daemon, tunnel addresses and node status. It is passed
/// to their readers unchanged; nothing is calculated from it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct SyncerObject {
    /// The value, as JSON.
    pub text: Arc<str>,
    /// Version in the datastore; empty if there is none. A client that writes the object back must
    /// name it.
    pub resource_version: Arc<str>,
}
