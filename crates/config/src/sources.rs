//! Sources of configuration.

use std::collections::BTreeMap;
use std::sync::Arc;

use tortie_model::desired::{ConfigSource, ConfigUpdate};
use tortie_parameters::BadValue;

use super::params::{Config, PARAMS, Param};

/// The raw values of one source, by name as the source spells it. Empty values do not count.
pub type Raw = BTreeMap<String, String>;

/// Option with which workloads are identified by address, as it is given.
pub const BY_ADDRESS: &str = "--workloads by-address";

/// Value of `InterfacePrefix` with that option, unless it is set to something else than its
/// default: prefixes of interface names that other CNI plugins give.
pub const PREFIXES_BY_ADDRESS: [&str; 2] = ["veth", "cni"];

/// The raw values of all sources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    by_source: BTreeMap<ConfigSource, Raw>,
    /// The datastore's last valid values of the parameters that the program needs.
    last_valid: BTreeMap<&'static str, String>,
    /// Lines of the configuration file that set nothing.
    pub(super) idle_lines: Vec<IdleLine>,
    /// Whether `--workloads by-address` is given, which concerns parameters as well.
    pub(super) by_address: bool,
    /// Whether BIRD programs routes by `tunl0`.
    pub(super) has_bird_routes: bool,
}

/// A configuration file that is no INI file: the flaw, with its line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FileError(String);

/// A line of a configuration file that sets nothing, since it has no `=`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdleLine {
    /// Its number, from one.
    pub number: usize,
    /// Its text.
    pub text: String,
}

impl Sources {
    /// Replaces the values of one source.
    pub fn set(&mut self, source: ConfigSource, raw: Raw) {
        let raw = raw.into_iter().filter(|(_, value)| !value.is_empty()).collect();
        self.by_source.insert(source, raw);
    }

    /// Replaces the values of the configuration file, by its text in Felix's INI format; sections
    /// have no meaning, the last value wins.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn set_file(&mut self, text: &str) -> Result<(), FileError> {
        self.set(ConfigSource::ConfigFile, from_file_text(text)?);
        let is_idle = |line: &str| !line.is_empty() && !line.starts_with(['#', ';', '[']) && !line.contains(['=', ':']);
        let lines = (1..).zip(text.lines().map(str::trim)).filter(|(_, line)| is_idle(line));
        self.idle_lines = lines.map(|(number, line)| IdleLine { number, text: line.to_owned() }).collect();
        Ok(())
    }

    /// Sets whether workloads are identified by address (`--workloads by-address`).
    #[must_use]
    pub fn by_address(self, by_address: bool) -> Self {
        Self { by_address, ..self }
    }

    /// Sets whether BIRD programs routes by `tunl0`. The default of `ProgramClusterRoutes` is then
    /// `Disabled` if the cluster's version of Calico is unknown.
    pub fn set_bird_routes(&mut self, has_bird_routes: bool) {
        self.has_bird_routes = has_bird_routes;
    }

    /// Replaces the values of the datastore. Valid values of parameters that the program needs stay
    /// known, in case that invalid ones take their place.
    pub fn set_datastore(&mut self, update: &ConfigUpdate) {
        for param in PARAMS.iter().filter(|param| param.row.refuses_none || param.row.bad_value == BadValue::Fatal) {
            match self.in_datastore(param).map(str::to_owned) {
                Some(value) if param.assign(&mut Config::default(), &value).is_ok() => {
                    self.last_valid.insert(param.row.name, value);
                }
                Some(_) => {}
                None => {
                    self.last_valid.remove(param.row.name);
                }
            }
        }
        let owned = |raw: &BTreeMap<Arc<str>, Arc<str>>| {
            raw.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
        };
        self.set(ConfigSource::DatastoreGlobal, owned(&update.global));
        self.set(ConfigSource::DatastorePerSelector, owned(&update.selector));
        self.set(ConfigSource::DatastorePerHost, owned(&update.host));
    }

    fn in_datastore(&self, param: &Param) -> Option<&str> {
        let mut values = self.iter().rev().filter(|(source, _)| !is_local(*source)).flat_map(|(_, raw)| raw);
        values.find(|(name, _)| name.eq_ignore_ascii_case(param.row.name)).map(|(_, value)| value.as_str())
    }

    /// Returns the value that takes the place of an invalid one of the datastore.
    pub(super) fn last_valid(&self, param: &Param) -> Option<&str> {
        self.last_valid.get(param.row.name).map(String::as_str)
    }

    /// Returns the values of each source, the weakest first.
    #[must_use]
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (ConfigSource, &Raw)> {
        self.by_source.iter().map(|(source, raw)| (*source, raw))
    }
}

pub(super) fn is_local(source: ConfigSource) -> bool {
    matches!(source, ConfigSource::ConfigFile | ConfigSource::Environment | ConfigSource::InternalOverride)
}

/// The parameters among environment variables: those whose names begin with `FELIX_`, in any case.
pub fn from_environment(variables: impl IntoIterator<Item = (String, String)>) -> Raw {
    const PREFIX: &str = "felix_";
    variables
        .into_iter()
        .filter_map(|(name, value)| {
            let name = name.to_ascii_lowercase();
            name.strip_prefix(PREFIX).map(|name| (name.to_owned(), value))
        })
        .collect()
}

/// The parameters of a configuration file in Felix's INI format; sections have no meaning, the last
/// value wins.
///
/// # Errors
/// [`FileError`].
pub fn from_file_text(text: &str) -> Result<Raw, FileError> {
    let sections = configparser::ini::Ini::new_cs().read(text.into()).map_err(FileError)?;
    let mut raw = Raw::new();
    for (name, value) in sections.into_values().flatten() {
        raw.insert(name, value.unwrap_or_default());
    }
    Ok(raw)
}

#[cfg(test)]
mod tests;
