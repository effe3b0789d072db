//! Encoding of conntrack entries.

use std::net::IpAddr;

use tortie_model::Family;

use super::connection::{Connection, Count, Flow, Traffic, Tuple};
use crate::netlink::error::NetlinkError;
use crate::netlink::wire::{self, family_number};

/// `NFNL_SUBSYS_CTNETLINK`, in the upper byte of a message type.
const SUBSYSTEM: u16 = 1 << 8;
pub(super) const IPCTNL_MSG_CT_NEW: u16 = SUBSYSTEM;
pub(super) const IPCTNL_MSG_CT_GET: u16 = SUBSYSTEM | 1;
pub(super) const IPCTNL_MSG_CT_DELETE: u16 = SUBSYSTEM | 2;
/// `struct nfgenmsg`: family, version and resource.
const HEADER_LEN: usize = 4;

pub(super) const NLA_F_NESTED: u16 = 0x8000;
pub(super) const CTA_TUPLE_ORIG: u16 = 1;
pub(super) const CTA_TUPLE_REPLY: u16 = 2;
pub(super) const CTA_COUNTERS_ORIG: u16 = 9;
pub(super) const CTA_COUNTERS_REPLY: u16 = 10;
const CTA_ID: u16 = 12;
pub(super) const CTA_ZONE: u16 = 18;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_TUPLE_ZONE: u16 = 3;
const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V4_DST: u16 = 2;
const CTA_IP_V6_SRC: u16 = 3;
const CTA_IP_V6_DST: u16 = 4;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;
const CTA_PROTO_ICMP_ID: u16 = 4;
const CTA_PROTO_ICMP_TYPE: u16 = 5;
const CTA_PROTO_ICMP_CODE: u16 = 6;
const CTA_PROTO_ICMPV6_ID: u16 = 7;
const CTA_PROTO_ICMPV6_TYPE: u16 = 8;
const CTA_PROTO_ICMPV6_CODE: u16 = 9;
pub(super) const CTA_COUNTERS_PACKETS: u16 = 1;
pub(super) const CTA_COUNTERS_BYTES: u16 = 2;

pub(super) const LISTING: &str = "tracked connections";
const ENTRY: NetlinkError = NetlinkError::Malformed { subject: "tracked connection" };

pub(super) fn header(family: u8) -> [u8; HEADER_LEN] {
    [family, 0, 0, 0]
}

/// Decodes a conntrack entry; `None` for other messages, and for connections of other families.
pub(super) fn parse(kind: u16, payload: &[u8]) -> Result<Option<Connection>, NetlinkError> {
    if kind != IPCTNL_MSG_CT_NEW {
        return Ok(None);
    }
    parse_entry(payload, |_, _| Some(()))
}

/// Decodes any message about a connection, with its counters if the kernel counts.
pub(super) fn parse_with_traffic(payload: &[u8]) -> Result<Option<(Connection, Option<Traffic>)>, NetlinkError> {
    let (mut original, mut reply) = (None, None);
    let connection = parse_entry(payload, |kind, value| {
        match kind {
            CTA_COUNTERS_ORIG => original = Some(parse_count(value)?),
            CTA_COUNTERS_REPLY => reply = Some(parse_count(value)?),
            _ => {}
        }
        Some(())
    })?;
    let traffic = original.zip(reply).map(|(original, reply)| Traffic { original, reply });
    Ok(connection.map(|connection| (connection, traffic)))
}

/// Decodes the connection; `other` gets the attributes that do not identify it.
fn parse_entry(
    payload: &[u8],
    mut other: impl FnMut(u16, &[u8]) -> Option<()>,
) -> Result<Option<Connection>, NetlinkError> {
    let (family, attributes) = payload.split_at_checked(HEADER_LEN).ok_or(ENTRY)?;
    let family = match family.first() {
        Some(2) => Family::V4,
        Some(10) => Family::V6,
        _ => return Ok(None),
    };
    let (mut original, mut reply, mut id, mut zone) = (None, None, None, 0);
    wire::for_each_attribute(LISTING, attributes, |kind, value| {
        match kind {
            CTA_TUPLE_ORIG => original = Some(parse_tuple(family, value).ok()?),
            CTA_TUPLE_REPLY => reply = Some(parse_tuple(family, value).ok()?),
            CTA_ID => id = Some(u32::from_be_bytes(value.try_into().ok()?)),
            CTA_ZONE => zone = port(value)?,
            _ => other(kind, value)?,
        }
        Some(())
    })?;
    match (original, reply, id) {
        (Some((original, own_zone)), Some((reply, reply_zone)), Some(id)) => {
            let zone = own_zone.or(reply_zone).unwrap_or(zone);
            Ok(Some(Connection { original, reply, id, zone }))
        }
        _ => Err(ENTRY),
    }
}

fn parse_count(value: &[u8]) -> Option<Count> {
    let (mut packets, mut bytes) = (None, None);
    wire::for_each_attribute(LISTING, value, |kind, value| {
        match kind {
            CTA_COUNTERS_PACKETS => packets = Some(u64::from_be_bytes(value.try_into().ok()?)),
            CTA_COUNTERS_BYTES => bytes = Some(u64::from_be_bytes(value.try_into().ok()?)),
            _ => {}
        }
        Some(())
    })
    .ok()?;
    Some(Count { packets: packets?, bytes: bytes? })
}

/// Decodes the original direction of a connection, from the attributes of a connection alone.
pub(in crate::netlink) fn parse_original(family: Family, attributes: &[u8]) -> Result<Tuple, NetlinkError> {
    let mut original = None;
    wire::for_each_attribute(LISTING, attributes, |kind, value| {
        if kind == CTA_TUPLE_ORIG {
            original = Some(parse_tuple(family, value).ok()?.0);
        }
        Some(())
    })?;
    original.ok_or(ENTRY)
}

fn parse_tuple(family: Family, value: &[u8]) -> Result<(Tuple, Option<u16>), NetlinkError> {
    let (mut source, mut destination, mut zone) = (None, None, None);
    let mut proto = None;
    wire::for_each_attribute(LISTING, value, |kind, value| {
        match kind {
            CTA_TUPLE_IP => wire::for_each_attribute(LISTING, value, |kind, value| {
                match kind {
                    CTA_IP_V4_SRC | CTA_IP_V6_SRC => source = Some(wire::address(family, value)?),
                    CTA_IP_V4_DST | CTA_IP_V6_DST => destination = Some(wire::address(family, value)?),
                    _ => {}
                }
                Some(())
            })
            .ok()?,
            CTA_TUPLE_PROTO => proto = Some(parse_flow(value).ok()?),
            CTA_TUPLE_ZONE => zone = Some(port(value)?),
            _ => {}
        }
        Some(())
    })?;
    match (source, destination, proto) {
        (Some(source), Some(destination), Some((protocol, flow))) => {
            Ok((Tuple { source, destination, protocol, flow }, zone))
        }
        _ => Err(ENTRY),
    }
}

fn parse_flow(value: &[u8]) -> Result<(u8, Flow), NetlinkError> {
    let (mut protocol, mut source, mut destination) = (None, None, None);
    let (mut id, mut icmp_type, mut icmp_code) = (None, None, None);
    wire::for_each_attribute(LISTING, value, |kind, value| {
        match kind {
            CTA_PROTO_NUM => protocol = Some(*value.first()?),
            CTA_PROTO_SRC_PORT => source = Some(port(value)?),
            CTA_PROTO_DST_PORT => destination = Some(port(value)?),
            CTA_PROTO_ICMP_ID | CTA_PROTO_ICMPV6_ID => id = Some(port(value)?),
            CTA_PROTO_ICMP_TYPE | CTA_PROTO_ICMPV6_TYPE => icmp_type = Some(*value.first()?),
            CTA_PROTO_ICMP_CODE | CTA_PROTO_ICMPV6_CODE => icmp_code = Some(*value.first()?),
            _ => {}
        }
        Some(())
    })?;
    let flow = match (source, destination, id, icmp_type, icmp_code) {
        (Some(source), Some(destination), ..) => Flow::Ports { source, destination },
        (_, _, Some(id), Some(icmp_type), Some(code)) => Flow::Icmp { id, icmp_type, code },
        _ => Flow::Other,
    };
    Ok((protocol.ok_or(ENTRY)?, flow))
}

fn port(value: &[u8]) -> Option<u16> {
    value.try_into().ok().map(u16::from_be_bytes)
}

/// Encodes the attributes that identify exactly this connection.
pub(super) fn delete_payload(connection: &Connection) -> Vec<u8> {
    let family = Family::of(connection.original.source);
    let mut payload = header(family_number(family)).to_vec();
    put_tuple(&mut payload, CTA_TUPLE_ORIG, &connection.original);
    put(&mut payload, CTA_ID, &connection.id.to_be_bytes());
    if connection.zone != 0 {
        put(&mut payload, CTA_ZONE, &connection.zone.to_be_bytes());
    }
    payload
}

pub(super) fn put_tuple(bytes: &mut Vec<u8>, kind: u16, tuple: &Tuple) {
    let is_ipv4 = tuple.source.is_ipv4();
    let (source, destination) = if is_ipv4 { (CTA_IP_V4_SRC, CTA_IP_V4_DST) } else { (CTA_IP_V6_SRC, CTA_IP_V6_DST) };
    let mut addresses = Vec::new();
    for (kind, address) in [(source, tuple.source), (destination, tuple.destination)] {
        match address {
            IpAddr::V4(address) => put(&mut addresses, kind, &address.octets()),
            IpAddr::V6(address) => put(&mut addresses, kind, &address.octets()),
        }
    }
    let mut flow = Vec::new();
    put(&mut flow, CTA_PROTO_NUM, &[tuple.protocol]);
    match tuple.flow {
        Flow::Ports { source, destination } => {
            put(&mut flow, CTA_PROTO_SRC_PORT, &source.to_be_bytes());
            put(&mut flow, CTA_PROTO_DST_PORT, &destination.to_be_bytes());
        }
        Flow::Icmp { id, icmp_type, code } => {
            let kinds = if is_ipv4 {
                [CTA_PROTO_ICMP_ID, CTA_PROTO_ICMP_TYPE, CTA_PROTO_ICMP_CODE]
            } else {
                [CTA_PROTO_ICMPV6_ID, CTA_PROTO_ICMPV6_TYPE, CTA_PROTO_ICMPV6_CODE]
            };
            put(&mut flow, kinds[0], &id.to_be_bytes());
            put(&mut flow, kinds[1], &[icmp_type]);
            put(&mut flow, kinds[2], &[code]);
        }
        Flow::Other => {}
    }
    let mut nested = Vec::new();
    put(&mut nested, CTA_TUPLE_IP | NLA_F_NESTED, &addresses);
    put(&mut nested, CTA_TUPLE_PROTO | NLA_F_NESTED, &flow);
    put(bytes, kind | NLA_F_NESTED, &nested);
}

/// Appends an attribute, padded.
#[expect(clippy::expect_used, reason = "a wrong length would have the kernel read other attributes")]
pub(super) fn put(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(value.len() + 4).expect("an attribute has fewer than 2^16 bytes");
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}
