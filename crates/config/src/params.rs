//! The parameters: name, type, default, and how a bad value is treated.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use regex::Regex;
use tortie_iptables::InterfaceName;
use tortie_model::Cidr;

use super::parse::{self, FailsafePort, IfacePattern, LogRate, LogSeverity, Parsed, TableRange, choices};
use super::server::GrpcServer;
use super::shown::Shown;

choices!(
    /// Which of the two iptables implementations programs the kernel.
    IptablesBackend {
        /// Found out at start.
        Auto = "auto",
        /// The original, `x_tables`.
        Legacy = "legacy",
        /// The one on top of nftables.
        Nft = "nft",
    }
);
choices!(
    /// How eBPF programs get to the hooks of netfilter.
    HookAttachment {
        /// By links where the kernel has these, and by rules otherwise.
        Auto = "Auto",
        /// By links of netfilter.
        Link = "Link",
        /// As what rules of nftables match by.
        Rule = "Rule",
    }
);
choices!(
    /// What clients that ask for metrics over TLS must show of a certificate.
    MetricsClientAuth {
        /// One of the authority.
        Verified = "RequireAndVerifyClientCert",
        /// One, whoever it comes from.
        Any = "RequireAnyClientCert",
        /// One of the authority, or nothing.
        VerifiedIfGiven = "VerifyClientCertIfGiven",
        /// Nothing.
        NoClientCert = "NoClientCert",
    }
);
choices!(
    /// Where the hooks go in the kernel's chains.
    ChainInsertMode {
        /// First.
        Insert = "insert",
        /// Last.
        Append = "append",
    }
);
choices!(
    /// What becomes of traffic from a workload to its host that policy allows.
    EndpointToHostAction {
        /// Dropped all the same.
        Drop = "DROP",
        /// Left to the host's own rules.
        Return = "RETURN",
        /// Accepted.
        Accept = "ACCEPT",
    }
);
choices!(
    /// What becomes of traffic that policy allows.
    AllowAction {
        /// Accepted at once.
        Accept = "ACCEPT",
        /// Left to the rules that follow.
        Return = "RETURN",
    }
);
choices!(
    /// What becomes of traffic that policy denies.
    DenyAction {
        /// Dropped in silence.
        Drop = "DROP",
        /// Refused with an ICMP error.
        Reject = "REJECT",
    }
);
choices!(
    /// A switch.
    Switch {
        /// On.
        Enabled = "Enabled",
        /// Off.
        Disabled = "Disabled",
    }
);
choices!(
    /// Whether native nftables is used in place of iptables.
    NftablesMode {
        /// Always.
        Enabled = "Enabled",
        /// Never.
        Disabled = "Disabled",
        /// Where kube-proxy does.
        Auto = "Auto",
    }
);
choices!(
    /// Which established connections are left to a flow table.
    FlowTableOffload {
        /// All.
        All = "All",
        /// None.
        Disabled = "Disabled",
    }
);
choices!(
    /// How chains of nftables are laid out.
    NftablesLayout {
        /// As Felix does it.
        Felix = "Felix",
        /// So that a packet meets few rules.
        Fast = "Fast",
    }
);
choices!(
    /// What is left out of masquerading besides the pools themselves.
    NatOutgoingExclusions {
        /// Nothing.
        IpPoolsOnly = "IPPoolsOnly",
        /// The addresses of the cluster's nodes.
        IpPoolsAndHostIps = "IPPoolsAndHostIPs",
    }
);
choices!(
    /// What becomes of traffic to service addresses that no service has.
    ServiceLoopPrevention {
        /// Dropped.
        Drop = "Drop",
        /// Refused.
        Reject = "Reject",
        /// Nothing.
        Disabled = "Disabled",
    }
);
choices!(
    /// Which addresses are answered for on the node's own networks.
    LocalReachability {
        /// None.
        Disabled = "Disabled",
        /// Those of workloads of this node, and its share of those of load balancers.
        PodsAndLoadBalancers = "PodsAndLoadBalancers",
    }
);
choices!(
    /// Whether staged policies are asked about each flow.
    PolicyEvaluationMode {
        /// No.
        None = "None",
        /// Yes.
        Continuous = "Continuous",
    }
);
choices!(
    /// Whether a workload may ask to send from addresses that are not its own.
    WorkloadSourceSpoofing {
        /// It may not.
        Disabled = "Disabled",
        /// It may, by annotation.
        Any = "Any",
    }
);
choices!(
    /// Treatment of addresses and interfaces that users can claim.
    AddressClaims {
        /// A claim does not reach another namespace or a node.
        Bounded = "Bounded",
        /// Each claim counts, as in Felix.
        Any = "Any",
    }
);
choices!(
    /// Where it is learned which node has a workload's address.
    RouteSource {
        /// From the blocks of addresses of Calico's IPAM.
        CalicoIpam = "CalicoIPAM",
        /// From the workload endpoints of all nodes.
        WorkloadIps = "WorkloadIPs",
    }
);
choices!(
    /// Which pools' routes between nodes are not left to BGP.
    ProgramClusterRoutes {
        /// Those of pools with IP-in-IP, and of pools without encapsulation.
        Enabled = "Enabled",
        /// None of these.
        Disabled = "Disabled",
        /// Those of pools with IP-in-IP.
        IpIpOnly = "EnabledIPIPOnly",
        /// Those of pools without encapsulation.
        NoEncapOnly = "EnabledNoEncapOnly",
    }
);
/// How a parameter is treated beyond its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Traits {
    /// Ignored where the datastore sets it.
    pub(crate) local: bool,
    /// `none` is an error.
    pub(crate) non_zero: bool,
    /// A bad value ends the program instead of falling back to the default.
    pub(crate) fatal: bool,
}

const PLAIN: Traits = Traits { local: false, non_zero: false, fatal: false };
const LOCAL: Traits = Traits { local: true, non_zero: true, fatal: false };
const LOCAL_FILE: Traits = Traits { local: true, non_zero: false, fatal: false };
const NON_ZERO: Traits = Traits { local: false, non_zero: true, fatal: false };
const FATAL: Traits = Traits { local: false, non_zero: false, fatal: true };
const VITAL: Traits = Traits { local: false, non_zero: true, fatal: true };

/// A parameter of the table.
pub(crate) struct Param {
    /// Felix's name for it.
    pub(crate) name: &'static str,
    /// How it is treated.
    pub(crate) traits: Traits,
    /// Sets the field from text.
    pub(crate) set: fn(&mut Config, &str) -> Parsed<()>,
    /// Sets the field to its default.
    pub(crate) reset: fn(&mut Config),
    /// The default in words.
    pub(crate) default: fn() -> String,
    /// Sets the field to the value that `none` stands for.
    pub(crate) clear: fn(&mut Config),
}

/// Returns the default of a parameter in words; `None` for a parameter without an effect.
#[must_use]
pub fn default_of(name: &str) -> Option<String> {
    PARAMS.iter().find(|param| param.name == name).map(|param| (param.default)())
}

macro_rules! params {
    ($($(#[$doc:meta])* $field:ident: $type:ty = $name:literal, $parse:expr, $default:expr, $none:expr, $traits:expr;)*) => {
        /// The configuration in force. Each field is the Felix parameter that its documentation names.
        #[derive(Clone, Debug)]
        pub struct Config {
            $(#[doc = concat!("`", $name, "`.")] $(#[$doc])* pub $field: $type,)*
        }

        impl Default for Config {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        /// Every parameter that is understood, in the order of [`Config`].
        pub(crate) const PARAMS: &[Param] = &[$(
            Param {
                name: $name,
                traits: $traits,
                set: |config, raw| {
                    let parse: fn(&str) -> Parsed<$type> = $parse;
                    config.$field = parse(raw)?;
                    Ok(())
                },
                reset: |config| config.$field = $default,
                default: || {
                    let default: $type = $default;
                    default.shown()
                },
                clear: |config| config.$field = $none,
            },
        )*];
    };
}

const WIREGUARD: InterfaceName = InterfaceName::from_static("wireguard.cali");
const WIREGUARD_V6: InterfaceName = InterfaceName::from_static("wg-v6.cali");

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn default_failsafes(udp: &[u16], tcp: &[u16]) -> Vec<FailsafePort> {
    let port = |tcp| move |port: &u16| FailsafePort { tcp, net: None, port: *port };
    udp.iter().map(port(false)).chain(tcp.iter().map(port(true))).collect()
}

fn default_failsafe_inbound() -> Vec<FailsafePort> {
    // The order enters rule hashes: SSH comes before DHCP.
    let mut ports = default_failsafes(&[], &[22]);
    ports.extend(default_failsafes(&[68], &[179, 2379, 2380, 5473, 6443, 6666, 6667]));
    ports
}

fn default_interface_exclude() -> Vec<Regex> {
    parse::iface_patterns("kube-ipvs0").unwrap_or_default()
}

fn default_mtu_pattern() -> Option<IfacePattern> {
    Regex::new("^((en|wl|ww|sl|ib)[Pcopsvx].*|(eth|wlan|wwan).*)").ok().map(IfacePattern)
}

params! {
    bpf_enabled: bool = "BPFEnabled", parse::boolean, false, false, PLAIN;
    bpf_hook_attachment: HookAttachment =
        "BPFHookAttachment", parse::one_of, HookAttachment::Auto, HookAttachment::Auto, PLAIN;
    bpf_policy_only: bool = "BPFPolicyOnly", parse::boolean, true, true, PLAIN;
    bpf_max_blocks: u32 =
        "BPFMaxBlocks", |raw| parse::integer_in(raw, 1024, 1 << 22), 1 << 17, 1 << 17, PLAIN;
    policy_members_limit: u32 =
        "PolicyMembersLimit", |raw| parse::integer_in(raw, 0, i64::from(u32::MAX)), 1_000_000, 1_000_000, PLAIN;
    policy_table_group_mb: u32 =
        "PolicyTableGroupMemoryMB", |raw| parse::integer_in(raw, 1, 65_536), 256, 256, PLAIN;
    policy_table_node_mb: u32 =
        "PolicyTableNodeMemoryMB", |raw| parse::integer_in(raw, 1, 65_536), 1024, 1024, PLAIN;
    felix_hostname: String = "FelixHostname", parse::text, String::new(), String::new(), LOCAL;
    ipv6_support: bool = "Ipv6Support", parse::boolean, true, false, PLAIN;
    interface_prefix: Vec<String> = "InterfacePrefix", parse::iface_list, vec!["cali".into()], vec![], VITAL;
    interface_exclude: Vec<Regex> =
        "InterfaceExclude", parse::iface_patterns, default_interface_exclude(), vec![], PLAIN;
    interface_refresh_interval: Duration = "InterfaceRefreshInterval", parse::seconds, secs(90), secs(0), PLAIN;
    chain_insert_mode: ChainInsertMode =
        "ChainInsertMode", parse::one_of, ChainInsertMode::Insert, ChainInsertMode::Insert, VITAL;
    default_endpoint_to_host_action: EndpointToHostAction =
        "DefaultEndpointToHostAction", parse::one_of, EndpointToHostAction::Drop, EndpointToHostAction::Drop, VITAL;
    iptables_filter_allow_action: AllowAction =
        "IptablesFilterAllowAction", parse::one_of, AllowAction::Accept, AllowAction::Accept, VITAL;
    iptables_mangle_allow_action: AllowAction =
        "IptablesMangleAllowAction", parse::one_of, AllowAction::Accept, AllowAction::Accept, VITAL;
    iptables_filter_deny_action: DenyAction =
        "IptablesFilterDenyAction", parse::one_of, DenyAction::Drop, DenyAction::Drop, VITAL;
    nftables_filter_allow_action: AllowAction =
        "NftablesFilterAllowAction", parse::one_of, AllowAction::Accept, AllowAction::Accept, VITAL;
    nftables_mangle_allow_action: AllowAction =
        "NftablesMangleAllowAction", parse::one_of, AllowAction::Accept, AllowAction::Accept, VITAL;
    nftables_filter_deny_action: DenyAction =
        "NftablesFilterDenyAction", parse::one_of, DenyAction::Drop, DenyAction::Drop, VITAL;
    nftables_mark_mask: u32 = "NftablesMarkMask", parse::mark_mask, 0xffff_0000, 0, VITAL;
    nftables_refresh_interval: Duration = "NftablesRefreshInterval", parse::seconds, secs(180), secs(0), PLAIN;
    iptables_mark_mask: u32 = "IptablesMarkMask", parse::mark_mask, 0xffff_0000, 0, VITAL;
    iptables_backend: IptablesBackend =
        "IptablesBackend", parse::one_of, IptablesBackend::Auto, IptablesBackend::Auto, PLAIN;
    iptables_refresh_interval: Duration = "IptablesRefreshInterval", parse::seconds, secs(180), secs(0), PLAIN;
    iptables_post_write_check_interval: Duration =
        "IptablesPostWriteCheckIntervalSecs", parse::seconds, secs(5), secs(0), PLAIN;
    iptables_lock_probe_interval: Duration =
        "IptablesLockProbeIntervalMillis", parse::millis, Duration::from_millis(50), secs(0), PLAIN;
    iptables_nat_outgoing_interface_filter: Option<String> =
        "IptablesNATOutgoingInterfaceFilter", parse::iface_filter, None, None, PLAIN;
    nat_port_range: Option<(u16, u16)> = "NATPortRange", parse::port_range, None, None, PLAIN;
    nat_outgoing_address: Option<Ipv4Addr> = "NATOutgoingAddress", parse::ipv4, None, None, PLAIN;
    nat_outgoing_exclusions: NatOutgoingExclusions = "NATOutgoingExclusions", parse::one_of,
        NatOutgoingExclusions::IpPoolsOnly, NatOutgoingExclusions::IpPoolsOnly, PLAIN;
    ipsets_refresh_interval: Duration = "IpsetsRefreshInterval", parse::seconds, secs(90), secs(0), PLAIN;
    max_ipset_size: u32 =
        "MaxIpsetSize", |raw| parse::integer_in(raw, 1, i64::from(u32::MAX)), 1_048_576, 0, NON_ZERO;
    route_refresh_interval: Duration = "RouteRefreshInterval", parse::seconds, secs(90), secs(0), PLAIN;
    route_sync_disabled: bool = "RouteSyncDisabled", parse::boolean, false, false, PLAIN;
    route_table_range: Option<TableRange> = "RouteTableRange", parse::table_range, None, None, FATAL;
    route_table_ranges: Vec<TableRange> = "RouteTableRanges", parse::table_ranges, vec![], vec![], FATAL;
    remove_external_routes: bool = "RemoveExternalRoutes", parse::boolean, true, false, PLAIN;
    device_route_protocol: u8 = "DeviceRouteProtocol", |raw| parse::integer_in(raw, 0, 255), 3, 0, PLAIN;
    device_route_source_address: Option<Ipv4Addr> = "DeviceRouteSourceAddress", parse::ipv4, None, None, PLAIN;
    device_route_source_address_v6: Option<Ipv6Addr> =
        "DeviceRouteSourceAddressIPv6", parse::ipv6, None, None, PLAIN;
    ipv4_normal_route_priority: u32 =
        "IPv4NormalRoutePriority", |raw| parse::integer_in(raw, 1, 2_147_483_646), 1024, 1024, PLAIN;
    ipv6_normal_route_priority: u32 =
        "IPv6NormalRoutePriority", |raw| parse::integer_in(raw, 1, 2_147_483_646), 1024, 1024, PLAIN;
    ipv4_elevated_route_priority: u32 =
        "IPv4ElevatedRoutePriority", |raw| parse::integer_in(raw, 1, 2_147_483_646), 512, 512, PLAIN;
    ipv6_elevated_route_priority: u32 =
        "IPv6ElevatedRoutePriority", |raw| parse::integer_in(raw, 1, 2_147_483_646), 512, 512, PLAIN;
    live_migration_route_convergence_time: Duration =
        "LiveMigrationRouteConvergenceTime", parse::seconds, secs(30), secs(0), PLAIN;
    reporting_interval: Duration = "ReportingIntervalSecs", parse::seconds, secs(30), secs(0), PLAIN;
    reporting_ttl: Duration = "ReportingTTLSecs", parse::seconds, secs(90), secs(0), PLAIN;
    endpoint_reporting_enabled: bool = "EndpointReportingEnabled", parse::boolean, false, false, PLAIN;
    endpoint_reporting_delay: Duration = "EndpointReportingDelaySecs", parse::seconds, secs(1), secs(0), PLAIN;
    endpoint_status_path_prefix: String =
        "EndpointStatusPathPrefix", parse::text, "/var/run/calico".into(), String::new(), PLAIN;
    policy_sync_path_prefix: String = "PolicySyncPathPrefix", parse::text, String::new(), String::new(), PLAIN;
    openstack_region: String = "OpenstackRegion", parse::region, String::new(), String::new(), FATAL;
    ip_forwarding: Switch = "IPForwarding", parse::one_of, Switch::Enabled, Switch::Disabled, PLAIN;
    failsafe_inbound_host_ports: Vec<FailsafePort> =
        "FailsafeInboundHostPorts", parse::failsafe_ports, default_failsafe_inbound(), vec![], FATAL;
    failsafe_outbound_host_ports: Vec<FailsafePort> = "FailsafeOutboundHostPorts", parse::failsafe_ports,
        default_failsafes(&[53, 67], &[179, 2379, 2380, 5473, 6443, 6666, 6667]), vec![], FATAL;
    disable_conntrack_invalid_check: bool =
        "DisableConntrackInvalidCheck", parse::boolean, false, false, PLAIN;
    flow_logs_local_reporter: Switch =
        "FlowLogsLocalReporter", parse::one_of, Switch::Disabled, Switch::Disabled, PLAIN;
    flow_logs_flush_interval: Duration = "FlowLogsFlushInterval", parse::seconds, secs(300), secs(0), PLAIN;
    flow_logs_policy_evaluation_mode: PolicyEvaluationMode = "FlowLogsPolicyEvaluationMode", parse::one_of,
        PolicyEvaluationMode::Continuous, PolicyEvaluationMode::None, PLAIN;
    flow_logs_goldmane_server: Option<GrpcServer> =
        "FlowLogsGoldmaneServer", parse::grpc_server, None, None, PLAIN;
    flow_logs_file: String = "FlowLogsFile", parse::text, String::new(), String::new(), PLAIN;
    flow_logs_file_max_size_mb: u32 =
        "FlowLogsFileMaxSizeMB", |raw| parse::integer_in(raw, 1, 1_000_000), 100, 100, NON_ZERO;
    flow_logs_file_max_files: u32 =
        "FlowLogsFileMaxFiles", |raw| parse::integer_in(raw, 1, 1_000), 5, 5, NON_ZERO;
    typha_ca_file: String = "TyphaCAFile", parse::text, String::new(), String::new(), LOCAL_FILE;
    typha_cert_file: String = "TyphaCertFile", parse::text, String::new(), String::new(), LOCAL_FILE;
    typha_key_file: String = "TyphaKeyFile", parse::text, String::new(), String::new(), LOCAL_FILE;
    cut_denied_connections: bool = "CutDeniedConnections", parse::boolean, false, false, PLAIN;
    log_prefix: String = "LogPrefix", parse::text, "calico-packet".into(), String::new(), PLAIN;
    log_action_rate_limit: Option<LogRate> = "LogActionRateLimit", parse::log_rate, None, None, PLAIN;
    log_action_rate_limit_burst: u16 =
        "LogActionRateLimitBurst", |raw| parse::integer_in(raw, 0, 9999), 5, 0, PLAIN;
    service_loop_prevention: ServiceLoopPrevention = "ServiceLoopPrevention", parse::one_of,
        ServiceLoopPrevention::Drop, ServiceLoopPrevention::Disabled, PLAIN;
    local_reachability: LocalReachability = "LocalSubnetL2Reachability", parse::one_of,
        LocalReachability::Disabled, LocalReachability::Disabled, PLAIN;
    local_reachability_refresh_interval: Duration =
        "LocalSubnetL2ReachabilityRefreshInterval", parse::seconds, secs(120), secs(0), PLAIN;
    istio_ambient_mode: Switch = "IstioAmbientMode", parse::one_of, Switch::Disabled, Switch::Disabled, PLAIN;
    istio_dscp_mark: u8 = "IstioDSCPMark", parse::dscp, 23, 0, PLAIN;
    address_claims: AddressClaims =
        "AddressClaims", parse::one_of, AddressClaims::Bounded, AddressClaims::Bounded, PLAIN;
    workload_source_spoofing: WorkloadSourceSpoofing = "WorkloadSourceSpoofing", parse::one_of,
        WorkloadSourceSpoofing::Disabled, WorkloadSourceSpoofing::Disabled, PLAIN;
    allow_vxlan_packets_from_workloads: bool =
        "AllowVXLANPacketsFromWorkloads", parse::boolean, false, false, PLAIN;
    allow_ipip_packets_from_workloads: bool =
        "AllowIPIPPacketsFromWorkloads", parse::boolean, false, false, PLAIN;
    route_source: RouteSource =
        "RouteSource", parse::one_of, RouteSource::CalicoIpam, RouteSource::CalicoIpam, PLAIN;
    ipip_enabled: Option<bool> = "IpInIpEnabled", parse::optional_boolean, None, None, PLAIN;
    vxlan_enabled: Option<bool> = "VXLANEnabled", parse::optional_boolean, None, None, PLAIN;
    program_cluster_routes: ProgramClusterRoutes = "ProgramClusterRoutes", parse::one_of,
        ProgramClusterRoutes::IpIpOnly, ProgramClusterRoutes::Disabled, PLAIN;
    wireguard_enabled: bool = "WireguardEnabled", parse::boolean, false, false, PLAIN;
    wireguard_enabled_v6: bool = "WireguardEnabledV6", parse::boolean, false, false, PLAIN;
    wireguard_interface_name: InterfaceName =
        "WireguardInterfaceName", parse::iface, WIREGUARD, WIREGUARD, NON_ZERO;
    wireguard_interface_name_v6: InterfaceName =
        "WireguardInterfaceNameV6", parse::iface, WIREGUARD_V6, WIREGUARD_V6, NON_ZERO;
    wireguard_listening_port: u16 = "WireguardListeningPort", parse::port, 51820, 0, PLAIN;
    wireguard_listening_port_v6: u16 = "WireguardListeningPortV6", parse::port, 51821, 0, PLAIN;
    wireguard_routing_rule_priority: u32 =
        "WireguardRoutingRulePriority", |raw| parse::integer_in(raw, 0, i64::from(u32::MAX)), 99, 0, PLAIN;
    wireguard_host_encryption_enabled: bool = "WireguardHostEncryptionEnabled", parse::boolean, false, false, PLAIN;
    wireguard_persistent_keep_alive: Duration =
        "WireguardPersistentKeepAlive", parse::seconds, secs(0), secs(0), PLAIN;
    wireguard_threading_enabled: bool = "WireguardThreadingEnabled", parse::boolean, false, false, PLAIN;
    ipip_tunnel_address: Option<Ipv4Addr> = "IpInIpTunnelAddr", parse::ipv4, None, None, PLAIN;
    vxlan_vni: u32 = "VXLANVNI", |raw| parse::integer_in(raw, 1, 16_777_215), 4096, 4096, PLAIN;
    vxlan_port: u16 = "VXLANPort", parse::port, 4789, 0, PLAIN;
    floating_ips: Switch = "FloatingIPs", parse::one_of, Switch::Disabled, Switch::Disabled, PLAIN;
    external_nodes: Vec<Cidr> = "ExternalNodesCIDRList", parse::cidrs, vec![], vec![], FATAL;
    nftables_mode: NftablesMode = "NFTablesMode", parse::one_of, NftablesMode::Auto, NftablesMode::Disabled, PLAIN;
    flow_table_offload: FlowTableOffload =
        "NFTablesFlowTableOffload", parse::one_of, FlowTableOffload::Disabled, FlowTableOffload::Disabled, PLAIN;
    flow_table_interfaces: Option<IfacePattern> =
        "NFTablesFlowTableDataIfacePattern", parse::iface_pattern_unless_empty, None, None, PLAIN;
    nftables_layout: NftablesLayout = "NFTablesLayout", parse::one_of, NftablesLayout::Felix, NftablesLayout::Felix, PLAIN;
    mtu_iface_pattern: Option<IfacePattern> = "MTUIfacePattern", parse::iface_pattern, default_mtu_pattern(), None, PLAIN;
    require_mtu_file: bool = "RequireMTUFile", parse::boolean, false, false, PLAIN;
    ipip_mtu: u32 = "IpInIpMtu", parse::mtu, 0, 0, PLAIN;
    vxlan_mtu: u32 = "VXLANMTU", parse::mtu, 0, 0, PLAIN;
    vxlan_mtu_v6: u32 = "VXLANMTUV6", parse::mtu, 0, 0, PLAIN;
    wireguard_mtu: u32 = "WireguardMTU", parse::mtu, 0, 0, PLAIN;
    wireguard_mtu_v6: u32 = "WireguardMTUV6", parse::mtu, 0, 0, PLAIN;
    on_aks: bool = "ClusterType", parse::is_on_aks, false, false, PLAIN;
    kube_node_port_ranges: Vec<(u16, u16)> =
        "KubeNodePortRanges", parse::port_ranges, vec![(30000, 32767)], vec![], PLAIN;
    feature_detect_override: String =
        "FeatureDetectOverride", parse::text, String::new(), String::new(), PLAIN;
    dataplane_watchdog_timeout: Duration = "DataplaneWatchdogTimeout", parse::seconds, secs(90), secs(0), PLAIN;
    netlink_timeout: Duration = "NetlinkTimeoutSecs", parse::seconds, secs(10), secs(0), PLAIN;
    health_enabled: bool = "HealthEnabled", parse::boolean, false, false, PLAIN;
    health_host: String = "HealthHost", parse::host_address, "localhost".into(), String::new(), PLAIN;
    health_port: u16 = "HealthPort", parse::port, 9099, 0, PLAIN;
    health_timeout_overrides: BTreeMap<String, Duration> =
        "HealthTimeoutOverrides", parse::duration_pairs, BTreeMap::new(), BTreeMap::new(), PLAIN;
    prometheus_metrics_enabled: bool = "PrometheusMetricsEnabled", parse::boolean, false, false, PLAIN;
    prometheus_metrics_host: String =
        "PrometheusMetricsHost", parse::host_address, String::new(), String::new(), PLAIN;
    prometheus_metrics_port: u16 = "PrometheusMetricsPort", parse::port, 9091, 0, PLAIN;
    prometheus_process_metrics_enabled: bool =
        "PrometheusProcessMetricsEnabled", parse::boolean, true, false, PLAIN;
    prometheus_wireguard_metrics_enabled: bool =
        "PrometheusWireGuardMetricsEnabled", parse::boolean, true, false, PLAIN;
    prometheus_metrics_ca_file: String =
        "PrometheusMetricsCAFile", parse::text, String::new(), String::new(), PLAIN;
    prometheus_metrics_cert_file: String =
        "PrometheusMetricsCertFile", parse::text, String::new(), String::new(), PLAIN;
    prometheus_metrics_client_auth: MetricsClientAuth =
        "PrometheusMetricsClientAuth", parse::one_of, MetricsClientAuth::NoClientCert, MetricsClientAuth::NoClientCert, PLAIN;
    prometheus_metrics_key_file: String =
        "PrometheusMetricsKeyFile", parse::text, String::new(), String::new(), PLAIN;
    debug_disable_log_dropping: bool = "DebugDisableLogDropping", parse::boolean, false, false, PLAIN;
    debug_panic_after: Duration = "DebugPanicAfter", parse::seconds, secs(0), secs(0), PLAIN;
    debug_simulate_calc_graph_hang_after: Duration =
        "DebugSimulateCalcGraphHangAfter", parse::seconds, secs(0), secs(0), PLAIN;
    debug_simulate_dataplane_apply_delay: Duration =
        "DebugSimulateDataplaneApplyDelay", parse::seconds, secs(0), secs(0), PLAIN;
    debug_simulate_dataplane_hang_after: Duration =
        "DebugSimulateDataplaneHangAfter", parse::seconds, secs(0), secs(0), PLAIN;
    log_debug_filename_regex: Option<Regex> = "LogDebugFilenameRegex", parse::regex, None, None, PLAIN;
    log_file_path: String =
        "LogFilePath", parse::text, "/var/log/calico/felix.log".into(), String::new(), PLAIN;
    log_severity_file: Option<LogSeverity> =
        "LogSeverityFile", parse::severity, Some(LogSeverity::Info), None, PLAIN;
    log_severity_sys: Option<LogSeverity> =
        "LogSeveritySys", parse::severity, Some(LogSeverity::Info), None, PLAIN;
    log_severity_screen: LogSeverity =
        "LogSeverityScreen", parse::one_of, LogSeverity::Info, LogSeverity::Fatal, PLAIN;
}
