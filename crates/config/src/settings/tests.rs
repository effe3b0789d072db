use super::*;
use crate::params::PARAMS;
use crate::{Raw, Sources};
use tortie_model::desired::ConfigSource;

fn config(pairs: &[(&str, &str)]) -> Config {
    let mut sources = Sources::default();
    let raw: Raw = pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
    sources.set(ConfigSource::Environment, raw);
    sources.resolve().unwrap().config
}

fn settings(pairs: &[(&str, &str)]) -> Result<DataplaneConfig, SettingsError> {
    dataplane(&config(pairs), Hostname::new("n"), Backend::Nft)
}

#[test]
fn felix_defaults_are_the_renderers_defaults() {
    let defaults = RulesConfig::with_mark_mask(0xffff_0000).unwrap();
    assert_eq!(settings(&[]).unwrap().rules, defaults);
}

#[test]
fn parameters_reach_their_place() {
    let settings = settings(&[
        ("Ipv6Support", "false"),
        ("ChainInsertMode", "append"),
        ("IptablesRefreshInterval", "0"),
        ("NATPortRange", "1000:2000"),
        ("NATOutgoingExclusions", "IPPoolsAndHostIPs"),
        ("IptablesNATOutgoingInterfaceFilter", "eth+"),
        ("LogActionRateLimit", "10/minute"),
        ("InterfacePrefix", "cali,tap"),
        ("FloatingIPs", "Enabled"),
        ("ExternalNodesCIDRList", "192.0.2.1, 198.51.100.0/24"),
    ])
    .unwrap();
    assert_eq!(settings.families, [Family::V4]);
    assert_eq!(settings.iptables.insert_mode, InsertMode::Append);
    assert_eq!(settings.iptables.refresh_interval, None);
    assert_eq!(settings.rules.nat.ports, PortRange::new(1000, 2000));
    assert!(settings.rules.nat.exclude_hosts && settings.rules.nat.out_interface.is_some());
    assert!(settings.rules.log.limit.is_some_and(|(_, burst)| burst == Some(5)));
    assert_eq!(settings.rules.workload_prefixes.len(), 2);
    assert!(settings.floating_ips);
    assert_eq!(settings.external_nodes.len(), 2);
}

#[test]
fn the_first_table_is_taken_that_may_be() {
    let first = |pairs: &[(&str, &str)]| first_table(&config(pairs)).map(|RouteTableIndex(table)| table);
    assert_eq!(first(&[]), Some(1));
    assert_eq!(first(&[("RouteTableRange", "7-7")]), Some(7));
    assert_eq!(first(&[("RouteTableRanges", "100-110,30-31 40-99"), ("RouteTableRange", "7-7")]), Some(30));
    assert_eq!(first(&[("RouteTableRanges", "253-255,1000-1000")]), Some(1000));
    assert_eq!(first(&[("RouteTableRanges", "253-255")]), None);
}

#[test]
fn nftables_is_programmed_where_it_is_asked_for_or_kube_proxy_does() {
    for (mode, kube_proxy_does, expected) in
        [("Enabled", false, true), ("Disabled", true, false), ("Auto", true, true), ("Auto", false, false)]
    {
        assert_eq!(uses_nftables(&config(&[("NFTablesMode", mode)]), kube_proxy_does), expected, "{mode}");
    }
}

#[test]
fn chains_beside_programs_have_neither_a_flow_table_nor_a_layout() {
    let pairs = [("BPFEnabled", "true"), ("NFTablesFlowTableOffload", "All"), ("NFTablesLayout", "Fast")];
    let mut settings = settings(&pairs).unwrap();
    for_nftables(&config(&pairs), &mut settings).unwrap();
    assert!(settings.nftables.is_some() && !wants_flow_table(&settings));
    assert_eq!(settings.rules.packet_filter, PacketFilter::Nftables(tortie_rules::NftablesConfig::default()));
}

#[test]
fn a_mask_with_too_few_bits_is_named() {
    let error = settings(&[("IptablesMarkMask", "0x3f"), ("WireguardEnabled", "true")]).unwrap_err();
    assert!(error.to_string().starts_with("IptablesMarkMask: "), "{error}");
}

/// Everything that the engine is made from.
fn engine(pairs: &[(&str, &str)]) -> String {
    let config = config(pairs);
    let dataplane = dataplane(&config, Hostname::new("n"), Backend::Nft).unwrap();
    format!("{:?} {:?} {:?}", graph(&config, Hostname::new("n")), dataplane, manifests(&config))
}

#[test]
fn every_parameter_changes_something() {
    let of_the_engine = [
        ("Ipv6Support", "false"),
        ("InterfacePrefix", "tap"),
        ("ChainInsertMode", "append"),
        ("DefaultEndpointToHostAction", "ACCEPT"),
        ("IptablesFilterAllowAction", "RETURN"),
        ("IptablesMangleAllowAction", "RETURN"),
        ("IptablesFilterDenyAction", "REJECT"),
        ("DenyRejectWith", "ResetOrProhibited"),
        ("DenyRejectRate", "7"),
        ("DenyRejectBurst", "7"),
        ("DNSTrustedServers", "192.0.2.53"),
        ("DNSCacheSaveInterval", "7"),
        ("DNSCacheEpoch", "7"),
        ("DNSExtraTTL", "7"),
        ("DNSMinTTL", "7"),
        ("DNSMaxTTL", "7"),
        ("DNSMatchNames", "Question"),
        ("DNSClusterAddresses", "Never"),
        ("DNSClusterDomain", "none"),
        ("DNSMaxRepliesPerEndpoint", "7"),
        ("DNSPacketsNfqueueID", "7"),
        ("IptablesMarkMask", "0xff000000"),
        ("IptablesRefreshInterval", "7"),
        ("IptablesPostWriteCheckIntervalSecs", "7"),
        ("IptablesLockProbeIntervalMillis", "7"),
        ("IptablesNATOutgoingInterfaceFilter", "eth0"),
        ("NATPortRange", "1000:2000"),
        ("NATOutgoingAddress", "192.0.2.1"),
        ("NATOutgoingExclusions", "IPPoolsAndHostIPs"),
        ("IpsetsRefreshInterval", "7"),
        ("MaxIpsetSize", "7"),
        ("RouteRefreshInterval", "7"),
        ("RouteSyncDisabled", "true"),
        ("RemoveExternalRoutes", "false"),
        ("DeviceRouteProtocol", "80"),
        ("DeviceRouteSourceAddress", "192.0.2.1"),
        ("DeviceRouteSourceAddressIPv6", "2001:db8::1"),
        ("IPv4NormalRoutePriority", "7"),
        ("IPv6NormalRoutePriority", "7"),
        ("IPv4ElevatedRoutePriority", "7"),
        ("IPv6ElevatedRoutePriority", "7"),
        ("LiveMigrationRouteConvergenceTime", "7"),
        ("IPForwarding", "Disabled"),
        ("FailsafeInboundHostPorts", "tcp:7"),
        ("FailsafeOutboundHostPorts", "tcp:7"),
        ("DisableConntrackInvalidCheck", "true"),
        ("LogPrefix", "dropped"),
        ("LogActionRateLimit", "7/minute"),
        ("ServiceLoopPrevention", "Reject"),
        ("WorkloadSourceSpoofing", "Any"),
        ("AddressClaims", "Any"),
        ("PolicyMembersLimit", "7"),
        ("IstioAmbientMode", "Enabled"),
        ("BPFEnabled", "true"),
        ("AllowVXLANPacketsFromWorkloads", "true"),
        ("AllowIPIPPacketsFromWorkloads", "true"),
        ("VXLANPort", "7"),
        ("VXLANVNI", "7"),
        ("IpInIpTunnelAddr", "192.0.2.1"),
        ("RouteSource", "WorkloadIPs"),
        ("IpInIpEnabled", "false"),
        ("VXLANEnabled", "true"),
        ("ProgramClusterRoutes", "Disabled"),
        ("WireguardEnabled", "true"),
        ("WireguardEnabledV6", "true"),
        ("FloatingIPs", "Enabled"),
        ("ExternalNodesCIDRList", "192.0.2.0/24"),
        ("NFTablesMode", "Disabled"),
        ("RouteTableRange", "7-9"),
        ("WireguardInterfaceName", "wg0"),
        ("WireguardInterfaceNameV6", "wg6"),
        ("WireguardListeningPort", "7"),
        ("WireguardListeningPortV6", "7"),
        ("WireguardRoutingRulePriority", "7"),
        ("WireguardHostEncryptionEnabled", "true"),
        ("WireguardPersistentKeepAlive", "7"),
        ("WireguardThreadingEnabled", "true"),
        ("RouteTableRanges", "7-9"),
        ("LocalSubnetL2Reachability", "PodsAndLoadBalancers"),
    ];
    let defaults = engine(&[]);
    for (name, value) in of_the_engine {
        assert_ne!(engine(&[(name, value)]), defaults, "{name} has no effect");
    }
    let limit = ("LogActionRateLimit", "7/minute");
    assert_ne!(engine(&[limit, ("LogActionRateLimitBurst", "9")]), engine(&[limit]));

    let mesh = ("IstioAmbientMode", "Enabled");
    assert_ne!(engine(&[mesh, ("IstioDSCPMark", "AF11")]), engine(&[mesh]));

    let answering = ("LocalSubnetL2Reachability", "PodsAndLoadBalancers");
    let never = [answering, ("LocalSubnetL2ReachabilityRefreshInterval", "0")];
    assert_ne!(engine(&never), engine(&[answering]));

    let nftables = |pairs: &[(&str, &str)]| {
        let mut settings = settings(pairs).unwrap();
        for_nftables(&config(pairs), &mut settings).unwrap();
        format!("{settings:?}")
    };
    let of_nftables = [
        ("NftablesFilterAllowAction", "RETURN"),
        ("NftablesFilterDenyAction", "REJECT"),
        ("NftablesMangleAllowAction", "RETURN"),
        ("NftablesMarkMask", "0xff000000"),
        ("NftablesRefreshInterval", "7"),
        ("NFTablesFlowTableOffload", "All"),
        ("NFTablesLayout", "Fast"),
    ];
    for (name, value) in of_nftables {
        assert_ne!(nftables(&[(name, value)]), nftables(&[]), "{name} has no effect");
    }
    let offload = ("NFTablesFlowTableOffload", "All");
    let pattern = ("NFTablesFlowTableDataIfacePattern", "^eth");
    assert_ne!(nftables(&[offload, pattern]), nftables(&[offload]));
    assert_eq!(nftables(&[pattern]), nftables(&[]), "without a flow table");

    let ipvs = |pairs: &[(&str, &str)]| {
        let mut rules = settings(pairs).unwrap().rules;
        for_ipvs(&config(pairs), &mut rules).unwrap();
        assert!(rules.marks.non_endpoint.is_some());
        rules.ipvs.unwrap().node_ports
    };
    assert_eq!(ipvs(&[]), [PortRange::new(30000, 32767).unwrap()]);
    assert_eq!(ipvs(&[("KubeNodePortRanges", "80,100:200")]).len(), 2);
    assert_eq!(ipvs(&[("KubeNodePortRanges", "none")]), []);

    // Parameters that `run` and `dataplane` read for their listeners, log, kernel and interface
    // monitor.
    let of_the_program = [
        "FelixHostname",
        "InterfaceExclude",
        "InterfaceRefreshInterval",
        "IptablesBackend",
        "FeatureDetectOverride",
        "DNSCacheFile",
        "DNSPacketsNfqueueMaxHoldDuration",
        "DNSPacketsNfqueueSize",
        "DataplaneWatchdogTimeout",
        "NetlinkTimeoutSecs",
        "HealthEnabled",
        "HealthHost",
        "HealthPort",
        "HealthTimeoutOverrides",
        "PrometheusMetricsEnabled",
        "PrometheusMetricsHost",
        "PrometheusMetricsPort",
        "PrometheusProcessMetricsEnabled",
        "PrometheusWireGuardMetricsEnabled",
        "PrometheusMetricsCAFile",
        "PrometheusMetricsCertFile",
        "PrometheusMetricsClientAuth",
        "PrometheusMetricsKeyFile",
        "LogDebugFilenameRegex",
        "LogFilePath",
        "LogSeverityFile",
        "LogSeverityScreen",
        "LogSeveritySys",
        "ReportingIntervalSecs",
        "ReportingTTLSecs",
        "EndpointReportingEnabled",
        "EndpointReportingDelaySecs",
        "EndpointStatusPathPrefix",
        "PolicySyncPathPrefix",
        // Parameters about facts of the machine.
        "MTUIfacePattern",
        "RequireMTUFile",
        "IpInIpMtu",
        "VXLANMTU",
        "VXLANMTUV6",
        "WireguardMTU",
        "WireguardMTUV6",
        "ClusterType",
        "OpenstackRegion",
        "CutDeniedConnections",
        "BPFHookAttachment",
        "BPFMaxBlocks",
        "BPFPolicyOnly",
        "PolicyTableGroupMemoryMB",
        "PolicyTableNodeMemoryMB",
        "FlowLogsFile",
        "FlowLogsFileMaxFiles",
        "FlowLogsFileMaxSizeMB",
        "FlowLogsFlushInterval",
        "FlowLogsGoldmaneServer",
        "FlowLogsLocalReporter",
        "FlowLogsPolicyEvaluationMode",
        "TyphaCAFile",
        "TyphaCertFile",
        "TyphaKeyFile",
        "DebugDisableLogDropping",
        "DebugPanicAfter",
        "DebugSimulateCalcGraphHangAfter",
        "DebugSimulateDataplaneApplyDelay",
        "DebugSimulateDataplaneHangAfter",
    ];
    let mut known: Vec<_> = of_the_engine.iter().map(|(name, _)| *name).chain(of_the_program).collect();
    known.extend(["LogActionRateLimitBurst", "IstioDSCPMark", "KubeNodePortRanges"]);
    known.push("LocalSubnetL2ReachabilityRefreshInterval");
    known.extend(of_nftables.map(|(name, _)| name));
    known.push("NFTablesFlowTableDataIfacePattern");
    known.sort_unstable();
    let mut all: Vec<_> = PARAMS.iter().map(|param| param.row.name).collect();
    all.sort_unstable();
    assert_eq!(all, known, "a parameter that is read must also do something");
}

#[test]
fn requested_features_without_ebpf_support_are_named() {
    let named = |pairs: &[(&str, &str)]| -> Vec<&'static str> {
        let mut sources = Sources::default();
        let raw: Raw = pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        sources.set(ConfigSource::Environment, raw);
        let named = not_done_by_programs(&sources.resolve().unwrap());
        named.into_iter().map(|what| what.split_once(':').unwrap().0).collect()
    };
    assert_eq!(named(&[("BPFEnabled", "true"), ("IptablesFilterAllowAction", "RETURN")]), [""; 0]);
    assert_eq!(named(&[("DefaultEndpointToHostAction", "ACCEPT"), ("IptablesFilterDenyAction", "DROP")]), [""; 0]);
    for (name, value) in [
        ("IptablesFilterDenyAction", "REJECT"),
        ("DenyRejectWith", "ResetOrProhibited"),
        ("IptablesMangleAllowAction", "RETURN"),
        ("MaxIpsetSize", "7"),
        ("NFTablesFlowTableOffload", "All"),
        ("NFTablesLayout", "Fast"),
    ] {
        assert_eq!(named(&[(name, value)]), [name]);
    }
    assert_eq!(named(&[("LogPrefix", "dropped"), ("LogActionRateLimit", "7/minute"), ("FlowLogsFile", "/f")]), [""; 0]);
}

#[test]
fn a_proxy_enforces_http_matches_where_the_policy_sync_api_is_on() {
    let by_proxy = |prefix| graph(&config(&[("PolicySyncPathPrefix", prefix)]), Hostname::new("n1")).http_by_proxy;
    assert_eq!(["", "none", "/var/run/nodeagent"].map(by_proxy), [false, false, cfg!(feature = "policysync")]);
}

/// Parsed parameters are in range; a program may make others.
#[test]
fn a_rate_of_answers_out_of_range_is_an_error() {
    let rate = |deny_reject_rate, deny_reject_burst| {
        let config = Config { deny_reject_rate, deny_reject_burst, ..config(&[]) };
        rules(&config).map(|rules| (rules.reject_rate.rate(), rules.reject_rate.burst())).map_err(|e| e.to_string())
    };
    assert_eq!(rate(1, 10_000), Ok((1, 10_000)));
    let expected = Err("DenyRejectRate: rate and burst must be between 1 and 10000".to_owned());
    assert_eq!([rate(0, 1), rate(1, 0), rate(10_001, 1)], [expected.clone(), expected.clone(), expected]);
}

#[test]
fn members_outlive_a_restart_for_two_saves_at_least() {
    for (interval, grace) in [("0", 2), ("1", 2), ("60", 120)] {
        let config = config(&[("DNSCacheSaveInterval", interval)]);
        let dataplane = dataplane(&config, Hostname::new("n"), Backend::Nft).unwrap();
        let learner = dataplane.domains.expect("the default is on").learner;
        assert_eq!(learner.grace, Duration::from_secs(grace), "{interval}");
    }
}
