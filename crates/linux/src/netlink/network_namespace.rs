//! Network namespace of the other end of a link.

use std::os::fd::{AsRawFd, BorrowedFd};

use super::Netlink;
use super::error::NetlinkError;
use super::wire::{self, RTM_NEWLINK, attribute};

const RTM_GETLINK: u16 = 18;
const LINK_HEADER_LEN: usize = 16;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINK_NETNSID: u16 = 37;

const RTM_NEWNSID: u16 = 88;
const RTM_GETNSID: u16 = 90;
/// `struct rtgenmsg`, padded so that attributes can follow.
const NSID_HEADER: [u8; 4] = [0; 4];
const NETNSA_NSID: u16 = 1;
const NETNSA_FD: u16 = 3;

/// Id of another network namespace in this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceId(i32);

impl Netlink {
    /// Returns the network namespace of the other end of the link with this name; `None` if it is
    /// this namespace, or the link has no other end.
    ///
    /// # Errors
    /// If there is no such link, or it cannot be read.
    pub fn peer_namespace(&mut self, name: &str) -> Result<Option<NamespaceId>, NetlinkError> {
        let name = [name.as_bytes(), &[0]].concat();
        let payload = [vec![0; LINK_HEADER_LEN], attribute(IFLA_IFNAME, &name)].concat();
        self.socket.query(RTM_GETLINK, &payload, "link", |kind, payload| match kind {
            RTM_NEWLINK => id("link", payload.get(LINK_HEADER_LEN..), IFLA_LINK_NETNSID).map(Some),
            _ => Ok(None),
        })
    }

    /// Returns the id of a network namespace in this one; `None` if it has none here.
    ///
    /// # Errors
    /// If the descriptor is not one of a network namespace.
    pub fn namespace_id(&mut self, namespace: BorrowedFd<'_>) -> Result<Option<NamespaceId>, NetlinkError> {
        let payload = [NSID_HEADER.to_vec(), attribute(NETNSA_FD, &namespace.as_raw_fd().to_ne_bytes())].concat();
        self.socket.query(RTM_GETNSID, &payload, "network namespace", |kind, payload| match kind {
            RTM_NEWNSID => id("network namespace", payload.get(NSID_HEADER.len()..), NETNSA_NSID).map(Some),
            _ => Ok(None),
        })
    }
}

fn id(subject: &'static str, attributes: Option<&[u8]>, wanted: u16) -> Result<Option<NamespaceId>, NetlinkError> {
    let mut found = None;
    wire::for_each_attribute(subject, attributes.unwrap_or_default(), |kind, value| {
        if kind == wanted {
            found = Some(i32::from_ne_bytes(value.try_into().ok()?));
        }
        Some(())
    })?;
    Ok(found.filter(|id| *id >= 0).map(NamespaceId))
}
