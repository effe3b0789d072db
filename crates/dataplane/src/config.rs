//! Configuration of a dataplane, fixed at its start.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tortie_ipsets::SetSpec;
use tortie_iptables::{Backend, Features, InsertMode, Programs};
use tortie_model::{Budget, Cidr, Family, Hostname};
use tortie_rules::RulesConfig;

use crate::domains::DomainsConfig;
use crate::route::{RouteProtocol, RouteTableIndex};

/// All inputs of a dataplane besides the desired state. Names in code font after a comma are
/// Felix's parameters (`felix/config/config_params.go`).
#[derive(Clone, Debug)]
pub struct DataplaneConfig {
    /// Name of this node, `FelixHostname`.
    pub hostname: Hostname,
    /// Configuration of the rule renderer.
    pub rules: RulesConfig,
    /// IP versions in which policy is enforced; IPv6 only with `Ipv6Support`.
    pub families: Vec<Family>,
    /// iptables.
    pub iptables: IptablesConfig,
    /// nftables, which then replaces iptables and IP sets; `None` for iptables.
    pub nftables: Option<NftablesConfig>,
    /// Refresh interval of the nftables table that keeps the node from answering ARP requests of
    /// workloads for their own addresses. `Some(None)`: the table exists, without periodic refresh.
    /// `None`: no such table, as on kernels that do not support it.
    pub arp: Option<Option<Duration>>,
    /// IP sets.
    pub ip_sets: IpSetsConfig,
    /// Routes.
    pub routes: RoutesConfig,
    /// Tunnels to other nodes.
    pub tunnels: TunnelsConfig,
    /// Encrypted tunnels.
    pub wireguard: WireguardConfig,
    /// Answers to ARP and NDP requests for addresses in the node's own subnets,
    /// `LocalSubnetL2Reachability`; `None` disables them.
    pub local_reachability: Option<LocalReachabilityConfig>,
    /// Whether workloads may have floating addresses, `FloatingIPs`; always with `OpenStack`.
    pub floating_ips: bool,
    /// Egress policy by domain name; `None` leaves rules with domain names out.
    pub domains: Option<DomainsConfig>,
    /// Networks outside the cluster whose tunnel packets are accepted, `ExternalNodesCIDRList`.
    pub external_nodes: Vec<Cidr>,
    /// Whether the dataplane enables IP forwarding, `IPForwarding`.
    pub ip_forwarding: bool,
    /// Pause between a failure that has no retry timer of another kind and the next apply; 10 s by
    /// default.
    pub retry_interval: Duration,
}

impl DataplaneConfig {
    /// Felix's defaults in both families.
    #[must_use]
    pub fn new(hostname: Hostname, rules: RulesConfig, backend: Backend) -> Self {
        Self {
            hostname,
            rules,
            families: Family::ALL.to_vec(),
            iptables: IptablesConfig::new(backend),
            nftables: None,
            arp: None,
            ip_sets: IpSetsConfig::default(),
            routes: RoutesConfig::default(),
            tunnels: TunnelsConfig::default(),
            wireguard: WireguardConfig::default(),
            local_reachability: None,
            floating_ips: false,
            domains: None,
            external_nodes: Vec::new(),
            ip_forwarding: true,
            retry_interval: Duration::from_secs(10),
        }
    }
}

/// iptables: programs, features and intervals.
#[derive(Clone, Debug)]
pub struct IptablesConfig {
    /// Implementation in use, `IptablesBackend`.
    pub backend: Backend,
    /// Programs of that implementation for IPv4.
    pub programs_v4: Programs,
    /// Programs of that implementation for IPv6.
    pub programs_v6: Programs,
    /// Features that iptables and the kernel support.
    pub features: Features,
    /// Position of our rules in the kernel's chains, `ChainInsertMode`.
    pub insert_mode: InsertMode,
    /// Interval between full readings of the tables, `IptablesRefreshInterval`; 180 s by default,
    /// `None` disables them.
    pub refresh_interval: Option<Duration>,
    /// Pause between a write and the first reading after it, `IptablesPostWriteCheckIntervalSecs`;
    /// 5 s by default.
    pub post_write_interval: Duration,
    /// Interval between attempts to take a lock that another program holds,
    /// `IptablesLockProbeIntervalMillis`; 50 ms by default.
    pub lock_probe_interval: Duration,
    /// Families whose iptables programs are not installed. Where eBPF programs enforce policy, the
    /// dataplane runs iptables only if a table is needed. The resulting error names the missing
    /// program.
    pub uninstalled: Vec<Family>,
    /// Families and implementations that are no longer in use, from which our rules are removed;
    /// see [`backend_to_sweep`](tortie_iptables::backend_to_sweep).
    pub sweep: Vec<(Family, Backend)>,
}

impl IptablesConfig {
    /// Felix's defaults, a current system, and nothing to sweep.
    #[must_use]
    pub fn new(backend: Backend) -> Self {
        Self {
            backend,
            programs_v4: Programs::specific(backend, Family::V4),
            programs_v6: Programs::specific(backend, Family::V6),
            features: Features::ALL,
            insert_mode: InsertMode::Insert,
            refresh_interval: Some(Duration::from_secs(180)),
            post_write_interval: Duration::from_secs(5),
            lock_probe_interval: Duration::from_millis(50),
            uninstalled: Vec::new(),
            sweep: Vec::new(),
        }
    }

    /// The programs of a family.
    #[must_use]
    pub const fn programs(&self, family: Family) -> &Programs {
        match family {
            Family::V4 => &self.programs_v4,
            Family::V6 => &self.programs_v6,
        }
    }
}

/// nftables: intervals, features and memory bounds, `NFTablesMode`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NftablesConfig {
    /// Interval between full readings of the tables, `NftablesRefreshInterval`; 180 s by default,
    /// `None` disables them.
    pub refresh_interval: Option<Duration>,
    /// Features that the kernel supports.
    pub features: tortie_nftables::Features,
    /// Host interfaces in the flow table besides those of workloads and tunnels,
    /// `NFTablesFlowTableDataIfacePattern`. [`tortie_rules::NftablesConfig::offload_flows`] enables
    /// the flow table.
    pub flow_interfaces: InterfaceFilter,
    /// Memory bounds on layouts in all families together, `PolicyTableGroupMemoryMB` and
    /// `PolicyTableNodeMemoryMB`.
    pub budget: Budget,
}

/// Predicate on interface names; matches none by default.
#[derive(Clone, Default)]
pub struct InterfaceFilter(Option<Arc<NameTest>>);

type NameTest = dyn Fn(&str) -> bool + Send + Sync;

impl InterfaceFilter {
    /// Returns a filter that accepts the names for which `matches` returns true.
    #[must_use]
    pub fn new(matches: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(matches)))
    }

    pub(crate) fn matches(&self, name: &str) -> bool {
        self.0.as_ref().is_some_and(|matches| matches(name))
    }
}

impl fmt::Debug for InterfaceFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("InterfaceFilter").field(&self.0.is_some()).finish()
    }
}

impl PartialEq for InterfaceFilter {
    /// Filters are equal if they share one function, or if both are empty.
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(ours), Some(theirs)) => Arc::ptr_eq(ours, theirs),
            (ours, theirs) => ours.is_none() && theirs.is_none(),
        }
    }
}

impl Eq for InterfaceFilter {}

impl Default for NftablesConfig {
    fn default() -> Self {
        Self {
            refresh_interval: Some(Duration::from_secs(180)),
            // Most kernels without the expression have the target of iptables.
            features: tortie_nftables::Features { queue: false, ..tortie_nftables::Features::ALL },
            flow_interfaces: InterfaceFilter::default(),
            budget: Budget::default(),
        }
    }
}

/// IP sets: interval, size limit, and whether `ipset` is installed.
#[derive(Clone, Copy, Debug)]
pub struct IpSetsConfig {
    /// Interval between full readings of the sets, `IpsetsRefreshInterval`; 90 s by default, `None`
    /// disables them.
    pub refresh_interval: Option<Duration>,
    /// Maximum number of members of a set, `MaxIpsetSize`.
    pub max_size: u32,
    /// Whether `ipset` is installed. If not, and eBPF programs enforce policy, the dataplane runs
    /// it only if a set is needed. The resulting error names the missing program.
    pub installed: bool,
}

impl Default for IpSetsConfig {
    fn default() -> Self {
        Self {
            refresh_interval: Some(Duration::from_secs(90)),
            max_size: SetSpec::DEFAULT_MAX_ELEMENTS,
            installed: true,
        }
    }
}

/// VXLAN and IP-in-IP tunnels to other nodes. The IP pools decide which of them exist.
#[derive(Clone, Debug)]
pub struct TunnelsConfig {
    /// VXLAN network identifier, `VXLANVNI`; 4096 by default.
    pub vxlan_vni: u32,
    /// MTU of VXLAN over IPv4, `VXLANMTU`.
    pub vxlan_mtu_v4: u32,
    /// MTU of VXLAN over IPv6, `VXLANMTUV6`.
    pub vxlan_mtu_v6: u32,
    /// MTU of IP-in-IP, `IpInIpMtu`.
    pub ipip_mtu: u32,
    /// This node's address in IP-in-IP tunnels, `IpInIpTunnelAddr`.
    pub ipip_address: Option<IpAddr>,
    /// Whether the kernel computes wrong checksums for tunnel packets whose source port it changed,
    /// if it leaves the computation to the tunnel device.
    pub checksum_offload_broken: bool,
    /// Whether the IP-in-IP device keeps its addresses when it is not in use: `IpInIpEnabled` is
    /// set.
    pub keep_ipip_addresses: bool,
}

impl Default for TunnelsConfig {
    fn default() -> Self {
        Self {
            vxlan_vni: 4096,
            vxlan_mtu_v4: 1410,
            vxlan_mtu_v6: 1390,
            ipip_mtu: 1440,
            ipip_address: None,
            checksum_offload_broken: false,
            keep_ipip_addresses: false,
        }
    }
}

impl TunnelsConfig {
    /// Returns the MTU of VXLAN.
    #[must_use]
    pub const fn vxlan_mtu(&self, family: Family) -> u32 {
        match family {
            Family::V4 => self.vxlan_mtu_v4,
            Family::V6 => self.vxlan_mtu_v6,
        }
    }
}

/// Answers to ARP and NDP requests for addresses of pods and load balancers on the node's own
/// networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalReachabilityConfig {
    /// Interval between announcements of all these addresses,
    /// `LocalSubnetL2ReachabilityRefreshInterval`; 120 s by default, `None` disables repetition.
    pub announce_interval: Option<Duration>,
}

impl Default for LocalReachabilityConfig {
    fn default() -> Self {
        Self { announce_interval: Some(Duration::from_secs(120)) }
    }
}

/// `WireGuard` encryption between nodes. [`RulesConfig`] says whether it is enabled, with which
/// device and port.
#[derive(Clone, Debug)]
pub struct WireguardConfig {
    /// Table of the routes through the encrypted tunnels, in both families: the first of
    /// `RouteTableRanges`.
    pub table: Option<RouteTableIndex>,
    /// Priority of the routing rule that leads to that table, `WireguardRoutingRulePriority`; 99 by
    /// default.
    pub rule_priority: u32,
    /// Keep-alive interval in seconds, `WireguardPersistentKeepAlive`; 0, the default, disables
    /// keep-alives.
    pub keep_alive: u16,
    /// Whether the devices process received packets in dedicated kernel threads (threaded NAPI),
    /// `WireguardThreadingEnabled`.
    pub has_threads: bool,
    /// MTU over IPv4, `WireguardMTU`.
    pub mtu_v4: u32,
    /// MTU over IPv6, `WireguardMTUV6`.
    pub mtu_v6: u32,
}

impl Default for WireguardConfig {
    fn default() -> Self {
        Self {
            table: Some(RouteTableIndex(1)),
            rule_priority: 99,
            keep_alive: 0,
            has_threads: false,
            mtu_v4: 1400,
            mtu_v6: 1380,
        }
    }
}

impl WireguardConfig {
    /// Returns the MTU of the encrypted tunnels.
    #[must_use]
    pub const fn mtu(&self, family: Family) -> u32 {
        match family {
            Family::V4 => self.mtu_v4,
            Family::V6 => self.mtu_v6,
        }
    }
}

/// Routes to workloads and to other nodes.
#[derive(Clone, Debug)]
pub struct RoutesConfig {
    /// Whether the dataplane programs routes and neighbour entries; false with `RouteSyncDisabled`.
    pub enabled: bool,
    /// Interval between full readings of the routing table and of all sysctls,
    /// `RouteRefreshInterval`; 90 s by default, `None` disables them.
    pub refresh_interval: Option<Duration>,
    /// Protocol number that marks our routes in the routing table, `DeviceRouteProtocol`.
    pub protocol: RouteProtocol,
    /// Metric of IPv4 routes to workloads, `IPv4NormalRoutePriority`; 1024 by default.
    pub metric_v4: u32,
    /// Metric of IPv6 routes to workloads, `IPv6NormalRoutePriority`; 1024 by default.
    pub metric_v6: u32,
    /// Metric of IPv4 routes to virtual machines that have just moved here,
    /// `IPv4ElevatedRoutePriority`; 512 by default.
    pub elevated_metric_v4: u32,
    /// Metric of IPv6 routes to virtual machines that have just moved here,
    /// `IPv6ElevatedRoutePriority`; 512 by default.
    pub elevated_metric_v6: u32,
    /// Time for which routes keep the elevated metric after a live migration,
    /// `LiveMigrationRouteConvergenceTime`; 30 s by default.
    pub migration_convergence: Duration,
    /// IPv4 source address of the host's own packets to workloads, `DeviceRouteSourceAddress`.
    pub source_v4: Option<IpAddr>,
    /// IPv6 source address of the host's own packets to workloads, `DeviceRouteSourceAddressIPv6`.
    pub source_v6: Option<IpAddr>,
    /// Whether other programs' routes on workload interfaces are removed, `RemoveExternalRoutes`.
    pub remove_external: bool,
    /// Time for which routes on a new workload interface are left alone, because the endpoint may
    /// not be known yet; 10 s by default.
    pub grace_period: Duration,
    /// Whether the agent, not BIRD, programs the routes to other nodes for pools with IP-in-IP,
    /// `ProgramClusterRoutes`.
    pub program_ipip: bool,
}

impl Default for RoutesConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            refresh_interval: Some(Duration::from_secs(90)),
            protocol: RouteProtocol::BOOT,
            metric_v4: 1024,
            metric_v6: 1024,
            elevated_metric_v4: 512,
            elevated_metric_v6: 512,
            migration_convergence: Duration::from_secs(30),
            source_v4: None,
            source_v6: None,
            remove_external: true,
            grace_period: Duration::from_secs(10),
            program_ipip: true,
        }
    }
}

/// Priority among the routes to a workload that several nodes may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RoutePriority {
    /// Route to any other workload.
    #[default]
    Normal,
    /// Route to a virtual machine on the node that it has just moved to, for as long as other nodes
    /// may still have a route to its previous node.
    Elevated,
}

impl RoutesConfig {
    /// Returns the metric of routes to workloads.
    #[must_use]
    pub const fn metric(&self, family: Family, priority: RoutePriority) -> u32 {
        match (family, priority) {
            (Family::V4, RoutePriority::Normal) => self.metric_v4,
            (Family::V6, RoutePriority::Normal) => self.metric_v6,
            (Family::V4, RoutePriority::Elevated) => self.elevated_metric_v4,
            (Family::V6, RoutePriority::Elevated) => self.elevated_metric_v6,
        }
    }

    /// Returns the source address of the host's own packets to workloads.
    #[must_use]
    pub const fn source(&self, family: Family) -> Option<IpAddr> {
        match family {
            Family::V4 => self.source_v4,
            Family::V6 => self.source_v6,
        }
    }
}
