//! Parameters in a `FelixConfiguration`, by their types in the table of parameters. Their readers
//! check the types of fields; a `ParameterCheck` tries each value.

use tortie_parameters::{FieldForm, Parameter, Treatment, of_field, parameters};

use super::kinds::MANY;
use super::shape::Rule::{Check, NotBoth};
use super::shape::Shape::{AnyCase, Int, List, Mapping as Fields, Value, Word};
use super::shape::{Mapping, Shape, check_word, fields};
use super::value::{self, is};
use crate::tree::{Content, Cursor, Map, Sink};

/// Fields with other values than the type of the parameter has.
static FIELDS: [(&str, Shape); 35] = [
    ("bpfConntrackLogLevel", Word(&["Off", "Debug"])),
    ("bpfConntrackTimeouts", Fields(&CONNTRACK_TIMEOUTS)),
    ("bpfDSROptoutCIDRs", List(0, MANY, &Value(value::cidr))),
    ("bpfExcludeCIDRsFromNAT", List(0, MANY, &Value(value::cidr))),
    ("bpfExtToServiceConnmark", Int(0, u32::MAX as i64)),
    ("bpfExternalServiceMode", AnyCase(&["Tunnel", "DSR"])),
    ("bpfForceTrackPacketsFromIfaces", List(0, MANY, &Value(value::interface_filter))),
    ("bpfKubeProxyHealthzPort", Int(0, 65535)),
    ("bpfLogFilters", Value(log_filters)),
    ("bpfMapSizeConntrackCleanupQueue", Int(1, i64::MAX)),
    ("bpfRedirectToPeer", Word(&["Enabled", "Disabled"])),
    ("deviceRouteSourceAddress", Value(value::ipv4)),
    ("deviceRouteSourceAddressIPv6", Value(value::ipv6)),
    ("externalNodesList", List(0, MANY, &Value(value::cidr_v4))),
    ("failsafeInboundHostPorts", List(0, MANY, &Fields(&FAILSAFE_PORT))),
    ("failsafeOutboundHostPorts", List(0, MANY, &Fields(&FAILSAFE_PORT))),
    ("featureDetectOverride", Value(feature_switches)),
    ("featureGates", Value(feature_gates)),
    ("healthTimeoutOverrides", List(0, MANY, &Fields(&HEALTH_TIMEOUT))),
    ("iptablesBackend", Word(&["Legacy", "NFT", "Auto"])),
    ("iptablesMarkMask", Int(0, u32::MAX as i64)),
    ("iptablesNATOutgoingInterfaceFilter", Value(value::interface_filter)),
    ("kubeNodePortRanges", List(0, 7, &Value(numeric_ports))),
    ("logPrefix", Value(log_prefix)),
    ("natOutgoingAddress", Value(value::ipv4)),
    ("nftablesMarkMask", Int(0, u32::MAX as i64)),
    ("nodeSelector", Value(value::selector)),
    ("prometheusMetricsHost", Value(metrics_host)),
    ("routeTableRange", Fields(&TABLES_OF_OLD)),
    ("routeTableRanges", List(0, MANY, &Fields(&TABLES))),
    ("wireguardInterfaceName", Value(value::interface)),
    ("wireguardInterfaceNameV6", Value(value::interface)),
    ("wireguardListeningPort", Int(1, 65535)),
    ("wireguardListeningPortV6", Int(1, 65535)),
    ("wireguardRoutingRulePriority", Int(1, 32_765)),
];

/// Fields whose words may be in any case; other fields of Calico take them as they are.
const ANY_CASE: [&str; 15] = [
    "bpfEnforceRPF",
    "bpfLogLevel",
    "bpfMapSizeConntrackScaling",
    "chainInsertMode",
    "defaultEndpointToHostAction",
    "iptablesFilterAllowAction",
    "iptablesFilterDenyAction",
    "iptablesMangleAllowAction",
    "logSeverityFile",
    "logSeverityScreen",
    "logSeveritySys",
    "nftablesFilterAllowAction",
    "nftablesFilterDenyAction",
    "nftablesMangleAllowAction",
    "routeSource",
];

const AUTO_DURATION: Shape = Value(auto_duration);
static CONNTRACK_TIMEOUTS: Mapping = fields(&[
    ("creationGracePeriod", AUTO_DURATION),
    ("tcpSynSent", AUTO_DURATION),
    ("tcpEstablished", AUTO_DURATION),
    ("tcpFinsSeen", AUTO_DURATION),
    ("tcpResetSeen", AUTO_DURATION),
    ("udpTimeout", AUTO_DURATION),
    ("genericTimeout", AUTO_DURATION),
    ("icmpTimeout", AUTO_DURATION),
]);
static FAILSAFE_PORT: Mapping = Mapping {
    required: &["port"],
    ..fields(&[("protocol", Word(&["TCP", "UDP", "SCTP"])), ("port", Int(0, 65535)), ("net", Value(value::cidr))])
};
static HEALTH_TIMEOUT: Mapping = Mapping {
    required: &["name", "timeout"],
    ..fields(&[("name", Value(reporter)), ("timeout", Value(positive_duration))])
};
static TABLES_OF_OLD: Mapping = Mapping {
    fields: &[("min", Int(1, 250)), ("max", Int(1, 250))],
    required: &["min", "max"],
    rules: &[Check(ordered)],
};
static TABLES: Mapping = Mapping {
    fields: &[("min", Int(1, u32::MAX as i64)), ("max", Int(1, u32::MAX as i64))],
    required: &["min", "max"],
    rules: &[Check(ordered)],
};

/// Checks the `spec` of the configuration with this name.
pub(super) fn check(name: &str, spec: Map<'_, '_>, sink: &mut Sink) {
    let of_parameters = parameters().iter().filter_map(|parameter| Some(parameter.field?.name));
    let known: Vec<&str> = of_parameters.chain(["nodeSelector"]).collect();
    spec.only(&known, sink);
    for (name, field) in spec.fields().filter(|(_, field)| !matches!(field.content(), Content::Null)) {
        let special = FIELDS.iter().find(|(special, _)| *special == name);
        match (special, of_field(name)) {
            (Some((_, shape)), _) => shape.check(field, sink),
            (None, Some((parameter, form))) => check_parameter(name, parameter, form, field, sink),
            (None, None) => {}
        }
    }
    NotBoth("routeTableRange", "routeTableRanges").check(&spec, sink);
    if let Some(selector) = spec.field("nodeSelector").filter(|_| name == "default" || name.starts_with("node.")) {
        selector.error(sink, format!("must not be given: the configuration `{name}` applies by its name"));
    }
}

fn check_parameter(name: &str, parameter: &Parameter, form: FieldForm, field: Cursor<'_, '_>, sink: &mut Sink) {
    if matches!(field.content(), Content::Text(text) if text.is_empty()) {
        return;
    }
    let of_kind = |kind: &str| parameter.kind.strip_prefix(kind)?.strip_prefix('(')?.strip_suffix(')');
    match form {
        FieldForm::Text => {
            if let Some(words) = of_kind("oneof") {
                let words: Vec<&str> = words.split(',').collect();
                let is_own = matches!(parameter.treatment, Treatment::Own(_));
                let any_case = is_own || ANY_CASE.contains(&name);
                let equal = |word: &str, text: &str| word == text;
                check_word(field, &words, if any_case { str::eq_ignore_ascii_case } else { equal }, sink);
            }
        }
        FieldForm::Int => {
            let (min, max) = of_kind("int").map_or((i64::MIN, i64::MAX), bounds);
            field.int::<i64>(min, max, sink);
        }
        FieldForm::Seconds | FieldForm::Milliseconds => positive_duration(field, sink),
        _ => {}
    }
}

/// Reads the bounds of a parameter, such as `1,10000` or `0:65535`; without a maximum, such as `1`.
#[expect(clippy::expect_used, reason = "a test checks the table of parameters, which is part of the program")]
pub(super) fn bounds(text: &str) -> (i64, i64) {
    let number = |text: &str| text.parse().expect("bounds of parameters are numbers");
    match text.split_once([':', ',']) {
        Some((min, max)) => (number(min), number(max)),
        None => (number(text), i64::MAX),
    }
}

fn positive_duration(field: Cursor<'_, '_>, sink: &mut Sink) {
    is(field, "a duration such as `90s` or `1m30s`", |text| crate::go_duration(text).is_some(), sink);
}

fn auto_duration(field: Cursor<'_, '_>, sink: &mut Sink) {
    is(field, "a duration such as `90s`, nor Auto", |text| text == "Auto" || crate::go_duration(text).is_some(), sink);
}

fn reporter(field: Cursor<'_, '_>, sink: &mut Sink) {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b' ' | b'-');
    is(field, "the name of a health reporter", |text| text.bytes().all(known), sink);
}

fn log_prefix(field: Cursor<'_, '_>, sink: &mut Sink) {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"%: /_-".contains(&byte);
    is(field, "a prefix of letters, digits and `%: /_-`", |text| text.bytes().all(known), sink);
}

fn metrics_host(field: Cursor<'_, '_>, sink: &mut Sink) {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b":._+-".contains(&byte);
    is(field, "an address or host name", |text| text.len() <= 64 && text.bytes().all(known), sink);
}

fn feature_switches(field: Cursor<'_, '_>, sink: &mut Sink) {
    is(
        field,
        "a list such as `Feature=true,Other=false`",
        |text| is_list(text, |value| ["", "true", "false"].contains(&value)),
        sink,
    );
}

fn feature_gates(field: Cursor<'_, '_>, sink: &mut Sink) {
    is(field, "a list such as `Gate=value,Other=value`", |text| is_list(text, |value| !value.is_empty()), sink);
}

/// Reports whether a text has pairs `NAME=VALUE` with commas between them, and perhaps at its end.
fn is_list(text: &str, is_value: impl Fn(&str) -> bool) -> bool {
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
    };
    let text = text.strip_suffix(',').unwrap_or(text);
    text.split(',').all(|pair| pair.split_once('=').is_some_and(|(name, value)| is_name(name) && is_value(value)))
}

fn log_filters(field: Cursor<'_, '_>, sink: &mut Sink) {
    for (name, _) in field.text_map(sink) {
        if !value::is_interface(name) {
            field.error(sink, format!("`{name}` is not the name of an interface"));
        }
    }
}

fn numeric_ports(field: Cursor<'_, '_>, sink: &mut Sink) {
    if let Some(tortie_model::PortSpec::Named(name)) = crate::scalar::port_spec(field, sink) {
        field.error(sink, format!("`{name}` is neither a port nor a range such as `30000:32767`"));
    }
}

fn ordered(range: &Map<'_, '_>, sink: &mut Sink) {
    let quiet = &mut Sink::default();
    let mut bound = |name: &str| range.field(name)?.int::<i64>(i64::MIN, i64::MAX, quiet);
    if let (Some(min), Some(max)) = (bound("min"), bound("max"))
        && min > max
    {
        range.error(sink, "`min` is above `max`");
    }
}
