//! Location of addresses on this node: the interface that leads to each, and the bridge port behind
//! which it is.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use netlink_packet_core::NLM_F_CREATE;
use netlink_packet_route::link::LinkHeader;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourHeader, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use tortie_dataplane::AddressPlace;
use tortie_model::{Family, InterfaceName, Mac};

use super::error::NetlinkError;
use super::socket::Socket;
use super::wire::{self, RTM_NEWLINK, RTM_NEWNEIGH, RTM_NEWROUTE, Request};
use super::{Netlink, link};

const ROUTE_HEADER_LEN: usize = 12;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_VIA: u16 = 18;
const RTN_UNICAST: u8 = 1;

const LINK_HEADER_LEN: usize = 16;
const IFLA_IFNAME: u16 = 3;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;

const NEIGHBOUR_HEADER_LEN: usize = 12;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NDA_MASTER: u16 = 9;
const NUD_INCOMPLETE: u16 = 0x01;
const NUD_FAILED: u16 = 0x20;
const NUD_PERMANENT: u16 = 0x80;

/// Number of checks whether addresses have answered, and pause between them.
const ATTEMPTS: u32 = 6;
const ANSWER_TIME: Duration = Duration::from_millis(20);

/// Interface that may lead to addresses.
#[derive(Debug)]
struct Interface {
    name: InterfaceName,
    is_bridge: bool,
    /// Bridge of which it is a port.
    master: Option<u32>,
}

/// Ethernet addresses of IP addresses by interface, and ports of Ethernet addresses by bridge.
#[derive(Debug, Default)]
struct Ethernet {
    neighbours: BTreeMap<(u32, IpAddr), Mac>,
    ports: BTreeMap<(u32, Mac), u32>,
}

impl Netlink {
    /// Returns the places of addresses; see
    /// [`Neighbours::locate`](tortie_dataplane::Neighbours::locate). Waits briefly for answers of
    /// the addresses' owners, so that places known before a restart are found right after it.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn locate(
        &mut self,
        addresses: &[(IpAddr, Option<AddressPlace>)],
    ) -> Result<Vec<Option<AddressPlace>>, NetlinkError> {
        let interfaces: BTreeMap<u32, Interface> =
            self.socket.dump(link::dump_request(), "links", parse_interface)?.into_iter().collect();
        let mut found = Vec::with_capacity(addresses.len());
        // Position of each address, with its bridge.
        let mut unknown = Vec::new();
        for (address, before) in addresses {
            let index = interface_to(&mut self.socket, *address)?;
            found.push(match index.and_then(|index| Some((index, interfaces.get(&index)?))) {
                None => None,
                Some((index, interface)) if interface.is_bridge => {
                    let kept = before.as_ref().filter(|before| is_still_behind(before, index, interface, &interfaces));
                    if kept.is_none() {
                        unknown.push((found.len(), *address, index, interface));
                    }
                    kept.cloned()
                }
                Some((index, interface)) => Some(AddressPlace { interface: interface.name, port: None, index }),
            });
        }
        for attempt in 0..ATTEMPTS {
            if unknown.is_empty() {
                break;
            }
            if attempt > 0 {
                thread::sleep(ANSWER_TIME);
            }
            let ethernet = self.ethernet()?;
            let mut still_unknown = Vec::new();
            for (position, address, bridge, interface) in unknown {
                let mac = ethernet.neighbours.get(&(bridge, address)).copied();
                let port = mac.and_then(|mac| ethernet.ports.get(&(bridge, mac))).copied();
                if let Some((index, port)) = port.and_then(|index| Some((index, interfaces.get(&index)?))) {
                    let (interface, port) = (interface.name, Some(port.name));
                    if let Some(place) = found.get_mut(position) {
                        *place = Some(AddressPlace { interface, port, index });
                    }
                    continue;
                }
                if attempt == 0 {
                    self.resolve_port(address, bridge, mac.is_some())?;
                }
                still_unknown.push((position, address, bridge, interface));
            }
            unknown = still_unknown;
        }
        Ok(found)
    }

    /// Makes the kernel send a request for an address on a bridge, so that the bridge learns the
    /// port from the answer.
    fn resolve_port(&mut self, address: IpAddr, bridge: u32, is_known: bool) -> Result<(), NetlinkError> {
        if is_known {
            // The bridge has not seen the address's presumed Ethernet address recently.
            ignore_missing(self.socket.request(neighbour_request(address, bridge, false), "neighbour"))?;
        }
        ignore_missing(self.socket.request(neighbour_request(address, bridge, true), "neighbour"))
    }

    fn ethernet(&mut self) -> Result<Ethernet, NetlinkError> {
        let mut ethernet = Ethernet::default();
        for family in Family::ALL {
            let request = super::neighbour::dump_request(family);
            let found = self.dump_if_supported(request, "neighbours", |kind, payload| {
                Ok(Entry::parse(kind, payload)?.filter(|entry| entry.state & (NUD_INCOMPLETE | NUD_FAILED) == 0))
            })?;
            let named = found.into_iter().filter_map(|entry| Some(((entry.interface, entry.address?), entry.mac)));
            ethernet.neighbours.extend(named);
        }
        let request = super::neighbour::fdb_request(0);
        let found = self.dump_if_supported(request, "forwarding entries", |kind, payload| {
            // Permanent entries are the ports' Ethernet addresses.
            Ok(Entry::parse(kind, payload)?.filter(|entry| entry.state & NUD_PERMANENT == 0))
        })?;
        ethernet.ports =
            found.into_iter().filter_map(|entry| Some(((entry.master?, entry.mac), entry.interface))).collect();
        Ok(ethernet)
    }
}

/// Reports whether an address that was found behind a port may still be there.
fn is_still_behind(
    before: &AddressPlace,
    bridge: u32,
    interface: &Interface,
    interfaces: &BTreeMap<u32, Interface>,
) -> bool {
    let port = interfaces.get(&before.index);
    before.interface == interface.name
        && port.is_some_and(|port| before.port == Some(port.name) && port.master == Some(bridge))
}

/// Returns the interface by which packets to an address leave, if the address is directly reachable
/// there.
fn interface_to(socket: &mut Socket, address: IpAddr) -> Result<Option<u32>, NetlinkError> {
    Ok(route_to(socket, address)?.filter(|(_, is_direct)| *is_direct).map(|(interface, _)| interface))
}

/// Returns the interface by which packets to an address leave, and whether the address is directly
/// reachable there; `None` if no packet leaves.
pub(super) fn route_to(socket: &mut Socket, address: IpAddr) -> Result<Option<(u32, bool)>, NetlinkError> {
    let family = Family::of(address);
    let mut message = RouteMessage::default();
    message.header = RouteHeader {
        address_family: wire::address_family(family),
        destination_prefix_length: family.max_prefix_len(),
        ..RouteHeader::default()
    };
    message.attributes.push(RouteAttribute::Destination(RouteAddress::from(address)));
    let request = Request { message: RouteNetlinkMessage::GetRoute(message), flags: 0 };
    match socket.get(request, "route to an address", parse_route_to) {
        Ok(route) => Ok(route),
        // There is no route, or it discards the packets.
        Err(NetlinkError::Refused { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn parse_route_to(kind: u16, payload: &[u8]) -> Result<Option<Option<(u32, bool)>>, NetlinkError> {
    let header = RouteHeader::parse(payload).map_err(|_| NetlinkError::Malformed { subject: "route" })?;
    if kind != RTM_NEWROUTE {
        return Ok(None);
    }
    let (mut interface, mut has_gateway) = (None, false);
    wire::for_each_attribute("route", payload.get(ROUTE_HEADER_LEN..).unwrap_or_default(), |kind, value| {
        match kind {
            RTA_OIF => interface = Some(wire::number(value)?),
            RTA_GATEWAY | RTA_VIA => has_gateway = true,
            _ => {}
        }
        Some(())
    })?;
    let is_unicast = u8::from(header.kind) == RTN_UNICAST;
    Ok(Some(interface.filter(|_| is_unicast).map(|interface| (interface, !has_gateway))))
}

fn parse_interface(kind: u16, payload: &[u8]) -> Result<Option<(u32, Interface)>, NetlinkError> {
    const MALFORMED: NetlinkError = NetlinkError::Malformed { subject: "link" };
    let header = LinkHeader::parse(payload).map_err(|_| MALFORMED)?;
    if kind != RTM_NEWLINK || header.interface_family != AddressFamily::Unspec {
        return Ok(None);
    }
    let (mut name, mut is_bridge, mut master) = (None, false, None);
    wire::for_each_attribute("link", payload.get(LINK_HEADER_LEN..).unwrap_or_default(), |kind, value| {
        match kind {
            IFLA_IFNAME => name = Some(wire::text(value)),
            IFLA_MASTER => master = Some(wire::number(value)?),
            IFLA_LINKINFO => {
                let parsed = wire::for_each_attribute("link", value, |kind, value| {
                    is_bridge |= kind == IFLA_INFO_KIND && wire::text(value) == "bridge";
                    Some(())
                });
                parsed.ok()?;
            }
            _ => {}
        }
        Some(())
    })?;
    // The monitor does not report an interface with an odd name, so it has no addresses.
    let name = name.ok_or(MALFORMED)?.parse().ok();
    Ok(name.map(|name| (header.index, Interface { name, is_bridge, master })))
}

/// Entry of a neighbour table, or of a bridge.
struct Entry {
    interface: u32,
    state: u16,
    address: Option<IpAddr>,
    mac: Mac,
    master: Option<u32>,
}

impl Entry {
    /// Decodes an entry; `None` for other messages, and for entries without an Ethernet address.
    fn parse(kind: u16, payload: &[u8]) -> Result<Option<Self>, NetlinkError> {
        let header = NeighbourHeader::parse(payload).map_err(|_| NetlinkError::Malformed { subject: "neighbour" })?;
        if kind != RTM_NEWNEIGH {
            return Ok(None);
        }
        let (mut address, mut mac, mut master) = (None, None, None);
        wire::for_each_attribute(
            "neighbour",
            payload.get(NEIGHBOUR_HEADER_LEN..).unwrap_or_default(),
            |kind, value| {
                match kind {
                    NDA_DST => {
                        let family = if value.len() == 16 { Family::V6 } else { Family::V4 };
                        address = Some(wire::address(family, value)?);
                    }
                    NDA_LLADDR => mac = value.try_into().ok().map(Mac),
                    NDA_MASTER => master = Some(wire::number(value)?),
                    _ => {}
                }
                Some(())
            },
        )?;
        let (interface, state) = (header.ifindex, header.state.into());
        Ok(mac.map(|mac| Self { interface, state, address, mac, master }))
    }
}

/// Returns a request to resolve the Ethernet address of a neighbour, or to drop its entry.
fn neighbour_request(address: IpAddr, interface: u32, resolves: bool) -> Request {
    let mut message = NeighbourMessage::default();
    message.header = NeighbourHeader {
        family: wire::address_family(Family::of(address)),
        ifindex: interface,
        state: NeighbourState::None,
        flags: if resolves { NeighbourFlags::Use } else { NeighbourFlags::empty() },
        ..NeighbourHeader::default()
    };
    let destination = match address {
        IpAddr::V4(address) => NeighbourAddress::Inet(address),
        IpAddr::V6(address) => NeighbourAddress::Inet6(address),
    };
    message.attributes = vec![NeighbourAttribute::Destination(destination)];
    match resolves {
        true => Request { message: RouteNetlinkMessage::NewNeighbour(message), flags: NLM_F_CREATE },
        false => Request { message: RouteNetlinkMessage::DelNeighbour(message), flags: 0 },
    }
}

/// Ignores refusals: a bridge that is gone or down by now gets no answers, and a notification of
/// its change will follow.
fn ignore_missing(result: Result<(), NetlinkError>) -> Result<(), NetlinkError> {
    match result {
        Err(NetlinkError::Refused { .. }) => Ok(()),
        result => result,
    }
}
