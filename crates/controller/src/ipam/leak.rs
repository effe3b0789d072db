//! Addresses that have leaked, and what came of releasing them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tortie_net::Cidr;
use tortie_resources::stored::Revision;

use super::block::Release;

/// Where an address is: its block, and its place there.
pub(crate) type Place = (Cidr, usize);

/// The names of a pod: its namespace and its own.
pub(crate) type PodName = (Box<str>, Box<str>);

/// How many addresses of each block.
pub(crate) type Counts = BTreeMap<Cidr, u64>;

/// Why an address has leaked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// It has seemed to for long enough.
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
    /// Whose it was; `None` if it was the node's own.
    pub(crate) pod: Option<PodName>,
}

impl Leak {
    pub(super) fn place(&self) -> Place {
        (self.cidr, self.release.ordinal)
    }
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settled {
    /// What blocks are now, as far as it was read or written.
    pub(crate) written: Vec<Written>,
    /// What was released: the block and the node of each address.
    pub(crate) released: Vec<(Cidr, String)>,
    /// What has not leaked.
    pub(crate) valid: Vec<Place>,
    /// A node that has no blocks any more.
    pub(crate) cleared: Option<String>,
    /// Handles that say more than they have, and by how much.
    pub(crate) owed: Vec<(String, Counts)>,
    /// A handle that does not any more.
    pub(crate) paid: Option<String>,
    /// How many texts were changed and deleted.
    pub(crate) updated: usize,
    pub(crate) deleted: usize,
}

/// What a block is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) cidr: Cidr,
    /// `None` if it is not there.
    pub(crate) text: Option<String>,
    pub(crate) revision: Revision,
}
