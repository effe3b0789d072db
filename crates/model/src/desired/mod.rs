//! Desired state of one node: the contract between the calculation and any dataplane.
//!
//! Updates come in batches. Within a batch dependencies come first and removals last (IP sets,
//! policies, profiles, endpoints; then endpoint, profile, policy and IP set removals), so that at
//! every point of the stream a policy refers only to IP sets that exist, and an endpoint only to
//! policies and profiles that exist (`felix/calc/event_sequencer.go`).

mod computed;
mod routes;
mod rules;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

pub use tortie_net::{IpPortMember, PortProtocol};

pub use computed::{ComputedFields, Contest, Contested, LiveMigrationRole, QosPolicy, SkipRedirect};
pub use routes::{PoolType, Route, RouteTypes, TunnelTypes, Vtep, VtepAddresses};
pub use rules::{RuleSets, RuleView, Rules, RulesError, SetIds, is_domain_set};

use crate::{
    BgpConfiguration, Cidr, DomainPattern, HostEndpoint, HostEndpointName, Hostname, IpPool, IpSetId, Labels,
    NamespacedName, PolicyId, ProfileName, Service, TierDefaultAction, TierName, WorkloadEndpoint, WorkloadEndpointId,
};

/// One change of the desired state. Deliberately exhaustive: a dataplane must handle every variant.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum DesiredUpdate {
    /// The datastore must not be used now. This holds until a [`DesiredUpdate::Config`] comes
    /// without this variant before it in the same batch.
    DatastoreNotReady,
    /// The configuration in force.
    Config(ConfigUpdate),
    /// Everything that was in the datastore at start has been sent.
    InSync,
    /// An IP set with all its members; replaces an existing one.
    IpSet(IpSetUpdate),
    /// Members that joined or left an IP set.
    IpSetDelta(IpSetDelta),
    /// An IP set that is no longer used.
    IpSetRemove(IpSetId),
    /// A policy that applies to an endpoint of this node.
    Policy(PolicyId, Arc<Policy>),
    /// A policy that no longer applies to an endpoint of this node.
    PolicyRemove(PolicyId),
    /// A profile that an endpoint of this node has.
    Profile(ProfileName, Arc<Profile>),
    /// A profile that no endpoint of this node has any more.
    ProfileRemove(ProfileName),
    /// A workload of this node.
    WorkloadEndpoint(WorkloadEndpointId, WorkloadEndpointState),
    /// A workload that is gone.
    WorkloadEndpointRemove(WorkloadEndpointId),
    /// An interface of this node.
    HostEndpoint(HostEndpointName, HostEndpointState),
    /// A host endpoint that is gone.
    HostEndpointRemove(HostEndpointName),
    /// A service account.
    ServiceAccount(NamespacedName, Labels),
    /// A service account that is gone.
    ServiceAccountRemove(NamespacedName),
    /// A namespace.
    Namespace(Arc<str>, Labels),
    /// A namespace that is gone.
    NamespaceRemove(Arc<str>),
    /// A destination network and its route attributes. A node's tunnels are sent before the routes
    /// that use them.
    Route(Cidr, Route),
    /// A network that no longer has route attributes.
    RouteRemove(Cidr),
    /// A node's end of VXLAN tunnels.
    Vtep(Hostname, Vtep),
    /// A node that is no longer an end of VXLAN tunnels.
    VtepRemove(Hostname),
    /// The `WireGuard` identity of a node, IPv4.
    Wireguard(Hostname, WireguardPeer),
    /// A node without IPv4 `WireGuard`.
    WireguardRemove(Hostname),
    /// The `WireGuard` identity of a node, IPv6.
    WireguardV6(Hostname, WireguardPeer),
    /// A node without IPv6 `WireGuard`.
    WireguardV6Remove(Hostname),
    /// A node.
    Host(Hostname, HostMetadata),
    /// A node that is gone.
    HostRemove(Hostname),
    /// An IP pool.
    IpPool(Arc<IpPool>),
    /// An IP pool that is gone.
    IpPoolRemove(Cidr),
    /// Encapsulations that the pools require.
    Encapsulation(Encapsulation),
    /// BGP configuration.
    BgpConfiguration(Arc<BgpConfiguration>),
    /// A Kubernetes service.
    Service(NamespacedName, Arc<Service>),
    /// A service that is gone.
    ServiceRemove(NamespacedName),
}

impl fmt::Display for DesiredUpdate {
    /// Writes a line for logs: the object, and whether it is gone.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DatastoreNotReady => f.write_str("datastore not ready"),
            Self::Config(_) => f.write_str("configuration"),
            Self::InSync => f.write_str("in sync"),
            Self::IpSet(set) => write!(f, "IP set {}", set.id),
            Self::IpSetDelta(delta) => write!(f, "members of IP set {}", delta.id),
            Self::IpSetRemove(id) => write!(f, "IP set {id} removed"),
            Self::Policy(id, _) => write!(f, "policy {id}"),
            Self::PolicyRemove(id) => write!(f, "policy {id} removed"),
            Self::Profile(name, _) => write!(f, "profile {name}"),
            Self::ProfileRemove(name) => write!(f, "profile {name} removed"),
            Self::WorkloadEndpoint(id, _) => write!(f, "workload endpoint {id}"),
            Self::WorkloadEndpointRemove(id) => write!(f, "workload endpoint {id} removed"),
            Self::HostEndpoint(name, _) => write!(f, "host endpoint {name}"),
            Self::HostEndpointRemove(name) => write!(f, "host endpoint {name} removed"),
            Self::ServiceAccount(id, _) => write!(f, "service account {id}"),
            Self::ServiceAccountRemove(id) => write!(f, "service account {id} removed"),
            Self::Namespace(name, _) => write!(f, "namespace {name}"),
            Self::NamespaceRemove(name) => write!(f, "namespace {name} removed"),
            Self::Route(net, _) => write!(f, "route {net}"),
            Self::RouteRemove(net) => write!(f, "route {net} removed"),
            Self::Vtep(node, _) => write!(f, "VXLAN tunnel of node {node}"),
            Self::VtepRemove(node) => write!(f, "VXLAN tunnel of node {node} removed"),
            Self::Wireguard(node, _) => write!(f, "WireGuard of node {node}"),
            Self::WireguardRemove(node) => write!(f, "WireGuard of node {node} removed"),
            Self::WireguardV6(node, _) => write!(f, "IPv6 WireGuard of node {node}"),
            Self::WireguardV6Remove(node) => write!(f, "IPv6 WireGuard of node {node} removed"),
            Self::Host(node, _) => write!(f, "node {node}"),
            Self::HostRemove(node) => write!(f, "node {node} removed"),
            Self::IpPool(pool) => write!(f, "IP pool {}", pool.cidr),
            Self::IpPoolRemove(net) => write!(f, "IP pool {net} removed"),
            Self::Encapsulation(_) => f.write_str("encapsulation"),
            Self::BgpConfiguration(_) => f.write_str("BGP configuration"),
            Self::Service(name, _) => write!(f, "service {name}"),
            Self::ServiceRemove(name) => write!(f, "service {name} removed"),
        }
    }
}

/// Origin of a configuration value, by rising precedence; messages contain the number
/// (`felix/config/config_params.go`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum ConfigSource {
    /// Built in.
    Default = 0,
    /// The datastore, for all nodes.
    DatastoreGlobal = 1,
    /// The datastore, for the nodes that a selector picks.
    DatastorePerSelector = 2,
    /// The datastore, for this node.
    DatastorePerHost = 3,
    /// The configuration file.
    ConfigFile = 4,
    /// Environment variables.
    Environment = 5,
    /// Set by the program itself.
    InternalOverride = 6,
}

/// The raw configuration of the datastore, by source. Names are as the datastore spells them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct ConfigUpdate {
    /// For all nodes.
    pub global: BTreeMap<Arc<str>, Arc<str>>,
    /// From the one selector-scoped configuration that applies.
    pub selector: BTreeMap<Arc<str>, Arc<str>>,
    /// For this node.
    pub host: BTreeMap<Arc<str>, Arc<str>>,
}

/// Type of an IP set's members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum IpSetType {
    /// Addresses.
    Ip,
    /// Address, protocol and port.
    IpAndPort,
    /// Networks.
    Net,
    /// Patterns of domain names. The set holds the addresses that an endpoint has learned for names
    /// that one of them matches, of each endpoint by itself.
    Domains,
}

/// Members of one IP set, packed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
pub enum Members {
    /// Of a set of type [`IpSetType::Ip`] or [`IpSetType::Net`].
    Nets(Vec<Cidr>),
    /// Of a set of type [`IpSetType::IpAndPort`].
    IpPorts(Vec<IpPortMember>),
    /// Of a set of type [`IpSetType::Domains`]. They do not change by deltas: another
    /// [`DesiredUpdate::IpSet`] replaces all.
    Domains(Arc<[DomainPattern]>),
}

impl Members {
    /// Returns the number of members.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Nets(nets) => nets.len(),
            Self::IpPorts(members) => members.len(),
            Self::Domains(patterns) => patterns.len(),
        }
    }

    /// Reports whether there are no members.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// An IP set with all its members, sorted, each once.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct IpSetUpdate {
    /// Identity of the set.
    pub id: IpSetId,
    /// Type of its members.
    pub set_type: IpSetType,
    /// Its members.
    pub members: Members,
}

/// A change of an IP set's members, sorted, each once, and none in both lists.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct IpSetDelta {
    /// Identity of the set.
    pub id: IpSetId,
    /// New members.
    pub added: Members,
    /// Removed members.
    pub removed: Members,
}

/// A policy with its rules resolved to IP sets.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct Policy {
    /// The policy as the datastore has it.
    pub source: Arc<crate::Policy>,
    /// The policy's selector in canonical form; equal texts are grouped by the dataplane.
    pub selector: Arc<str>,
    /// Rules for traffic to the endpoints.
    pub inbound: Rules,
    /// Rules for traffic from the endpoints.
    pub outbound: Rules,
}

/// A profile with its rules resolved to IP sets.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct Profile {
    /// Rules for traffic to the endpoints.
    pub inbound: Rules,
    /// Rules for traffic from the endpoints.
    pub outbound: Rules,
}

/// The policies of one tier that apply to an endpoint, in order of evaluation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct TierPolicies {
    /// The tier.
    pub name: TierName,
    /// Action at the end of the tier; `None` (an unknown tier) denies.
    pub default_action: Option<TierDefaultAction>,
    /// Policies that govern traffic to the endpoint.
    pub ingress: Arc<[PolicyId]>,
    /// Policies that govern traffic from the endpoint.
    pub egress: Arc<[PolicyId]>,
}

/// Tiers in order of evaluation; shared by the endpoints to which the same policies apply.
pub type TierList = Arc<[TierPolicies]>;

/// A workload of this node and the policies that apply to it.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct WorkloadEndpointState {
    /// The endpoint as the datastore has it.
    pub endpoint: Arc<WorkloadEndpoint>,
    /// The tiers whose policies apply.
    pub tiers: TierList,
    /// Fields that few workloads have; kept separately so that the others stay small.
    pub computed: Option<Box<ComputedFields>>,
}

/// An interface of this node and the policies that apply to it.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct HostEndpointState {
    /// The endpoint as the datastore has it.
    pub endpoint: Arc<HostEndpoint>,
    /// For traffic to and from the host itself.
    pub tiers: TierList,
    /// For traffic before connection tracking.
    pub untracked_tiers: TierList,
    /// For traffic before destination NAT; ingress only.
    pub pre_dnat_tiers: TierList,
    /// For traffic that the host forwards.
    pub forward_tiers: TierList,
    /// DSCP values that another calculation than Tortie's requests instead of the endpoint's own
    /// value; empty otherwise.
    pub qos_policies: Box<[QosPolicy]>,
}

/// Attributes of a node that other nodes need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct HostMetadata {
    /// IPv4 address with prefix length, as text; empty if none.
    pub ipv4_addr: Arc<str>,
    /// IPv6 address with prefix length, as text; empty if none.
    pub ipv6_addr: Arc<str>,
    /// The AS number as text; empty if none.
    pub as_number: Arc<str>,
    /// Its labels.
    pub labels: Labels,
}

/// One family's part of a node's `WireGuard` identity.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct WireguardPeer {
    /// The public key, base64.
    pub public_key: Arc<str>,
    /// The address of the tunnel interface.
    #[cfg_attr(feature = "serde", serde(default, deserialize_with = "crate::serde_forms::canonical"))]
    pub address: Option<IpAddr>,
}

/// The encapsulations that the pools require.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct Encapsulation {
    /// IP-in-IP.
    pub ipip: bool,
    /// VXLAN for IPv4.
    pub vxlan: bool,
    /// VXLAN for IPv6.
    pub vxlan_v6: bool,
    /// Some pool requires none.
    pub no_encap: bool,
}
