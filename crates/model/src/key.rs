//! Object identities that consist of several parts.

use crate::{ConfigName, HostEndpointName, Hostname};

/// A host endpoint's identity in the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct HostEndpointKey {
    /// The node it protects.
    pub host: Hostname,
    /// Its name.
    pub name: HostEndpointName,
}

/// A configuration parameter of one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct HostConfigKey {
    /// The node.
    pub host: Hostname,
    /// The parameter.
    pub name: ConfigName,
}
