//! Network interfaces.

use netlink_packet_route::link::{LinkFlags, LinkHeader, LinkMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use tortie_model::{InterfaceName, InvalidName};

use super::error::NetlinkError;
use super::wire::{self, RTM_NEWLINK, Request};

const HEADER_LEN: usize = 16;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const MALFORMED: NetlinkError = NetlinkError::Malformed { subject: "link" };

/// Existing network interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkState {
    /// Its index, which identifies it for as long as it exists.
    pub index: u32,
    /// Its name, which may change.
    pub name: InterfaceName,
    /// Whether it is set up (`IFF_UP`).
    pub is_up: bool,
    /// Whether it can carry traffic (`IFF_RUNNING`).
    pub is_running: bool,
    /// Its MTU in bytes; 0 if the kernel does not report it.
    pub mtu: u32,
}

/// Network interface whose name is no [`InterfaceName`], so that no rule can refer to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OddLink {
    /// Its index.
    pub index: u32,
    /// Its name, with invalid UTF-8 replaced.
    pub name: String,
}

pub(super) fn dump_request() -> Request {
    Request { message: RouteNetlinkMessage::GetLink(LinkMessage::default()), flags: 0 }
}

/// Decodes the header; `None` if the message is about a link as a member of a bridge or similar.
fn parse_header(payload: &[u8]) -> Result<Option<LinkHeader>, NetlinkError> {
    let header = LinkHeader::parse(payload).map_err(|_| MALFORMED)?;
    Ok((header.interface_family == AddressFamily::Unspec).then_some(header))
}

pub(super) fn parse_index(payload: &[u8]) -> Result<Option<u32>, NetlinkError> {
    Ok(parse_header(payload)?.map(|header| header.index))
}

pub(super) fn parse(kind: u16, payload: &[u8]) -> Result<Option<Result<LinkState, OddLink>>, NetlinkError> {
    if kind != RTM_NEWLINK {
        return Ok(None);
    }
    let Some(header) = parse_header(payload)? else { return Ok(None) };
    let (mut name, mut mtu) = (None, 0);
    wire::for_each_attribute("link", payload.get(HEADER_LEN..).unwrap_or_default(), |kind, value| {
        if kind == IFLA_IFNAME {
            name = Some(wire::text(value));
        }
        if kind == IFLA_MTU {
            mtu = u32::from_ne_bytes(value.try_into().ok()?);
        }
        Some(())
    })?;
    let (is_up, is_running) = (header.flags.contains(LinkFlags::Up), header.flags.contains(LinkFlags::Running));
    let index = header.index;
    let name = name.ok_or(MALFORMED)?;
    Ok(Some(match name.parse() {
        Ok(name) => Ok(LinkState { index, name, is_up, is_running, mtu }),
        Err(InvalidName { .. }) => Err(OddLink { index, name }),
    }))
}
