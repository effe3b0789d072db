use super::*;
use crate::config::{Raw, Sources};
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
fn a_mask_with_too_few_bits_is_named() {
    let error = settings(&[("IptablesMarkMask", "0x30000")]).unwrap_err();
    assert!(error.to_string().starts_with("IptablesMarkMask: "), "{error}");
}
