//! Network interfaces.

use netlink_packet_route::link::{LinkFlags, LinkHeader, LinkMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use tortie_model::{InterfaceName, InvalidName};

use super::error::NetlinkError;
use super::wire::{self, RTM_NEWLINK, Request};

const HEADER_LEN: usize = 16;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const MALFORMED: NetlinkError = NetlinkError::Malformed { what: "link" };

/// A network interface that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkState {
    /// Its index, which names it for as long as it exists.
    pub index: u32,
    /// Its name, which may change.
    pub name: InterfaceName,
    /// Whether it can carry traffic (`IFF_RUNNING`).
    pub is_running: bool,
    /// The largest packet that it takes; 0 if the kernel does not say.
    pub mtu: u32,
}

/// A network interface whose name is no [`InterfaceName`]: no rule can be written about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OddLink {
    /// Its index.
    pub index: u32,
    /// Its name, bytes that are no text replaced.
    pub name: String,
}

pub(super) fn dump_request() -> Request {
    Request { message: RouteNetlinkMessage::GetLink(LinkMessage::default()), flags: 0 }
}

/// The link that a message is about; `None` if it is about one as a member of a bridge and the like.
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
    let (index, is_running) = (header.index, header.flags.contains(LinkFlags::Running));
    let name = name.ok_or(MALFORMED)?;
    Ok(Some(match name.parse() {
        Ok(name) => Ok(LinkState { index, name, is_running, mtu }),
        Err(InvalidName { .. }) => Err(OddLink { index, name }),
    }))
}
