//! `WireGuard` devices, over generic netlink (`linux/wireguard.h`).

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tortie_dataplane::{DevicePeer, PeerChange, WireguardChange, WireguardDevice, WireguardKey};
use tortie_model::{Cidr, Family};

use super::error::NetlinkError;
use super::socket::Socket;
use super::wire::{self, attribute};

/// Controller of generic netlink, which resolves the numbers of its families.
const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
pub(super) const GENL_HEADER_LEN: usize = 4;
const VERSION: u8 = 1;
const NESTED: u16 = 0x8000;

const WG_CMD_GET_DEVICE: u8 = 0;
const WG_CMD_SET_DEVICE: u8 = 1;

const WGDEVICE_A_IFINDEX: u16 = 1;
const WGDEVICE_A_PRIVATE_KEY: u16 = 3;
pub(super) const WGDEVICE_A_PUBLIC_KEY: u16 = 4;
pub(super) const WGDEVICE_A_LISTEN_PORT: u16 = 6;
const WGDEVICE_A_FWMARK: u16 = 7;
pub(super) const WGDEVICE_A_PEERS: u16 = 8;

pub(super) const WGPEER_A_PUBLIC_KEY: u16 = 1;
const WGPEER_A_FLAGS: u16 = 3;
pub(super) const WGPEER_A_ENDPOINT: u16 = 4;
const WGPEER_A_PERSISTENT_KEEPALIVE_INTERVAL: u16 = 5;
const WGPEER_A_ALLOWEDIPS: u16 = 9;
const WGPEER_F_REMOVE_ME: u32 = 1;
const WGPEER_F_REPLACE_ALLOWEDIPS: u32 = 2;
const WGPEER_F_UPDATE_ONLY: u32 = 4;

const WGALLOWEDIP_A_FAMILY: u16 = 1;
const WGALLOWEDIP_A_IPADDR: u16 = 2;
const WGALLOWEDIP_A_CIDR_MASK: u16 = 3;

/// Maximum number of a peer's networks in a part.
const NETWORKS_IN_PART: usize = 256;
/// Maximum size of the peers in a message in bytes. The length of an attribute has two bytes.
const PEERS_IN_MESSAGE: usize = 32 * 1024;

pub(super) const MALFORMED: NetlinkError = NetlinkError::Malformed { subject: "WireGuard device" };

/// Private key, which is passed to the kernel only.
pub(super) struct PrivateKey(pub(super) [u8; 32]);

impl PrivateKey {
    /// Generates a new key.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub(super) fn generate() -> Result<Self, NetlinkError> {
        let mut bytes = [0; 32];
        let mut filled = 0;
        while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            let count = rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty());
            filled += count.map_err(|errno| NetlinkError::from_io("random numbers", errno.into()))?;
        }
        Ok(Self::clamped(bytes))
    }

    /// Clamps the key, as the curve requires.
    pub(super) const fn clamped(mut bytes: [u8; 32]) -> Self {
        bytes[0] &= 248;
        bytes[31] = bytes[31] & 127 | 64;
        Self(bytes)
    }
}

/// Connection for requests about `WireGuard`.
#[derive(Debug)]
pub struct WireguardNetlink {
    socket: Socket,
    /// Number of the family `WireGuard` in the kernel.
    id: u16,
}

impl WireguardNetlink {
    /// Opens a connection; every answer must come within `timeout` (`NetlinkTimeoutSecs`).
    ///
    /// # Errors
    /// If the kernel refuses; [`NetlinkError::is_not_found`] if it has no `WireGuard`.
    pub fn open(timeout: Duration) -> Result<Self, NetlinkError> {
        let mut socket = Socket::open_generic(timeout)?;
        let id = family(&mut socket, b"wireguard\0")?;
        Ok(Self { socket, id })
    }

    /// Returns the device with this index.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn device(&mut self, interface: u32) -> Result<WireguardDevice, NetlinkError> {
        self.dump(interface, parse).map(merge)
    }

    /// Returns all messages about a device, decoded.
    pub(super) fn dump<T>(
        &mut self,
        interface: u32,
        parse: impl Fn(&[u8]) -> Result<T, NetlinkError>,
    ) -> Result<Vec<T>, NetlinkError> {
        let Self { socket, id } = self;
        socket.dump_raw(*id, &get_request(interface), "WireGuard device", |kind, payload| {
            if kind == *id { parse(payload).map(Some) } else { Ok(None) }
        })
    }

    /// Changes a device, in several steps if there is much to change.
    ///
    /// # Errors
    /// If the kernel refuses. The outcome of the change is then unknown.
    pub fn change(&mut self, interface: u32, change: &WireguardChange) -> Result<(), NetlinkError> {
        let key = if change.new_key { Some(PrivateKey::generate()?) } else { None };
        for payload in set_requests(interface, key.as_ref(), change) {
            self.socket.request_raw(self.id, 0, &payload, "WireGuard device change")?;
        }
        Ok(())
    }
}

pub(super) fn header(command: u8) -> Vec<u8> {
    vec![command, VERSION, 0, 0]
}

/// Returns the kernel's number of a generic netlink family, by its name with a NUL.
pub(super) fn family(socket: &mut Socket, name: &[u8]) -> Result<u16, NetlinkError> {
    let payload = [header(CTRL_CMD_GETFAMILY), attribute(CTRL_ATTR_FAMILY_NAME, name)].concat();
    socket.query(GENL_ID_CTRL, &payload, "generic netlink family", |kind, payload| match kind {
        GENL_ID_CTRL => parse_family(payload).map(Some),
        _ => Ok(None),
    })
}

/// Decodes the number of a generic netlink family.
pub(super) fn parse_family(payload: &[u8]) -> Result<u16, NetlinkError> {
    const SUBJECT: &str = "generic netlink family";
    let mut id = None;
    wire::for_each_attribute(SUBJECT, payload.get(GENL_HEADER_LEN..).unwrap_or_default(), |kind, value| {
        if kind == CTRL_ATTR_FAMILY_ID {
            id = Some(u16::from_ne_bytes(value.try_into().ok()?));
        }
        Some(())
    })?;
    id.ok_or(NetlinkError::Malformed { subject: SUBJECT })
}

pub(super) fn get_request(interface: u32) -> Vec<u8> {
    [header(WG_CMD_GET_DEVICE), attribute(WGDEVICE_A_IFINDEX, &interface.to_ne_bytes())].concat()
}

/// Returns the messages of a change, to be sent in sequence.
pub(super) fn set_requests(interface: u32, key: Option<&PrivateKey>, change: &WireguardChange) -> Vec<Vec<u8>> {
    let message = || [header(WG_CMD_SET_DEVICE), attribute(WGDEVICE_A_IFINDEX, &interface.to_ne_bytes())].concat();
    let mut first = message();
    first.extend(change.mark.map(|mark| attribute(WGDEVICE_A_FWMARK, &mark.to_ne_bytes())).unwrap_or_default());
    first.extend(change.port.map(|port| attribute(WGDEVICE_A_LISTEN_PORT, &port.to_ne_bytes())).unwrap_or_default());
    first.extend(key.map(|PrivateKey(key)| attribute(WGDEVICE_A_PRIVATE_KEY, key)).unwrap_or_default());
    let mut messages = Vec::new();
    let mut peers = Vec::new();
    let mut finish = |peers: &mut Vec<u8>, begin: Vec<u8>| {
        let peers = std::mem::take(peers);
        messages.push(if peers.is_empty() { begin } else { [begin, nested(WGDEVICE_A_PEERS, &peers)].concat() });
    };
    let mut begin = first;
    for part in change.peers.iter().flat_map(peer_parts) {
        if !peers.is_empty() && peers.len() + part.len() > PEERS_IN_MESSAGE {
            finish(&mut peers, std::mem::replace(&mut begin, message()));
        }
        peers.extend(part);
    }
    finish(&mut peers, begin);
    messages
}

pub(super) fn nested(kind: u16, value: &[u8]) -> Vec<u8> {
    attribute(kind | NESTED, value)
}

/// Encodes a change of a peer, in parts that each fit into a message.
fn peer_parts(change: &PeerChange) -> Vec<Vec<u8>> {
    let begin = |key: &WireguardKey, flags: u32| {
        let flags = attribute(WGPEER_A_FLAGS, &flags.to_ne_bytes());
        [attribute(WGPEER_A_PUBLIC_KEY, &key.0), flags].concat()
    };
    let (key, flags, endpoint, keep_alive, networks) = match change {
        PeerChange::Remove(key) => return vec![nested(0, &begin(key, WGPEER_F_REMOVE_ME))],
        PeerChange::Replace(key, DevicePeer { endpoint, keep_alive, allowed }) => {
            (key, WGPEER_F_REPLACE_ALLOWEDIPS, endpoint, keep_alive, allowed.iter().copied().collect())
        }
        PeerChange::Update { key, endpoint, keep_alive, added } => {
            (key, WGPEER_F_UPDATE_ONLY, endpoint, keep_alive, added.clone())
        }
    };
    let mut first = begin(key, flags);
    first.extend(endpoint.map(|endpoint| attribute(WGPEER_A_ENDPOINT, &socket_address(endpoint))).unwrap_or_default());
    first.extend(attribute(WGPEER_A_PERSISTENT_KEEPALIVE_INTERVAL, &keep_alive.to_ne_bytes()));
    let mut chunks = networks.chunks(NETWORKS_IN_PART);
    let with = |begin: Vec<u8>, networks: &[Cidr]| {
        let networks: Vec<u8> = networks.iter().flat_map(|net| nested(0, &allowed(*net))).collect();
        nested(0, &[begin, nested(WGPEER_A_ALLOWEDIPS, &networks)].concat())
    };
    let mut parts = vec![with(first, chunks.next().unwrap_or_default())];
    parts.extend(chunks.map(|networks| with(begin(key, WGPEER_F_UPDATE_ONLY), networks)));
    parts
}

fn allowed(net: Cidr) -> Vec<u8> {
    let family = u16::from(wire::family_number(net.family()));
    let address = match net.address() {
        IpAddr::V4(address) => attribute(WGALLOWEDIP_A_IPADDR, &address.octets()),
        IpAddr::V6(address) => attribute(WGALLOWEDIP_A_IPADDR, &address.octets()),
    };
    let mask = attribute(WGALLOWEDIP_A_CIDR_MASK, &[net.prefix_len()]);
    [attribute(WGALLOWEDIP_A_FAMILY, &family.to_ne_bytes()), address, mask].concat()
}

/// Encodes `struct sockaddr_in` or `struct sockaddr_in6`.
fn socket_address(address: SocketAddr) -> Vec<u8> {
    let family = u16::from(wire::family_number(Family::of(address.ip())));
    let mut bytes = family.to_ne_bytes().to_vec();
    bytes.extend(address.port().to_be_bytes());
    match address.ip() {
        IpAddr::V4(address) => {
            bytes.extend(address.octets());
            bytes.extend([0; 8]);
        }
        IpAddr::V6(address) => {
            bytes.extend([0; 4]);
            bytes.extend(address.octets());
            bytes.extend([0; 4]);
        }
    }
    bytes
}

pub(super) fn parse_socket_address(bytes: &[u8]) -> Option<SocketAddr> {
    let ([low, high, port @ ..], rest) = bytes.split_first_chunk::<4>()?;
    let family = u16::from_ne_bytes([*low, *high]);
    let port = u16::from_be_bytes(*port);
    let address = if family == u16::from(wire::family_number(Family::V4)) {
        wire::address(Family::V4, rest.get(..4)?)?
    } else {
        wire::address(Family::V6, rest.get(4..20)?)?
    };
    Some(SocketAddr::new(address, port))
}

/// Decodes one message about a device; a large device takes several.
pub(super) fn parse(payload: &[u8]) -> Result<WireguardDevice, NetlinkError> {
    let mut device = WireguardDevice::default();
    let attributes = payload.get(GENL_HEADER_LEN..).ok_or(MALFORMED)?;
    wire::for_each_attribute("WireGuard device", attributes, |kind, value| {
        match kind {
            WGDEVICE_A_PUBLIC_KEY => device.public_key = Some(WireguardKey(value.try_into().ok()?)),
            WGDEVICE_A_LISTEN_PORT => device.port = u16::from_ne_bytes(value.try_into().ok()?),
            WGDEVICE_A_FWMARK => device.mark = wire::number(value)?,
            WGDEVICE_A_PEERS => {
                let each = |_, peer: &[u8]| {
                    let (key, peer) = parse_peer(peer)?;
                    add_peer(&mut device, key, peer);
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

fn parse_peer(attributes: &[u8]) -> Option<(WireguardKey, DevicePeer)> {
    let mut key = None;
    let mut peer = DevicePeer::default();
    let parsed = wire::for_each_attribute("WireGuard peer", attributes, |kind, value| {
        match kind {
            WGPEER_A_PUBLIC_KEY => key = Some(WireguardKey(value.try_into().ok()?)),
            WGPEER_A_ENDPOINT => peer.endpoint = Some(parse_socket_address(value)?),
            WGPEER_A_PERSISTENT_KEEPALIVE_INTERVAL => peer.keep_alive = u16::from_ne_bytes(value.try_into().ok()?),
            WGPEER_A_ALLOWEDIPS => peer.allowed = parse_networks(value)?,
            _ => {}
        }
        Some(())
    });
    parsed.ok()?;
    Some((key?, peer))
}

fn parse_networks(attributes: &[u8]) -> Option<BTreeSet<Cidr>> {
    let mut networks = BTreeSet::new();
    let parsed = wire::for_each_attribute("WireGuard networks", attributes, |_, network| {
        let (mut address, mut length) = (None, None);
        let parsed = wire::for_each_attribute("WireGuard network", network, |kind, value| {
            match kind {
                WGALLOWEDIP_A_IPADDR => {
                    let family = if value.len() == 4 { Family::V4 } else { Family::V6 };
                    address = Some(wire::address(family, value)?);
                }
                WGALLOWEDIP_A_CIDR_MASK => length = Some(*value.first()?),
                _ => {}
            }
            Some(())
        });
        parsed.ok()?;
        networks.insert(Cidr::new(address?, length?)?);
        Some(())
    });
    parsed.ok().map(|()| networks)
}

/// Adds a part of a peer. A peer with many networks comes in parts, of which only the first has the
/// endpoint.
fn add_peer(device: &mut WireguardDevice, key: WireguardKey, part: DevicePeer) {
    let peer = device.peers.entry(key).or_default();
    peer.endpoint = peer.endpoint.or(part.endpoint);
    peer.keep_alive = peer.keep_alive.max(part.keep_alive);
    peer.allowed.extend(part.allowed);
}

/// Merges all messages about a device.
pub(super) fn merge(parts: Vec<WireguardDevice>) -> WireguardDevice {
    let mut whole = WireguardDevice::default();
    for part in parts {
        whole.public_key = whole.public_key.or(part.public_key);
        whole.port = whole.port.max(part.port);
        whole.mark = whole.mark.max(part.mark);
        for (key, peer) in part.peers {
            add_peer(&mut whole, key, peer);
        }
    }
    whole
}
