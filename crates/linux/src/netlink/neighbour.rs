//! Permanent neighbours, also known as static ARP entries, and forwarding entries of tunnel
//! devices.

use std::net::IpAddr;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourHeader, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::RouteType;
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use tortie_dataplane::{FdbEntry, Neighbour, NeighbourChange};
use tortie_model::{Family, Mac};

use super::error::NetlinkError;
use super::wire::{self, RTM_NEWNEIGH, Request};

const HEADER_LEN: usize = 12;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NUD_PERMANENT: u16 = 0x80;

pub(super) fn dump_request(family: Family) -> Request {
    let mut message = NeighbourMessage::default();
    message.header.family = wire::address_family(family);
    Request { message: RouteNetlinkMessage::GetNeighbour(message), flags: 0 }
}

/// Returns a request for the forwarding entries of a device. Old kernels also list those of other
/// devices.
pub(super) fn fdb_request(interface: u32) -> Request {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Bridge;
    message.header.ifindex = interface;
    Request { message: RouteNetlinkMessage::GetNeighbour(message), flags: 0 }
}

pub(super) fn change_request(change: &NeighbourChange) -> Request {
    let set =
        |message| Request { message: RouteNetlinkMessage::NewNeighbour(message), flags: NLM_F_CREATE | NLM_F_REPLACE };
    let delete = |message| Request { message: RouteNetlinkMessage::DelNeighbour(message), flags: 0 };
    match change {
        NeighbourChange::Set(entry) => set(neighbour_message(entry)),
        NeighbourChange::Delete(entry) => delete(neighbour_message(entry)),
        NeighbourChange::SetFdb(entry) => set(fdb_message(entry)),
        NeighbourChange::DeleteFdb(entry) => delete(fdb_message(entry)),
    }
}

fn neighbour_message(neighbour: &Neighbour) -> NeighbourMessage {
    let family = wire::address_family(Family::of(neighbour.address));
    message(family, neighbour.interface, neighbour.address, neighbour.mac)
}

fn fdb_message(entry: &FdbEntry) -> NeighbourMessage {
    let mut message = message(AddressFamily::Bridge, entry.interface, entry.destination, entry.mac);
    // It is the device's own table, not that of a bridge that it belongs to.
    message.header.flags = NeighbourFlags::Own;
    message
}

fn message(family: AddressFamily, ifindex: u32, address: IpAddr, mac: Mac) -> NeighbourMessage {
    let address = match address {
        IpAddr::V4(address) => NeighbourAddress::Inet(address),
        IpAddr::V6(address) => NeighbourAddress::Inet6(address),
    };
    let mut message = NeighbourMessage::default();
    message.header = NeighbourHeader {
        family,
        ifindex,
        state: NeighbourState::Permanent,
        kind: RouteType::Unicast,
        ..NeighbourHeader::default()
    };
    message.attributes =
        vec![NeighbourAttribute::Destination(address), NeighbourAttribute::LinkLayerAddress(mac.0.to_vec())];
    message
}

/// Decodes the common part of neighbours and forwarding entries: interface, address and Ethernet
/// address.
fn parse_raw(family: AddressFamily, kind: u16, payload: &[u8]) -> Result<Option<(u32, IpAddr, Mac)>, NetlinkError> {
    let header = NeighbourHeader::parse(payload).map_err(|_| NetlinkError::Malformed { subject: "neighbour" })?;
    let is_permanent = u16::from(header.state) & NUD_PERMANENT != 0;
    if kind != RTM_NEWNEIGH || header.family != family || !is_permanent {
        return Ok(None);
    }
    let mut address = None;
    let mut mac = None;
    wire::for_each_attribute("neighbour", payload.get(HEADER_LEN..).unwrap_or_default(), |kind, value| {
        match kind {
            NDA_DST => {
                let family = if value.len() == 16 { Family::V6 } else { Family::V4 };
                address = Some(wire::address(family, value)?);
            }
            // Interfaces that are not Ethernet have addresses of other lengths.
            NDA_LLADDR => mac = value.try_into().ok().map(Mac),
            _ => {}
        }
        Some(())
    })?;
    Ok(address.zip(mac).map(|(address, mac)| (header.ifindex, address, mac)))
}

pub(super) fn parse(family: Family, kind: u16, payload: &[u8]) -> Result<Option<Neighbour>, NetlinkError> {
    let raw = parse_raw(wire::address_family(family), kind, payload)?;
    let raw = raw.filter(|(_, address, _)| Family::of(*address) == family);
    Ok(raw.map(|(interface, address, mac)| Neighbour { interface, address, mac }))
}

/// Decodes a forwarding entry of the device for one Ethernet address.
pub(super) fn parse_fdb(device: u32, kind: u16, payload: &[u8]) -> Result<Option<FdbEntry>, NetlinkError> {
    let is_single = |mac: &Mac| mac.0 != [0; 6] && mac.0[0] & 1 == 0;
    let raw = parse_raw(AddressFamily::Bridge, kind, payload)?;
    let raw = raw.filter(|(interface, _, mac)| *interface == device && is_single(mac));
    Ok(raw.map(|(interface, destination, mac)| FdbEntry { interface, mac, destination }))
}
