//! Changes that the kernel reports to its subscribers.

use std::net::IpAddr;

use tortie_model::Family;

use super::error::NetlinkError;
use super::link::{LinkState, OddLink};
use super::wire::{Frame, NLMSG_OVERRUN, RTM_DELLINK, RTM_DELROUTE, RTM_NEWLINK, RTM_NEWROUTE};
use super::{link, route};

/// Change that the kernel reports to its subscribers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A link exists, in this state.
    Link(LinkState),
    /// A link exists with an odd name.
    OddLink(OddLink),
    /// A link does not exist any more.
    LinkGone {
        /// Its index.
        index: u32,
    },
    /// An address was added or removed.
    Address {
        /// The index of the interface.
        interface: u32,
        /// The address.
        address: IpAddr,
        /// Whether the interface has the address now.
        is_present: bool,
    },
}

impl Notice {
    /// Decodes a message of the kernel; `None` if it is about something else.
    pub(super) fn parse(frame: &Frame<'_>) -> Result<Option<Self>, NetlinkError> {
        match frame.kind {
            RTM_NEWLINK => {
                Ok(link::parse(RTM_NEWLINK, frame.payload)?.map(|link| link.map_or_else(Self::OddLink, Self::Link)))
            }
            RTM_DELLINK => Ok(link::parse_index(frame.payload)?.map(|index| Self::LinkGone { index })),
            RTM_NEWROUTE | RTM_DELROUTE => {
                for family in Family::ALL {
                    if let Some((interface, address)) = route::parse_local_address(family, RTM_NEWROUTE, frame.payload)?
                    {
                        let is_present = frame.kind == RTM_NEWROUTE;
                        return Ok(Some(Self::Address { interface, address, is_present }));
                    }
                }
                Ok(None)
            }
            NLMSG_OVERRUN => Err(NetlinkError::Overflow),
            _ => Ok(None),
        }
    }
}
