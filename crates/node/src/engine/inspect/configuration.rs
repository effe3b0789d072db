//! Parameters with their values and sources.

use tortie_config::{BY_ADDRESS, Notice, PREFIXES_BY_ADDRESS, Resolved, Sources, default_of, source_name};
use tortie_model::desired::ConfigSource;
use tortie_parameters::Treatment;

use super::answers::{Configuration, Parameter, SetValue};

pub(in crate::engine) fn of(sources: &Sources, resolved: &Resolved) -> Configuration {
    let mut parameters: Vec<Parameter> = tortie_parameters::parameters()
        .iter()
        .map(|felix| {
            let default = default_of(felix.name).unwrap_or_else(|| shown(felix.default));
            let mut set: Vec<(ConfigSource, SetValue)> = Vec::new();
            // The strongest first.
            for (source, raw) in sources.iter().rev() {
                let written = raw.iter().filter(|(name, _)| name.eq_ignore_ascii_case(felix.name));
                let is_heeded = !is_refused(resolved, felix.name, source);
                set.extend(written.filter(|_| is_heeded).map(|(_, value)| {
                    (source, SetValue { source: source_name(source).to_owned(), value: value.clone() })
                }));
            }
            if felix.name == "InterfacePrefix" && sources.overrules_prefix(&resolved.config) {
                let written = set.is_empty().then(|| (ConfigSource::Default, default_value(&default)));
                return Parameter {
                    name: felix.name.to_owned(),
                    value: PREFIXES_BY_ADDRESS.join(","),
                    source: BY_ADDRESS.to_owned(),
                    overridden: set.into_iter().chain(written).map(|(_, value)| value).collect(),
                    used: true,
                };
            }
            let mut set = set.into_iter();
            let (source, value) = match set.next() {
                None => (source_name(ConfigSource::Default).to_owned(), default),
                Some((source, SetValue { value, .. })) => {
                    let value = instead(resolved, felix.name, source).map_or(value, str::to_owned);
                    (source_name(source).to_owned(), value)
                }
            };
            Parameter {
                name: felix.name.to_owned(),
                value,
                source,
                overridden: set.map(|(_, value)| value).collect(),
                used: !matches!(felix.treatment, Treatment::NotUsed(_) | Treatment::Description),
            }
        })
        .collect();
    parameters.sort_by(|a, b| a.name.cmp(&b.name));
    Configuration { parameters, notices: resolved.notices.iter().map(ToString::to_string).collect() }
}

fn default_value(value: &str) -> SetValue {
    SetValue { source: source_name(ConfigSource::Default).to_owned(), value: value.to_owned() }
}

fn shown(default: &str) -> String {
    if default.is_empty() { "none".into() } else { default.to_owned() }
}

/// Whether the value has no effect because of its source.
fn is_refused(resolved: &Resolved, name: &str, at: ConfigSource) -> bool {
    resolved
        .notices
        .iter()
        .any(|notice| matches!(notice, Notice::LocalOnly { name: n, source } if *n == name && *source == at))
}

/// Returns the value in place of an invalid one.
fn instead<'r>(resolved: &'r Resolved, name: &str, at: ConfigSource) -> Option<&'r str> {
    resolved.notices.iter().find_map(|notice| match notice {
        Notice::Bad { name: n, source, default: instead, .. } | Notice::Fallback { name: n, source, instead, .. } => {
            (*n == name && *source == at).then_some(instead.as_str())
        }
        _ => None,
    })
}
