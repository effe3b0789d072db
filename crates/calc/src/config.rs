//! Configuration of the graph.

use tortie_model::{Hostname, NamespacedName};

pub use tortie_labelindex::Overlap;

/// Whether workloads may request to send from foreign addresses (Felix's `WorkloadSourceSpoofing`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SourceSpoofing {
    /// No; an endpoint with such a request is invalid.
    #[default]
    Disabled,
    /// Yes, from any address.
    Any,
}

/// Treatment of claims to addresses and interfaces that users can make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AddressClaims {
    /// A claim must not take an address or interface of another endpoint or a node.
    #[default]
    Bounded,
    /// Every claim counts, as in Felix.
    Any,
}

/// Source of the nodes of workload addresses (Felix's `RouteSource`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RouteSource {
    /// From the IPAM blocks of Calico.
    #[default]
    CalicoIpam,
    /// From the workload endpoints of all nodes.
    WorkloadIps,
}

/// Condition for a calculation that only some clusters need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Demand {
    /// While some IP pool needs it.
    #[default]
    Pools,
    /// Always.
    Always,
}

/// Meaning of a datastore's ready flag ([`Update::Ready`](tortie_model::Update::Ready)) for
/// [`DesiredUpdate::DatastoreNotReady`](tortie_model::desired::DesiredUpdate::DatastoreNotReady).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ReadyFlag {
    /// The datastore is ready unless the flag is false.
    #[default]
    Optional,
    /// The datastore is ready once the flag is true, as in Felix.
    Required,
    /// The flag is ignored: the datastore is ready.
    Ignored,
}

impl ReadyFlag {
    /// Reports whether a datastore with this flag is ready; `None` if it has no flag.
    pub(crate) fn is_ready(self, flag: Option<bool>) -> bool {
        match self {
            Self::Optional => flag != Some(false),
            Self::Required => flag == Some(true),
            Self::Ignored => true,
        }
    }
}

/// The parameters of a [`crate::Graph`]; they are fixed for its lifetime.
#[derive(Clone, Debug)]
pub struct GraphConfig {
    /// The node, spelled as the datastore spells it.
    pub hostname: Hostname,
    /// Meaning of the datastore's ready flag; [`ReadyFlag::Optional`] by default.
    pub ready_flag: ReadyFlag,
    /// Whether IP sets may contain networks inside other networks; nftables interval sets reject
    /// them.
    pub overlap: Overlap,
    /// Whether workloads may request to send from foreign addresses.
    pub source_spoofing: SourceSpoofing,
    /// Treatment of claims to addresses and interfaces.
    pub address_claims: AddressClaims,
    /// Whether proxies that follow the policy sync API enforce HTTP matches; not by default. Allow
    /// rules with such a match then allow packets by their other conditions.
    pub http_by_proxy: bool,
    /// Whether there is an Istio mesh in ambient mode (Felix's `IstioAmbientMode`). Then the IP set
    /// of its workloads exists, and endpoints have a field that they are in it.
    pub istio_ambient_mode: bool,
    /// Services of trusted DNS servers (`DNSTrustedServers`). While rules match domain names, the
    /// desired state has the set of the endpoints of each; see
    /// [`service_set_id`](crate::service_set_id). None by default.
    pub dns_services: Vec<NamespacedName>,
    /// Felix's `IpInIpEnabled`, if set: overrides the IP pools' modes.
    pub ipip_enabled: Option<bool>,
    /// Felix's `VXLANEnabled`, if set: overrides the IPv4 pools' modes.
    pub vxlan_enabled: Option<bool>,
    /// Whether routes of pools with IP-in-IP are programmed here (Felix's `ProgramClusterRoutes`).
    pub program_ipip_routes: bool,
    /// Whether routes of pools without encapsulation are programmed here (Felix's
    /// `ProgramClusterRoutes`).
    pub program_no_encap_routes: bool,
    /// Source of the nodes of workload addresses.
    pub route_source: RouteSource,
    /// Condition for the calculation of routes. Pools need routes for VXLAN and for the other
    /// routes that are programmed here. `WireGuard` and eBPF always need them.
    pub routes: Demand,
    /// Condition for the calculation of VXLAN tunnel ends.
    pub vteps: Demand,
    /// Most members that the selectors of one policy or profile may match in total;
    /// [`GraphConfig::POLICY_MEMBERS`] by default. Each IP set of the rules counts, and in it each
    /// network of each endpoint and network set that its selector matches. A policy beyond the
    /// bound denies the endpoints that it selects and has no IP sets.
    pub policy_members: u64,
}

impl GraphConfig {
    /// Default of [`GraphConfig::policy_members`].
    pub const POLICY_MEMBERS: u64 = 1_000_000;

    /// Returns Felix's defaults for a node. One differs: a datastore without a ready flag is ready.
    ///
    /// ```
    /// use tortie_calc::{Graph, GraphConfig, ReadyFlag};
    /// use tortie_model::desired::DesiredUpdate;
    /// use tortie_model::{Hostname, SyncStatus};
    ///
    /// let is_ready = |config: &GraphConfig| {
    ///     let mut graph = Graph::new(config);
    ///     graph.on_status(SyncStatus::InSync);
    ///     !graph.take_changes().contains(&DesiredUpdate::DatastoreNotReady)
    /// };
    /// let config = GraphConfig::new(Hostname::new("node-1"));
    /// assert!(is_ready(&config));
    /// assert!(!is_ready(&GraphConfig { ready_flag: ReadyFlag::Required, ..config }));
    /// ```
    #[must_use]
    pub fn new(hostname: Hostname) -> Self {
        Self {
            hostname,
            ready_flag: ReadyFlag::default(),
            overlap: Overlap::default(),
            source_spoofing: SourceSpoofing::default(),
            address_claims: AddressClaims::default(),
            http_by_proxy: false,
            istio_ambient_mode: false,
            dns_services: Vec::new(),
            ipip_enabled: None,
            vxlan_enabled: None,
            program_ipip_routes: true,
            program_no_encap_routes: false,
            route_source: RouteSource::default(),
            routes: Demand::default(),
            vteps: Demand::default(),
            policy_members: Self::POLICY_MEMBERS,
        }
    }
}
