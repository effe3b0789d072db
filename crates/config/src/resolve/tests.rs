use std::time::Duration;

use super::*;
use tortie_model::desired::ConfigUpdate;
use tortie_parameters::BadValue;

use crate::{ChainInsertMode, EndpointToHostAction, ProgramClusterRoutes, Raw};

fn raw(pairs: &[(&str, &str)]) -> Raw {
    pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect()
}

fn resolve(sources: &[(ConfigSource, &[(&str, &str)])]) -> Result<Resolved, ConfigError> {
    let mut all = Sources::default();
    for (source, pairs) in sources {
        all.set(*source, raw(pairs));
    }
    all.resolve()
}

#[test]
fn the_highest_source_wins_in_any_spelling() {
    let resolved = resolve(&[
        (ConfigSource::DatastoreGlobal, &[("DefaultEndpointToHostAction", "Return"), ("IptablesRefreshInterval", "7")]),
        (ConfigSource::DatastorePerHost, &[("DefaultEndpointToHostAction", "ACCEPT")]),
        (ConfigSource::Environment, &[("iptablesrefreshinterval", "30")]),
    ])
    .unwrap();
    assert_eq!(resolved.config.default_endpoint_to_host_action, EndpointToHostAction::Accept);
    assert_eq!(resolved.config.iptables_refresh_interval, Duration::from_secs(30));
    assert_eq!(resolved.raw["IptablesRefreshInterval"], "30");
    assert!(resolved.notices.is_empty());
}

#[test]
fn a_bad_value_means_the_default_and_not_a_lower_source() {
    let resolved = resolve(&[
        (ConfigSource::DatastoreGlobal, &[("IptablesRefreshInterval", "7")]),
        (ConfigSource::Environment, &[("IptablesRefreshInterval", "soon")]),
    ])
    .unwrap();
    assert_eq!(resolved.config.iptables_refresh_interval, Duration::from_secs(180));
    assert_eq!(
        resolved.notices[0].to_string(),
        "environment variable: IptablesRefreshInterval: `soon` must be a number of seconds; the default is used: 180s"
    );
}

#[test]
fn an_overridden_bad_value_is_reported_too() {
    let resolved = resolve(&[
        (ConfigSource::DatastoreGlobal, &[("Ipv6Support", "perhaps")]),
        (ConfigSource::Environment, &[("Ipv6Support", "false")]),
    ])
    .unwrap();
    assert!(!resolved.config.ipv6_support);
    assert!(matches!(&resolved.notices[..], [Notice::Bad { name: "Ipv6Support", .. }]));
}

#[test]
fn invalid_values_of_fatal_parameters_are_errors() {
    let error = resolve(&[(ConfigSource::ConfigFile, &[("ChainInsertMode", "prepend")])]).unwrap_err();
    assert_eq!(error.to_string(), "config file: ChainInsertMode: `prepend` must be one of insert, append");
    assert!(resolve(&[(ConfigSource::ConfigFile, &[("MaxIpsetSize", "none")])]).is_err());
    assert!(resolve(&[(ConfigSource::ConfigFile, &[("MaxIpsetSize", "many")])]).is_ok());
}

#[test]
fn an_invalid_value_of_the_datastore_is_replaced_by_the_last_valid_one_or_the_default() {
    let update = |global: &[(&str, &str)], host: &[(&str, &str)]| {
        let arcs = |pairs: &[(&str, &str)]| pairs.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect();
        ConfigUpdate { global: arcs(global), host: arcs(host), ..ConfigUpdate::default() }
    };
    let mut sources = Sources::default();
    let mut mode = |global: &[(&str, &str)], host: &[(&str, &str)]| {
        sources.set_datastore(&update(global, host));
        let resolved = sources.resolve().unwrap();
        let notices: Vec<String> = resolved.notices.iter().map(ToString::to_string).collect();
        (resolved.config.chain_insert_mode, resolved.raw.get("ChainInsertMode").cloned(), notices.join("\n"))
    };
    let (good, bad) = (&[("ChainInsertMode", "append")][..], &[("ChainInsertMode", "sideways")][..]);
    let (begins, fault) =
        ("datastore (global): ChainInsertMode (spec.chainInsertMode of ", "`sideways` must be one of insert, append");
    let of_default = format!("{begins}FelixConfiguration/default): {fault}; the default is used: insert");
    let kept = format!("{begins}FelixConfiguration/default): {fault}; the last valid value stays in force: append");
    assert_eq!(mode(bad, &[]), (ChainInsertMode::Insert, None, of_default.clone()));
    assert_eq!(mode(good, &[]), (ChainInsertMode::Append, Some("append".into()), String::new()));
    for _ in 0..2 {
        assert_eq!(mode(bad, &[]), (ChainInsertMode::Append, Some("append".into()), kept.clone()));
    }
    let of_host = kept.replace("(global)", "(per-host)").replace("default)", "node.NAME of this node)");
    assert_eq!(mode(good, bad), (ChainInsertMode::Append, Some("append".into()), of_host));
    assert_eq!(mode(&[], &[]), (ChainInsertMode::Insert, None, String::new()));
    // The value that was valid before has been removed since.
    assert_eq!(mode(bad, &[]), (ChainInsertMode::Insert, None, of_default));
}

#[test]
fn every_needed_parameter_has_a_replacement_for_a_value_of_the_datastore() {
    for param in PARAMS.iter().filter(|param| param.row.bad_value == BadValue::Fatal || param.row.refuses_none) {
        let bad = if param.row.refuses_none { "none" } else { "\u{1}:-/" };
        let set = |source| resolve(&[(source, &[(param.row.name, bad)])]);
        if param.assign(&mut Config::default(), bad).is_ok() {
            // Any text is the path of a file.
            continue;
        }
        assert_eq!(set(ConfigSource::Environment).unwrap_err().name, param.row.name);
        if !param.row.is_local {
            let resolved = set(ConfigSource::DatastorePerHost).unwrap();
            assert!(matches!(&resolved.notices[..], [Notice::Fallback { .. }]), "{:?}", resolved.notices);
            assert_eq!(resolved.effective(), BTreeMap::new(), "{}", param.row.name);
        }
    }
}

#[test]
fn a_mark_mask_of_the_datastore_without_a_bit_for_wireguard_is_replaced() {
    let resolved_at = |source, wireguard| {
        resolve(&[(source, &[("IptablesMarkMask", "0x3f"), ("WireguardEnabledV6", wireguard)])]).unwrap()
    };
    let replaced = resolved_at(ConfigSource::DatastoreGlobal, "true");
    assert_eq!(replaced.config.iptables_mark_mask, 0xffff_0000);
    let notice = replaced.notices[0].to_string();
    assert!(notice.contains("`0x3f` must have at least 7 bits set with WireGuard; the default is used: "), "{notice}");
    assert_eq!(replaced.raw.get("IptablesMarkMask"), None);
    for (source, wireguard) in [(ConfigSource::DatastoreGlobal, "false"), (ConfigSource::Environment, "true")] {
        let kept = resolved_at(source, wireguard);
        assert_eq!((kept.config.iptables_mark_mask, kept.notices), (0x3f, Vec::new()));
    }
}

#[test]
fn an_invalid_value_of_the_datastore_matters_not_beside_one_of_the_node() {
    let resolved = resolve(&[
        (ConfigSource::DatastoreGlobal, &[("ChainInsertMode", "sideways")]),
        (ConfigSource::Environment, &[("chaininsertmode", "append")]),
    ])
    .unwrap();
    assert_eq!(resolved.config.chain_insert_mode, ChainInsertMode::Append);
    assert!(matches!(&resolved.notices[..], [Notice::Fallback { name: "ChainInsertMode", .. }]));
}

#[test]
fn none_switches_off() {
    let resolved = resolve(&[(ConfigSource::DatastoreGlobal, &[("FailsafeInboundHostPorts", "None")])]).unwrap();
    assert!(resolved.config.failsafe_inbound_host_ports.is_empty());
}

#[test]
fn unknown_and_local_names_are_reported() {
    let resolved =
        resolve(&[(ConfigSource::DatastoreGlobal, &[("Colour", "blue"), ("FelixHostname", "other")])]).unwrap();
    assert_eq!(resolved.config.felix_hostname, "");
    assert!(matches!(
        &resolved.notices[..],
        [Notice::Unknown { name, .. }, Notice::LocalOnly { name: "FelixHostname", .. }] if name == "Colour"
    ));
}

#[test]
fn parameters_of_felix_without_effect_are_reported_as_such() {
    let resolved = resolve(&[(ConfigSource::Environment, &[("bpflogLevel", "debug")])]).unwrap();
    let notice = resolved.notices[0].to_string();
    let expected =
        "environment variable: BPFLogLevel: is a parameter of Felix that has no effect here: eBPF programs enforce";
    assert!(notice.starts_with(expected), "{notice}");
    assert_eq!(resolved.raw["BPFLogLevel"], "debug");
    let resolved = resolve(&[(ConfigSource::Environment, &[("bpfenabled", "true")])]).unwrap();
    assert!(resolved.notices.is_empty() && resolved.config.bpf_enabled);
}

#[test]
fn parameters_that_others_leave_nothing_to_do_are_named_with_these() {
    let notices_of = |pairs: &[(&str, &str)]| -> Vec<String> {
        let notices = resolve(&[(ConfigSource::DatastoreGlobal, pairs)]).unwrap().notices;
        notices.iter().map(ToString::to_string).collect()
    };
    let (bpf, nftables) = (("BPFEnabled", "true"), ("NFTablesMode", "Enabled"));
    for backend in [&[nftables][..], &[bpf, nftables]] {
        let of_iptables = [
            ("IpsetsRefreshInterval", "7"),
            ("FeatureDetectOverride", "RestoreSupportsLock=false,ChecksumOffloadBroken=true"),
        ];
        let idle = notices_of(&[backend, &of_iptables].concat());
        assert_eq!(idle.len(), 2, "{idle:?}");
        assert!(idle.iter().all(|notice| notice.contains(" has no effect beside NFTablesMode=Enabled: ")), "{idle:?}");
    }
    for alone in [
        &[bpf, nftables][..],
        &[bpf, ("NFTablesMode", "Auto")],
        &[bpf, ("NFTablesMode", "Disabled")],
        &[nftables, ("IpsetsRefreshInterval", "90"), ("FeatureDetectOverride", "ChecksumOffloadBroken=true")],
        &[("IpsetsRefreshInterval", "7"), ("FeatureDetectOverride", "RestoreSupportsLock=false")],
    ] {
        assert_eq!(notices_of(alone), [""; 0], "{alone:?}");
    }
}

#[test]
fn parameters_that_have_nothing_to_do_where_nftables_is_chosen_are_kept_for_then() {
    let beside = |pairs: &[(&str, &str)]| -> Vec<String> {
        let resolved = resolve(&[(ConfigSource::DatastoreGlobal, pairs)]).unwrap();
        assert!(resolved.notices.is_empty(), "{:?}", resolved.notices);
        resolved.beside_nftables.iter().map(ToString::to_string).collect()
    };
    let interval = ("IpsetsRefreshInterval", "7");
    let notices = beside(&[interval]);
    assert_eq!(notices, beside(&[interval, ("NFTablesMode", "Auto"), ("BPFEnabled", "true")]));
    let begins =
        "datastore (global): IpsetsRefreshInterval: has no effect beside NFTablesMode=Auto, which follows kube-proxy";
    assert!(notices.len() == 1 && notices[0].starts_with(begins), "{notices:?}");
    for without in [&[interval, ("NFTablesMode", "Disabled")][..], &[]] {
        assert!(beside(without).is_empty(), "{without:?}");
    }
}

#[test]
fn cluster_information_is_no_parameter_without_effect() {
    let resolved =
        resolve(&[(ConfigSource::DatastoreGlobal, &[("ClusterGUID", "a1"), ("clustertype", "k8s")])]).unwrap();
    assert!(resolved.notices.is_empty());
    assert_eq!(resolved.raw["ClusterType"], "k8s");
}

#[test]
fn datastore_parameters_count_only_on_the_node() {
    let global = ConfigSource::DatastoreGlobal;
    let resolved = resolve(&[(global, &[("TyphaAddr", "a:1")]), (ConfigSource::ConfigFile, &[("etcdcafile", "/ca")])]);
    let notices: Vec<String> = resolved.unwrap().notices.iter().map(ToString::to_string).collect();
    assert_eq!(notices, ["datastore (global): TyphaAddr: can only be set on the node itself; ignored"]);
    let mut sources = Sources::default();
    let raw = |name: &str, value: &str| [(name.to_owned(), value.to_owned())].into();
    sources.set(global, raw("TyphaCN", "datastore"));
    assert_eq!(sources.local("TyphaCN"), None);
    sources.set(ConfigSource::ConfigFile, raw("TyphaCN", "file"));
    assert_eq!(sources.local("TyphaCN"), Some("file"));
    sources.set(ConfigSource::Environment, raw("typhacn", "environment"));
    assert_eq!(sources.local("TyphaCN"), Some("environment"));
}

#[test]
fn a_misspelt_variable_is_named_as_it_would_be_set() {
    let notices_of = |pairs: &[(&str, &str)]| -> Vec<String> {
        let notices = resolve(&[(ConfigSource::Environment, pairs)]).unwrap().notices;
        notices.iter().map(ToString::to_string).collect()
    };
    assert_eq!(
        notices_of(&[("logseveritscreen", "info"), ("colour", "blue"), ("etcdaddr", "a:1"), ("etcdscheme", "https")]),
        [
            "environment variable FELIX_COLOUR: there is no such parameter; ignored",
            "environment variable FELIX_LOGSEVERITSCREEN: there is no such parameter; is FELIX_LOGSEVERITYSCREEN meant?",
        ]
    );
    assert_eq!(
        notices_of(&[("bpfenabled", "false"), ("wireguardenabled", "False"), ("vxlanenabled", "none")]),
        [""; 0]
    );
}

#[test]
fn values_of_a_resource_are_validated_alone() {
    for (name, value, message) in [
        ("LogPrefix", "x", None),
        ("BPFEnabled", "false", None),
        ("Ipv6Support", "perhaps", Some("`perhaps` must be true or false; the default is used: true")),
        ("BPFEnabled", "true", None),
        (
            "MetadataPort",
            "80",
            Some("is a parameter of Felix that has no effect here: workloads have no metadata service"),
        ),
        ("EtcdAddr", "a:1", Some("can only be set on the node itself; ignored")),
        ("WireguardEnabled", "yes", None),
        ("VXLANEnabled", "yes", None),
        ("IPv4VXLANTunnelAddr", "10.65.0.1", None),
        ("WireguardEnabled", "false", None),
        ("ProgramClusterRoutes", "enabledipiponly", None),
        ("NFTablesMode", "Enabled", None),
        (
            "ChainInsertMode",
            "prepend",
            Some(
                "`prepend` must be one of insert, append; a running agent keeps its last valid value, others use the default: insert",
            ),
        ),
        (
            "BPFDataIfacePattern",
            "^(eth",
            Some("`^(eth` regex parse error:\n    ^(eth\n     ^\nerror: unclosed group; it has no effect here"),
        ),
        ("BPFDataIfacePattern", "", None),
    ] {
        let text = validate_parameter(name, value).map(|problem| match problem {
            ParameterRemark::NoEffect(text) => text,
            ParameterRemark::Invalid { flaw, instead } => format!("{flaw}; {instead}"),
        });
        assert_eq!(text.as_deref(), message, "{name}");
    }
}

#[test]
fn each_default_is_shown_as_it_may_be_written() {
    for param in PARAMS.iter() {
        let shown = param.default();
        assert!(!shown.is_empty() && !shown.contains(['{', '"']), "{}: {shown}", param.row.name);
        let is_duration = shown.ends_with('s') && shown.starts_with(|c: char| c.is_ascii_digit());
        if shown != "none" && !is_duration {
            (param.set)(&mut Config::default(), &shown)
                .unwrap_or_else(|why| panic!("{}: {shown}: {why}", param.row.name));
        }
    }
}

#[test]
fn each_parameter_that_is_read_is_documented_as_used() {
    let is_used = |one: &&Parameter| matches!(one.treatment, Treatment::Used(_) | Treatment::Own(_));
    let used: Vec<&str> = parameters().iter().filter(is_used).map(|one| one.name).collect();
    let mut read: Vec<&str> = PARAMS.iter().map(|param| param.row.name).collect();
    read.sort_by_key(|name| name.to_ascii_lowercase());
    assert_eq!(used, read);
}

#[test]
fn an_explicit_default_does_not_differ() {
    for (name, value, differs) in [
        ("BPFEnabled", "0", false),
        ("BPFEnabled", "yes", true),
        ("BPFEnabled", "maybe", true),
        ("usagereportingintervalsecs", "86400.0", false),
        ("UsageReportingIntervalSecs", "1", true),
        ("VXLANTunnelMACAddr", "none", false),
        ("BPFLogLevel", "OFF", false),
        ("BPFLogLevel", "debug", true),
        ("GoMaxProcs", "-1", false),
        ("LogFilePath", "none", true),
    ] {
        assert_eq!(differs_from_default(find(name).unwrap(), value), differs, "{name}={value}");
    }
}

#[test]
fn defaults_are_those_of_the_version_of_calico() {
    let routes = |pairs: &[(&str, &str)]| {
        let resolved = resolve(&[(ConfigSource::DatastoreGlobal, pairs)]).unwrap();
        (resolved.config.program_cluster_routes, resolved.raw.get("ProgramClusterRoutes").cloned(), resolved.notices)
    };
    let (present, disabled) = (ProgramClusterRoutes::IpIpOnly, ProgramClusterRoutes::Disabled);
    assert_eq!(routes(&[]), (present, None, Vec::new()));
    assert_eq!(routes(&[("CalicoVersion", "master")]), (present, None, Vec::new()));
    assert_eq!(routes(&[("CalicoVersion", "v3.33.0")]), (present, None, Vec::new()));
    assert_eq!(routes(&[("CalicoVersion", "v3.32.1")]), (disabled, Some("Disabled".into()), Vec::new()));

    let (explicit, raw, _) = routes(&[("CalicoVersion", "v3.29.0"), ("ProgramClusterRoutes", "Enabled")]);
    assert_eq!((explicit, raw.as_deref()), (ProgramClusterRoutes::Enabled, Some("Enabled")));
    let (after_bad, _, notices) = routes(&[("CalicoVersion", "v3.29.0"), ("ProgramClusterRoutes", "sideways")]);
    assert_eq!(after_bad, disabled);
    assert!(notices[0].to_string().ends_with("the default is used: Disabled"), "{}", notices[0]);
}

#[test]
fn a_change_of_the_version_that_changes_defaults_changes_the_configuration_in_effect() {
    let effective = |version| {
        let resolved = resolve(&[(ConfigSource::DatastoreGlobal, &[("CalicoVersion", version)])]).unwrap();
        resolved.effective().into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect::<Vec<_>>()
    };
    assert_ne!(effective("v3.32.0"), effective("v3.33.0"));
    assert_eq!(effective("v3.33.0"), effective("v3.34.1"));
}

#[test]
fn routes_of_bird_stay_while_the_version_of_calico_is_unknown() {
    let routes = |pairs: Option<&[(&str, &str)]>, has_bird_routes| {
        let mut sources = Sources::default();
        sources.set_bird_routes(has_bird_routes);
        if let Some(pairs) = pairs {
            let raw = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            sources.set(ConfigSource::DatastoreGlobal, raw);
        }
        let resolved = sources.resolve().unwrap();
        let is_open = pairs.is_some_and(<[_]>::is_empty) && !has_bird_routes;
        assert_eq!(resolved.depends_on_bird, is_open, "{pairs:?}");
        (resolved.config.program_cluster_routes, resolved.notices)
    };
    let (present, disabled) = (ProgramClusterRoutes::IpIpOnly, ProgramClusterRoutes::Disabled);
    assert_eq!(routes(Some(&[]), false), (present, Vec::new()));
    assert_eq!(routes(Some(&[]), true), (disabled, vec![Notice::RoutesOfBird]));
    assert_eq!(routes(None, true), (disabled, Vec::new()), "no notice before the datastore has been read");
    assert_eq!(routes(Some(&[("CalicoVersion", "v3.33.0")]), true), (present, Vec::new()));
    let explicit = [("ProgramClusterRoutes", "Enabled")];
    assert_eq!(routes(Some(&explicit), true), (ProgramClusterRoutes::Enabled, Vec::new()));
    assert_eq!(
        Notice::RoutesOfBird.to_string(),
        "datastore (global): ProgramClusterRoutes: has no value, and ClusterInformation names no version of Calico; \
         routes by tunl0 are left to BIRD"
    );
}
