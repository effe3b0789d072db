//! Permanent IPv4 neighbours, also known as static ARP entries.

use std::net::IpAddr;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourHeader, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::RouteType;
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use tortie_dataplane::Neighbour;
use tortie_model::{Family, Mac};

use super::error::NetlinkError;
use super::wire::{self, RTM_NEWNEIGH, Request};

const HEADER_LEN: usize = 12;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NUD_PERMANENT: u16 = 0x80;

pub(super) fn dump_request() -> Request {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Inet;
    Request { message: RouteNetlinkMessage::GetNeighbour(message), flags: 0 }
}

pub(super) fn replace_request(neighbour: &Neighbour) -> Request {
    let (family, address) = match neighbour.address {
        IpAddr::V4(address) => (AddressFamily::Inet, NeighbourAddress::Inet(address)),
        IpAddr::V6(address) => (AddressFamily::Inet6, NeighbourAddress::Inet6(address)),
    };
    let mut message = NeighbourMessage::default();
    message.header = NeighbourHeader {
        family,
        ifindex: neighbour.interface,
        state: NeighbourState::Permanent,
        kind: RouteType::Unicast,
        ..NeighbourHeader::default()
    };
    message.attributes =
        vec![NeighbourAttribute::Destination(address), NeighbourAttribute::LinkLayerAddress(neighbour.mac.0.to_vec())];
    Request { message: RouteNetlinkMessage::NewNeighbour(message), flags: NLM_F_CREATE | NLM_F_REPLACE }
}

pub(super) fn parse(kind: u16, payload: &[u8]) -> Result<Option<Neighbour>, NetlinkError> {
    let header = NeighbourHeader::parse(payload).map_err(|_| NetlinkError::Malformed { what: "neighbour" })?;
    let is_permanent = u16::from(header.state) & NUD_PERMANENT != 0;
    if kind != RTM_NEWNEIGH || header.family != AddressFamily::Inet || !is_permanent {
        return Ok(None);
    }
    let mut address = None;
    let mut mac = None;
    wire::for_each_attribute("neighbour", payload.get(HEADER_LEN..).unwrap_or_default(), |kind, value| {
        match kind {
            NDA_DST => address = Some(wire::address(Family::V4, value)?),
            // Interfaces that are not Ethernet have addresses of other lengths.
            NDA_LLADDR => mac = value.try_into().ok().map(Mac),
            _ => {}
        }
        Some(())
    })?;
    Ok(address.zip(mac).map(|(address, mac)| Neighbour { interface: header.ifindex, address, mac }))
}
