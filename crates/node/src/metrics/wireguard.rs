//! Traffic of this node's `WireGuard` devices, under Felix's names
//! (`felix/wireguard/metrics_linux.go`).

use std::time::Duration;

use tortie_iptables::InterfaceName;
use tortie_linux::netlink::{DeviceTraffic, Netlink, NetlinkError, WireguardNetlink};

use tortie_telemetry::exposition::{Exposition, as_f64};

/// Returns the figures in Prometheus' text format; missing devices have none.
///
/// # Errors
/// If the kernel cannot be read.
pub fn expose(host: &str, devices: &[InterfaceName], timeout: Duration) -> Result<String, NetlinkError> {
    let mut netlink = Netlink::open(timeout)?;
    let mut found = Vec::new();
    for name in devices {
        found.extend(netlink.device(name.as_str())?.map(|device| (name, device.index)));
    }
    if found.is_empty() {
        return Ok(String::new());
    }
    let mut wireguard = WireguardNetlink::open(timeout)?;
    let traffic: Result<Vec<_>, NetlinkError> =
        found.into_iter().map(|(name, index)| Ok((*name, wireguard.traffic(index)?))).collect();
    Ok(text(host, &traffic?))
}

/// Exposes the traffic of these devices.
#[must_use]
pub fn text(host: &str, devices: &[(InterfaceName, DeviceTraffic)]) -> String {
    let mut e = Exposition::default();
    let key = |device: &DeviceTraffic| device.public_key.as_ref().map(ToString::to_string).unwrap_or_default();
    let mut about = Vec::new();
    let (mut received, mut sent, mut handshakes) = (Vec::new(), Vec::new(), Vec::new());
    for (name, device) in devices {
        let own = key(device);
        about.push(([own.clone(), name.to_string(), device.port.to_string()], 1.0));
        for (peer_key, peer) in &device.peers {
            let endpoint = peer.endpoint.map(|endpoint| endpoint.to_string()).unwrap_or_default();
            let labels = [own.clone(), peer_key.to_string(), endpoint];
            received.push((labels.clone(), as_f64(peer.received)));
            sent.push((labels.clone(), as_f64(peer.sent)));
            handshakes.push((labels, as_f64(peer.last_handshake.as_secs())));
        }
    }
    let of_device = ["public_key", "iface", "listen_port"];
    let of_peer = ["public_key", "peer_key", "peer_endpoint"];
    for (name, help, is_counter, labels, samples) in [
        ("wireguard_meta", "Constant 1 for each WireGuard device.", false, of_device, &about),
        ("wireguard_bytes_rcvd", "Bytes received from a peer.", true, of_peer, &received),
        ("wireguard_bytes_sent", "Bytes sent to a peer.", true, of_peer, &sent),
        (
            "wireguard_latest_handshake_seconds",
            "Unix time of the latest handshake with a peer; 0 without one.",
            false,
            of_peer,
            &handshakes,
        ),
    ] {
        let labelled: Vec<([(&str, &str); 4], f64)> = samples
            .iter()
            .map(|([a, b, c], value)| ([("hostname", host), (labels[0], a), (labels[1], b), (labels[2], c)], *value))
            .collect();
        let samples: Vec<(&[(&str, &str)], f64)> =
            labelled.iter().map(|(labels, value)| (labels.as_slice(), *value)).collect();
        if is_counter { e.counters(name, help, &samples) } else { e.gauge(name, help, &samples) }
    }
    e.finish()
}

#[cfg(test)]
mod tests;
