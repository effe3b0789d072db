//! What a dataplane is told once, at its start.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tortie_ipsets::SetSpec;
use tortie_iptables::{Backend, Features, InsertMode, Programs};
use tortie_model::{Budget, Cidr, Family, Hostname};
use tortie_rules::RulesConfig;

use crate::route::{RouteProtocol, RouteTableIndex};

/// Everything that a dataplane depends on besides the desired state. Names in quotes are Felix's parameters
/// (`felix/config/config_params.go`).
#[derive(Clone, Debug)]
pub struct DataplaneConfig {
    /// The name of this node, `FelixHostname`.
    pub hostname: Hostname,
    /// What the text of rules depends on.
    pub rules: RulesConfig,
    /// The families to enforce in; IPv6 is left out unless `Ipv6Support`.
    pub families: Vec<Family>,
    /// Tables.
    pub iptables: IptablesConfig,
    /// Tables of nftables, which are then used in place of iptables' and of IP sets.
    pub nftables: Option<NftablesConfig>,
    /// How often the table of nftables that keeps the node from answering ARP requests for workloads' own addresses is read again,
    /// never if `Some(None)`; without such a table if `None`, as where the kernel does not take one.
    pub arp: Option<Option<Duration>>,
    /// IP sets.
    pub ip_sets: IpSetsConfig,
    /// Routes.
    pub routes: RoutesConfig,
    /// Tunnels to other nodes.
    pub tunnels: TunnelsConfig,
    /// Encrypted tunnels.
    pub wireguard: WireguardConfig,
    /// Whether and how requests for addresses in the node's own subnets are answered, `LocalSubnetL2Reachability`.
    pub local_reachability: Option<LocalReachabilityConfig>,
    /// Whether workloads may have floating addresses, `FloatingIPs`; always with `OpenStack`.
    pub floating_ips: bool,
    /// Networks outside the cluster whose tunnel packets are accepted, `ExternalNodesCIDRList`.
    pub external_nodes: Vec<Cidr>,
    /// Whether forwarding is switched on, `IPForwarding`.
    pub ip_forwarding: bool,
    /// How long after a failure that nothing else retries the dataplane wants to be applied again.
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
            external_nodes: Vec::new(),
            ip_forwarding: true,
            retry_interval: Duration::from_secs(10),
        }
    }
}

/// How tables are read and written.
#[derive(Clone, Debug)]
pub struct IptablesConfig {
    /// The implementation in use, `IptablesBackend`.
    pub backend: Backend,
    /// Its programs for IPv4.
    pub programs_v4: Programs,
    /// Its programs for IPv6.
    pub programs_v6: Programs,
    /// What iptables and the kernel can do.
    pub features: Features,
    /// Where our rules go in the kernel's chains, `ChainInsertMode`.
    pub insert_mode: InsertMode,
    /// How often tables are read again, `IptablesRefreshInterval`; never if `None`.
    pub refresh_interval: Option<Duration>,
    /// How long after a write tables are read again for the first time, `IptablesPostWriteCheckIntervalSecs`.
    pub post_write_interval: Duration,
    /// How often a lock that another program holds is tried, `IptablesLockProbeIntervalMillis`.
    pub lock_probe_interval: Duration,
    /// Families whose programs are not installed. Where programs in the kernel enforce policy they are run only if something is
    /// wanted of them, and then fail by name.
    pub uninstalled: Vec<Family>,
    /// Families and implementations to remove our rules from because they are not in use any more; see
    /// [`backend_to_sweep`](tortie_iptables::backend_to_sweep).
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

/// How tables of nftables are read and written, `NFTablesMode`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NftablesConfig {
    /// How often tables are read again, `NftablesRefreshInterval`; never if `None`.
    pub refresh_interval: Option<Duration>,
    /// What the kernel can do.
    pub features: tortie_nftables::Features,
    /// Which interfaces of the host are in the flow table besides those of workloads and tunnels,
    /// `NFTablesFlowTableDataIfacePattern`. There is a flow table where [`tortie_rules::NftablesConfig::offload_flows`] says so.
    pub flow_interfaces: InterfaceFilter,
    /// Memory bounds on layouts in all families together, `PolicyTableGroupMemoryMB` and `PolicyTableNodeMemoryMB`.
    pub budget: Budget,
}

/// Which interfaces are meant, by their names; none by default.
#[derive(Clone, Default)]
pub struct InterfaceFilter(Option<Arc<NameTest>>);

type NameTest = dyn Fn(&str) -> bool + Send + Sync;

impl InterfaceFilter {
    /// Those for which this is true.
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
    /// Whether they are one and the same.
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
            features: tortie_nftables::Features::ALL,
            flow_interfaces: InterfaceFilter::default(),
            budget: Budget::default(),
        }
    }
}

/// How IP sets are read and written.
#[derive(Clone, Copy, Debug)]
pub struct IpSetsConfig {
    /// How often sets are looked at again, `IpsetsRefreshInterval`; never if `None`.
    pub refresh_interval: Option<Duration>,
    /// How many members a set may have, `MaxIpsetSize`.
    pub max_size: u32,
    /// Whether `ipset` is installed. Where programs in the kernel enforce policy and it is not, it is run only if some set is
    /// wanted, and then fails by name.
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

/// How tunnels to other nodes are made. Whether there are any, the pools say.
#[derive(Clone, Debug)]
pub struct TunnelsConfig {
    /// The number of the virtual network, `VXLANVNI`.
    pub vxlan_vni: u32,
    /// The largest packet through VXLAN over IPv4, `VXLANMTU`.
    pub vxlan_mtu_v4: u32,
    /// The largest packet through VXLAN over IPv6, `VXLANMTUV6`.
    pub vxlan_mtu_v6: u32,
    /// The largest packet through IP-in-IP, `IpInIpMtu`.
    pub ipip_mtu: u32,
    /// This node's address in IP-in-IP tunnels, `IpInIpTunnelAddr`.
    pub ipip_address: Option<IpAddr>,
    /// Whether the kernel computes wrong checksums of packets through tunnels whose source port it has changed, if it leaves
    /// them to the tunnel's device.
    pub checksum_offload_broken: bool,
    /// Whether the IP-in-IP device keeps its addresses when it is not in use: `IpInIpEnabled` is set.
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
    /// The largest packet through VXLAN.
    #[must_use]
    pub const fn vxlan_mtu(&self, family: Family) -> u32 {
        match family {
            Family::V4 => self.vxlan_mtu_v4,
            Family::V6 => self.vxlan_mtu_v6,
        }
    }
}

/// How requests for addresses of pods and load balancers are answered on the node's own networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalReachabilityConfig {
    /// How often all of them are announced again, `LocalSubnetL2ReachabilityRefreshInterval`; never if `None`.
    pub announce_interval: Option<Duration>,
}

impl Default for LocalReachabilityConfig {
    fn default() -> Self {
        Self { announce_interval: Some(Duration::from_secs(120)) }
    }
}

/// How packets are encrypted between nodes. Whether they are, by which device and which port, [`RulesConfig`] says.
#[derive(Clone, Debug)]
pub struct WireguardConfig {
    /// The table of the routes through tunnels, in both families: the first of `RouteTableRanges`.
    pub table: Option<RouteTableIndex>,
    /// The priority of the rule that leads there, `WireguardRoutingRulePriority`.
    pub rule_priority: u32,
    /// How often peers are sent something although there is nothing to say, in seconds, `WireguardPersistentKeepAlive`; 0
    /// for never.
    pub keep_alive: u16,
    /// Whether what the devices receive is handled by threads of their own, `WireguardThreadingEnabled`.
    pub has_threads: bool,
    /// The largest packet, `WireguardMTU`.
    pub mtu_v4: u32,
    /// The largest packet, `WireguardMTUV6`.
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
    /// The largest packet through encrypted tunnels.
    #[must_use]
    pub const fn mtu(&self, family: Family) -> u32 {
        match family {
            Family::V4 => self.mtu_v4,
            Family::V6 => self.mtu_v6,
        }
    }
}

/// Which routes there are.
#[derive(Clone, Debug)]
pub struct RoutesConfig {
    /// Whether there are any routes and neighbour entries of ours, not `RouteSyncDisabled`.
    pub enabled: bool,
    /// How often the routing table is read again, and all sysctls, `RouteRefreshInterval`; never if `None`.
    pub refresh_interval: Option<Duration>,
    /// Who we are in the routing table, `DeviceRouteProtocol`.
    pub protocol: RouteProtocol,
    /// The metric of routes to workloads, `IPv4NormalRoutePriority`.
    pub metric_v4: u32,
    /// The metric of routes to workloads, `IPv6NormalRoutePriority`.
    pub metric_v6: u32,
    /// The metric of routes to virtual machines that have just moved here, `IPv4ElevatedRoutePriority`.
    pub elevated_metric_v4: u32,
    /// The metric of routes to virtual machines that have just moved here, `IPv6ElevatedRoutePriority`.
    pub elevated_metric_v6: u32,
    /// For how long after a live migration routes keep that metric, `LiveMigrationRouteConvergenceTime`.
    pub migration_convergence: Duration,
    /// The source address of the host's own packets to workloads, `DeviceRouteSourceAddress`.
    pub source_v4: Option<IpAddr>,
    /// The source address of the host's own packets to workloads, `DeviceRouteSourceAddressIPv6`.
    pub source_v6: Option<IpAddr>,
    /// Whether other programs' routes on workload interfaces are removed, `RemoveExternalRoutes`.
    pub remove_external: bool,
    /// For how long routes on a new workload interface are left alone, because the endpoint may not be known yet.
    pub grace_period: Duration,
    /// Whether routes to other nodes are made here for pools with IP-in-IP, not by BIRD, `ProgramClusterRoutes`.
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

/// Which of several routes to a workload, on whatever node, is to be taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RoutePriority {
    /// Any workload's.
    #[default]
    Normal,
    /// That of a virtual machine on the node that it has just moved to, for as long as others may still have a route to
    /// where it was.
    Elevated,
}

impl RoutesConfig {
    /// The metric of routes to workloads.
    #[must_use]
    pub const fn metric(&self, family: Family, priority: RoutePriority) -> u32 {
        match (family, priority) {
            (Family::V4, RoutePriority::Normal) => self.metric_v4,
            (Family::V6, RoutePriority::Normal) => self.metric_v6,
            (Family::V4, RoutePriority::Elevated) => self.elevated_metric_v4,
            (Family::V6, RoutePriority::Elevated) => self.elevated_metric_v6,
        }
    }

    /// The source address of the host's own packets to workloads.
    #[must_use]
    pub const fn source(&self, family: Family) -> Option<IpAddr> {
        match family {
            Family::V4 => self.source_v4,
            Family::V6 => self.source_v6,
        }
    }
}
