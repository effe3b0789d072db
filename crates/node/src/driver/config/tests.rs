use tortie_config::{Raw, Sources};
use tortie_model::Hostname;
use tortie_model::desired::{ConfigSource, ConfigUpdate};
use tortie_protocol::felix;

use tortie_config::ProgramClusterRoutes;

use super::{from_message, to_message};

fn raw(pairs: &[(&str, &str)]) -> Raw {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn sources() -> Sources {
    let mut sources = Sources::default();
    sources.set(ConfigSource::Environment, raw(&[("iptablesbackend", "nft"), ("thirdparty", "x")]));
    sources.set(ConfigSource::ConfigFile, raw(&[("LogPrefix", "file"), ("IptablesBackend", "legacy")]));
    let global = [("LogPrefix".into(), "global".into()), ("VXLANPort".into(), "1".into())].into();
    sources.set_datastore(&ConfigUpdate { global, ..ConfigUpdate::default() });
    sources
}

#[test]
fn a_message_has_all_sources_and_the_effective_values() {
    let sources = sources();
    let message = to_message(&sources, &sources.resolve().unwrap(), &Hostname::new("n1"));
    let won = raw(&[
        ("FelixHostname", "n1"),
        ("IptablesBackend", "nft"),
        ("LogPrefix", "file"),
        ("VXLANPort", "1"),
        ("thirdparty", "x"),
    ]);
    assert_eq!(message.config, won);
    let names: Vec<_> = message.source_to_raw_config.iter().map(|(n, raw)| (*n, raw.source.as_str())).collect();
    assert_eq!(
        names,
        [
            (1, "datastore (global)"),
            (2, "datastore (per-node-selector)"),
            (3, "datastore (per-host)"),
            (4, "config file"),
            (5, "environment variable"),
            (6, "internal override"),
        ]
    );
    assert_eq!(message.source_to_raw_config[&1].config["LogPrefix"], "global");
}

#[test]
fn a_driver_gets_no_value_that_it_cannot_read() {
    let mut sources = Sources::default();
    let mut message_with = |mode: &str| {
        let global = [("ChainInsertMode".into(), mode.into())].into();
        sources.set_datastore(&ConfigUpdate { global, ..ConfigUpdate::default() });
        let message = to_message(&sources, &sources.resolve().unwrap(), &Hostname::new("n1"));
        let of_source = message.source_to_raw_config[&1].config["ChainInsertMode"].clone();
        (of_source, message.config.get("ChainInsertMode").cloned())
    };
    assert_eq!(message_with("sideways"), ("insert".into(), None));
    assert_eq!(message_with("append"), ("append".into(), Some("append".into())));
    assert_eq!(message_with("sideways"), ("append".into(), Some("append".into())));
}

#[test]
fn configuration_messages_round_trip() {
    let sources = sources();
    let resolved = sources.resolve().unwrap();
    let message = to_message(&sources, &resolved, &Hostname::new("n1"));
    let understood = from_message(&message, &Raw::new()).resolve().unwrap();
    assert_eq!(understood.config.felix_hostname, "n1");
    let mut raw = understood.raw;
    raw.remove("FelixHostname");
    assert_eq!(raw, resolved.raw);
}

#[test]
fn the_own_environment_has_the_last_word() {
    let sources = sources();
    let message = to_message(&sources, &sources.resolve().unwrap(), &Hostname::new("n1"));
    let understood = from_message(&message, &raw(&[("iptablesbackend", "legacy")])).resolve().unwrap();
    assert_eq!(understood.raw["IptablesBackend"], "legacy");
    assert_eq!(understood.raw["thirdparty"], "x");
}

#[test]
fn values_without_their_sources_count_too() {
    let config = raw(&[("FelixHostname", "n2"), ("LogPrefix", "p")]);
    let message = felix::ConfigUpdate { config, ..felix::ConfigUpdate::default() };
    let understood = from_message(&message, &raw(&[("logprefix", "mine")])).resolve().unwrap();
    assert_eq!((understood.config.felix_hostname.as_str(), understood.config.log_prefix.as_str()), ("n2", "mine"));
}

#[test]
fn the_driver_leaves_the_same_routes_to_bird() {
    let mut sources = Sources::default();
    sources.set_bird_routes(true);
    sources.set(ConfigSource::DatastoreGlobal, Raw::new());
    let resolved = sources.resolve().unwrap();
    let message = to_message(&sources, &resolved, &Hostname::new("n1"));
    let understood = from_message(&message, &Raw::new()).resolve().unwrap();
    assert_eq!(understood.config.program_cluster_routes, ProgramClusterRoutes::Disabled);
    assert_eq!(understood.config.program_cluster_routes, resolved.config.program_cluster_routes);
}
