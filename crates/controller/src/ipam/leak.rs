//! Leaked addresses, and the outcome of their release.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tortie_net::Cidr;
use tortie_resources::stored::Revision;

use super::block::Release;

/// The place of an address: its IPAM block, and its ordinal there.
pub(crate) type AddressSlot = (Cidr, usize);

/// The names of a pod: its namespace and its own.
pub(crate) type PodName = (Box<str>, Box<str>);

/// The number of addresses of each IPAM block.
pub(crate) type Counts = BTreeMap<Cidr, u64>;

/// The reason why an address counts as leaked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The grace period of the candidate has passed.
    Grace,
    /// Its node is gone, too.
    NodeGone,
}

/// An address that has leaked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leak {
    pub(crate) cidr: Cidr,
    pub(crate) release: Release,
    pub(crate) address: IpAddr,
    /// The node that it was allocated on.
    pub(crate) node: String,
    pub(crate) reason: Reason,
    /// The pod that had the address; `None` for an address of the node itself.
    pub(crate) pod: Option<PodName>,
}

impl Leak {
    pub(super) fn place(&self) -> AddressSlot {
        (self.cidr, self.release.ordinal)
    }
}

/// The outcome of a release task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settled {
    /// The current state of each block that the task read or wrote.
    pub(crate) written: Vec<Written>,
    /// The block and the node of each released address.
    pub(crate) released: Vec<(Cidr, String)>,
    /// The places of addresses that have not leaked.
    pub(crate) valid: Vec<AddressSlot>,
    /// A node that has no blocks any more.
    pub(crate) cleared: Option<String>,
    /// Handles that count too many addresses, and the excess.
    pub(crate) owed: Vec<(String, Counts)>,
    /// A handle whose excess was subtracted.
    pub(crate) paid: Option<String>,
    /// The number of entries that were changed.
    pub(crate) updated: usize,
    /// The number of entries that were deleted.
    pub(crate) deleted: usize,
}

/// The current state of an IPAM block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) cidr: Cidr,
    /// `None` if the datastore has no such block.
    pub(crate) text: Option<String>,
    pub(crate) revision: Revision,
}
