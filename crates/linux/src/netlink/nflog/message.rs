//! Messages of NFLOG, as bytes.

use tortie_model::Family;

use super::headers::LoggedHeaders;
use crate::netlink::conntrack::{Tuple, parse_original};
use crate::netlink::error::NetlinkError;
use crate::netlink::wire;

const NFULA_IFINDEX_INDEV: u16 = 4;
const NFULA_IFINDEX_OUTDEV: u16 = 5;
const NFULA_PAYLOAD: u16 = 9;
const NFULA_PREFIX: u16 = 10;
const NFULA_SEQ: u16 = 12;
const NFULA_CT: u16 = 18;
const NFULA_CT_INFO: u16 = 19;
/// The upper ones of `enum ip_conntrack_info`.
const IP_CT_IS_REPLY: u32 = 3;

const WHAT: &str = "logged packet";
const MALFORMED: NetlinkError = NetlinkError::Malformed { what: WHAT };

/// A packet that a rule logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedPacket<'a> {
    /// The group that the rule names.
    pub group: u16,
    /// The prefix that the rule gives, without the zero at its end; empty if it gives none.
    pub prefix: &'a [u8],
    /// The packet itself.
    pub packet: LoggedHeaders,
    /// The interface by which it came in; none of packets of the node itself.
    pub in_interface: Option<u32>,
    /// The interface by which it leaves; none where that is not decided yet, and of packets to the node itself.
    pub out_interface: Option<u32>,
    /// How the packet's connection was opened, before any translation; where the kernel tells
    /// ([`Nflog::tells_connections`](super::Nflog::tells_connections)) and tracks the packet.
    pub original: Option<Tuple>,
    /// Whether the packet goes the other way than `original` says.
    pub is_reply: bool,
}

impl<'a> LoggedPacket<'a> {
    /// Reads a message that tells of a packet (`NFULNL_MSG_PACKET`), without its netlink header.
    ///
    /// # Errors
    /// If it is malformed, or the packet is not one of IP.
    pub fn parse(message: &'a [u8]) -> Result<Self, NetlinkError> {
        Message::parse(message)?.packet.ok_or(MALFORMED)
    }
}

/// A message that tells of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message<'a> {
    pub(super) group: u16,
    /// The number of the packet among those of its group.
    pub(super) sequence: Option<u32>,
    /// `None` if it is not one of IP.
    pub(super) packet: Option<LoggedPacket<'a>>,
}

impl<'a> Message<'a> {
    pub(super) fn parse(message: &'a [u8]) -> Result<Self, NetlinkError> {
        // `struct nfgenmsg`: the group is where others have the resource.
        let (&[_family, _version, high, low], attributes) = message.split_first_chunk().ok_or(MALFORMED)?;
        let group = u16::from_be_bytes([high, low]);
        let (mut sequence, mut in_interface, mut out_interface) = (None, None, None);
        let (mut prefix, mut payload): (&[u8], &[u8]) = (&[], &[]);
        let (mut connection, mut info) = (None, 0);
        wire::for_each_attribute(WHAT, attributes, |kind, value| {
            match kind {
                NFULA_IFINDEX_INDEV => in_interface = Some(number(value)?),
                NFULA_IFINDEX_OUTDEV => out_interface = Some(number(value)?),
                NFULA_PAYLOAD => payload = value,
                NFULA_PREFIX => prefix = value.split(|byte| *byte == 0).next()?,
                NFULA_SEQ => sequence = Some(number(value)?),
                NFULA_CT => connection = Some(value),
                NFULA_CT_INFO => info = number(value)?,
                _ => {}
            }
            Some(())
        })?;
        let Some(packet) = LoggedHeaders::parse(payload) else {
            return Ok(Self { group, sequence, packet: None });
        };
        let family = Family::of(packet.tuple.source);
        let original = connection.map(|attributes| parse_original(family, attributes)).transpose()?;
        let is_reply = original.is_some() && info >= IP_CT_IS_REPLY;
        let packet = LoggedPacket { group, prefix, packet, in_interface, out_interface, original, is_reply };
        Ok(Self { group, sequence, packet: Some(packet) })
    }
}

fn number(value: &[u8]) -> Option<u32> {
    value.try_into().ok().map(u32::from_be_bytes)
}

#[cfg(test)]
mod tests;
