//! Routes, and local addresses from the table `local`.

use std::net::IpAddr;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric, RouteType,
};
use tortie_dataplane::{Route, RouteKey, RouteKind, RouteProtocol, RouteScope, RouteTableIndex, RouteTarget};
use tortie_model::{Cidr, Family};

use super::error::NetlinkError;
use super::wire::{self, RTM_NEWROUTE, Request};

pub(super) const TABLE_LOCAL: RouteTableIndex = RouteTableIndex(255);
/// Table of marks. No rule refers to it, so that packets never use it. Its number is far from the
/// tables that Calico takes (`RouteTableRanges`).
pub(super) const TABLE_MARKS: RouteTableIndex = RouteTableIndex(0x7061_6e00);
/// Number in the header, which has one byte, for tables with larger numbers (`RT_TABLE_COMPAT`).
const TABLE_COMPAT: u8 = 252;

const HEADER_LEN: usize = 12;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
const RTA_METRICS: u16 = 8;
const RTA_TABLE: u16 = 15;
const RTAX_MTU: u16 = 2;

const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;
const RTN_BLACKHOLE: u8 = 6;
const RTN_UNREACHABLE: u8 = 7;
const RTN_PROHIBIT: u8 = 8;
const RTN_THROW: u8 = 9;

const MALFORMED: NetlinkError = NetlinkError::Malformed { subject: "route" };

/// Returns a request for the routes of one table, or for those of them that leave by one interface.
/// Kernels without strict checks (before 4.20) also list others.
pub(super) fn dump_request(family: Family, table: RouteTableIndex, interface: Option<u32>) -> Request {
    let mut message = RouteMessage::default();
    message.header.address_family = wire::address_family(family);
    set_table(&mut message, table);
    message.attributes.extend(interface.map(RouteAttribute::Oif));
    Request { message: RouteNetlinkMessage::GetRoute(message), flags: 0 }
}

pub(super) fn replace_request(table: RouteTableIndex, route: &Route) -> Request {
    replace(encode(route, table))
}

pub(super) fn delete_request(table: RouteTableIndex, route: &Route) -> Request {
    delete(encode(route, table))
}

pub(super) fn mark_request(address: IpAddr) -> Request {
    replace(encode(&mark(address), TABLE_MARKS))
}

pub(super) fn unmark_request(address: IpAddr) -> Request {
    delete(encode(&mark(address), TABLE_MARKS))
}

fn replace(message: RouteMessage) -> Request {
    Request { message: RouteNetlinkMessage::NewRoute(message), flags: NLM_F_CREATE | NLM_F_REPLACE }
}

fn delete(message: RouteMessage) -> Request {
    Request { message: RouteNetlinkMessage::DelRoute(message), flags: 0 }
}

fn mark(address: IpAddr) -> Route {
    Route {
        key: RouteKey { destination: Cidr::host(address), tos: 0, metric: 1024 },
        target: RouteTarget {
            kind: RouteKind::Blackhole,
            interface: None,
            scope: RouteScope::UNIVERSE,
            protocol: RouteProtocol::CALICO,
            gateway: None,
            on_link: false,
            mtu: None,
            source: None,
        },
    }
}

fn set_table(message: &mut RouteMessage, RouteTableIndex(table): RouteTableIndex) {
    message.header.table = u8::try_from(table).unwrap_or(TABLE_COMPAT);
    if message.header.table == TABLE_COMPAT {
        message.attributes.push(RouteAttribute::Table(table));
    }
}

fn encode(route: &Route, table: RouteTableIndex) -> RouteMessage {
    let Route { key, target } = route;
    let mut message = RouteMessage::default();
    message.header = RouteHeader {
        address_family: wire::address_family(key.destination.family()),
        destination_prefix_length: key.destination.prefix_len(),
        tos: key.tos,
        protocol: target.protocol.0.into(),
        scope: target.scope.0.into(),
        kind: RouteType::from(kind_number(target.kind)),
        flags: if target.on_link { RouteFlags::Onlink } else { RouteFlags::empty() },
        ..RouteHeader::default()
    };
    set_table(&mut message, table);
    let address = |address: IpAddr| RouteAddress::from(address);
    let attributes = &mut message.attributes;
    if key.destination.prefix_len() != 0 {
        attributes.push(RouteAttribute::Destination(address(key.destination.address())));
    }
    attributes.push(RouteAttribute::Priority(key.metric));
    attributes.extend(target.interface.map(RouteAttribute::Oif));
    attributes.extend(target.gateway.map(address).map(RouteAttribute::Gateway));
    attributes.extend(target.source.map(address).map(RouteAttribute::PrefSource));
    attributes.extend(target.mtu.map(|mtu| RouteAttribute::Metrics(vec![RouteMetric::Mtu(mtu)])));
    message
}

/// Decoded part of a route of any table.
struct Raw {
    table: RouteTableIndex,
    kind: u8,
    destination: Cidr,
    tos: u8,
    scope: u8,
    protocol: u8,
    metric: u32,
    interface: Option<u32>,
    gateway: Option<IpAddr>,
    on_link: bool,
    mtu: Option<u32>,
    source: Option<IpAddr>,
}

/// Decodes a route; `None` for other messages, other families, and entries of the kernel's route
/// cache.
fn parse_raw(family: Family, kind: u16, payload: &[u8]) -> Result<Option<Raw>, NetlinkError> {
    let header = RouteHeader::parse(payload).map_err(|_| MALFORMED)?;
    if kind != RTM_NEWROUTE
        || header.address_family != wire::address_family(family)
        || header.flags.contains(RouteFlags::Cloned)
    {
        return Ok(None);
    }
    let mut destination = wire::unspecified(family);
    let mut table = RouteTableIndex(u32::from(header.table));
    let mut metric = 0;
    let mut interface = None;
    let mut gateway = None;
    let mut source = None;
    let mut mtu = None;
    wire::for_each_attribute("route", payload.get(HEADER_LEN..).unwrap_or_default(), |kind, value| {
        match kind {
            RTA_DST => destination = wire::address(family, value)?,
            RTA_OIF => interface = Some(wire::number(value)?),
            RTA_GATEWAY => gateway = Some(wire::address(family, value)?),
            RTA_PRIORITY => metric = wire::number(value)?,
            RTA_PREFSRC => source = Some(wire::address(family, value)?),
            RTA_METRICS => mtu = route_mtu(value)?,
            RTA_TABLE => table = RouteTableIndex(wire::number(value)?),
            _ => {}
        }
        Some(())
    })?;
    Ok(Some(Raw {
        table,
        kind: header.kind.into(),
        destination: Cidr::new(destination, header.destination_prefix_length).ok_or(MALFORMED)?,
        tos: header.tos,
        scope: header.scope.into(),
        protocol: header.protocol.into(),
        metric,
        interface,
        gateway,
        on_link: header.flags.contains(RouteFlags::Onlink),
        mtu,
        source,
    }))
}

/// Returns the path MTU in the metrics of a route.
fn route_mtu(metrics: &[u8]) -> Option<Option<u32>> {
    let mut mtu = None;
    let parsed = wire::for_each_attribute("route", metrics, |kind, value| {
        if kind == RTAX_MTU {
            mtu = Some(wire::number(value)?);
        }
        Some(())
    });
    parsed.ok().map(|()| mtu)
}

/// Decodes a route of a table.
pub(super) fn parse(
    family: Family,
    table: RouteTableIndex,
    kind: u16,
    payload: &[u8],
) -> Result<Option<Route>, NetlinkError> {
    let Some(raw) = parse_raw(family, kind, payload)? else { return Ok(None) };
    if raw.table != table {
        return Ok(None);
    }
    let kind = match raw.kind {
        RTN_UNICAST => RouteKind::Unicast,
        RTN_BLACKHOLE => RouteKind::Blackhole,
        RTN_THROW => RouteKind::Throw,
        other => RouteKind::Other(other),
    };
    // The kernel reports the loopback interface for IPv6 routes that discard packets.
    let leads_nowhere = matches!(raw.kind, RTN_BLACKHOLE | RTN_UNREACHABLE | RTN_PROHIBIT | RTN_THROW);
    Ok(Some(Route {
        key: RouteKey { destination: raw.destination, tos: raw.tos, metric: raw.metric },
        target: RouteTarget {
            kind,
            interface: raw.interface.filter(|_| !leads_nowhere),
            scope: RouteScope(raw.scope),
            protocol: RouteProtocol(raw.protocol),
            gateway: raw.gateway,
            on_link: raw.on_link,
            mtu: raw.mtu,
            source: raw.source,
        },
    }))
}

/// Decodes the address of a route in the table of marks.
pub(super) fn parse_mark(family: Family, kind: u16, payload: &[u8]) -> Result<Option<IpAddr>, NetlinkError> {
    let mark = parse_raw(family, kind, payload)?.filter(|raw| raw.table == TABLE_MARKS && raw.destination.is_host());
    Ok(mark.map(|raw| raw.destination.address()))
}

/// Decodes the interface and the address that a route of the table `local` makes local.
pub(super) fn parse_local_address(
    family: Family,
    kind: u16,
    payload: &[u8],
) -> Result<Option<(u32, IpAddr)>, NetlinkError> {
    let raw = parse_raw(family, kind, payload)?
        .filter(|raw| raw.table == TABLE_LOCAL && raw.kind == RTN_LOCAL)
        .filter(|raw| raw.destination.prefix_len() != 0);
    Ok(raw.and_then(|raw| raw.interface.map(|interface| (interface, raw.destination.address()))))
}

const fn kind_number(kind: RouteKind) -> u8 {
    match kind {
        RouteKind::Unicast => RTN_UNICAST,
        RouteKind::Blackhole => RTN_BLACKHOLE,
        RouteKind::Throw => RTN_THROW,
        RouteKind::Other(number) => number,
    }
}
