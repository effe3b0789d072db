use tortie_config::{Raw, Sources};
use tortie_model::desired::ConfigSource;

use super::*;

fn config(pairs: &[(&str, &str)]) -> Config {
    let mut sources = Sources::default();
    let raw: Raw = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    sources.set(ConfigSource::Environment, raw);
    sources.resolve().unwrap().config
}

#[cfg(feature = "goldmane")]
#[test]
fn flows_go_to_goldmane_and_to_the_local_socket() {
    let receivers =
        |pairs: &[(&str, &str)]| FlowSettings::of(&config(pairs)).unwrap().map(|settings| settings.receivers);
    let address = ("FlowLogsGoldmaneServer", "goldmane:7443");
    let server = |tls| Receiver::Server { address: "goldmane:7443".to_owned(), tls };
    let socket = Receiver::Socket("/var/run/calico/flows/flows.sock".into());
    assert_eq!(receivers(&[]), None);
    assert_eq!(receivers(&[address]), Some(vec![server(None)]));
    assert_eq!(receivers(&[address, ("FlowLogsLocalReporter", "Enabled")]), Some(vec![server(None), socket]));
    let tls = TlsFiles { authority: "/ca".into(), certificate: "/cert".into(), key: "".into() };
    let files = [address, ("TyphaCAFile", "/ca"), ("TyphaCertFile", "/cert")];
    assert_eq!(receivers(&files), Some(vec![server(Some(tls))]));
    assert_eq!(receivers(&[("FlowLogsGoldmaneServer", "goldmane")]), None, "no address");
    assert!(settings::rules(&config(&[address])).unwrap().flow_logs, "rules log");
}

#[test]
fn flows_are_collected_where_configured() {
    let flows = |pairs: &[(&str, &str)]| {
        let config = config(pairs);
        let flows = FlowSettings::of(&config).unwrap();
        let reports_flows = flows.as_ref().is_some_and(|flows| flows.reports_flows);
        assert_eq!(settings::rules(&config).unwrap().flow_logs, reports_flows, "{pairs:?}");
        flows
    };
    assert_eq!(flows(&[("FlowLogsFlushInterval", "7")]), None);
    let local = flows(&[("FlowLogsLocalReporter", "Enabled"), ("FlowLogsFlushInterval", "7")]).unwrap();
    assert_eq!((local.flush_interval, local.previews, local.file), (Duration::from_secs(7), true, None));
    let file = flows(&[
        ("FlowLogsFile", "/f"),
        ("FlowLogsFileMaxSizeMB", "3"),
        ("FlowLogsFileMaxFiles", "2"),
        ("FlowLogsPolicyEvaluationMode", "None"),
        ("FlowLogsFlushInterval", "0"),
    ])
    .unwrap();
    assert_eq!(file.file, Some(FlowFile { path: "/f".into(), max_size: 3 << 20, max_files: 2 }));
    assert_eq!((file.flush_interval, file.previews), (Duration::from_secs(1), false));
    assert_eq!((file.reports_flows, file.log_rules), (true, None));
    // With eBPF programs the collector writes the lines of rules that log.
    let limit = [("BPFEnabled", "true"), ("LogPrefix", "dropped"), ("LogActionRateLimit", "7/minute")];
    let lines = flows(&limit).unwrap();
    let log = lines.log_rules.unwrap();
    assert_eq!((lines.reports_flows, log.prefix.as_str()), (false, "dropped"));
    assert_eq!(log.limit, Some(("7/minute".parse().unwrap(), Some(5))));
}
