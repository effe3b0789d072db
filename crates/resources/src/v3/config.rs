//! Configuration resources: `FelixConfiguration` and `BGPConfiguration`.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use tortie_model::{BgpConfiguration, ConfigName, Family, HostConfigKey, Hostname, ScopedConfig, Update};
use tortie_parameters::{FieldForm, of_field};
use tortie_selector::Selector;

use crate::object::{Contributions, Kind, Object};
use crate::scalar;
use crate::tree::{Content, Cursor, Map, ParameterRemark, Sink};

/// Prefix of parameter names in annotations.
pub(crate) const OVERRIDE: &str = "config.projectcalico.org/";

/// Returns the parameters of a `FelixConfiguration`: those of its fields, overridden by those of
/// its annotations. An unknown field is reported as a warning; a plain value is passed on under its
/// name.
pub(super) fn felix_parameters(map: Map<'_, '_>, sink: &mut Sink) -> BTreeMap<ConfigName, Arc<str>> {
    let mut parameters = BTreeMap::new();
    if let Some(spec) = map.field("spec").and_then(|spec| spec.map(sink)) {
        for (name, cursor) in spec.fields() {
            if name == "nodeSelector" || matches!(cursor.content(), Content::Null) {
                continue;
            }
            let known = of_field(name);
            let (parameter, form) = match known {
                Some((parameter, form)) => (parameter.name.to_owned(), form),
                None => {
                    cursor.warn(sink, "is not a known parameter");
                    (capitalised(name), FieldForm::Scalar)
                }
            };
            let mut own = sink.apart();
            let value = stringify(form, cursor, &mut own).filter(|_| !own.has_errors());
            sink.adopt(own, false);
            if let Some(value) = value {
                if known.is_some()
                    && let Some(problem) = sink.parameters.0(&parameter, &value)
                {
                    report(problem, cursor, "", sink);
                }
                parameters.insert(ConfigName::new(parameter), Arc::from(value));
            }
        }
    }
    if let Some(metadata) = map.field("metadata").and_then(|metadata| metadata.map(sink))
        && let Some(annotations) = metadata.field("annotations")
    {
        for (name, value) in annotations.text_map(sink) {
            if let Some(parameter) = name.strip_prefix(OVERRIDE) {
                if let Some(problem) = sink.parameters.0(parameter, value) {
                    report(problem, annotations, &format!("{name}: "), sink);
                }
                parameters.insert(parameter.into(), value.into());
            }
        }
    }
    parameters
}

/// Reports the problem of a parameter. An object that is to be written has no invalid ones.
fn report(problem: ParameterRemark, cursor: Cursor<'_, '_>, place: &str, sink: &mut Sink) {
    match problem {
        ParameterRemark::Invalid { flaw, .. } if sink.for_writing => cursor.error(sink, format!("{place}{flaw}")),
        ParameterRemark::Invalid { flaw, instead } => cursor.warn(sink, format!("{place}{flaw}; {instead}")),
        // Other nodes may have Felix.
        ParameterRemark::NoEffect(_) if sink.for_writing => {}
        ParameterRemark::NoEffect(reason) => cursor.warn(sink, format!("{place}{reason}")),
    }
}

/// Returns whether the rest of a `FelixConfiguration` is used: Felix drops only a field that it
/// cannot read. The nodes for which it is must be known.
pub(crate) fn is_usable_config(kind: Kind, sink: &Sink) -> bool {
    let is_parameter = |field: &str| field.starts_with("spec.") && !field.starts_with("spec.nodeSelector");
    kind == Kind::FelixConfiguration
        && !sink.for_writing
        && sink.problems.errors().all(|problem| is_parameter(&problem.field))
}

/// Reads a `FelixConfiguration` for selected nodes. Without a selector it selects none.
pub(crate) fn scoped_config(map: Map<'_, '_>, sink: &mut Sink) -> ScopedConfig {
    let mut selector = Selector::none();
    if let Some(spec) = map.field("spec").and_then(|spec| spec.map(sink))
        && let Some(field) = spec.field("nodeSelector")
        && !matches!(field.content(), Content::Text(text) if text.is_empty())
        && let Some(parsed) = scalar::selector(field, sink)
    {
        selector = parsed;
    }
    let created = map
        .field("metadata")
        .and_then(|metadata| metadata.map(sink))
        .and_then(|metadata| metadata.text("creationTimestamp", sink).and_then(seconds_since_1970))
        .unwrap_or_default();
    ScopedConfig { selector, created, parameters: felix_parameters(map, sink).into_iter().collect() }
}

/// Reads the fields of a `BGPConfiguration` that the model keeps.
pub(crate) fn bgp_configuration(map: Map<'_, '_>, sink: &mut Sink) -> BgpConfiguration {
    let Some(spec) = map.field("spec").and_then(|spec| spec.map(sink)) else { return BgpConfiguration::default() };
    let mut cidrs = |name: &str| -> Box<[Arc<str>]> {
        spec.list(name, sink, |block, sink| {
            let map = block.map(sink)?;
            let cidr = map.text("cidr", sink)?;
            (!cidr.is_empty()).then(|| Arc::from(cidr))
        })
        .into()
    };
    BgpConfiguration {
        service_cluster_cidrs: cidrs("serviceClusterIPs"),
        service_external_cidrs: cidrs("serviceExternalIPs"),
        service_load_balancer_cidrs: cidrs("serviceLoadBalancerIPs"),
        local_workload_peering_ip_v4: spec.text_or_empty("localWorkloadPeeringIPV4", sink).into(),
        local_workload_peering_ip_v6: spec.text_or_empty("localWorkloadPeeringIPV6", sink).into(),
    }
}

/// Converts a `FelixConfiguration`: `default` applies to all nodes, `node.NAME` to one, any other
/// to the selected ones.
pub(crate) fn felix_configuration(object: &Object<'_, '_>, sink: &mut Sink) -> Option<Contributions> {
    let name = &*object.id.name;
    let host = name.strip_prefix("node.").filter(|host| !host.is_empty()).map(Hostname::from);
    if host.is_none() && name != "default" {
        let config = scoped_config(object.map, sink);
        return Some(vec![Update::ScopedConfig(name.into(), Some(config.into()))]);
    }
    let parameters = felix_parameters(object.map, sink);
    let parameter = |(name, value): (ConfigName, Arc<str>)| match &host {
        Some(host) => Update::HostConfig(HostConfigKey { host: host.clone(), name }, Some(value)),
        None => Update::GlobalConfig(name, Some(value)),
    };
    Some(parameters.into_iter().map(parameter).collect())
}

/// Converts the `ClusterInformation` named `default`
/// (`libcalico-go/lib/backend/syncersv1/updateprocessors/configurationprocessor.go`).
pub(crate) fn cluster_information(object: &Object<'_, '_>, sink: &mut Sink) -> Option<Contributions> {
    if &*object.id.name != "default" {
        object.root.warn(sink, "has no effect: only the one called `default` is used");
        return Some(Vec::new());
    }
    let mut contributions = Vec::new();
    if let Some(spec) = object.map.field("spec").and_then(|spec| spec.map(sink)) {
        spec.expect_only(&["clusterGUID", "clusterType", "calicoVersion", "datastoreReady", "variant"], sink);
        for (field, parameter) in [
            ("clusterGUID", "ClusterGUID"),
            ("clusterType", "ClusterType"),
            ("calicoVersion", "CalicoVersion"),
            ("variant", "Variant"),
        ] {
            if let Some(text) = spec.text(field, sink).filter(|text| !text.is_empty()) {
                contributions.push(Update::GlobalConfig(parameter.into(), Some(text.into())));
            }
        }
        if let Some(ready) = spec.field("datastoreReady").and_then(|ready| ready.boolean(sink)) {
            contributions.push(Update::Ready(Some(ready)));
        }
    }
    Some(contributions)
}

/// Converts a `BGPConfiguration`.
pub(crate) fn bgp_configuration_resource(object: &Object<'_, '_>, sink: &mut Sink) -> Option<Contributions> {
    let configuration = bgp_configuration(object.map, sink);
    Some(vec![Update::BgpConfiguration((&*object.id.name).into(), Some(configuration.into()))])
}

/// Reports whether a field of `FelixConfiguration` is a duration.
pub(crate) fn is_duration_of_felix(field: &str) -> bool {
    matches!(of_field(field), Some((_, FieldForm::Seconds | FieldForm::Milliseconds)))
}

fn capitalised(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

fn stringify(form: FieldForm, cursor: Cursor<'_, '_>, sink: &mut Sink) -> Option<String> {
    match form {
        FieldForm::Text => cursor.text(sink).filter(|text| !text.is_empty()).map(str::to_owned),
        FieldForm::Bool => cursor.boolean(sink).map(|value| value.to_string()),
        FieldForm::Int => cursor.int::<i64>(i64::MIN, i64::MAX, sink).map(|value| value.to_string()),
        FieldForm::Scalar => scalar::plain_text(cursor, sink).filter(|text| !text.is_empty()),
        FieldForm::Seconds => duration(cursor, sink).map(|nanoseconds| decimal(nanoseconds, 1e9)),
        FieldForm::Milliseconds => duration(cursor, sink).map(|nanoseconds| decimal(nanoseconds, 1e6)),
        FieldForm::List => Some(cursor.texts(sink).join(",")),
        FieldForm::Ports => {
            let mut ports = Vec::new();
            for port in cursor.items(sink) {
                ports.extend(scalar::plain_text(port, sink));
            }
            Some(ports.join(","))
        }
        FieldForm::ProtoPorts => {
            let mut ports = Vec::new();
            for port in cursor.items(sink) {
                ports.extend(proto_port(port, sink));
            }
            Some(if ports.is_empty() { "none".into() } else { ports.join(",") })
        }
        FieldForm::Range => range(cursor, sink),
        FieldForm::Ranges => {
            let mut ranges = Vec::new();
            for item in cursor.items(sink) {
                ranges.extend(range(item, sink));
            }
            Some(ranges.join(","))
        }
        FieldForm::HealthTimeouts => {
            let mut timeouts = Vec::new();
            for timeout in cursor.items(sink) {
                // A value of the wrong type has been reported.
                let Some(map) = timeout.map(sink) else { continue };
                let (name, field) = (map.text_or_empty("name", sink), map.field("timeout"));
                if let Some(field) = field
                    && duration(field, sink).is_some()
                    && let Some(text) = field.text(sink)
                {
                    timeouts.push(format!("{name}={text}"));
                }
            }
            (!timeouts.is_empty()).then(|| timeouts.join(","))
        }
        FieldForm::KeyValues => {
            let pairs = cursor.text_map(sink).into_iter().filter(|(_, value)| !value.is_empty());
            Some(pairs.map(|(name, value)| format!("{}={value}", capitalised(name))).collect::<Vec<_>>().join(","))
        }
        FieldForm::TextMap => {
            let mut pairs = cursor.text_map(sink);
            pairs.sort_unstable();
            Some(pairs.into_iter().map(|(name, value)| format!("{name}={value},")).collect())
        }
    }
}

fn proto_port(cursor: Cursor<'_, '_>, sink: &mut Sink) -> Option<String> {
    let map = cursor.map(sink)?;
    let Some(field) = map.field("protocol") else {
        map.missing("protocol", sink);
        return None;
    };
    let protocol = field.text(sink)?.to_ascii_lowercase();
    if !matches!(&*protocol, "tcp" | "udp" | "sctp") {
        field.error(sink, format!("`{protocol}` is none of TCP, UDP, SCTP"));
    }
    let Some(port) = map.field("port") else {
        map.missing("port", sink);
        return None;
    };
    let port: u16 = port.int(0, 65535, sink)?;
    let Some(net) = map.field("net").filter(|net| !matches!(net.content(), Content::Text(t) if t.is_empty())) else {
        return Some(format!("{protocol}:{port}"));
    };
    let cidr = scalar::cidr(net, sink)?;
    let net = net.text(sink)?;
    Some(match cidr.family() {
        // The address is IPv4-mapped.
        Family::V4 if net.contains(':') => format!("{protocol}:{cidr}:{port}"),
        Family::V4 => format!("{protocol}:{net}:{port}"),
        Family::V6 => format!("{protocol}:[{net}]:{port}"),
    })
}

fn range(cursor: Cursor<'_, '_>, sink: &mut Sink) -> Option<String> {
    let map = cursor.map(sink)?;
    let mut bound = |name: &str| map.field(name).map_or(Some(0), |n| n.int::<i64>(0, i64::from(u32::MAX), sink));
    Some(format!("{}-{}", bound("min")?, bound("max")?))
}

/// Reads a duration in Go notation, such as `1m30s` or `250ms`, in nanoseconds.
fn duration(cursor: Cursor<'_, '_>, sink: &mut Sink) -> Option<f64> {
    let text = cursor.text(sink)?;
    let nanoseconds = crate::duration::parse(text);
    if nanoseconds.is_none() {
        cursor.error(sink, format!("`{text}` is not a duration such as `90s` or `1m30s`"));
    }
    nanoseconds
}

fn decimal(nanoseconds: f64, unit: f64) -> String {
    (nanoseconds / unit).to_string()
}

/// Returns the seconds since 1970 of an RFC 3339 text, as Kubernetes writes them:
/// `2024-01-31T12:00:00Z`.
fn seconds_since_1970(text: &str) -> Option<i64> {
    Some(text.parse::<Timestamp>().ok()?.as_second())
}

/// Writes seconds since 1970 as RFC 3339 in UTC; a time outside of the years -9999 to 9999 becomes
/// the nearest one within.
#[must_use]
#[expect(clippy::expect_used, reason = "the seconds are clamped to the range")]
pub fn time_text(seconds: i64) -> String {
    let nearest = seconds.clamp(Timestamp::MIN.as_second(), Timestamp::MAX.as_second());
    Timestamp::from_second(nearest).expect("the seconds are within the range of times").to_string()
}

#[cfg(test)]
mod tests;
