//! Canonical form of fields with several notations: the one that Calico's types write
//! (`api/pkg/apis/projectcalico/v3`, `libcalico-go/lib/apis/internalapi`).
//!
//! Null and empty fields are left out, unless Calico distinguishes them from absent ones. Numbers,
//! ports and durations have one notation.

use serde_json::{Map, Value};

use super::ResourceKind;
use crate::duration;
use crate::v3::{is_duration_of_felix, parse_as_number};

/// Texts that are kept if they are empty, because Calico has pointers to them, or always writes
/// them.
const EMPTY_TEXTS: [&str; 10] = [
    "bpfLogLevel",
    "debugHost",
    "flowLogsGoldmaneServer",
    "healthHost",
    "hostIP",
    "logActionRateLimit",
    "natOutgoingExclusions",
    "prometheusMetricsCAFile",
    "prometheusMetricsCertFile",
    "prometheusMetricsKeyFile",
];
/// Lists for which empty and absent have different meanings.
const EMPTY_LISTS: [&str; 7] = [
    "bpfDSROptoutCIDRs",
    "bpfExcludeCIDRsFromNAT",
    "bpfForceTrackPacketsFromIfaces",
    "externalNodesList",
    "failsafeInboundHostPorts",
    "failsafeOutboundHostPorts",
    "routeTableRanges",
];
/// Mappings of text to text.
const TEXT_MAPS: [&str; 6] =
    ["annotations", "bpfLogFilters", "environmentVars", "labels", "labelsToApply", "matchLabels"];
/// Flags that are left out if they are false. Other flags may have another default, and stay.
const PLAIN_FLAGS: [&str; 7] =
    ["applyOnForward", "disableBGPExport", "disabled", "doNotTrack", "keepOriginalNextHop", "natOutgoing", "preDNAT"];
/// Numbers that are left out if they are 0.
const PLAIN_NUMBERS: [&str; 4] = ["blockSize", "ipCooldownSeconds", "listenPort", "maxBlocksPerHost"];
/// Durations, besides those of `FelixConfiguration`.
const DURATIONS: [&str; 7] = [
    "etcdV3CompactionPeriod",
    "keepaliveTime",
    "leakGracePeriod",
    "maxRestartTime",
    "nodeMeshMaxRestartTime",
    "reconcilerPeriod",
    "timeout",
];

/// Brings the fields of a mapping into canonical form; `of` is the name of the mapping.
pub(super) fn normalize(kind: ResourceKind, of: &str, fields: &mut Map<String, Value>) {
    fields.retain(|name, value| {
        normalize_field(kind, name, value);
        !is_left_out(kind, of, name, value)
    });
}

fn normalize_field(kind: ResourceKind, name: &str, value: &mut Value) {
    match value {
        Value::Object(texts) if TEXT_MAPS.contains(&name) => {
            // Go has no null text.
            texts.values_mut().filter(|text| text.is_null()).for_each(|text| *text = "".into());
        }
        Value::Object(fields) => normalize(kind, name, fields),
        Value::Array(items) => items.iter_mut().for_each(|item| normalize_field(kind, name, item)),
        Value::Number(number) => {
            // Orders are floating-point numbers, which Go writes without a point if they are whole.
            if number.is_f64()
                && let Some(whole) =
                    number.as_f64().filter(|n| n.fract() == 0.0).and_then(|n| n.to_string().parse::<i64>().ok())
            {
                *value = whole.into();
            }
        }
        Value::String(text) => {
            if let Some(normalized) = normalize_text(kind, name, text) {
                *value = normalized;
            }
        }
        Value::Null | Value::Bool(_) => {}
    }
}

/// Returns the canonical form of a text with a type, such as a port or a duration.
fn normalize_text(kind: ResourceKind, name: &str, text: &str) -> Option<Value> {
    let is_kubernetes = kind == ResourceKind::StagedKubernetesNetworkPolicy;
    match name {
        // The protocols of failsafe ports are plain text.
        "protocol" | "notProtocol" if !is_kubernetes && kind != ResourceKind::FelixConfiguration => {
            text.parse::<u8>().ok().map(Value::from)
        }
        "dscp" | "istioDSCPMark" => text.parse::<u8>().ok().map(Value::from),
        "ports" | "notPorts" | "kubeNodePortRanges" | "natPortRange" | "bpfPSNATPorts" if !is_kubernetes => {
            let (first, last) = text.split_once(':').unwrap_or((text, text));
            let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
            Some(if first == last { first.into() } else { format!("{first}:{last}").into() })
        }
        "asNumber" | "localASNumber" | "asPathPrefix" => parse_as_number(text).map(Value::from),
        _ if DURATIONS.contains(&name) || kind == ResourceKind::FelixConfiguration && is_duration_of_felix(name) => {
            duration::parse(text).map(|nanoseconds| duration::text(nanoseconds).into())
        }
        _ => None,
    }
}

fn is_left_out(kind: ResourceKind, of: &str, name: &str, value: &Value) -> bool {
    let felix = kind == ResourceKind::FelixConfiguration;
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty() && !EMPTY_TEXTS.contains(&name) && !(felix && name == "nodeSelector"),
        Value::Array(items) => items.is_empty() && !EMPTY_LISTS.contains(&name),
        Value::Object(fields) => {
            let is_side = matches!(name, "source" | "destination");
            fields.is_empty() && (is_side || TEXT_MAPS.contains(&name) && name != "bpfLogFilters")
        }
        Value::Bool(flag) => !flag && PLAIN_FLAGS.contains(&name),
        Value::Number(number) => {
            let is_plain = PLAIN_NUMBERS.contains(&name)
                || of == "qosControls"
                || kind == ResourceKind::BgpPeer && name == "asNumber";
            is_plain && number.as_i64() == Some(0)
        }
    }
}
