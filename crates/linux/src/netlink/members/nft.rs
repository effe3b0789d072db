//! Members of nftables sets with the keys `ipv4_addr`, `ipv6_addr`, and either after `ifname`.

use std::time::Duration;

use netlink_packet_core::NLM_F_CREATE;
use tortie_model::Family;
use tortie_nftables::wire::Message;

use super::{MemberChange, Outcomes, SetMember, messages};
use crate::netlink::error::NetlinkError;
use crate::netlink::nft_message::{
    NFT_MSG_DELSETELEM, NFT_MSG_GETSETELEM, NFT_MSG_NEWSETELEM, NFTA_DATA_VALUE, NFTA_LIST_ELEM, data, nested, text,
};
use crate::netlink::socket::Socket;
use crate::netlink::wire;

const NFTA_SET_ELEM_LIST_TABLE: u16 = 1;
const NFTA_SET_ELEM_LIST_SET: u16 = 2;
const NFTA_SET_ELEM_LIST_ELEMENTS: u16 = 3;
const NFTA_SET_ELEM_KEY: u16 = 1;

/// `struct nfgenmsg`.
const HEADER_LEN: usize = 4;
/// Length of an interface in a key (`IFNAMSIZ`).
const INTERFACE_LEN: usize = 16;
/// Members of one message. The length of their list is a number of two bytes, and a member takes
/// at most 44.
const LONGEST: usize = 1_000;
const SUBJECT: &str = "members of a set of nftables";

/// Connection to the kernel for members of the sets of one nftables table, which has the same name
/// in both families.
#[derive(Debug)]
pub struct NftMembers {
    socket: Socket,
    table: &'static str,
}

impl NftMembers {
    /// Opens a connection; every answer must come within `timeout`.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn open(table: &'static str, timeout: Duration) -> Result<Self, NetlinkError> {
        Socket::open_netfilter(timeout).map(|socket| Self { socket, table })
    }

    /// Returns the members of a set in order; `None` if there is no such set.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub fn list(&mut self, family: Family, set: &str) -> Result<Option<Vec<SetMember>>, NetlinkError> {
        let request = [
            vec![wire::family_number(family), 0, 0, 0],
            text(NFTA_SET_ELEM_LIST_TABLE, self.table),
            text(NFTA_SET_ELEM_LIST_SET, set),
        ];
        let listed = self.socket.dump_raw(NFT_MSG_GETSETELEM, &request.concat(), SUBJECT, |kind, payload| {
            if kind == NFT_MSG_NEWSETELEM { parse(family, payload).map(Some) } else { Ok(None) }
        });
        match listed {
            Ok(parts) => {
                let mut members = parts.concat();
                members.sort_unstable();
                Ok(Some(members))
            }
            Err(error) if error.is_absent_in_nftables() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes changes, and returns the outcome of each. All are one transaction; if the kernel
    /// refuses some, the refused messages are taken apart, and the others are written without them,
    /// so that no member may occur twice.
    ///
    /// # Errors
    /// If some outcomes are unknown.
    pub fn write(&mut self, changes: &[MemberChange<'_>]) -> Result<Outcomes, NetlinkError> {
        let parts: Vec<&[MemberChange<'_>]> = messages(changes, LONGEST).collect();
        let refused = self.commit(&parts)?;
        if refused.is_empty() {
            return Ok(changes.iter().map(|_| Ok(())).collect());
        }
        let is_refused = |at: usize| refused.iter().any(|(of, _)| *of == at);
        let others: Vec<&[MemberChange<'_>]> =
            (parts.iter().enumerate()).filter(|(at, _)| !is_refused(*at)).map(|(_, part)| *part).collect();
        let others_are_written = self.commit(&others)?.is_empty();
        let mut outcomes = Vec::with_capacity(changes.len());
        for (at, part) in parts.into_iter().enumerate() {
            if others_are_written && !is_refused(at) {
                outcomes.extend(part.iter().map(|_| Ok(())));
                continue;
            }
            for change in part {
                outcomes.push(self.write_one(change)?);
            }
        }
        Ok(outcomes)
    }

    fn write_one(&mut self, change: &MemberChange<'_>) -> Result<Result<(), NetlinkError>, NetlinkError> {
        let refused = self.commit(&[std::slice::from_ref(change)])?;
        Ok(match refused.into_iter().next() {
            // An element that is not there cannot be deleted; a missing set is named when members
            // are added.
            Some((_, error)) if !change.is_added && error.is_not_found() => Ok(()),
            Some((_, error)) => Err(error),
            None => Ok(()),
        })
    }

    /// Commits messages as one transaction, and returns the refused ones.
    fn commit(&mut self, parts: &[&[MemberChange<'_>]]) -> Result<Vec<(usize, NetlinkError)>, NetlinkError> {
        let messages: Vec<Message> = parts.iter().enumerate().filter_map(|(at, part)| self.encode(at, part)).collect();
        self.socket.transaction_with_outcomes(&messages, SUBJECT)
    }

    /// Encodes changes of the same kind.
    fn encode(&self, at: usize, changes: &[MemberChange<'_>]) -> Option<Message> {
        let first = changes.first()?;
        let elements: Vec<Vec<u8>> = changes
            .iter()
            .map(|change| nested(NFTA_LIST_ELEM, &[data(NFTA_SET_ELEM_KEY, &key(&change.member))]))
            .collect();
        let payload = [
            vec![wire::family_number(first.family()), 0, 0, 0],
            text(NFTA_SET_ELEM_LIST_TABLE, self.table),
            text(NFTA_SET_ELEM_LIST_SET, first.set),
            nested(NFTA_SET_ELEM_LIST_ELEMENTS, &elements),
        ];
        let (kind, flags) = if first.is_added { (NFT_MSG_NEWSETELEM, NLM_F_CREATE) } else { (NFT_MSG_DELSETELEM, 0) };
        Some(Message { kind, flags, payload: payload.concat(), command: at })
    }
}

fn key(member: &SetMember) -> Vec<u8> {
    let mut key = Vec::new();
    if let Some(interface) = &member.interface {
        key.extend(interface.as_str().as_bytes());
        key.resize(INTERFACE_LEN, 0);
    }
    match member.address {
        std::net::IpAddr::V4(address) => key.extend(address.octets()),
        std::net::IpAddr::V6(address) => key.extend(address.octets()),
    }
    key
}

/// Decodes a part of a listing.
fn parse(family: Family, payload: &[u8]) -> Result<Vec<SetMember>, NetlinkError> {
    let mut members = Vec::new();
    let attributes = payload.get(HEADER_LEN..).unwrap_or_default();
    let mut each_value = |kind, value: &[u8]| {
        if kind == NFTA_DATA_VALUE {
            members.push(parse_key(family, value)?);
        }
        Some(())
    };
    let mut each_part = |kind, key: &[u8]| {
        if kind == NFTA_SET_ELEM_KEY { wire::for_each_attribute(SUBJECT, key, &mut each_value).ok() } else { Some(()) }
    };
    let mut each_element = |_, element: &[u8]| wire::for_each_attribute(SUBJECT, element, &mut each_part).ok();
    wire::for_each_attribute(SUBJECT, attributes, |kind, list| {
        if kind == NFTA_SET_ELEM_LIST_ELEMENTS {
            wire::for_each_attribute(SUBJECT, list, &mut each_element).ok()
        } else {
            Some(())
        }
    })?;
    Ok(members)
}

fn parse_key(family: Family, key: &[u8]) -> Option<SetMember> {
    let (interface, address) =
        key.split_at_checked(key.len().checked_sub(usize::from(family.max_prefix_len() / 8))?)?;
    let interface = match interface {
        [] => None,
        interface if interface.len() == INTERFACE_LEN => Some(wire::text(interface).parse().ok()?),
        _ => return None,
    };
    Some(SetMember { interface, address: wire::address(family, address)? })
}
