//! Encoding of NFLOG messages.

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
/// First value of `enum ip_conntrack_info` for replies.
const IP_CT_IS_REPLY: u32 = 3;

const SUBJECT: &str = "logged packet";
const MALFORMED: NetlinkError = NetlinkError::Malformed { subject: SUBJECT };

/// Packet that a rule logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedPacket<'a> {
    /// Group of the rule.
    pub group: u16,
    /// Prefix of the rule, without the zero at its end; empty if it has none.
    pub prefix: &'a [u8],
    /// The packet itself.
    pub packet: LoggedHeaders,
    /// Interface by which the packet came in; `None` for packets of the node itself.
    pub in_interface: Option<u32>,
    /// Interface by which it leaves; `None` if that is not decided yet, and for packets to the node
    /// itself.
    pub out_interface: Option<u32>,
    /// Original direction of the packet's connection, before any translation. Present if the kernel
    /// provides it ([`Nflog::provides_connections`](super::Nflog::provides_connections)) and tracks
    /// the packet.
    pub original: Option<Tuple>,
    /// Whether the packet goes in the opposite direction of `original`.
    pub is_reply: bool,
}

impl<'a> LoggedPacket<'a> {
    /// Decodes a message about a packet (`NFULNL_MSG_PACKET`), without its netlink header.
    ///
    /// # Errors
    /// If it is malformed, or the packet is no IP packet.
    pub fn parse(message: &'a [u8]) -> Result<Self, NetlinkError> {
        Message::parse(message)?.packet.ok_or(MALFORMED)
    }
}

/// Message about a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message<'a> {
    pub(super) group: u16,
    /// Number of the packet within its group.
    pub(super) sequence: Option<u32>,
    /// `None` if it is no IP packet.
    pub(super) packet: Option<LoggedPacket<'a>>,
}

impl<'a> Message<'a> {
    pub(super) fn parse(message: &'a [u8]) -> Result<Self, NetlinkError> {
        // `struct nfgenmsg`, with the group in the field of the resource.
        let (&[_family, _version, high, low], attributes) = message.split_first_chunk().ok_or(MALFORMED)?;
        let group = u16::from_be_bytes([high, low]);
        let (mut sequence, mut in_interface, mut out_interface) = (None, None, None);
        let (mut prefix, mut payload): (&[u8], &[u8]) = (&[], &[]);
        let (mut connection, mut info) = (None, 0);
        wire::for_each_attribute(SUBJECT, attributes, |kind, value| {
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
