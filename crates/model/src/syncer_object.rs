//! What other components than Felix read by way of Typha.

use std::sync::Arc;

/// An object as the syncers of Calico's BGP daemon, tunnel addresses and node status give it to their readers, who get it
/// as it is. Nothing is calculated from it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct SyncerObject {
    /// The value, as JSON.
    pub text: Arc<str>,
    /// The version that the datastore gave it; empty if it gives none. Who writes the object back must name it.
    pub resource_version: Arc<str>,
}
