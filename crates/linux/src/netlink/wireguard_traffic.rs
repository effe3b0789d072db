//! Traffic of the peers of `WireGuard` devices.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use tortie_dataplane::WireguardKey;

use super::WireguardNetlink;
use super::error::NetlinkError;
use super::wire;
use super::wireguard::{
    GENL_HEADER_LEN, MALFORMED, WGDEVICE_A_LISTEN_PORT, WGDEVICE_A_PEERS, WGDEVICE_A_PUBLIC_KEY, WGPEER_A_ENDPOINT,
    WGPEER_A_PUBLIC_KEY, parse_socket_address,
};

const WGPEER_A_LAST_HANDSHAKE_TIME: u16 = 6;
const WGPEER_A_RX_BYTES: u16 = 7;
const WGPEER_A_TX_BYTES: u16 = 8;

/// Device with the traffic of its peers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceTraffic {
    /// Its public key; `None` if it has no private one.
    pub public_key: Option<WireguardKey>,
    /// UDP port on which it listens.
    pub port: u16,
    /// Its peers.
    pub peers: BTreeMap<WireguardKey, PeerTraffic>,
}

/// Traffic between a device and a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerTraffic {
    /// Address to which packets for it are sent.
    pub endpoint: Option<SocketAddr>,
    /// Time of the last handshake since 1970; zero for never.
    pub last_handshake: Duration,
    /// Bytes received.
    pub received: u64,
    /// Bytes sent.
    pub sent: u64,
}

impl WireguardNetlink {
    /// Returns the traffic of the device with this index.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn traffic(&mut self, interface: u32) -> Result<DeviceTraffic, NetlinkError> {
        let mut whole = DeviceTraffic::default();
        for part in self.dump(interface, parse)? {
            whole.public_key = whole.public_key.or(part.public_key);
            whole.port = whole.port.max(part.port);
            // A peer with many networks comes in parts, of which the first has all of this.
            for (key, peer) in part.peers {
                whole.peers.entry(key).or_insert(peer);
            }
        }
        Ok(whole)
    }
}

/// Decodes one message about a device.
pub(super) fn parse(payload: &[u8]) -> Result<DeviceTraffic, NetlinkError> {
    let mut device = DeviceTraffic::default();
    let attributes = payload.get(GENL_HEADER_LEN..).ok_or(MALFORMED)?;
    wire::for_each_attribute("WireGuard device", attributes, |kind, value| {
        match kind {
            WGDEVICE_A_PUBLIC_KEY => device.public_key = Some(WireguardKey(value.try_into().ok()?)),
            WGDEVICE_A_LISTEN_PORT => device.port = u16::from_ne_bytes(value.try_into().ok()?),
            WGDEVICE_A_PEERS => {
                let each = |_, peer: &[u8]| {
                    let (key, peer) = parse_peer(peer)?;
                    device.peers.insert(key, peer);
                    Some(())
                };
                wire::for_each_attribute("WireGuard peers", value, each).ok()?;
            }
            _ => {}
        }
        Some(())
    })?;
    Ok(device)
}

fn parse_peer(attributes: &[u8]) -> Option<(WireguardKey, PeerTraffic)> {
    let mut key = None;
    let mut peer = PeerTraffic::default();
    let parsed = wire::for_each_attribute("WireGuard peer", attributes, |kind, value| {
        match kind {
            WGPEER_A_PUBLIC_KEY => key = Some(WireguardKey(value.try_into().ok()?)),
            WGPEER_A_ENDPOINT => peer.endpoint = Some(parse_socket_address(value)?),
            WGPEER_A_LAST_HANDSHAKE_TIME => peer.last_handshake = parse_time(value)?,
            WGPEER_A_RX_BYTES => peer.received = u64::from_ne_bytes(value.try_into().ok()?),
            WGPEER_A_TX_BYTES => peer.sent = u64::from_ne_bytes(value.try_into().ok()?),
            _ => {}
        }
        Some(())
    });
    parsed.ok()?;
    Some((key?, peer))
}

/// `struct __kernel_timespec`.
fn parse_time(value: &[u8]) -> Option<Duration> {
    let (seconds, rest) = value.split_first_chunk()?;
    let seconds = u64::try_from(i64::from_ne_bytes(*seconds)).ok()?;
    let nanoseconds = u32::try_from(i64::from_ne_bytes(*rest.first_chunk()?)).ok()?;
    (nanoseconds < 1_000_000_000).then(|| Duration::new(seconds, nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::super::wire::attribute;
    use super::*;

    fn nested(kind: u16, parts: &[Vec<u8>]) -> Vec<u8> {
        attribute(kind | 0x8000, &parts.concat())
    }

    fn message(parts: &[Vec<u8>]) -> Vec<u8> {
        [vec![0, 1, 0, 0], parts.concat()].concat()
    }

    fn handshake(seconds: i64, nanoseconds: i64) -> Vec<u8> {
        let time = [seconds.to_ne_bytes(), nanoseconds.to_ne_bytes()].concat();
        attribute(WGPEER_A_LAST_HANDSHAKE_TIME, &time)
    }

    #[test]
    fn traffic_of_peers_is_parsed() {
        let endpoint = [2_u16.to_ne_bytes().to_vec(), 51820_u16.to_be_bytes().to_vec(), vec![10, 0, 0, 2], vec![0; 8]];
        let peer = nested(
            0,
            &[
                attribute(WGPEER_A_PUBLIC_KEY, &[2; 32]),
                attribute(WGPEER_A_ENDPOINT, &endpoint.concat()),
                handshake(1_700_000_000, 500_000_000),
                attribute(WGPEER_A_RX_BYTES, &5_000_000_000_u64.to_ne_bytes()),
                attribute(WGPEER_A_TX_BYTES, &7_u64.to_ne_bytes()),
                // Its networks, which are of no interest here.
                nested(9, &[]),
            ],
        );
        let silent = nested(0, &[attribute(WGPEER_A_PUBLIC_KEY, &[3; 32]), handshake(0, 0)]);
        let device = message(&[
            attribute(WGDEVICE_A_LISTEN_PORT, &51820_u16.to_ne_bytes()),
            attribute(WGDEVICE_A_PUBLIC_KEY, &[1; 32]),
            nested(WGDEVICE_A_PEERS, &[peer, silent]),
        ]);
        let expected = DeviceTraffic {
            public_key: Some(WireguardKey([1; 32])),
            port: 51820,
            peers: BTreeMap::from([
                (
                    WireguardKey([2; 32]),
                    PeerTraffic {
                        endpoint: Some("10.0.0.2:51820".parse().unwrap()),
                        last_handshake: Duration::from_millis(1_700_000_000_500),
                        received: 5_000_000_000,
                        sent: 7,
                    },
                ),
                (WireguardKey([3; 32]), PeerTraffic::default()),
            ]),
        };
        assert_eq!(parse(&device).unwrap(), expected);
    }

    #[test]
    fn times_that_are_none() {
        for time in [handshake(-1, 0), handshake(1, -1), handshake(1, 1_000_000_000), attribute(6, &[0; 15])] {
            let peer = nested(0, &[attribute(WGPEER_A_PUBLIC_KEY, &[2; 32]), time]);
            assert!(parse(&message(&[nested(WGDEVICE_A_PEERS, &[peer])])).is_err());
        }
    }
}
