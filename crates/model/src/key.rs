//! The identities of objects that are made of several parts, and how they are written.

use std::fmt;

use crate::{ConfigName, HostEndpointName, Hostname, Key};

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

impl fmt::Display for Key {
    /// What it is and which, for messages.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WorkloadEndpoint(key) => write!(f, "workload endpoint {key}"),
            Self::HostEndpoint(key) => write!(f, "host endpoint {}/{}", key.host, key.name),
            Self::Policy(id) => write!(f, "policy {id}"),
            Self::Tier(name) => write!(f, "tier {name}"),
            Self::ProfileRules(name) => write!(f, "rules of profile {name}"),
            Self::Profile(name) => write!(f, "profile {name}"),
            Self::NetworkSet(name) => write!(f, "network set {name}"),
            Self::IpPool(cidr) => write!(f, "IP pool {cidr}"),
            Self::GlobalConfig(name) => write!(f, "parameter {name}"),
            Self::HostConfig(key) => write!(f, "parameter {} of node {}", key.name, key.host),
            Self::ScopedConfig(name) => write!(f, "configuration {name}"),
            Self::Ready => f.write_str("ready flag"),
            Self::Node(name) => write!(f, "node {name}"),
            Self::Wireguard(name) => write!(f, "WireGuard of node {name}"),
            Self::Service(name) => write!(f, "service {name}"),
            Self::EndpointSlice(name) => write!(f, "endpoint slice {name}"),
            Self::BgpConfiguration(name) => write!(f, "BGP configuration {name}"),
            Self::Block(cidr) => write!(f, "block {cidr}"),
            Self::BgpPeer(name) => write!(f, "BGP peer {name}"),
            Self::LiveMigration(name) => write!(f, "live migration {name}"),
            Self::SyncerObject(path) => f.write_str(path),
        }
    }
}
