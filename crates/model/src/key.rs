//! What an update is about.

use std::fmt;
use std::sync::Arc;

use crate::{
    Cidr, ConfigName, HostEndpointName, Hostname, NamespacedName, NetworkSetName, PolicyId, ProfileName, TierName,
    WorkloadEndpointKey,
};

/// A host endpoint's identity in the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostEndpointKey {
    /// The node it protects.
    pub host: Hostname,
    /// Its name.
    pub name: HostEndpointName,
}

/// A configuration parameter of one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostConfigKey {
    /// The node.
    pub host: Hostname,
    /// The parameter.
    pub name: ConfigName,
}

/// The identity of an object that is passed on to Felix as it is, whatever is calculated from it here.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RelayedKey {
    /// A block of addresses that a node hands out to workloads (IPAM), by its masked network.
    Block(Cidr),
    /// A `BGPPeer`, by name.
    BgpPeer(Arc<str>),
    /// A `LiveMigration`.
    LiveMigration(NamespacedName),
}

/// The identity of an object in the datastore.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// A workload's interface, on any node.
    WorkloadEndpoint(WorkloadEndpointKey),
    /// A host's interface, on any node.
    HostEndpoint(HostEndpointKey),
    /// A policy.
    Policy(PolicyId),
    /// A tier.
    Tier(TierName),
    /// The rules of a profile.
    ProfileRules(ProfileName),
    /// The labels that a profile gives to the endpoints that have it.
    Profile(ProfileName),
    /// A network set.
    NetworkSet(NetworkSetName),
    /// An IP pool, by its masked network.
    IpPool(Cidr),
    /// A cluster-wide configuration parameter.
    GlobalConfig(ConfigName),
    /// A configuration parameter of one node.
    HostConfig(HostConfigKey),
    /// Configuration for the nodes that a selector picks.
    ScopedConfig(ConfigName),
    /// Whether the datastore may be used.
    Ready,
    /// A node.
    Node(Hostname),
    /// A node's `WireGuard` key and addresses.
    Wireguard(Hostname),
    /// A Kubernetes service.
    Service(NamespacedName),
    /// A slice of a service's endpoints.
    EndpointSlice(NamespacedName),
    /// BGP configuration.
    BgpConfiguration(ConfigName),
    /// An object that is passed on as it is.
    Relayed(RelayedKey),
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
            Self::Relayed(RelayedKey::Block(cidr)) => write!(f, "block {cidr}"),
            Self::Relayed(RelayedKey::BgpPeer(name)) => write!(f, "BGP peer {name}"),
            Self::Relayed(RelayedKey::LiveMigration(name)) => write!(f, "live migration {name}"),
        }
    }
}
