//! Quality-of-service annotations of pods (`libcalico-go/lib/backend/k8s/conversion/workload_endpoint_default.go`).

use tortie_model::QosControls;

use crate::manifest::Object;
use crate::scalar;
use crate::tree::Sink;

const PREFIX: &str = "qos.projectcalico.org/";

/// The limits that the annotations give; a bad one is reported and left out, because the pod must not lose its policy
/// over it.
pub(super) fn controls(object: &Object<'_, '_>, sink: &mut Sink) -> Option<QosControls> {
    let relevant =
        |name: &str| name.starts_with(PREFIX) || name.starts_with("kubernetes.io/") && name.ends_with("-bandwidth");
    if !object.meta.annotations.iter().any(|(name, _)| relevant(name)) {
        return None;
    }
    let mut limit = |names: &[&str], min: i64, max: i64| {
        let (name, text) = names.iter().find_map(|name| Some((*name, object.meta.annotation(name)?)))?;
        let value = quantity(text).filter(|value| (min..=max).contains(value));
        if value.is_none() {
            object.root.warn(sink, format!("annotation {name}: `{text}` is not a quantity between {min} and {max}"));
        }
        value
    };
    let mut number =
        |name: &str, min: i64, max: i64| limit(&[&format!("{PREFIX}{name}")], min, max).unwrap_or_default();
    const RATE: (i64, i64) = (1_000, 1_000_000_000_000_000);
    const PEAK: (i64, i64) = (1_010, 1_010_000_000_000_000);
    const BURST: (i64, i64) = (1_000, 34_359_738_360);
    const PACKETS: (i64, i64) = (1, 10_000);
    let mut controls = QosControls {
        ingress_burst: number("ingressBurst", BURST.0, BURST.1),
        egress_burst: number("egressBurst", BURST.0, BURST.1),
        ingress_packet_rate: number("ingressPacketRate", PACKETS.0, PACKETS.1),
        egress_packet_rate: number("egressPacketRate", PACKETS.0, PACKETS.1),
        ingress_packet_burst: number("ingressPacketBurst", PACKETS.0, PACKETS.1),
        egress_packet_burst: number("egressPacketBurst", PACKETS.0, PACKETS.1),
        ingress_max_connections: number("ingressMaxConnections", 1, 4_294_967_295),
        egress_max_connections: number("egressMaxConnections", 1, 4_294_967_295),
        ingress_peakrate: number("ingressPeakrate", PEAK.0, PEAK.1),
        egress_peakrate: number("egressPeakrate", PEAK.0, PEAK.1),
        ingress_minburst: number("ingressMinburst", 1_000, 100_000_000),
        egress_minburst: number("egressMinburst", 1_000, 100_000_000),
        ingress_bandwidth: limit(
            &["qos.projectcalico.org/ingressBandwidth", "kubernetes.io/ingress-bandwidth"],
            RATE.0,
            RATE.1,
        )
        .unwrap_or_default(),
        egress_bandwidth: limit(
            &["qos.projectcalico.org/egressBandwidth", "kubernetes.io/egress-bandwidth"],
            RATE.0,
            RATE.1,
        )
        .unwrap_or_default(),
        dscp: object.meta.annotation("qos.projectcalico.org/dscp").and_then(|text| {
            let value = scalar::parse_dscp(text);
            if value.is_none() {
                object.root.warn(sink, format!("annotation {PREFIX}dscp: `{text}` is not a DSCP value"));
            }
            value
        }),
    };
    for (rate, burst, default) in [
        (controls.ingress_bandwidth, &mut controls.ingress_burst, 4 << 30),
        (controls.egress_bandwidth, &mut controls.egress_burst, 4 << 30),
        (controls.ingress_packet_rate, &mut controls.ingress_packet_burst, 5),
        (controls.egress_packet_rate, &mut controls.egress_packet_burst, 5),
    ] {
        if rate != 0 && *burst == 0 {
            *burst = default;
        }
    }
    (controls != QosControls::default()).then_some(controls)
}

/// A quantity as Kubernetes writes it: a whole number with an optional suffix.
fn quantity(text: &str) -> Option<i64> {
    const SUFFIXES: [(&str, i64); 11] = [
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
        ("Pi", 1 << 50),
        ("k", 1_000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("T", 1_000_000_000_000),
        ("P", 1_000_000_000_000_000),
        ("", 1),
    ];
    let (digits, factor) = SUFFIXES.iter().find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, factor)))?;
    digits.parse::<i64>().ok()?.checked_mul(*factor)
}
