//! Netlink messages as bytes: framing, attributes, acknowledgements.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_core::{NLA_TYPE_MASK, NetlinkBuffer, NetlinkMessage, NetlinkPayload, NlasIterator};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rustix::io::Errno;
use tortie_model::Family;

use super::error::NetlinkError;

pub(super) const NLMSG_ERROR: u16 = 2;
pub(super) const NLMSG_DONE: u16 = 3;
pub(super) const NLMSG_OVERRUN: u16 = 4;

pub(super) const RTM_NEWLINK: u16 = 16;
pub(super) const RTM_DELLINK: u16 = 17;
pub(super) const RTM_NEWADDR: u16 = 20;
pub(super) const RTM_NEWROUTE: u16 = 24;
pub(super) const RTM_DELROUTE: u16 = 25;
pub(super) const RTM_NEWNEIGH: u16 = 28;
pub(super) const RTM_NEWRULE: u16 = 32;
pub(super) const RTM_DELRULE: u16 = 33;
pub(super) const RTM_GETRULE: u16 = 34;

/// `NLM_F_CAPPED`: an acknowledgement repeats only the header of the request.
const NLM_F_CAPPED: u16 = 0x100;
/// `NLM_F_ACK_TLVS`: an acknowledgement has attributes.
const NLM_F_ACK_TLVS: u16 = 0x200;
/// `NLMSGERR_ATTR_MSG`: the kernel's message.
const NLMSGERR_ATTR_MSG: u16 = 1;
const HEADER_LEN: usize = 16;
const ATTRIBUTE_HEADER_LEN: usize = 4;

/// Message for the kernel.
pub(super) struct Request {
    pub(super) message: RouteNetlinkMessage,
    /// `NLM_F_*` flags in addition to those of every request of its kind.
    pub(super) flags: u16,
}

impl Request {
    /// Encodes the message.
    pub(super) fn encode(self, flags: u16, sequence: u32) -> Vec<u8> {
        let mut message = NetlinkMessage::from(self.message);
        message.header.flags = self.flags | flags;
        message.header.sequence_number = sequence;
        debug_assert!(matches!(message.payload, NetlinkPayload::InnerMessage(_)));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }
}

/// Encodes a message of any type: header, then payload, whose length must be a multiple of four.
#[expect(clippy::expect_used, reason = "requests are far shorter")]
pub(super) fn encode(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
    debug_assert!(payload.len().is_multiple_of(4));
    let length = u32::try_from(HEADER_LEN + payload.len()).expect("a message has fewer than 2^32 bytes");
    let mut bytes = Vec::with_capacity(HEADER_LEN + payload.len());
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    // The kernel fills in the sender.
    bytes.extend([0; 4]);
    bytes.extend(payload);
    bytes
}

/// One message of a datagram from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) sequence: u32,
    pub(super) payload: &'a [u8],
}

/// Iterates over the messages of a datagram; ends after an error.
pub(super) fn frames(mut datagram: &[u8]) -> impl Iterator<Item = Result<Frame<'_>, NetlinkError>> {
    std::iter::from_fn(move || {
        if datagram.is_empty() {
            return None;
        }
        let bytes = std::mem::take(&mut datagram);
        let Ok(header) = NetlinkBuffer::new_checked(bytes) else {
            return Some(Err(NetlinkError::Malformed { subject: "message header" }));
        };
        let length = header.length() as usize;
        datagram = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Ok(Frame {
            kind: header.message_type(),
            flags: header.flags(),
            sequence: header.sequence_number(),
            payload: bytes.get(HEADER_LEN..length).unwrap_or_default(),
        }))
    })
}

/// Decodes an acknowledgement.
pub(super) fn parse_ack(subject: &'static str, frame: &Frame<'_>) -> Result<(), NetlinkError> {
    let Some((code, request)) = frame.payload.split_first_chunk().map(|(code, rest)| (i32::from_ne_bytes(*code), rest))
    else {
        return Err(NetlinkError::Malformed { subject: "acknowledgement" });
    };
    if code == 0 {
        return Ok(());
    }
    if let Some((errno, detail)) = ip_set_error(code) {
        return Err(NetlinkError::Refused { subject, errno, detail });
    }
    let errno = errno(code).ok_or(NetlinkError::Malformed { subject: "acknowledgement" })?;
    let detail = if frame.flags & NLM_F_ACK_TLVS == 0 {
        String::new()
    } else {
        let length = request.first_chunk().map_or(0, |length| u32::from_ne_bytes(*length) as usize);
        let repeated = if frame.flags & NLM_F_CAPPED == 0 { length.next_multiple_of(4) } else { HEADER_LEN };
        detail_of(request.get(repeated..).unwrap_or_default())
    };
    Err(NetlinkError::Refused { subject, errno, detail })
}

/// Decodes the end of a dump.
pub(super) fn parse_done(subject: &'static str, frame: &Frame<'_>) -> Result<(), NetlinkError> {
    let code = frame.payload.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
    if code >= 0 {
        return Ok(());
    }
    let detail = detail_of(frame.payload.get(4..).unwrap_or_default());
    let errno = errno(code).ok_or(NetlinkError::Malformed { subject: "end of a listing" })?;
    Err(NetlinkError::Refused { subject, errno, detail })
}

/// Returns the error of a code beyond those of the system, which only IP sets use
/// (`enum ipset_errno`).
fn ip_set_error(code: i32) -> Option<(Errno, String)> {
    const IPSET_ERR_PRIVATE: i32 = 4_096;
    const IPSET_ERR_HASH_FULL: i32 = 4_352;
    let code = code.checked_neg().filter(|code| *code > IPSET_ERR_PRIVATE)?;
    if code == IPSET_ERR_HASH_FULL {
        return Some((Errno::NOSPC, "the set is full".to_owned()));
    }
    Some((Errno::INVAL, format!("error {code} of IP sets")))
}

/// Returns the error of a negative code.
fn errno(code: i32) -> Option<Errno> {
    // `Errno` panics on others.
    (-4095..0).contains(&code).then(|| Errno::from_raw_os_error(-code))
}

fn detail_of(attributes: &[u8]) -> String {
    let mut detail = String::new();
    // A malformed text must not hide the error.
    let _ = for_each_attribute("error text", attributes, |kind, value| {
        if kind == NLMSGERR_ATTR_MSG {
            detail = text(value);
        }
        Some(())
    });
    detail
}

/// Calls `each` with kind and value of every attribute. An attribute for which it returns `None` is
/// malformed.
pub(super) fn for_each_attribute<'a>(
    subject: &'static str,
    attributes: &'a [u8],
    mut each: impl FnMut(u16, &'a [u8]) -> Option<()>,
) -> Result<(), NetlinkError> {
    for attribute in NlasIterator::new(attributes) {
        let taken = attribute.ok().and_then(|attribute| {
            let (kind, length) = (attribute.kind() & NLA_TYPE_MASK, usize::from(attribute.length()));
            each(kind, attribute.into_inner().get(ATTRIBUTE_HEADER_LEN..length)?)
        });
        if taken.is_none() {
            return Err(NetlinkError::Malformed { subject });
        }
    }
    Ok(())
}

/// Returns the text up to its NUL.
pub(super) fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}

pub(super) fn number(value: &[u8]) -> Option<u32> {
    value.try_into().ok().map(u32::from_ne_bytes)
}

pub(super) fn address(family: Family, value: &[u8]) -> Option<IpAddr> {
    match family {
        Family::V4 => <[u8; 4]>::try_from(value).ok().map(|octets| Ipv4Addr::from(octets).into()),
        Family::V6 => <[u8; 16]>::try_from(value).ok().map(|octets| Ipv6Addr::from(octets).into()),
    }
}

pub(super) const fn unspecified(family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}

pub(super) const fn address_family(family: Family) -> AddressFamily {
    match family {
        Family::V4 => AddressFamily::Inet,
        Family::V6 => AddressFamily::Inet6,
    }
}

/// Returns the number of a family, `AF_INET` or `AF_INET6`.
pub(super) const fn family_number(family: Family) -> u8 {
    match family {
        Family::V4 => 2,
        Family::V6 => 10,
    }
}

/// Encodes an attribute, padded so that another can follow.
#[expect(clippy::expect_used, reason = "a wrong length would have the kernel read other attributes")]
pub(super) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(ATTRIBUTE_HEADER_LEN + value.len()).expect("an attribute has fewer than 2^16 bytes");
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}
