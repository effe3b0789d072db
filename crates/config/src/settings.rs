//! Settings of the engine's parts from configuration parameters.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use tortie_calc::{Demand, GraphConfig, Overlap, SourceSpoofing, service_set_id};
use tortie_dataplane::{
    DataplaneConfig, DomainsConfig, InterfaceFilter, IpSetsConfig, IptablesConfig, LocalReachabilityConfig,
    NftablesConfig, RouteProtocol, RouteTableIndex, RoutesConfig, TrustedServer, TunnelsConfig, WireguardConfig,
};
use tortie_ebpf::classes::Budget;
use tortie_ebpf::hooks::HookSettings;
use tortie_ebpf::{NodeSettings, OwnerNumber};
use tortie_iptables::{Backend, InsertMode, InterfaceName, PacketRate, PortRange, Protocol};
use tortie_model::{Family, Hostname};
use tortie_resources::manifest::{Options, ParameterCheck};
use tortie_rules::{
    IpvsConfig, LogConfig, Marks, NatConfig, PacketFilter, PolicyBackend, RejectReply, RulesConfig, WireguardTunnel,
    WorkloadDispatch,
};

use crate::mtu::Mtus;
use crate::{
    AddressClaims, AllowAction, ChainInsertMode, Config, DenyAction, DenyRejectWith, DnsClusterAddresses,
    DnsMatchNames, DnsServer, EndpointToHostAction, FailsafePort, FlowTableOffload, IfacePattern, LocalReachability,
    NatOutgoingExclusions, NftablesLayout, NftablesMode, PREFIXES_BY_ADDRESS, ProgramClusterRoutes, Resolved,
    RouteSource, ServiceLoopPrevention, Switch, TableRange, WorkloadSourceSpoofing, validate_parameter,
};

/// Parameters that parse but do not fit the machine or each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{parameter}: {why}")]
pub struct SettingsError {
    parameter: &'static str,
    why: String,
}

fn unfit<E: Display>(parameter: &'static str) -> impl FnOnce(E) -> SettingsError {
    move |why| SettingsError { parameter, why: why.to_string() }
}

/// Options for reading manifests. The datastore's own configuration is not known by then, so they
/// follow the machine's only.
#[must_use]
pub fn manifests(local: &Config) -> Options {
    let defaults = Options { parameters: ParameterCheck(validate_parameter), ..Options::default() };
    match local.interface_prefix.first() {
        Some(prefix) => Options { interface_prefix: prefix.clone(), ..defaults },
        None => defaults,
    }
}

/// Whether routes are calculated from IPAM blocks. As [`manifests`], this follows the machine's
/// configuration only; where the datastore's differs, blocks are read and not used.
#[must_use]
pub fn needs_blocks(local: &Config) -> bool {
    local.route_source == RouteSource::CalicoIpam
}

/// The calculation's settings.
#[must_use]
pub fn graph(config: &Config, hostname: Hostname) -> GraphConfig {
    GraphConfig {
        // Felix suppresses overlaps unless nftables, whose sets reject them, is excluded.
        overlap: match config.nftables_mode {
            NftablesMode::Disabled => Overlap::Keep,
            NftablesMode::Auto | NftablesMode::Enabled => Overlap::Suppress,
        },
        source_spoofing: match config.workload_source_spoofing {
            WorkloadSourceSpoofing::Disabled => SourceSpoofing::Disabled,
            WorkloadSourceSpoofing::Any => SourceSpoofing::Any,
        },
        address_claims: match config.address_claims {
            AddressClaims::Bounded => tortie_calc::AddressClaims::Bounded,
            AddressClaims::Any => tortie_calc::AddressClaims::Any,
        },
        http_by_proxy: http_by_proxy(config),
        istio_ambient_mode: config.istio_ambient_mode == Switch::Enabled,
        dns_services: config
            .dns_trusted_servers
            .iter()
            .filter_map(|server| match server {
                DnsServer::Service { name, .. } => Some(name.clone()),
                DnsServer::Address(_) => None,
            })
            .collect(),
        ipip_enabled: config.ipip_enabled,
        vxlan_enabled: config.vxlan_enabled,
        program_ipip_routes: programs_ipip(config),
        program_no_encap_routes: matches!(
            config.program_cluster_routes,
            ProgramClusterRoutes::Enabled | ProgramClusterRoutes::NoEncapOnly
        ),
        route_source: match config.route_source {
            RouteSource::CalicoIpam => tortie_calc::RouteSource::CalicoIpam,
            RouteSource::WorkloadIps => tortie_calc::RouteSource::WorkloadIps,
        },
        policy_members: match config.policy_members_limit {
            0 => GraphConfig::POLICY_MEMBERS,
            limit => limit.into(),
        },
        routes: if config.wireguard_enabled || config.wireguard_enabled_v6 { Demand::Always } else { Demand::Pools },
        ..GraphConfig::new(hostname)
    }
}

/// Whether proxies can follow the policy sync API, and thus enforce HTTP matches.
#[must_use]
pub fn http_by_proxy(config: &Config) -> bool {
    cfg!(feature = "policysync") && !config.policy_sync_path_prefix.is_empty()
}

/// Whether rules log their decisions.
#[must_use]
pub fn collects_flows(config: &Config) -> bool {
    let sends = cfg!(feature = "goldmane") && config.flow_logs_goldmane_server.is_some();
    sends || config.flow_logs_local_reporter == Switch::Enabled || !config.flow_logs_file.is_empty()
}

/// Returns the dataplane's settings, for a machine whose iptables is `backend`; capabilities of the
/// machine are left at their defaults.
///
/// # Errors
/// If parameters do not fit each other.
pub fn dataplane(config: &Config, hostname: Hostname, backend: Backend) -> Result<DataplaneConfig, SettingsError> {
    let mut families = vec![Family::V4];
    if config.ipv6_support {
        families.push(Family::V6);
    }
    Ok(DataplaneConfig {
        families,
        iptables: IptablesConfig {
            insert_mode: match config.chain_insert_mode {
                ChainInsertMode::Insert => InsertMode::Insert,
                ChainInsertMode::Append => InsertMode::Append,
            },
            refresh_interval: unless_zero(config.iptables_refresh_interval),
            post_write_interval: config.iptables_post_write_check_interval,
            lock_probe_interval: config.iptables_lock_probe_interval,
            ..IptablesConfig::new(backend)
        },
        ip_sets: IpSetsConfig {
            refresh_interval: unless_zero(config.ipsets_refresh_interval),
            max_size: config.max_ipset_size,
            ..IpSetsConfig::default()
        },
        routes: RoutesConfig {
            enabled: !config.route_sync_disabled,
            refresh_interval: unless_zero(config.route_refresh_interval),
            protocol: RouteProtocol(config.device_route_protocol),
            metric_v4: config.ipv4_normal_route_priority,
            metric_v6: config.ipv6_normal_route_priority,
            elevated_metric_v4: config.ipv4_elevated_route_priority,
            elevated_metric_v6: config.ipv6_elevated_route_priority,
            migration_convergence: config.live_migration_route_convergence_time,
            source_v4: config.device_route_source_address.map(Into::into),
            source_v6: config.device_route_source_address_v6.map(Into::into),
            remove_external: config.remove_external_routes,
            program_ipip: programs_ipip(config),
            ..RoutesConfig::default()
        },
        tunnels: tunnels(config),
        wireguard: wireguard(config),
        ip_forwarding: config.ip_forwarding == Switch::Enabled,
        local_reachability: local_reachability(config),
        floating_ips: config.floating_ips == Switch::Enabled,
        domains: Some(domains(config)?),
        external_nodes: config.external_nodes.clone(),
        ..DataplaneConfig::new(hostname, rules(config)?, backend)
    })
}

fn domains(config: &Config) -> Result<DomainsConfig, SettingsError> {
    let reply_limit = PacketRate::new(config.dns_max_replies, config.dns_max_replies)
        .ok_or_else(|| unfit("DNSMaxRepliesPerEndpoint")("must be between 1 and 10000"))?;
    Ok(DomainsConfig {
        queue: config.dns_packets_nfqueue_id,
        reply_limit,
        servers: config.dns_trusted_servers.iter().map(trusted_server).collect(),
        cluster_domain: config.dns_cluster_domain.clone(),
        learner: tortie_dns::Settings {
            min_ttl: config.dns_min_ttl,
            max_ttl: config.dns_max_ttl.max(config.dns_min_ttl),
            extra_ttl: config.dns_extra_ttl,
            match_names: match config.dns_match_names {
                DnsMatchNames::Chain => tortie_dns::MatchNames::Chain,
                DnsMatchNames::Question => tortie_dns::MatchNames::Question,
            },
            cluster_addresses: match config.dns_cluster_addresses {
                DnsClusterAddresses::ClusterDomain => tortie_dns::ClusterAddresses::ClusterDomain,
                DnsClusterAddresses::Always => tortie_dns::ClusterAddresses::Always,
                DnsClusterAddresses::Never => tortie_dns::ClusterAddresses::Never,
            },
            // Saves are at least a second apart.
            grace: config.dns_cache_save_interval.max(Duration::from_secs(1)).saturating_mul(2),
            epoch: config.dns_cache_epoch.to_string(),
            ..tortie_dns::Settings::default()
        },
    })
}

fn trusted_server(server: &DnsServer) -> TrustedServer {
    match server {
        DnsServer::Address(socket) => TrustedServer::Address { address: socket.ip(), port: socket.port() },
        DnsServer::Service { name, port } => {
            TrustedServer::Service { name: name.clone(), port: *port, endpoints: service_set_id(name) }
        }
    }
}

fn local_reachability(config: &Config) -> Option<LocalReachabilityConfig> {
    match config.local_reachability {
        LocalReachability::Disabled => None,
        LocalReachability::PodsAndLoadBalancers => {
            Some(LocalReachabilityConfig { announce_interval: unless_zero(config.local_reachability_refresh_interval) })
        }
    }
}

fn wireguard(config: &Config) -> WireguardConfig {
    WireguardConfig {
        table: first_table(config),
        rule_priority: config.wireguard_routing_rule_priority,
        // Longer intervals become the kernel's longest one.
        keep_alive: u16::try_from(config.wireguard_persistent_keep_alive.as_secs()).unwrap_or(u16::MAX),
        has_threads: config.wireguard_threading_enabled,
        ..WireguardConfig::default()
    }
}

/// Returns the first routing table that may be used.
#[must_use]
pub fn first_table(config: &Config) -> Option<RouteTableIndex> {
    const DEFAULT: TableRange = TableRange { first: 1, last: 250 };
    /// Indices of the routing tables `default`, `main` and `local`.
    const RESERVED: RangeInclusive<u32> = 253..=255;
    let ranges = match (&config.route_table_ranges[..], config.route_table_range) {
        ([], range) => vec![range.unwrap_or(DEFAULT)],
        (ranges, _) => ranges.to_vec(),
    };
    let first = |range: &TableRange| (range.first..=range.last).find(|table| !RESERVED.contains(table));
    ranges.iter().filter_map(first).min().map(RouteTableIndex)
}

/// Whether routes of pools with IP-in-IP are not left to BGP.
fn programs_ipip(config: &Config) -> bool {
    matches!(config.program_cluster_routes, ProgramClusterRoutes::Enabled | ProgramClusterRoutes::IpIpOnly)
}

fn tunnels(config: &Config) -> TunnelsConfig {
    TunnelsConfig {
        vxlan_vni: config.vxlan_vni,
        ipip_address: config.ipip_tunnel_address.map(Into::into),
        keep_ipip_addresses: config.ipip_enabled.is_some(),
        ..TunnelsConfig::default()
    }
}

/// Sets the MTUs of tunnels.
pub fn set_mtus(settings: &mut DataplaneConfig, mtus: &Mtus) {
    let DataplaneConfig { tunnels, wireguard, .. } = settings;
    tunnels.vxlan_mtu_v4 = mtus.vxlan_v4;
    tunnels.vxlan_mtu_v6 = mtus.vxlan_v6;
    tunnels.ipip_mtu = mtus.ipip;
    wireguard.mtu_v4 = mtus.wireguard_v4;
    wireguard.mtu_v6 = mtus.wireguard_v6;
}

fn unless_zero(interval: Duration) -> Option<Duration> {
    (!interval.is_zero()).then_some(interval)
}

/// Memory bounds on verdict tables.
#[must_use]
pub fn table_budget(config: &Config) -> Budget {
    let bytes =
        |megabytes: u32| usize::try_from(megabytes).map_or(usize::MAX, |megabytes| megabytes.saturating_mul(1 << 20));
    Budget { group: bytes(config.policy_table_group_mb), node: bytes(config.policy_table_node_mb) }
}

/// Settings of evaluation besides policies and endpoints.
#[must_use]
pub fn evaluation(rules: &RulesConfig) -> tortie_evaluate::Settings {
    let ports = |ports: &[tortie_rules::FailsafePort]| {
        let port = |port: &tortie_rules::FailsafePort| tortie_evaluate::FailsafePort {
            protocol: Protocol::Number(port.protocol.number()),
            port: port.port,
            net: port.net,
        };
        ports.iter().map(port).collect()
    };
    tortie_evaluate::Settings {
        failsafe_inbound: ports(&rules.failsafe_inbound),
        failsafe_outbound: ports(&rules.failsafe_outbound),
        endpoint_to_host: match rules.endpoint_to_host {
            tortie_rules::EndpointToHostAction::Drop | tortie_rules::EndpointToHostAction::Reject => {
                tortie_evaluate::EndpointToHost::Deny
            }
            tortie_rules::EndpointToHostAction::Accept => tortie_evaluate::EndpointToHost::Allow,
            tortie_rules::EndpointToHostAction::Return => tortie_evaluate::EndpointToHost::Undecided,
        },
        vxlan_port: rules.vxlan_port,
        vxlan_from_workloads: rules.vxlan_from_workloads,
        ipip_from_workloads: rules.ipip_from_workloads,
    }
}

/// The settings of rules.
///
/// # Errors
/// If parameters do not fit each other.
pub fn rules(config: &Config) -> Result<RulesConfig, SettingsError> {
    // Without a table for its routes there is no WireGuard.
    let has_table = first_table(config).is_some();
    let (v4, v6) = (config.wireguard_enabled && has_table, config.wireguard_enabled_v6 && has_table);
    let marks = Marks::allocate(config.iptables_mark_mask, v4 || v6, false).map_err(unfit("IptablesMarkMask"))?;
    let defaults = RulesConfig::with_marks(marks);
    let reject_rate = PacketRate::new(config.deny_reject_rate, config.deny_reject_burst)
        .ok_or_else(|| unfit("DenyRejectRate")("rate and burst must be between 1 and 10000"))?;
    let prefixes = config.interface_prefix.iter().map(|prefix| prefix.parse().map_err(unfit("InterfacePrefix")));
    let failsafes = |ports: &[FailsafePort]| ports.iter().map(failsafe).collect::<Vec<_>>();
    Ok(RulesConfig {
        workload_prefixes: prefixes.collect::<Result<_, _>>()?,
        policy_backend: if config.bpf_enabled { PolicyBackend::Programs } else { PolicyBackend::Chains },
        deny: deny(config.iptables_filter_deny_action),
        reject_with: match config.deny_reject_with {
            DenyRejectWith::PortUnreachable => RejectReply::PortUnreachable,
            DenyRejectWith::ResetOrProhibited => RejectReply::ResetOrProhibited,
        },
        reject_rate,
        filter_allow: allow(config.iptables_filter_allow_action),
        mangle_allow: allow(config.iptables_mangle_allow_action),
        endpoint_to_host: match config.default_endpoint_to_host_action {
            EndpointToHostAction::Drop => tortie_rules::EndpointToHostAction::Drop,
            EndpointToHostAction::Return => tortie_rules::EndpointToHostAction::Return,
            EndpointToHostAction::Accept => tortie_rules::EndpointToHostAction::Accept,
        },
        service_loop: match config.service_loop_prevention {
            ServiceLoopPrevention::Drop => Some(tortie_rules::DenyAction::Drop),
            ServiceLoopPrevention::Reject => Some(tortie_rules::DenyAction::Reject),
            ServiceLoopPrevention::Disabled => None,
        },
        failsafe_inbound: failsafes(&config.failsafe_inbound_host_ports),
        failsafe_outbound: failsafes(&config.failsafe_outbound_host_ports),
        deny_invalid_conntrack: !config.disable_conntrack_invalid_check,
        vxlan_port: config.vxlan_port,
        vxlan_from_workloads: config.allow_vxlan_packets_from_workloads,
        ipip_from_workloads: config.allow_ipip_packets_from_workloads,
        flow_logs: collects_flows(config),
        log: log(config)?,
        nat: nat(config)?,
        wireguard: tortie_rules::WireguardConfig {
            v4: WireguardTunnel {
                enabled: v4,
                interface: config.wireguard_interface_name,
                port: config.wireguard_listening_port,
            },
            v6: WireguardTunnel {
                enabled: v6,
                interface: config.wireguard_interface_name_v6,
                port: config.wireguard_listening_port_v6,
            },
            encrypt_host_traffic: config.wireguard_host_encryption_enabled,
        },
        istio_dscp: (config.istio_ambient_mode == Switch::Enabled).then_some(config.istio_dscp_mark),
        ..defaults
    })
}

/// Returns messages about parameters that do not have their effect where eBPF programs enforce
/// policy.
#[must_use]
pub fn not_done_by_programs(resolved: &Resolved) -> Vec<&'static str> {
    let config = &resolved.config;
    let is_set = |name: &str| resolved.raw.contains_key(name);
    let unsupported = [
        (
            config.iptables_filter_deny_action == DenyAction::Reject,
            "IptablesFilterDenyAction: eBPF programs drop denied packets and send no reject",
        ),
        (
            config.deny_reject_with == DenyRejectWith::ResetOrProhibited,
            "DenyRejectWith: eBPF programs drop denied packets and send no reject",
        ),
        (
            is_set("IptablesMangleAllowAction"),
            "IptablesMangleAllowAction: packets that eBPF programs allow before DNAT are left to the rules that follow",
        ),
        (
            is_set("MaxIpsetSize"),
            "MaxIpsetSize: sets that policies need are no IP sets, but tables of eBPF programs, which BPFMaxBlocks bounds",
        ),
        (
            config.nftables_layout == NftablesLayout::Fast,
            "NFTablesLayout: the few chains beside eBPF programs have the layout of Felix",
        ),
        (
            config.flow_table_offload == FlowTableOffload::All,
            "NFTablesFlowTableOffload: eBPF programs see all packets, so that no connection is left to a flow table",
        ),
    ];
    unsupported.into_iter().filter_map(|(is_set, message)| is_set.then_some(message)).collect()
}

/// Adapts the settings to a node on which other CNI plugins name the interfaces of workloads, and
/// route to them.
pub fn by_address(settings: &mut DataplaneConfig) {
    let rules = &mut settings.rules;
    if rules.workload_prefixes == RulesConfig::with_marks(rules.marks).workload_prefixes {
        rules.workload_prefixes = PREFIXES_BY_ADDRESS.map(InterfaceName::from_static).into();
    }
    rules.workloads = WorkloadDispatch::Address;
}

/// Whether nftables is programmed in place of iptables and IP sets, on a machine where kube-proxy
/// does so or not.
#[must_use]
pub fn uses_nftables(config: &Config, kube_proxy_does: bool) -> bool {
    match config.nftables_mode {
        NftablesMode::Enabled => true,
        NftablesMode::Disabled => false,
        NftablesMode::Auto => kube_proxy_does,
    }
}

/// Adapts the settings to nftables in place of iptables and IP sets. Beside eBPF programs, which
/// enforce policy, there are few chains, and no connection bypasses the programs by a flow table.
///
/// # Errors
/// If parameters do not fit each other.
pub fn for_nftables(config: &Config, settings: &mut DataplaneConfig) -> Result<(), SettingsError> {
    let rules = &mut settings.rules;
    let (has_wireguard, has_ipvs) = (rules.marks.wireguard.is_some(), rules.ipvs.is_some());
    rules.marks =
        Marks::allocate(config.nftables_mark_mask, has_wireguard, has_ipvs).map_err(unfit("NftablesMarkMask"))?;
    rules.deny = deny(config.nftables_filter_deny_action);
    rules.filter_allow = allow(config.nftables_filter_allow_action);
    rules.mangle_allow = allow(config.nftables_mangle_allow_action);
    let is_by_chains = rules.policy_backend == PolicyBackend::Chains;
    let layout = match config.nftables_layout {
        NftablesLayout::Fast if is_by_chains => tortie_iptables::Layout::Fast,
        NftablesLayout::Felix | NftablesLayout::Fast => tortie_iptables::Layout::Felix,
    };
    let offload_flows = is_by_chains && config.flow_table_offload == FlowTableOffload::All;
    rules.packet_filter = PacketFilter::Nftables(tortie_rules::NftablesConfig { layout, offload_flows });
    let flow_interfaces = config.flow_table_interfaces.clone().filter(|_| offload_flows);
    settings.nftables = Some(NftablesConfig {
        refresh_interval: unless_zero(config.nftables_refresh_interval),
        flow_interfaces: flow_interfaces.map(matching).unwrap_or_default(),
        budget: table_budget(config),
        ..NftablesConfig::default()
    });
    Ok(())
}

fn matching(pattern: IfacePattern) -> InterfaceFilter {
    InterfaceFilter::new(move |name| pattern.0.is_match(name))
}

/// Switches the flow table off.
pub fn without_flow_table(settings: &mut DataplaneConfig) {
    if let PacketFilter::Nftables(nftables) = &mut settings.rules.packet_filter {
        nftables.offload_flows = false;
    }
}

/// Whether established connections are to be offloaded to a flow table.
#[must_use]
pub fn wants_flow_table(settings: &DataplaneConfig) -> bool {
    settings.rules.packet_filter.offloads_flows()
}

/// Adapts the settings to a kernel with ARP tables: these are read again as often as other tables.
pub fn for_arp(config: &Config, settings: &mut DataplaneConfig) {
    let interval = match settings.nftables {
        Some(_) => config.nftables_refresh_interval,
        None => config.iptables_refresh_interval,
    };
    settings.arp = Some(unless_zero(interval));
}

/// Adapts the rules to kube-proxy's IPVS mode.
///
/// # Errors
/// If parameters do not fit each other.
pub fn for_ipvs(config: &Config, rules: &mut RulesConfig) -> Result<(), SettingsError> {
    let marks = Marks::allocate(config.iptables_mark_mask, rules.marks.wireguard.is_some(), true);
    rules.marks = marks.map_err(unfit("IptablesMarkMask"))?;
    let ranges = config.kube_node_port_ranges.iter();
    let node_ports = ranges.filter_map(|(first, last)| PortRange::new(*first, *last)).collect();
    rules.ipvs = Some(IpvsConfig { node_ports });
    Ok(())
}

fn deny(action: DenyAction) -> tortie_rules::DenyAction {
    match action {
        DenyAction::Drop => tortie_rules::DenyAction::Drop,
        DenyAction::Reject => tortie_rules::DenyAction::Reject,
    }
}

fn allow(action: AllowAction) -> tortie_rules::AllowAction {
    match action {
        AllowAction::Accept => tortie_rules::AllowAction::Accept,
        AllowAction::Return => tortie_rules::AllowAction::Return,
    }
}

fn failsafe(port: &FailsafePort) -> tortie_rules::FailsafePort {
    tortie_rules::FailsafePort {
        protocol: if port.tcp { Protocol::TCP } else { Protocol::UDP },
        port: port.port,
        net: port.net,
    }
}

/// Settings of eBPF programs and of their maps.
#[must_use]
pub fn programs(rules: &RulesConfig, config: &Config) -> (HookSettings, NodeSettings) {
    let prefixes: Vec<String> = rules.workload_prefixes.iter().map(|prefix| prefix.as_str().to_owned()).collect();
    let policy = evaluation(rules);
    let workload_prefixes = prefixes.iter().map(|prefix| prefix.as_str().into()).collect();
    let hooks = HookSettings {
        workload_prefixes: prefixes,
        policy: policy.clone(),
        deny_invalid_conntrack: rules.deny_invalid_conntrack,
    };
    let (max_blocks, budget) = (config.bpf_max_blocks, table_budget(config));
    let owner: OwnerNumber = |id, endpoint, index| tortie_dataplane::learner_number(id, endpoint, Some(index));
    (hooks, NodeSettings { evaluate: policy, workload_prefixes, max_blocks, budget, owner })
}

/// Returns the settings of the lines of rules that log.
///
/// # Errors
/// [`SettingsError`] if `LogActionRateLimit` is no rate.
pub fn log(config: &Config) -> Result<LogConfig, SettingsError> {
    let limit = match &config.log_action_rate_limit {
        None => None,
        Some(rate) => {
            let rate = rate.as_str().parse().map_err(unfit("LogActionRateLimit"))?;
            // iptables takes a burst of 0 for its own default.
            let burst = config.log_action_rate_limit_burst;
            Some((rate, (burst != 0).then_some(burst)))
        }
    };
    Ok(LogConfig { prefix: config.log_prefix.clone(), limit })
}

fn nat(config: &Config) -> Result<NatConfig, SettingsError> {
    let out_interface = config.iptables_nat_outgoing_interface_filter.as_deref().map(str::parse).transpose();
    Ok(NatConfig {
        ports: config.nat_port_range.and_then(|(first, last)| PortRange::new(first, last)),
        address: config.nat_outgoing_address.map(Into::into),
        exclude_hosts: config.nat_outgoing_exclusions == NatOutgoingExclusions::IpPoolsAndHostIps,
        out_interface: out_interface.map_err(unfit("IptablesNATOutgoingInterfaceFilter"))?,
    })
}

#[cfg(test)]
mod tests;
