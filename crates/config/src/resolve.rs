//! Resolution of raw values to the configuration in force.

use std::collections::BTreeMap;
use std::fmt;

use tortie_model::desired::ConfigSource;
use tortie_parameters::{Parameter, Treatment, find, parameters};
use tortie_resources::manifest::ParameterRemark;
use tortie_resources::spelling;
use tortie_rules::Marks;

use super::params::{Config, NftablesMode, PARAMS, Param};
use super::parse;
use super::sources::BY_ADDRESS;
use super::sources::{IdleLine, Sources, is_local};
use super::versions::{Baseline, CLUSTER_ROUTES, CalicoVersion};

/// Notice to the operator about a configuration value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// No parameter has this name.
    Unknown {
        /// The name as written.
        name: String,
        /// Source of the value.
        source: ConfigSource,
        /// The parameter that may be meant.
        suggestion: Option<&'static str>,
    },
    /// Felix has this parameter; it has no effect here.
    NotUsed {
        /// The parameter.
        name: &'static str,
        /// Source of the value.
        source: ConfigSource,
        /// The reason.
        why: &'static str,
    },
    /// The value is valid, but its effect is missing here.
    NotDone {
        /// The parameter.
        name: &'static str,
        /// The value as written.
        value: String,
        /// Source of the value.
        source: ConfigSource,
        /// The missing part, and the behaviour instead.
        why: &'static str,
    },
    /// The value is invalid; the default is used.
    Bad {
        /// The parameter.
        name: &'static str,
        /// The value as written.
        value: String,
        /// Source of the value.
        source: ConfigSource,
        /// Flaw of the value.
        why: String,
        /// The default.
        default: String,
    },
    /// The datastore's value of a parameter that the program needs is invalid; another one is used.
    Fallback {
        /// The parameter.
        name: &'static str,
        /// The value as written.
        value: String,
        /// Source of the value.
        source: ConfigSource,
        /// Flaw of the value.
        why: String,
        /// The value that is used.
        instead: String,
        /// Whether this is the datastore's last valid value, and not the default.
        is_last_valid: bool,
    },
    /// The parameter may only be set on the node itself.
    LocalOnly {
        /// The parameter.
        name: &'static str,
        /// Source of the value.
        source: ConfigSource,
    },
    /// Another parameter leaves this one without an effect.
    Overruled {
        /// The parameter.
        name: &'static str,
        /// Source of the value.
        source: ConfigSource,
        /// The other parameter, as it is set.
        by: &'static str,
        /// The behaviour instead.
        why: &'static str,
    },
    /// `ProgramClusterRoutes` is `Disabled`: BIRD programs routes, and the cluster's version of
    /// Calico is unknown.
    RoutesOfBird,
    /// A line of the configuration file sets nothing.
    IdleLine(IdleLine),
}

impl Notice {
    /// Source of the value.
    #[must_use]
    pub fn source(&self) -> ConfigSource {
        match self {
            Self::Unknown { source, .. }
            | Self::NotUsed { source, .. }
            | Self::NotDone { source, .. }
            | Self::Bad { source, .. }
            | Self::Fallback { source, .. }
            | Self::Overruled { source, .. }
            | Self::LocalOnly { source, .. } => *source,
            Self::RoutesOfBird => ConfigSource::DatastoreGlobal,
            Self::IdleLine(_) => ConfigSource::ConfigFile,
        }
    }

    /// Whether the value is set on the node itself.
    #[must_use]
    pub fn is_local(&self) -> bool {
        is_local(self.source())
    }

    /// Returns the message, without the source and the name of the parameter.
    fn message(&self) -> String {
        match self {
            Self::Unknown { suggestion: Some(suggestion), .. } => {
                format!("there is no such parameter; is {suggestion} meant?")
            }
            Self::Unknown { suggestion: None, .. } => "there is no such parameter; ignored".into(),
            Self::NotUsed { why, .. } => format!("is a parameter of Felix that has no effect here: {why}"),
            Self::NotDone { value, why, .. } => format!("`{value}`: {why}"),
            Self::Bad { value, why, default, .. } => format!("{}; the default is used: {default}", fault(value, why)),
            Self::Fallback { value, why, instead, is_last_valid, .. } => {
                let which = if *is_last_valid { "last valid value stays in force" } else { "default is used" };
                format!("{}; the {which}: {instead}", fault(value, why))
            }
            Self::LocalOnly { .. } => "can only be set on the node itself; ignored".into(),
            Self::Overruled { by, why, .. } => format!("has no effect beside {by}: {why}"),
            Self::RoutesOfBird => {
                "has no value, and ClusterInformation names no version of Calico; routes by tunl0 are left to BIRD"
                    .to_owned()
            }
            Self::IdleLine(line) => format!("`{}` has no `=`; ignored", line.text),
        }
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = self.message();
        let name = match self {
            Self::Unknown { name, source: ConfigSource::Environment, suggestion } => {
                let hint = match suggestion {
                    Some(suggestion) => format!("is FELIX_{} meant?", suggestion.to_ascii_uppercase()),
                    None => "ignored".into(),
                };
                let name = name.to_ascii_uppercase();
                return write!(f, "environment variable FELIX_{name}: there is no such parameter; {hint}");
            }
            Self::Unknown { name, .. } => name,
            Self::NotUsed { name, .. }
            | Self::NotDone { name, .. }
            | Self::Bad { name, .. }
            | Self::Fallback { name, .. }
            | Self::Overruled { name, .. }
            | Self::LocalOnly { name, .. } => *name,
            Self::RoutesOfBird => CLUSTER_ROUTES,
            Self::IdleLine(line) => return write!(f, "config file: line {}: {message}", line.number),
        };
        let place = match self {
            Self::Bad { .. } | Self::Fallback { .. } => field_place(name, self.source()),
            _ => String::new(),
        };
        write!(f, "{}: {name}{place}: {message}", source_name(self.source()))
    }
}

/// Returns the field that sets a parameter, and its resource; empty for other sources.
fn field_place(name: &str, source: ConfigSource) -> String {
    let resource = match source {
        ConfigSource::DatastoreGlobal => "FelixConfiguration/default",
        ConfigSource::DatastorePerHost => "FelixConfiguration/node.NAME of this node",
        ConfigSource::DatastorePerSelector => "a FelixConfiguration that selects this node",
        _ => return String::new(),
    };
    let field = find(name).and_then(|parameter| parameter.field);
    field.map(|field| format!(" (spec.{} of {resource})", field.name)).unwrap_or_default()
}

/// An invalid value of a parameter that the program needs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {name}: {}", source_name(*.source_of_value), fault(.value, .why))]
pub struct ConfigError {
    /// The parameter.
    pub name: &'static str,
    /// The value as written.
    pub value: String,
    /// Source of the value.
    pub source_of_value: ConfigSource,
    /// Flaw of the value.
    pub why: String,
}

/// The configuration in force, and notices about it.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The configuration.
    pub config: Config,
    /// The raw values in force, by parameter name; names that are no parameters keep their
    /// spelling.
    pub raw: BTreeMap<String, String>,
    /// Notices to the operator.
    pub notices: Vec<Notice>,
    /// More notices, where `NFTablesMode=Auto` has chosen nftables.
    pub beside_nftables: Vec<Notice>,
    /// Whether routes of BIRD by `tunl0` would change the default of `ProgramClusterRoutes`
    /// ([`Sources::set_bird_routes`]).
    pub depends_on_bird: bool,
}

/// The spelling that Felix gives a parameter; a name that it does not know stays as it is.
#[must_use]
pub fn canonical_name(written: &str) -> &str {
    find(written).map_or(written, |parameter| parameter.name)
}

impl Resolved {
    /// The raw values of all parameters of Felix's, with or without an effect here. Other
    /// dataplanes may heed them.
    #[must_use]
    pub fn felix_values(&self) -> BTreeMap<&str, &str> {
        let is_felix =
            |name: &str| find(name).is_some_and(|parameter| !matches!(parameter.treatment, Treatment::Connection(_)));
        self.raw
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .filter(|(name, _)| is_felix(name))
            .collect()
    }

    /// The raw values of the parameters that have an effect, but for those that change while the
    /// program runs. Equal values make equal programs.
    #[must_use]
    pub fn effective(&self) -> BTreeMap<&str, &str> {
        let used = |name: &str| PARAMS.iter().any(|param| param.row.name == name);
        self.raw.iter().map(|(name, value)| (name.as_str(), value.as_str())).filter(|(name, _)| used(name)).collect()
    }
}

/// A source's name in messages (`felix/config/config_params.go`).
#[must_use]
pub fn source_name(source: ConfigSource) -> &'static str {
    match source {
        ConfigSource::Default => "default",
        ConfigSource::DatastoreGlobal => "datastore (global)",
        ConfigSource::DatastorePerSelector => "datastore (per-node-selector)",
        ConfigSource::DatastorePerHost => "datastore (per-host)",
        ConfigSource::ConfigFile => "config file",
        ConfigSource::Environment => "environment variable",
        ConfigSource::InternalOverride => "internal override",
    }
}

impl Sources {
    /// Returns the node's own value of a parameter that configures the connection to a datastore.
    #[must_use]
    pub fn local(&self, name: &str) -> Option<&str> {
        let strongest = self.iter().rev().filter(|(source, _)| is_local(*source));
        let mut values = strongest.flat_map(|(_, raw)| raw);
        values.find(|(written, _)| written.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// Parses every value of every source; the highest source that names a parameter decides it.
    ///
    /// # Errors
    /// [`ConfigError`] for an invalid value of a parameter that the program needs, if the node
    /// itself sets it. For one of the datastore the last valid value, or the default, is used.
    #[expect(clippy::expect_used, reason = "a test reads each former default")]
    pub fn resolve(&self) -> Result<Resolved, ConfigError> {
        let mut config = Config::default();
        let mut raw = BTreeMap::new();
        let mut set_at: BTreeMap<&'static str, ConfigSource> = BTreeMap::new();
        let mut notices: Vec<Notice> = self.idle_lines.iter().cloned().map(Notice::IdleLine).collect();
        let baseline = self.baseline();
        for default in baseline.former_defaults() {
            let param =
                PARAMS.iter().find(|p| p.row.name == default.name).expect("former defaults are of parameters here");
            set_default(&mut config, param, baseline);
            raw.insert(default.name.to_owned(), default.value.to_owned());
        }
        // From the weakest source to the strongest, so that the strongest is written last.
        for (source, values) in self.iter() {
            for (written, value) in values {
                let Some(param) = PARAMS.iter().find(|p| p.row.name.eq_ignore_ascii_case(written)) else {
                    match find(written) {
                        Some(parameter) => notices.extend(unheeded(parameter, value, source)),
                        None => notices.push(Notice::Unknown {
                            name: written.clone(),
                            source,
                            suggestion: closest_parameter(written),
                        }),
                    }
                    raw.insert(canonical_name(written).to_owned(), value.clone());
                    continue;
                };
                if param.row.is_local && !is_local(source) {
                    notices.push(Notice::LocalOnly { name: param.row.name, source });
                    continue;
                }
                match self.assign(&mut config, param, (value, source), baseline, &mut notices)? {
                    Some(value) => raw.insert(param.row.name.to_owned(), value.to_owned()),
                    None => raw.remove(param.row.name),
                };
                set_at.insert(param.row.name, source);
            }
        }
        for (name, notice) in narrow_marks(&mut config, &set_at, &raw) {
            raw.remove(name);
            notices.push(notice);
        }
        notices.extend(overruled(&config, &set_at));
        if self.overrules_prefix(&config)
            && let Some(source) = set_at.get("InterfacePrefix").copied()
        {
            let why = "interfaces whose names begin with veth or cni are closed to unknown workloads";
            notices.push(Notice::Overruled { name: "InterfacePrefix", source, by: BY_ADDRESS, why });
        }
        let has_datastore = self.iter().any(|(source, _)| source == ConfigSource::DatastoreGlobal);
        let is_by_default = has_datastore && !set_at.contains_key(CLUSTER_ROUTES);
        if matches!(baseline, Baseline::UnknownWithBird) && is_by_default {
            notices.push(Notice::RoutesOfBird);
        }
        let depends_on_bird = matches!(baseline, Baseline::Unknown) && is_by_default;
        let beside_nftables = match config.nftables_mode {
            NftablesMode::Auto => overruled_by_nftables(&config, &set_at, BY_AUTO),
            _ => Vec::new(),
        };
        Ok(Resolved { config, raw, notices, beside_nftables, depends_on_bird })
    }
}

impl Sources {
    /// Returns the version of Calico that the cluster's `ClusterInformation` names, or the
    /// assumption in its place.
    fn baseline(&self) -> Baseline {
        let global = self.iter().find(|(source, _)| *source == ConfigSource::DatastoreGlobal);
        match global.and_then(|(_, raw)| CalicoVersion::read(raw.get("CalicoVersion")?)) {
            Some(version) => Baseline::Version(version),
            None if self.has_bird_routes => Baseline::UnknownWithBird,
            None => Baseline::Unknown,
        }
    }

    /// Whether the prefixes for workloads that are identified by address take the place of
    /// `InterfacePrefix`.
    #[must_use]
    pub fn overrules_prefix(&self, config: &Config) -> bool {
        self.by_address && config.interface_prefix == Config::default().interface_prefix
    }
}

/// Gives the datastore's mark masks without a bit for `WireGuard` their default, if it is enabled.
fn narrow_marks(
    config: &mut Config,
    set_at: &BTreeMap<&'static str, ConfigSource>,
    raw: &BTreeMap<String, String>,
) -> Vec<(&'static str, Notice)> {
    let masks = [("IptablesMarkMask", config.iptables_mark_mask), ("NftablesMarkMask", config.nftables_mark_mask)];
    if !config.wireguard_enabled && !config.wireguard_enabled_v6 {
        return Vec::new();
    }
    let mut notices = Vec::new();
    for (name, mask) in masks {
        let (Err(error), Some(source), Some(value)) =
            (Marks::allocate(mask, true, false), set_at.get(name).copied(), raw.get(name).cloned())
        else {
            continue;
        };
        if let Some(param) = PARAMS.iter().find(|param| param.row.name == name && !is_local(source)) {
            let why = format!("must have at least {} bits set with WireGuard", error.needed);
            let instead = set_default(config, param, Baseline::Unknown);
            notices.push((name, Notice::Fallback { name, value, source, why, instead, is_last_valid: false }));
        }
    }
    notices
}

/// Returns notices about parameters that are set, and that others leave without an effect.
fn overruled(config: &Config, set_at: &BTreeMap<&'static str, ConfigSource>) -> Vec<Notice> {
    if config.nftables_mode != NftablesMode::Enabled {
        return Vec::new();
    }
    overruled_by_nftables(config, set_at, "NFTablesMode=Enabled")
}

const BY_AUTO: &str = "NFTablesMode=Auto, which follows kube-proxy to nftables";

/// Returns notices about parameters that are set, and that have no effect where nftables is
/// programmed.
fn overruled_by_nftables(
    config: &Config,
    set_at: &BTreeMap<&'static str, ConfigSource>,
    by: &'static str,
) -> Vec<Notice> {
    const SETS: &str = "sets are read together with their table, as often as NftablesRefreshInterval says";
    const FEATURES: &str = "nothing depends on the features of iptables, and only ChecksumOffloadBroken counts";
    let defaults = Config::default();
    let pieces = config.feature_detect_override.split(',').map(str::trim).filter(|piece| !piece.is_empty());
    let mut of_iptables = pieces.filter(|piece| !piece.starts_with("ChecksumOffloadBroken"));
    let cases = [
        (config.ipsets_refresh_interval != defaults.ipsets_refresh_interval, "IpsetsRefreshInterval", SETS),
        (of_iptables.next().is_some(), "FeatureDetectOverride", FEATURES),
    ];
    let notice = |(is_so, name, why): (bool, &'static str, &'static str)| {
        let source = *set_at.get(name).filter(|_| is_so)?;
        Some(Notice::Overruled { name, source, by, why })
    };
    cases.into_iter().filter_map(notice).collect()
}

/// Returns the notice about a parameter that no field of the configuration is made from, if there
/// is one.
fn unheeded(parameter: &Parameter, value: &str, source: ConfigSource) -> Option<Notice> {
    let name = parameter.name;
    match parameter.treatment {
        Treatment::Connection(_) => (!is_local(source)).then_some(Notice::LocalOnly { name, source }),
        Treatment::NotUsed(why) => {
            let is_asked_for = differs_from_default(parameter, value) && asks_for_something(value);
            is_asked_for.then_some(Notice::NotUsed { name, source, why })
        }
        Treatment::Description | Treatment::OfNodes(_) | Treatment::Used(_) | Treatment::Own(_) => None,
    }
}

impl Sources {
    /// Sets a parameter. Returns the raw value that it has then; `None` for the default in place of
    /// an invalid value.
    #[expect(clippy::expect_used, reason = "a last valid value was assigned before")]
    fn assign<'v>(
        &'v self,
        config: &mut Config,
        param: &Param,
        (value, source): (&'v str, ConfigSource),
        baseline: Baseline,
        notices: &mut Vec<Notice>,
    ) -> Result<Option<&'v str>, ConfigError> {
        let name = param.row.name;
        let Err(refusal) = param.assign(config, value) else {
            if let Some(why) = not_done(name, value) {
                notices.push(Notice::NotDone { name, value: value.into(), source, why });
            }
            return Ok(Some(value));
        };
        let (why, value_as_written) = (refusal.to_string(), value.to_owned());
        if !param.is_fatal(value) {
            let default = set_default(config, param, baseline);
            notices.push(Notice::Bad { name, value: value_as_written, source, why, default });
            return Ok(Some(value));
        }
        if is_local(source) {
            return Err(ConfigError { name, value: value_as_written, source_of_value: source, why });
        }
        let last_valid = self.last_valid(param);
        let instead = match last_valid {
            Some(last) => {
                param.assign(config, last).expect("a last valid value is valid");
                last.to_owned()
            }
            None => set_default(config, param, baseline),
        };
        let is_last_valid = last_valid.is_some();
        notices.push(Notice::Fallback { name, value: value_as_written, source, why, instead, is_last_valid });
        Ok(last_valid)
    }
}

/// Sets a parameter to its default. Returns the default.
#[expect(clippy::expect_used, reason = "a test reads each former default")]
fn set_default(config: &mut Config, param: &Param, baseline: Baseline) -> String {
    let former = baseline.former_defaults().find(|default| default.name == param.row.name);
    if let Some(default) = former {
        (param.set)(config, default.value).expect("former defaults are valid values");
        return default.value.to_owned();
    }
    (param.reset)(config);
    param.default()
}

/// Returns the missing part and the behaviour instead, for a valid value without its effect.
fn not_done(name: &str, value: &str) -> Option<&'static str> {
    match name {
        "PolicySyncPathPrefix" if !cfg!(feature = "policysync") && !matches!(value, "" | "none") => {
            Some("the policy sync API is missing from this build: built without `policysync` (see `tortie version`)")
        }
        "FlowLogsGoldmaneServer" if cfg!(not(feature = "goldmane")) && !value.is_empty() => {
            Some("the Goldmane client is missing from this build: built without `goldmane` (see `tortie version`)")
        }
        _ => None,
    }
}

/// Returns whether a value differs from the default. Booleans and numbers are compared by value,
/// other kinds as text.
fn differs_from_default(parameter: &Parameter, value: &str) -> bool {
    let (value, default) = (value.trim(), parameter.default);
    match parameter.kind.split('(').next().unwrap_or_default() {
        "bool" | "*bool" => parse::boolean(value) != parse::boolean(default),
        "int" | "seconds" | "millis" => match (number(value), number(default)) {
            (Some(value), Some(default)) => (value - default).abs() > f64::EPSILON,
            _ => true,
        },
        _ if value.eq_ignore_ascii_case("none") => !default.is_empty(),
        _ => !value.eq_ignore_ascii_case(default),
    }
}

fn number(text: &str) -> Option<f64> {
    if text.is_empty() || text.eq_ignore_ascii_case("none") { Some(0.0) } else { text.parse().ok() }
}

/// Whether a parameter that has no effect is set to another value than off.
fn asks_for_something(value: &str) -> bool {
    !["false", "disabled", "none", "off", "no", "0", "0s"].iter().any(|off| value.eq_ignore_ascii_case(off))
}

/// Describes the flaw of a value, which is named once.
fn fault(value: &str, why: &str) -> String {
    match why.strip_prefix('`') {
        None => format!("`{value}` {why}"),
        // The text names the whole value already, or its invalid part.
        Some(named) if named.starts_with(&format!("{value}`")) => why.to_owned(),
        Some(_) => format!("`{value}`: {why}"),
    }
}

/// The parameter that a name most likely stands for.
fn closest_parameter(written: &str) -> Option<&'static str> {
    let has_effect = |parameter: &&Parameter| {
        matches!(parameter.treatment, Treatment::Used(_) | Treatment::Own(_) | Treatment::Connection(_))
    };
    let known: Vec<&'static str> = parameters().iter().filter(has_effect).map(|parameter| parameter.name).collect();
    spelling::closest(written, &known)
}

/// Returns the problem of a parameter that the datastore sets; for
/// [`ParameterCheck`](tortie_resources::manifest::ParameterCheck).
#[must_use]
#[expect(clippy::expect_used, reason = "only values of the node itself are errors")]
pub fn validate_parameter(name: &str, value: &str) -> Option<ParameterRemark> {
    let mut sources = Sources::default();
    sources.set(ConfigSource::DatastoreGlobal, [(name.to_owned(), value.to_owned())].into());
    let resolved = sources.resolve().expect("a value of the datastore is replaced");
    // Calicoctl refuses such a value, used or not.
    if let Some(Err(refusal)) =
        find(name).filter(|parameter| parameter.kind.starts_with("regexp")).map(|_| parse::regex(value))
        && !resolved.notices.iter().any(|notice| matches!(notice, Notice::Bad { .. }))
    {
        let instead = "it has no effect here".to_owned();
        return Some(ParameterRemark::Invalid { flaw: fault(value, &refusal.to_string()), instead });
    }
    let notice = resolved.notices.first()?;
    Some(match notice {
        Notice::Bad { value, why, default, .. } => {
            let instead = format!("the default is used: {default}");
            ParameterRemark::Invalid { flaw: fault(value, why), instead }
        }
        Notice::Fallback { value, why, instead, .. } => {
            let instead = format!("a running agent keeps its last valid value, others use the default: {instead}");
            ParameterRemark::Invalid { flaw: fault(value, why), instead }
        }
        _ => ParameterRemark::NoEffect(notice.message()),
    })
}

#[cfg(test)]
mod tests;
