//! Quality-of-service limits of endpoints.

use tortie_model::QosControls;

use crate::scalar;
use crate::tree::{Map, Sink};

/// Reads the limits of an endpoint; its resource has the same field names.
pub(crate) fn qos(map: Map<'_, '_>, sink: &mut Sink) -> Option<QosControls> {
    let map = map.field("qosControls")?.map(sink)?;
    let mut number = |name: &str| map.field(name).and_then(|n| n.int(i64::MIN, i64::MAX, sink)).unwrap_or_default();
    Some(QosControls {
        ingress_bandwidth: number("ingressBandwidth"),
        egress_bandwidth: number("egressBandwidth"),
        ingress_burst: number("ingressBurst"),
        egress_burst: number("egressBurst"),
        ingress_packet_rate: number("ingressPacketRate"),
        egress_packet_rate: number("egressPacketRate"),
        ingress_max_connections: number("ingressMaxConnections"),
        egress_max_connections: number("egressMaxConnections"),
        ingress_peakrate: number("ingressPeakrate"),
        egress_peakrate: number("egressPeakrate"),
        ingress_minburst: number("ingressMinburst"),
        egress_minburst: number("egressMinburst"),
        ingress_packet_burst: number("ingressPacketBurst"),
        egress_packet_burst: number("egressPacketBurst"),
        dscp: map.field("dscp").and_then(|dscp| scalar::dscp(dscp, sink)),
    })
}
