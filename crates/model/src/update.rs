//! Updates of a datastore's objects.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::{
    BgpConfiguration, BgpPeer, Cidr, ConfigName, EndpointSlice, HostConfigKey, HostEndpoint, HostEndpointKey, Hostname,
    IpPool, IpamBlock, LiveMigration, NamespacedName, NetworkSet, NetworkSetName, Node, Policy, PolicyId, Profile,
    ProfileName, ProfileRules, ScopedConfig, Service, SyncerObject, Tier, TierName, Valid, Wireguard, WorkloadEndpoint,
    WorkloadEndpointKey,
};

/// Defines the enums of the kinds of object. An update's identity and value cannot be of different
/// kinds.
macro_rules! kinds {
    (
        $($(#[doc = $doc:literal])+ $kind:ident($id:ty) => $value:ty,)*
        ready,
        $($(#[doc = $doc2:literal])+ $kind2:ident($id2:ty) => $value2:ty,)*
    ) => {
        /// The identity of an object in the datastore.
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
        pub enum Key {
            $($(#[doc = $doc])+ $kind($id),)*
            /// Whether the datastore may be used.
            Ready,
            $($(#[doc = $doc2])+ $kind2($id2),)*
        }

        /// An object, by its identity, and its current value; `None` if it does not exist.
        ///
        /// Only eventual consistency is guaranteed: values may repeat, be skipped, or go back, and
        /// an object may be deleted that never existed.
        #[derive(Clone, Debug, PartialEq)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
        pub enum Update {
            $($(#[doc = $doc])+ $kind($id, Option<$value>),)*
            /// Whether the datastore may be used.
            Ready(Option<bool>),
            $($(#[doc = $doc2])+ $kind2($id2, Option<$value2>),)*
        }

        impl Update {
            /// Returns the deletion of an object.
            #[must_use]
            pub fn delete(key: Key) -> Self {
                match key {
                    $(Key::$kind(id) => Self::$kind(id, None),)*
                    Key::Ready => Self::Ready(None),
                    $(Key::$kind2(id) => Self::$kind2(id, None),)*
                }
            }

            /// Returns the identity of the object.
            #[must_use]
            pub fn key(&self) -> Key {
                match self {
                    $(Self::$kind(id, _) => Key::$kind(id.clone()),)*
                    Self::Ready(_) => Key::Ready,
                    $(Self::$kind2(id, _) => Key::$kind2(id.clone()),)*
                }
            }

            /// Reports whether the update concerns this object.
            #[must_use]
            pub fn is_about(&self, key: &Key) -> bool {
                match (self, key) {
                    $((Self::$kind(id, _), Key::$kind(other)) => id == other,)*
                    (Self::Ready(_), Key::Ready) => true,
                    $((Self::$kind2(id, _), Key::$kind2(other)) => id == other,)*
                    _ => false,
                }
            }

            /// Reports whether the object exists.
            #[must_use]
            pub fn exists(&self) -> bool {
                match self {
                    $(Self::$kind(_, value) => value.is_some(),)*
                    Self::Ready(value) => value.is_some(),
                    $(Self::$kind2(_, value) => value.is_some(),)*
                }
            }
        }
    };
}

kinds! {
    /// A workload's interface, on any node.
    WorkloadEndpoint(WorkloadEndpointKey) => Valid<WorkloadEndpoint>,
    /// A host's interface, on any node.
    HostEndpoint(HostEndpointKey) => Valid<HostEndpoint>,
    /// A policy.
    Policy(PolicyId) => Valid<Policy>,
    /// A tier.
    Tier(TierName) => Tier,
    /// The rules of a profile.
    ProfileRules(ProfileName) => Valid<ProfileRules>,
    /// The labels that a profile gives to the endpoints that have it.
    Profile(ProfileName) => Valid<Profile>,
    /// A network set.
    NetworkSet(NetworkSetName) => Valid<NetworkSet>,
    /// An IP pool, by its masked network.
    IpPool(Cidr) => Arc<IpPool>,
    /// A cluster-wide configuration parameter, as text.
    GlobalConfig(ConfigName) => Arc<str>,
    /// A configuration parameter of one node, as text.
    HostConfig(HostConfigKey) => Arc<str>,
    /// Configuration for the nodes that a selector picks.
    ScopedConfig(ConfigName) => Arc<ScopedConfig>,
    ready,
    /// A node.
    Node(Hostname) => Valid<Node>,
    /// A node's `WireGuard` key and addresses.
    Wireguard(Hostname) => Arc<Wireguard>,
    /// A Kubernetes service.
    Service(NamespacedName) => Arc<Service>,
    /// A slice of a service's endpoints.
    EndpointSlice(NamespacedName) => Arc<EndpointSlice>,
    /// BGP configuration.
    BgpConfiguration(ConfigName) => Arc<BgpConfiguration>,
    /// An IPAM block, by its masked network.
    Block(Cidr) => Arc<IpamBlock>,
    /// A `BGPPeer`.
    BgpPeer(Arc<str>) => Arc<BgpPeer>,
    /// A `LiveMigration`.
    LiveMigration(NamespacedName) => Arc<LiveMigration>,
    /// An object for readers of another syncer than Felix's, by its path in the datastore.
    SyncerObject(Arc<str>) => Arc<SyncerObject>,
}

impl fmt::Display for Key {
    /// Writes kind and identity, for messages.
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

impl fmt::Display for Update {
    /// Writes a line for logs: the object, and whether it is gone.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.key().fmt(f)?;
        f.write_str(if self.exists() { "" } else { " removed" })
    }
}

impl Update {
    /// Returns the text of an object that is passed on to clients unchanged; `None` for other
    /// kinds, and for a deletion.
    #[must_use]
    pub fn passthrough_text(&self) -> Option<&Arc<str>> {
        match self {
            Self::Block(_, block) => block.as_ref().map(|block| &block.text),
            Self::BgpPeer(_, peer) => peer.as_ref().map(|peer| &peer.text),
            Self::LiveMigration(_, migration) => migration.as_ref().map(|migration| &migration.text),
            Self::SyncerObject(_, object) => object.as_ref().map(|object| &object.text),
            _ => None,
        }
    }

    /// Applies the update to a map of the existing objects; returns the previous update of the
    /// object.
    pub fn apply_to(self, objects: &mut BTreeMap<Key, Self>) -> Option<Self> {
        let key = self.key();
        if self.exists() { objects.insert(key, self) } else { objects.remove(&key) }
    }
}

/// Progress of reading the datastore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum SyncStatus {
    /// There is no connection yet.
    WaitForDatastore,
    /// A snapshot is being read; the objects so far are incomplete.
    Resync,
    /// Every object has been sent at least once.
    InSync,
}
