//! Quality-of-service annotations of pods
//! (`libcalico-go/lib/backend/k8s/conversion/workload_endpoint_default.go`).

use tortie_model::QosControls;

use super::quantity;
use crate::object::Object;
use crate::scalar;
use crate::tree::Sink;

const PREFIX: &str = "qos.projectcalico.org/";

/// Lower and upper bound of a limit.
#[derive(Clone, Copy)]
struct Bounds(i64, i64);

const RATE: Bounds = Bounds(1_000, 1_000_000_000_000_000);
const BURST: Bounds = Bounds(1_000, 34_359_738_360);
const PEAK: Bounds = Bounds(1_010, 1_010_000_000_000_000);
const MIN_BURST: Bounds = Bounds(1_000, 100_000_000);
const PACKETS: Bounds = Bounds(1, 10_000);
const CONNECTIONS: Bounds = Bounds(1, 4_294_967_295);
const DEFAULT_BURST: i64 = 4 << 30;
const DEFAULT_PACKET_BURST: i64 = 5;

/// Returns the limits of the annotations. A limit out of bounds is set to the nearest bound, and an
/// unreadable one is left out. Both are reported, but the pod must not lose its policy over them.
pub(super) fn controls(object: &Object<'_, '_>, sink: &mut Sink) -> Option<QosControls> {
    let relevant =
        |name: &str| name.starts_with(PREFIX) || name.starts_with("kubernetes.io/") && name.ends_with("-bandwidth");
    if !object.meta.annotations.iter().any(|(name, _)| relevant(name)) {
        return None;
    }
    let mut controls = QosControls {
        ingress_bandwidth: bandwidth(object, "ingressBandwidth", "kubernetes.io/ingress-bandwidth", sink),
        egress_bandwidth: bandwidth(object, "egressBandwidth", "kubernetes.io/egress-bandwidth", sink),
        ingress_burst: limit(object, "ingressBurst", BURST, sink),
        egress_burst: limit(object, "egressBurst", BURST, sink),
        ingress_peakrate: limit(object, "ingressPeakrate", PEAK, sink),
        egress_peakrate: limit(object, "egressPeakrate", PEAK, sink),
        ingress_minburst: limit(object, "ingressMinburst", MIN_BURST, sink),
        egress_minburst: limit(object, "egressMinburst", MIN_BURST, sink),
        ingress_packet_rate: limit(object, "ingressPacketRate", PACKETS, sink),
        egress_packet_rate: limit(object, "egressPacketRate", PACKETS, sink),
        ingress_packet_burst: limit(object, "ingressPacketBurst", PACKETS, sink),
        egress_packet_burst: limit(object, "egressPacketBurst", PACKETS, sink),
        ingress_max_connections: limit(object, "ingressMaxConnections", CONNECTIONS, sink),
        egress_max_connections: limit(object, "egressMaxConnections", CONNECTIONS, sink),
        dscp: object.meta.annotation("qos.projectcalico.org/dscp").and_then(|text| {
            let value = scalar::parse_dscp(text);
            if value.is_none() {
                object.root.warn(sink, format!("annotation {PREFIX}dscp: `{text}` is not a DSCP value"));
            }
            value
        }),
    };
    complete(object, &mut controls, sink);
    (controls != QosControls::default()).then_some(controls)
}

/// Reads a bandwidth. The annotation of Calico takes precedence over that of Kubernetes, even if it
/// is unreadable.
fn bandwidth(object: &Object<'_, '_>, own: &str, kubernetes: &str, sink: &mut Sink) -> i64 {
    let own = format!("{PREFIX}{own}");
    let name = if object.meta.annotation(&own).is_some() { &own } else { kubernetes };
    bounded(object, name, RATE, sink)
}

fn limit(object: &Object<'_, '_>, name: &str, bounds: Bounds, sink: &mut Sink) -> i64 {
    bounded(object, &format!("{PREFIX}{name}"), bounds, sink)
}

fn bounded(object: &Object<'_, '_>, name: &str, Bounds(min, max): Bounds, sink: &mut Sink) -> i64 {
    let Some(text) = object.meta.annotation(name) else { return 0 };
    let Some(value) = quantity::parse(text) else {
        object.root.warn(sink, format!("annotation {name}: `{text}` is not a quantity; it is not used"));
        return 0;
    };
    let bounded = value.clamp(min, max);
    if bounded != value {
        let message = format!("annotation {name}: `{text}` is not between {min} and {max}; {bounded} is used");
        object.root.warn(sink, message);
    }
    bounded
}

/// Removes limits that have no effect without others, and adds the bursts that rates need.
fn complete(object: &Object<'_, '_>, controls: &mut QosControls, sink: &mut Sink) {
    let mut needs = |fits: bool, limit: &mut i64, message: &str| {
        if *limit != 0 && !fits {
            *limit = 0;
            object.root.warn(sink, format!("annotation {PREFIX}{message}; it is not used"));
        }
    };
    let c = controls;
    needs(c.ingress_bandwidth != 0, &mut c.ingress_burst, "ingressBurst needs ingressBandwidth");
    needs(c.egress_bandwidth != 0, &mut c.egress_burst, "egressBurst needs egressBandwidth");
    let above = |rate: i64, peak: i64| rate != 0 && rate < peak;
    let fits = above(c.ingress_bandwidth, c.ingress_peakrate);
    needs(fits, &mut c.ingress_peakrate, "ingressPeakrate needs a lower ingressBandwidth");
    let fits = above(c.egress_bandwidth, c.egress_peakrate);
    needs(fits, &mut c.egress_peakrate, "egressPeakrate needs a lower egressBandwidth");
    needs(c.ingress_peakrate != 0, &mut c.ingress_minburst, "ingressMinburst needs ingressPeakrate");
    needs(c.egress_peakrate != 0, &mut c.egress_minburst, "egressMinburst needs egressPeakrate");
    needs(c.ingress_packet_rate != 0, &mut c.ingress_packet_burst, "ingressPacketBurst needs ingressPacketRate");
    needs(c.egress_packet_rate != 0, &mut c.egress_packet_burst, "egressPacketBurst needs egressPacketRate");
    for (rate, burst, default) in [
        (c.ingress_bandwidth, &mut c.ingress_burst, DEFAULT_BURST),
        (c.egress_bandwidth, &mut c.egress_burst, DEFAULT_BURST),
        (c.ingress_packet_rate, &mut c.ingress_packet_burst, DEFAULT_PACKET_BURST),
        (c.egress_packet_rate, &mut c.egress_packet_burst, DEFAULT_PACKET_BURST),
    ] {
        if rate != 0 && *burst == 0 {
            *burst = default;
        }
    }
}
