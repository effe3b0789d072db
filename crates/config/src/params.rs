//! The fields of the configuration: type, parser, and the value of `none`. Names and defaults are
//! those of the table.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;
use std::time::Duration;

use regex::Regex;
use tortie_iptables::InterfaceName;
use tortie_model::{Cidr, DomainName};
use tortie_parameters::{BadValue, Parameter};

use super::dns_server::DnsServer;
use super::format_value::FormatValue;
use super::parse::{self, FailsafePort, IfacePattern, LogRate, LogSeverity, Parsed, TableRange, choices};
use super::server::GrpcServer;

choices!(
    /// iptables implementation that programs the kernel.
    IptablesBackend {
        /// Detected at start.
        Auto = "auto",
        /// iptables-legacy, on `x_tables`.
        Legacy = "legacy",
        /// iptables-nft, on nftables.
        Nft = "nft",
    }
);
choices!(
    /// Attachment of eBPF programs to netfilter hooks.
    HookAttachment {
        /// By links where the kernel has these, and by rules otherwise.
        Auto = "Auto",
        /// By netfilter links.
        Link = "Link",
        /// As matches of nftables rules.
        Rule = "Rule",
    }
);
choices!(
    /// Requirement on the certificates of clients that read metrics over TLS.
    MetricsClientAuth {
        /// A certificate of the authority.
        Verified = "RequireAndVerifyClientCert",
        /// A certificate of any authority.
        Any = "RequireAnyClientCert",
        /// A certificate of the authority, or none.
        VerifiedIfGiven = "VerifyClientCertIfGiven",
        /// No certificate is requested.
        NoClientCert = "NoClientCert",
    }
);
choices!(
    /// Position of the hooks in the kernel's chains.
    ChainInsertMode {
        /// First.
        Insert = "insert",
        /// Last.
        Append = "append",
    }
);
choices!(
    /// Action for traffic from a workload to its host that policy allows.
    EndpointToHostAction {
        /// Dropped even so.
        Drop = "DROP",
        /// Left to the host's own rules.
        Return = "RETURN",
        /// Accepted.
        Accept = "ACCEPT",
    }
);
choices!(
    /// Action for traffic that policy allows.
    AllowAction {
        /// Accepted at once.
        Accept = "ACCEPT",
        /// Left to the rules that follow.
        Return = "RETURN",
    }
);
choices!(
    /// Action for traffic that policy denies.
    DenyAction {
        /// Dropped in silence.
        Drop = "DROP",
        /// Refused with an ICMP error.
        Reject = "REJECT",
    }
);
choices!(
    /// Answer to packets that policy denies, where it is not dropped in silence.
    DenyRejectWith {
        /// ICMP port unreachable, as Felix.
        PortUnreachable = "PortUnreachable",
        /// A reset for TCP, ICMP "administratively prohibited" for other protocols.
        ResetOrProhibited = "ResetOrProhibited",
    }
);
choices!(
    /// Names that get the addresses of a DNS answer.
    DnsMatchNames {
        /// The question and the targets of its aliases.
        Chain = "Chain",
        /// The question alone.
        Question = "Question",
    }
);
choices!(
    /// Names that may have addresses of pools and nodes.
    DnsClusterAddresses {
        /// Those below the cluster domain.
        ClusterDomain = "ClusterDomain",
        /// All.
        Always = "Always",
        /// None.
        Never = "Never",
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
        /// If kube-proxy uses nftables.
        Auto = "Auto",
    }
);
choices!(
    /// Established connections that are offloaded to a flow table.
    FlowTableOffload {
        /// All.
        All = "All",
        /// None.
        Disabled = "Disabled",
    }
);
choices!(
    /// Layout of nftables chains.
    NftablesLayout {
        /// As Felix does it.
        Felix = "Felix",
        /// So that a packet meets few rules.
        Fast = "Fast",
    }
);
choices!(
    /// Destinations that are not masqueraded besides the pools.
    NatOutgoingExclusions {
        /// Nothing.
        IpPoolsOnly = "IPPoolsOnly",
        /// The addresses of the cluster's nodes.
        IpPoolsAndHostIps = "IPPoolsAndHostIPs",
    }
);
choices!(
    /// Action for traffic to service addresses that no service has.
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
    /// Addresses that the node answers for on its own networks.
    LocalReachability {
        /// None.
        Disabled = "Disabled",
        /// Those of workloads of this node, and its share of those of load balancers.
        PodsAndLoadBalancers = "PodsAndLoadBalancers",
    }
);
choices!(
    /// Whether staged policies are evaluated for each flow.
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
    /// Source of the node that has a workload's address.
    RouteSource {
        /// IPAM blocks of Calico.
        CalicoIpam = "CalicoIPAM",
        /// Workload endpoints of all nodes.
        WorkloadIps = "WorkloadIPs",
    }
);
choices!(
    /// Pools whose routes between nodes are not left to BGP.
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
/// A field of [`Config`] and the row of the table that it is set by.
pub(crate) struct Param {
    /// The row.
    pub(crate) row: &'static Parameter,
    /// Sets the field from text.
    pub(crate) set: fn(&mut Config, &str) -> Parsed<()>,
    /// Sets the field to its default.
    pub(crate) reset: fn(&mut Config),
    /// The value of the field in words.
    pub(crate) format: fn(&Config) -> String,
    /// Sets the field to the value that `none` stands for.
    pub(crate) clear: fn(&mut Config),
}

/// Returns the default of a parameter in words; `None` for a parameter without an effect.
#[must_use]
pub fn default_of(name: &str) -> Option<String> {
    PARAMS.iter().find(|param| param.row.name == name).map(Param::default)
}

impl Param {
    /// Returns the default in words.
    pub(crate) fn default(&self) -> String {
        (self.format)(&DEFAULTS)
    }

    /// Sets the field from a value as written, which may be `none`.
    pub(crate) fn assign(&self, config: &mut Config, value: &str) -> Parsed<()> {
        if !value.eq_ignore_ascii_case("none") {
            return (self.set)(config, value);
        }
        if self.row.refuses_none {
            return Err("cannot be switched off".into());
        }
        (self.clear)(config);
        Ok(())
    }

    /// Returns whether the program does not start with this invalid value, if the node itself sets
    /// it.
    pub(crate) fn is_fatal(&self, value: &str) -> bool {
        self.row.bad_value == BadValue::Fatal || self.row.refuses_none && value.eq_ignore_ascii_case("none")
    }
}

/// Returns the row of the table for a field of [`Config`].
#[allow(clippy::expect_used, reason = "the table and the fields are compared by a test")]
fn row(name: &str) -> &'static Parameter {
    tortie_parameters::find(name).expect("each field of the configuration has a row in the table")
}

/// Returns the default of a field, made from the text that the table has.
#[allow(clippy::expect_used, reason = "a test parses every default")]
fn default<T>(name: &str, parse: fn(&str) -> Parsed<T>, none: T) -> T {
    match row(name).default {
        "" => none,
        text => parse(text).expect("the table's defaults can be read"),
    }
}

/// The defaults, which are parsed once.
static DEFAULTS: LazyLock<Config> = LazyLock::new(Config::defaults);

macro_rules! params {
    ($($field:ident: $type:ty = $name:literal, $parse:expr, $none:expr;)*) => {
        /// The configuration in force. Each field is the Felix parameter that its documentation
        /// names.
        #[derive(Clone, Debug)]
        pub struct Config {
            $(#[doc = concat!("`", $name, "`.")] pub $field: $type,)*
        }

        impl Config {
            fn defaults() -> Self {
                Self { $($field: default($name, $parse, $none),)* }
            }
        }

        /// Every parameter that has a field, in the order of [`Config`].
        pub(crate) static PARAMS: LazyLock<Vec<Param>> = LazyLock::new(|| vec![$(
            Param {
                row: row($name),
                set: |config, raw| {
                    let parse: fn(&str) -> Parsed<$type> = $parse;
                    config.$field = parse(raw)?;
                    Ok(())
                },
                reset: |config| config.$field.clone_from(&DEFAULTS.$field),
                format: |config| config.$field.format_value(),
                clear: |config| config.$field = $none,
            },
        )*]);
    };
}

impl Default for Config {
    fn default() -> Self {
        DEFAULTS.clone()
    }
}

const WIREGUARD: InterfaceName = InterfaceName::from_static("wireguard.cali");
const WIREGUARD_V6: InterfaceName = InterfaceName::from_static("wg-v6.cali");

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

params! {
    bpf_enabled: bool = "BPFEnabled", parse::boolean, false;
    bpf_hook_attachment: HookAttachment = "BPFHookAttachment", parse::one_of, HookAttachment::Auto;
    bpf_policy_only: bool = "BPFPolicyOnly", parse::boolean, true;
    bpf_max_blocks: u32 = "BPFMaxBlocks", |raw| parse::integer_in(raw, 1024, 1 << 22), 1 << 17;
    policy_members_limit: u32 = "PolicyMembersLimit", |raw| parse::integer_in(raw, 0, i64::from(u32::MAX)), 1_000_000;
    policy_table_group_mb: u32 = "PolicyTableGroupMemoryMB", |raw| parse::integer_in(raw, 1, 65_536), 256;
    policy_table_node_mb: u32 = "PolicyTableNodeMemoryMB", |raw| parse::integer_in(raw, 1, 65_536), 1024;
    felix_hostname: String = "FelixHostname", parse::text, String::new();
    ipv6_support: bool = "Ipv6Support", parse::boolean, false;
    interface_prefix: Vec<String> = "InterfacePrefix", parse::iface_list, vec![];
    interface_exclude: Vec<Regex> = "InterfaceExclude", parse::iface_patterns, vec![];
    interface_refresh_interval: Duration = "InterfaceRefreshInterval", parse::seconds, secs(0);
    chain_insert_mode: ChainInsertMode = "ChainInsertMode", parse::one_of, ChainInsertMode::Insert;
    default_endpoint_to_host_action: EndpointToHostAction =
        "DefaultEndpointToHostAction", parse::one_of, EndpointToHostAction::Drop;
    iptables_filter_allow_action: AllowAction = "IptablesFilterAllowAction", parse::one_of, AllowAction::Accept;
    iptables_mangle_allow_action: AllowAction = "IptablesMangleAllowAction", parse::one_of, AllowAction::Accept;
    iptables_filter_deny_action: DenyAction = "IptablesFilterDenyAction", parse::one_of, DenyAction::Drop;
    nftables_filter_allow_action: AllowAction = "NftablesFilterAllowAction", parse::one_of, AllowAction::Accept;
    nftables_mangle_allow_action: AllowAction = "NftablesMangleAllowAction", parse::one_of, AllowAction::Accept;
    nftables_filter_deny_action: DenyAction = "NftablesFilterDenyAction", parse::one_of, DenyAction::Drop;
    deny_reject_with: DenyRejectWith = "DenyRejectWith", parse::one_of, DenyRejectWith::PortUnreachable;
    deny_reject_rate: u16 = "DenyRejectRate", |raw| parse::integer_in(raw, 1, 10_000), 100;
    deny_reject_burst: u16 = "DenyRejectBurst", |raw| parse::integer_in(raw, 1, 10_000), 100;
    dns_trusted_servers: Vec<DnsServer> = "DNSTrustedServers", parse::dns_servers, vec![];
    dns_cache_file: String = "DNSCacheFile", parse::text, String::new();
    dns_cache_save_interval: Duration = "DNSCacheSaveInterval", parse::seconds, secs(0);
    dns_cache_epoch: u32 = "DNSCacheEpoch", |raw| parse::integer_in(raw, 0, i64::from(u32::MAX)), 0;
    dns_extra_ttl: Duration = "DNSExtraTTL", parse::seconds, secs(0);
    dns_min_ttl: Duration = "DNSMinTTL", parse::seconds, secs(0);
    dns_max_ttl: Duration = "DNSMaxTTL", parse::seconds, secs(0);
    dns_match_names: DnsMatchNames = "DNSMatchNames", parse::one_of, DnsMatchNames::Chain;
    dns_cluster_addresses: DnsClusterAddresses =
        "DNSClusterAddresses", parse::one_of, DnsClusterAddresses::ClusterDomain;
    dns_cluster_domain: Option<DomainName> = "DNSClusterDomain", parse::domain_name, None;
    dns_max_replies: u16 = "DNSMaxRepliesPerEndpoint", |raw| parse::integer_in(raw, 1, 10_000), 1_000;
    dns_packets_nfqueue_id: u16 = "DNSPacketsNfqueueID", parse::port, 101;
    dns_packets_nfqueue_size: u32 = "DNSPacketsNfqueueSize", |raw| parse::integer_in(raw, 1, 65_535), 1_024;
    dns_packets_nfqueue_max_hold: Duration = "DNSPacketsNfqueueMaxHoldDuration", parse::millis, secs(1);
    nftables_mark_mask: u32 = "NftablesMarkMask", parse::mark_mask, 0;
    nftables_refresh_interval: Duration = "NftablesRefreshInterval", parse::seconds, secs(0);
    iptables_mark_mask: u32 = "IptablesMarkMask", parse::mark_mask, 0;
    iptables_backend: IptablesBackend = "IptablesBackend", parse::one_of, IptablesBackend::Auto;
    iptables_refresh_interval: Duration = "IptablesRefreshInterval", parse::seconds, secs(0);
    iptables_post_write_check_interval: Duration = "IptablesPostWriteCheckIntervalSecs", parse::seconds, secs(0);
    iptables_lock_probe_interval: Duration = "IptablesLockProbeIntervalMillis", parse::millis, secs(0);
    iptables_nat_outgoing_interface_filter: Option<String> =
        "IptablesNATOutgoingInterfaceFilter", parse::iface_filter, None;
    nat_port_range: Option<(u16, u16)> = "NATPortRange", parse::port_range, None;
    nat_outgoing_address: Option<Ipv4Addr> = "NATOutgoingAddress", parse::ipv4, None;
    nat_outgoing_exclusions: NatOutgoingExclusions =
        "NATOutgoingExclusions", parse::one_of, NatOutgoingExclusions::IpPoolsOnly;
    ipsets_refresh_interval: Duration = "IpsetsRefreshInterval", parse::seconds, secs(0);
    max_ipset_size: u32 = "MaxIpsetSize", |raw| parse::integer_in(raw, 1, i64::from(u32::MAX)), 0;
    route_refresh_interval: Duration = "RouteRefreshInterval", parse::seconds, secs(0);
    route_sync_disabled: bool = "RouteSyncDisabled", parse::boolean, false;
    route_table_range: Option<TableRange> = "RouteTableRange", parse::table_range, None;
    route_table_ranges: Vec<TableRange> = "RouteTableRanges", parse::table_ranges, vec![];
    remove_external_routes: bool = "RemoveExternalRoutes", parse::boolean, false;
    device_route_protocol: u8 = "DeviceRouteProtocol", |raw| parse::integer_in(raw, 0, 255), 0;
    device_route_source_address: Option<Ipv4Addr> = "DeviceRouteSourceAddress", parse::ipv4, None;
    device_route_source_address_v6: Option<Ipv6Addr> = "DeviceRouteSourceAddressIPv6", parse::ipv6, None;
    ipv4_normal_route_priority: u32 = "IPv4NormalRoutePriority", |raw| parse::integer_in(raw, 1, 2_147_483_646), 1024;
    ipv6_normal_route_priority: u32 = "IPv6NormalRoutePriority", |raw| parse::integer_in(raw, 1, 2_147_483_646), 1024;
    ipv4_elevated_route_priority: u32 =
        "IPv4ElevatedRoutePriority", |raw| parse::integer_in(raw, 1, 2_147_483_646), 512;
    ipv6_elevated_route_priority: u32 =
        "IPv6ElevatedRoutePriority", |raw| parse::integer_in(raw, 1, 2_147_483_646), 512;
    live_migration_route_convergence_time: Duration = "LiveMigrationRouteConvergenceTime", parse::seconds, secs(0);
    reporting_interval: Duration = "ReportingIntervalSecs", parse::seconds, secs(0);
    reporting_ttl: Duration = "ReportingTTLSecs", parse::seconds, secs(0);
    endpoint_reporting_enabled: bool = "EndpointReportingEnabled", parse::boolean, false;
    endpoint_reporting_delay: Duration = "EndpointReportingDelaySecs", parse::seconds, secs(0);
    endpoint_status_path_prefix: String = "EndpointStatusPathPrefix", parse::text, String::new();
    policy_sync_path_prefix: String = "PolicySyncPathPrefix", parse::text, String::new();
    openstack_region: String = "OpenstackRegion", parse::region, String::new();
    ip_forwarding: Switch = "IPForwarding", parse::one_of, Switch::Disabled;
    failsafe_inbound_host_ports: Vec<FailsafePort> = "FailsafeInboundHostPorts", parse::failsafe_ports, vec![];
    failsafe_outbound_host_ports: Vec<FailsafePort> = "FailsafeOutboundHostPorts", parse::failsafe_ports, vec![];
    disable_conntrack_invalid_check: bool = "DisableConntrackInvalidCheck", parse::boolean, false;
    flow_logs_local_reporter: Switch = "FlowLogsLocalReporter", parse::one_of, Switch::Disabled;
    flow_logs_flush_interval: Duration = "FlowLogsFlushInterval", parse::seconds, secs(0);
    flow_logs_policy_evaluation_mode: PolicyEvaluationMode =
        "FlowLogsPolicyEvaluationMode", parse::one_of, PolicyEvaluationMode::None;
    flow_logs_goldmane_server: Option<GrpcServer> = "FlowLogsGoldmaneServer", parse::grpc_server, None;
    flow_logs_file: String = "FlowLogsFile", parse::text, String::new();
    flow_logs_file_max_size_mb: u32 = "FlowLogsFileMaxSizeMB", |raw| parse::integer_in(raw, 1, 1_000_000), 100;
    flow_logs_file_max_files: u32 = "FlowLogsFileMaxFiles", |raw| parse::integer_in(raw, 1, 1_000), 5;
    typha_ca_file: String = "TyphaCAFile", parse::text, String::new();
    typha_cert_file: String = "TyphaCertFile", parse::text, String::new();
    typha_key_file: String = "TyphaKeyFile", parse::text, String::new();
    cut_denied_connections: bool = "CutDeniedConnections", parse::boolean, false;
    log_prefix: String = "LogPrefix", parse::text, String::new();
    log_action_rate_limit: Option<LogRate> = "LogActionRateLimit", parse::log_rate, None;
    log_action_rate_limit_burst: u16 = "LogActionRateLimitBurst", |raw| parse::integer_in(raw, 0, 9999), 0;
    service_loop_prevention: ServiceLoopPrevention =
        "ServiceLoopPrevention", parse::one_of, ServiceLoopPrevention::Disabled;
    local_reachability: LocalReachability = "LocalSubnetL2Reachability", parse::one_of, LocalReachability::Disabled;
    local_reachability_refresh_interval: Duration = "LocalSubnetL2ReachabilityRefreshInterval", parse::seconds, secs(0);
    istio_ambient_mode: Switch = "IstioAmbientMode", parse::one_of, Switch::Disabled;
    istio_dscp_mark: u8 = "IstioDSCPMark", parse::dscp, 0;
    address_claims: AddressClaims = "AddressClaims", parse::one_of, AddressClaims::Bounded;
    workload_source_spoofing: WorkloadSourceSpoofing =
        "WorkloadSourceSpoofing", parse::one_of, WorkloadSourceSpoofing::Disabled;
    allow_vxlan_packets_from_workloads: bool = "AllowVXLANPacketsFromWorkloads", parse::boolean, false;
    allow_ipip_packets_from_workloads: bool = "AllowIPIPPacketsFromWorkloads", parse::boolean, false;
    route_source: RouteSource = "RouteSource", parse::one_of, RouteSource::CalicoIpam;
    ipip_enabled: Option<bool> = "IpInIpEnabled", parse::optional_boolean, None;
    vxlan_enabled: Option<bool> = "VXLANEnabled", parse::optional_boolean, None;
    program_cluster_routes: ProgramClusterRoutes =
        "ProgramClusterRoutes", parse::one_of, ProgramClusterRoutes::Disabled;
    wireguard_enabled: bool = "WireguardEnabled", parse::boolean, false;
    wireguard_enabled_v6: bool = "WireguardEnabledV6", parse::boolean, false;
    wireguard_interface_name: InterfaceName = "WireguardInterfaceName", parse::iface, WIREGUARD;
    wireguard_interface_name_v6: InterfaceName = "WireguardInterfaceNameV6", parse::iface, WIREGUARD_V6;
    wireguard_listening_port: u16 = "WireguardListeningPort", parse::port, 0;
    wireguard_listening_port_v6: u16 = "WireguardListeningPortV6", parse::port, 0;
    wireguard_routing_rule_priority: u32 =
        "WireguardRoutingRulePriority", |raw| parse::integer_in(raw, 0, i64::from(u32::MAX)), 0;
    wireguard_host_encryption_enabled: bool = "WireguardHostEncryptionEnabled", parse::boolean, false;
    wireguard_persistent_keep_alive: Duration = "WireguardPersistentKeepAlive", parse::seconds, secs(0);
    wireguard_threading_enabled: bool = "WireguardThreadingEnabled", parse::boolean, false;
    ipip_tunnel_address: Option<Ipv4Addr> = "IpInIpTunnelAddr", parse::ipv4, None;
    vxlan_vni: u32 = "VXLANVNI", |raw| parse::integer_in(raw, 1, 16_777_215), 4096;
    vxlan_port: u16 = "VXLANPort", parse::port, 0;
    floating_ips: Switch = "FloatingIPs", parse::one_of, Switch::Disabled;
    external_nodes: Vec<Cidr> = "ExternalNodesCIDRList", parse::cidrs, vec![];
    nftables_mode: NftablesMode = "NFTablesMode", parse::one_of, NftablesMode::Disabled;
    flow_table_offload: FlowTableOffload = "NFTablesFlowTableOffload", parse::one_of, FlowTableOffload::Disabled;
    flow_table_interfaces: Option<IfacePattern> =
        "NFTablesFlowTableDataIfacePattern", parse::iface_pattern_unless_empty, None;
    nftables_layout: NftablesLayout = "NFTablesLayout", parse::one_of, NftablesLayout::Felix;
    mtu_iface_pattern: Option<IfacePattern> = "MTUIfacePattern", parse::iface_pattern, None;
    require_mtu_file: bool = "RequireMTUFile", parse::boolean, false;
    ipip_mtu: u32 = "IpInIpMtu", parse::mtu, 0;
    vxlan_mtu: u32 = "VXLANMTU", parse::mtu, 0;
    vxlan_mtu_v6: u32 = "VXLANMTUV6", parse::mtu, 0;
    wireguard_mtu: u32 = "WireguardMTU", parse::mtu, 0;
    wireguard_mtu_v6: u32 = "WireguardMTUV6", parse::mtu, 0;
    on_aks: bool = "ClusterType", parse::is_on_aks, false;
    kube_node_port_ranges: Vec<(u16, u16)> = "KubeNodePortRanges", parse::port_ranges, vec![];
    feature_detect_override: String = "FeatureDetectOverride", parse::text, String::new();
    dataplane_watchdog_timeout: Duration = "DataplaneWatchdogTimeout", parse::seconds, secs(0);
    netlink_timeout: Duration = "NetlinkTimeoutSecs", parse::seconds, secs(0);
    health_enabled: bool = "HealthEnabled", parse::boolean, false;
    health_host: String = "HealthHost", parse::host_address, String::new();
    health_port: u16 = "HealthPort", parse::port, 0;
    health_timeout_overrides: BTreeMap<String, Duration> =
        "HealthTimeoutOverrides", parse::duration_pairs, BTreeMap::new();
    prometheus_metrics_enabled: bool = "PrometheusMetricsEnabled", parse::boolean, false;
    prometheus_metrics_host: String = "PrometheusMetricsHost", parse::host_address, String::new();
    prometheus_metrics_port: u16 = "PrometheusMetricsPort", parse::port, 0;
    prometheus_process_metrics_enabled: bool = "PrometheusProcessMetricsEnabled", parse::boolean, false;
    prometheus_wireguard_metrics_enabled: bool = "PrometheusWireGuardMetricsEnabled", parse::boolean, false;
    prometheus_metrics_ca_file: String = "PrometheusMetricsCAFile", parse::text, String::new();
    prometheus_metrics_cert_file: String = "PrometheusMetricsCertFile", parse::text, String::new();
    prometheus_metrics_client_auth: MetricsClientAuth =
        "PrometheusMetricsClientAuth", parse::one_of, MetricsClientAuth::NoClientCert;
    prometheus_metrics_key_file: String = "PrometheusMetricsKeyFile", parse::text, String::new();
    debug_disable_log_dropping: bool = "DebugDisableLogDropping", parse::boolean, false;
    debug_panic_after: Duration = "DebugPanicAfter", parse::seconds, secs(0);
    debug_simulate_calc_graph_hang_after: Duration = "DebugSimulateCalcGraphHangAfter", parse::seconds, secs(0);
    debug_simulate_dataplane_apply_delay: Duration = "DebugSimulateDataplaneApplyDelay", parse::seconds, secs(0);
    debug_simulate_dataplane_hang_after: Duration = "DebugSimulateDataplaneHangAfter", parse::seconds, secs(0);
    log_debug_filename_regex: Option<Regex> = "LogDebugFilenameRegex", parse::regex, None;
    log_file_path: String = "LogFilePath", parse::text, String::new();
    log_severity_file: Option<LogSeverity> = "LogSeverityFile", parse::severity, None;
    log_severity_sys: Option<LogSeverity> = "LogSeveritySys", parse::severity, None;
    log_severity_screen: LogSeverity = "LogSeverityScreen", parse::one_of, LogSeverity::Fatal;
}
