//! Configuration in messages.

use std::collections::BTreeMap;

use tortie_model::Hostname;
use tortie_model::desired::ConfigSource;
use tortie_protocol::felix;

use tortie_config::{Notice, Raw, Resolved, Sources, source_name};

const SOURCES: [ConfigSource; 7] = [
    ConfigSource::Default,
    ConfigSource::DatastoreGlobal,
    ConfigSource::DatastorePerSelector,
    ConfigSource::DatastorePerHost,
    ConfigSource::ConfigFile,
    ConfigSource::Environment,
    ConfigSource::InternalOverride,
];

const HOSTNAME: &str = "FelixHostname";

/// Values of every source and effective values, with the node's name: the driver could find only
/// the machine's.
pub(super) fn to_message(sources: &Sources, resolved: &Resolved, node: &Hostname) -> felix::ConfigUpdate {
    let mut message = felix::ConfigUpdate { config: resolved.raw.clone(), ..felix::ConfigUpdate::default() };
    for (source, raw) in sources.iter() {
        let raw = felix::RawConfig { source: source_name(source).to_owned(), config: raw.clone() };
        message.source_to_raw_config.insert(source as u32, raw);
    }
    // Felix's drivers end at a value that they cannot read.
    for notice in &resolved.notices {
        if let Notice::Fallback { name, source, instead, .. } = notice
            && let Some(raw) = message.source_to_raw_config.get_mut(&(*source as u32))
        {
            raw.config.retain(|written, _| !written.eq_ignore_ascii_case(name));
            raw.config.insert((*name).to_owned(), instead.clone());
        }
    }
    // This default depends on the machine, and the driver resolves the sources itself.
    if resolved.notices.contains(&Notice::RoutesOfBird)
        && let Some(raw) = message.source_to_raw_config.get_mut(&(ConfigSource::DatastoreGlobal as u32))
    {
        let name = "ProgramClusterRoutes";
        raw.config.extend(resolved.raw.get(name).map(|value| (name.to_owned(), value.clone())));
    }
    let internal = message.source_to_raw_config.entry(ConfigSource::InternalOverride as u32).or_insert_with(|| {
        felix::RawConfig { source: source_name(ConfigSource::InternalOverride).to_owned(), config: BTreeMap::new() }
    });
    internal.config.insert(HOSTNAME.to_owned(), node.to_string());
    message.config.insert(HOSTNAME.to_owned(), node.to_string());
    message
}

/// Returns a driver's configuration: the values of each source in the message, and the driver's own
/// environment, which overrides that of the engine. A message with effective values only counts as
/// a configuration file.
pub(super) fn from_message(message: &felix::ConfigUpdate, environment: &Raw) -> Sources {
    let mut sources = Sources::default();
    let mut merged = environment.clone();
    for (number, raw) in &message.source_to_raw_config {
        let Some(source) = SOURCES.into_iter().find(|source| *source as u32 == *number) else {
            tracing::warn!(source = raw.source, number, "ignoring an unknown source of configuration");
            continue;
        };
        if source == ConfigSource::Environment {
            for (name, value) in &raw.config {
                let name = name.to_ascii_lowercase();
                merged.entry(name).or_insert_with(|| value.clone());
            }
        } else {
            sources.set(source, raw.config.clone());
        }
    }
    if message.source_to_raw_config.is_empty() {
        sources.set(ConfigSource::ConfigFile, message.config.clone());
    }
    sources.set(ConfigSource::Environment, merged);
    sources
}

#[cfg(test)]
mod tests;
