//! Any configuration is accepted or rejected with a reason, and the effective values give the same
//! configuration again.

use tortie_config::{Notice, Raw, Resolved, Sources, from_environment, from_file_text};
use tortie_model::desired::ConfigSource;

/// Parameters with structured values.
const STRUCTURED: [&str; 16] = [
    "ChainInsertMode",
    "DeviceRouteProtocol",
    "DeviceRouteSourceAddressIPv6",
    "FailsafeInboundHostPorts",
    "HealthHost",
    "HealthTimeoutOverrides",
    "InterfaceExclude",
    "InterfacePrefix",
    "IptablesLockProbeIntervalMillis",
    "IptablesMarkMask",
    "IptablesNATOutgoingInterfaceFilter",
    "IptablesRefreshInterval",
    "LogActionRateLimit",
    "MaxIpsetSize",
    "NATOutgoingAddress",
    "NATPortRange",
];

/// The first byte chooses a structured parameter with the rest as its value, or none with the rest
/// as a file.
pub(crate) fn check(data: &[u8]) {
    let (&first, rest) = data.split_first().unwrap_or((&u8::MAX, &[]));
    let text = String::from_utf8_lossy(rest);
    let raw = match STRUCTURED.get(usize::from(first)) {
        Some(name) => Raw::from([((*name).to_owned(), text.into_owned())]),
        None => match from_file_text(&text) {
            Ok(raw) => raw,
            Err(error) => return assert!(!error.to_string().is_empty()),
        },
    };
    let as_variables = from_environment(raw.iter().map(|(name, value)| (format!("FELIX_{name}"), value.clone())));
    let from_environment = resolve(as_variables.clone(), ConfigSource::Environment);
    let from_file = resolve(raw.clone(), ConfigSource::ConfigFile);
    // Names in files that differ only in case are distinct, and the last one applies.
    if let (Ok(file), Ok(environment)) = (&from_file, &from_environment)
        && as_variables.len() == raw.len()
    {
        assert_eq!(shown(file), shown(environment));
    }
    // Parameters that only the node itself may set are ignored from other sources, so fewer errors
    // are possible.
    let from_datastore = resolve(raw, ConfigSource::DatastoreGlobal);
    assert!(from_datastore.is_ok() || from_file.is_err());

    if let Ok(resolved) = from_file {
        for notice in &resolved.notices {
            if let Notice::Bad { why, .. } = notice {
                assert!(!why.is_empty());
            }
            assert!(!notice.to_string().is_empty());
        }
        let again = resolve(resolved.raw.clone(), ConfigSource::ConfigFile).expect("the effective values are valid");
        assert_eq!(shown(&again), shown(&resolved));
        assert_eq!(again.effective(), resolved.effective());
    }
}

fn resolve(raw: Raw, source: ConfigSource) -> Result<Resolved, String> {
    let mut sources = Sources::default();
    sources.set(source, raw);
    sources.resolve().map_err(|error| error.to_string())
}

/// Formats the configuration, whose patterns cannot be compared otherwise.
fn shown(resolved: &Resolved) -> String {
    format!("{:?}", resolved.config)
}
