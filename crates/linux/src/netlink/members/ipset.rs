//! Members of IP sets of the types `hash:ip`, `hash:net` and `hash:net,iface`.

use std::time::Duration;

use tortie_model::Family;

use super::{MemberChange, Outcomes, SetMember, messages};
use crate::netlink::error::NetlinkError;
use crate::netlink::socket::Socket;
use crate::netlink::wire::{self, attribute};

/// `NFNL_SUBSYS_IPSET`, in the upper byte of a message type.
const SUBSYSTEM: u16 = 6 << 8;
const IPSET_CMD_LIST: u16 = SUBSYSTEM | 7;
const IPSET_CMD_ADD: u16 = SUBSYSTEM | 9;
const IPSET_CMD_DEL: u16 = SUBSYSTEM | 10;
const IPSET_PROTOCOL: u8 = 6;

const NLA_F_NESTED: u16 = 1 << 15;
const NLA_F_NET_BYTEORDER: u16 = 1 << 14;
const IPSET_ATTR_PROTOCOL: u16 = 1;
const IPSET_ATTR_SETNAME: u16 = 2;
const IPSET_ATTR_DATA: u16 = 7;
const IPSET_ATTR_ADT: u16 = 8;
const IPSET_ATTR_LINENO: u16 = 9;
const IPSET_ATTR_IP: u16 = 1;
const IPSET_ATTR_CIDR: u16 = 3;
const IPSET_ATTR_IFACE: u16 = 23;
const IPSET_ATTR_IPADDR_IPV4: u16 = 1;
const IPSET_ATTR_IPADDR_IPV6: u16 = 2;

/// `struct nfgenmsg`.
const HEADER_LEN: usize = 4;
/// Members of one message. The length of their list is a number of two bytes, and a member takes
/// at most 56.
const LONGEST: usize = 1_000;
const SUBJECT: &str = "members of an IP set";

/// Connection to the kernel for members of IP sets.
#[derive(Debug)]
pub struct IpSetMembers {
    socket: Socket,
}

impl IpSetMembers {
    /// Opens a connection; every answer must come within `timeout`.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn open(timeout: Duration) -> Result<Self, NetlinkError> {
        Socket::open_netfilter(timeout).map(|socket| Self { socket })
    }

    /// Returns the members of a set in order, without those that are networks of several addresses;
    /// `None` if there is no such set.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub fn list(&mut self, set: &str) -> Result<Option<Vec<SetMember>>, NetlinkError> {
        let request = [vec![0; HEADER_LEN], protocol(), text(IPSET_ATTR_SETNAME, set)].concat();
        let listed = self.socket.dump_raw(IPSET_CMD_LIST, &request, SUBJECT, |_, payload| parse(payload).map(Some));
        match listed {
            Ok(parts) => {
                let mut members = parts.concat();
                members.sort_unstable();
                Ok(Some(members))
            }
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes changes, and returns the outcome of each. A refused change does not stop the others.
    /// Successive changes of the same kind and set are one message.
    ///
    /// # Errors
    /// If some outcomes are unknown.
    pub fn write(&mut self, changes: &[MemberChange<'_>]) -> Result<Outcomes, NetlinkError> {
        let mut outcomes = Vec::with_capacity(changes.len());
        for message in messages(changes, LONGEST) {
            match self.send(message) {
                Ok(()) => outcomes.extend(message.iter().map(|_| Ok(()))),
                // Changes before the refused one are in effect; they may be repeated.
                Err(NetlinkError::Refused { .. }) => {
                    for change in message {
                        match self.send(std::slice::from_ref(change)) {
                            outcome @ (Ok(()) | Err(NetlinkError::Refused { .. })) => outcomes.push(outcome),
                            Err(error) => return Err(error),
                        }
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(outcomes)
    }

    /// Sends changes of the same kind as one message.
    fn send(&mut self, changes: &[MemberChange<'_>]) -> Result<(), NetlinkError> {
        let Some(first) = changes.first() else { return Ok(()) };
        let members: Vec<Vec<u8>> = changes.iter().map(|change| member(&change.member)).collect();
        let payload = [
            vec![wire::family_number(first.family()), 0, 0, 0],
            protocol(),
            text(IPSET_ATTR_SETNAME, first.set),
            attribute(IPSET_ATTR_LINENO | NLA_F_NET_BYTEORDER, &[0; 4]),
            attribute(IPSET_ATTR_ADT | NLA_F_NESTED, &members.concat()),
        ];
        let kind = if first.is_added { IPSET_CMD_ADD } else { IPSET_CMD_DEL };
        // Without `NLM_F_EXCL` a present member can be added, and an absent one deleted.
        self.socket.request_raw(kind, 0, &payload.concat(), SUBJECT)
    }
}

fn protocol() -> Vec<u8> {
    attribute(IPSET_ATTR_PROTOCOL, &[IPSET_PROTOCOL])
}

fn text(kind: u16, value: &str) -> Vec<u8> {
    attribute(kind, &[value.as_bytes(), &[0]].concat())
}

fn member(member: &SetMember) -> Vec<u8> {
    let (kind, octets) = match member.address {
        std::net::IpAddr::V4(address) => (IPSET_ATTR_IPADDR_IPV4, address.octets().to_vec()),
        std::net::IpAddr::V6(address) => (IPSET_ATTR_IPADDR_IPV6, address.octets().to_vec()),
    };
    let mut data = attribute(IPSET_ATTR_IP | NLA_F_NESTED, &attribute(kind | NLA_F_NET_BYTEORDER, &octets));
    if let Some(interface) = &member.interface {
        data.extend(text(IPSET_ATTR_IFACE, interface.as_str()));
    }
    attribute(IPSET_ATTR_DATA | NLA_F_NESTED, &data)
}

/// Decodes a part of a listing.
fn parse(payload: &[u8]) -> Result<Vec<SetMember>, NetlinkError> {
    let mut members = Vec::new();
    let attributes = payload.get(HEADER_LEN..).unwrap_or_default();
    wire::for_each_attribute(SUBJECT, attributes, |kind, list| {
        if kind == IPSET_ATTR_ADT {
            let each = |kind, data| {
                if kind == IPSET_ATTR_DATA {
                    members.extend(parse_member(data)?);
                }
                Some(())
            };
            wire::for_each_attribute(SUBJECT, list, each).ok()?;
        }
        Some(())
    })?;
    Ok(members)
}

/// Decodes a member: `Some(None)` for one that is no single address, `None` for a malformed one.
fn parse_member(data: &[u8]) -> Option<Option<SetMember>> {
    let (mut address, mut length, mut interface) = (None, None, None);
    let read = wire::for_each_attribute(SUBJECT, data, |kind, value| {
        match kind {
            IPSET_ATTR_IP => {
                let each = |kind, octets| {
                    let family = if kind == IPSET_ATTR_IPADDR_IPV4 { Family::V4 } else { Family::V6 };
                    address = Some(wire::address(family, octets)?);
                    Some(())
                };
                wire::for_each_attribute(SUBJECT, value, each).ok()?;
            }
            IPSET_ATTR_CIDR => length = Some(*value.first()?),
            IPSET_ATTR_IFACE => interface = Some(wire::text(value).parse().ok()?),
            _ => {}
        }
        Some(())
    });
    let address = read.ok().and(address)?;
    let is_single = length.is_none_or(|length| length == Family::of(address).max_prefix_len());
    Some(is_single.then_some(SetMember { interface, address }))
}
