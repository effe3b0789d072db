//! Inconsistencies between IPAM entries, pools and users of addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use tortie_net::Cidr;

use super::Addresses;
use crate::ipam::{Allocated, Block, NO_POOL, is_windows_handle, sane_handle};
use crate::json::field;

/// Inconsistency of IPAM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Its kind.
    pub kind: ProblemKind,
    /// The address, block, handle or resource.
    pub subject: String,
    /// The fact, as the rest of a sentence about the subject.
    pub detail: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} [{}]", self.subject, self.detail, self.kind.as_str())
    }
}

/// Kind of an inconsistency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ProblemKind {
    /// An allocated address that nothing has.
    LeakedAddress,
    /// An address of a pool that an endpoint has, and that is not allocated.
    UnallocatedAddress,
    /// An address that an endpoint has, and that is in no pool.
    AddressOutsidePools,
    /// An address that several endpoints have.
    SharedAddress,
    /// An address that is allocated in several blocks.
    AllocatedTwice,
    /// A block that is in no pool.
    BlockWithoutPool,
    /// An affinity of a node to a block that does not exist.
    AffinityWithoutBlock,
    /// A handle to which no address is allocated.
    UnusedHandle,
    /// An entry or resource that cannot be read.
    Unreadable,
}

impl ProblemKind {
    /// Returns the name of the kind, for programs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::LeakedAddress => "leaked-address",
            Self::UnallocatedAddress => "unallocated-address",
            Self::AddressOutsidePools => "address-outside-pools",
            Self::SharedAddress => "shared-address",
            Self::AllocatedTwice => "allocated-twice",
            Self::BlockWithoutPool => "block-without-pool",
            Self::AffinityWithoutBlock => "affinity-without-block",
            Self::UnusedHandle => "unused-handle",
            Self::Unreadable => "unreadable",
        }
    }
}

/// Attribute of an address that moves between the pods of a virtual machine.
const VIRTUAL_MACHINE: &str = "vmi-name";

impl Addresses {
    /// Returns all inconsistencies, by kind and subject. An address in cooldown is no problem, nor
    /// is one that Windows reserves.
    #[must_use]
    pub fn check(&self) -> Vec<Problem> {
        let mut blocks_of: BTreeMap<IpAddr, Vec<Cidr>> = BTreeMap::new();
        let (mut movable, mut held) = (BTreeSet::new(), BTreeSet::new());
        let mut problems = self.unreadable.clone();
        let mut report = |kind, subject: String, detail: String| problems.push(Problem { kind, subject, detail });
        for (cidr, block) in &self.blocks {
            block.not_free().for_each(|address| blocks_of.entry(address).or_default().push(*cidr));
            held.extend(block.handles().map(sane_handle));
            for allocated in block.allocated() {
                if !field(allocated.owner, &[VIRTUAL_MACHINE]).is_null() {
                    movable.insert(allocated.address);
                }
                let is_used = |address| self.users.contains_key(address) || self.in_other_use.contains(address);
                if !is_used(&allocated.address) && self.must_have_user(block, &allocated) {
                    report(ProblemKind::LeakedAddress, allocated.address.to_string(), leak(&allocated));
                }
            }
            if self.pools.of_block(*cidr) == NO_POOL {
                report(ProblemKind::BlockWithoutPool, cidr.to_string(), "the block is in no IP pool".to_owned());
            }
        }
        for (address, users) in &self.users {
            let list = users.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            if users.len() > 1 && !movable.contains(address) {
                report(ProblemKind::SharedAddress, address.to_string(), format!("several have it: {list}"));
            }
            if blocks_of.contains_key(address) || self.unreadable_blocks.iter().any(|block| block.contains(*address)) {
                continue;
            }
            let has_pool = self.pools.of_block(Cidr::host(*address)) != NO_POOL;
            if has_pool && self.has_unknown_blocks {
                continue;
            }
            if !has_pool {
                let why = format!("{list} has it, and it is in no IP pool");
                report(ProblemKind::AddressOutsidePools, address.to_string(), why);
            } else {
                let why = format!("{list} has it, and it is not allocated");
                report(ProblemKind::UnallocatedAddress, address.to_string(), why);
            }
        }
        for (address, blocks) in blocks_of.iter().filter(|(_, blocks)| blocks.len() > 1) {
            let list = blocks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            report(ProblemKind::AllocatedTwice, address.to_string(), format!("is allocated in several blocks: {list}"));
        }
        let may_be_unread = |cidr| self.has_unknown_blocks || self.unreadable_blocks.contains(cidr);
        let is_unknown = |cidr| !self.blocks.contains_key(cidr) && !may_be_unread(cidr);
        for (cidr, node) in self.affinities.iter().filter(|(cidr, _)| is_unknown(cidr)) {
            let why = format!("node {node} has an affinity to the block, which does not exist");
            report(ProblemKind::AffinityWithoutBlock, cidr.to_string(), why);
        }
        // An unreadable block may have an address of any handle.
        let is_all_read = self.unreadable_blocks.is_empty() && !self.has_unknown_blocks;
        let is_unused = |handle: &&String| is_all_read && !held.contains(sane_handle(handle));
        for handle in self.handles.iter().filter(is_unused) {
            report(ProblemKind::UnusedHandle, handle.clone(), "no address is allocated to the handle".to_owned());
        }
        problems.sort_by_key(|problem| problem.kind);
        problems
    }

    /// Reports whether an endpoint, node or Service has to have an allocated address. That of a
    /// virtual machine is kept while the machine is off.
    fn must_have_user(&self, block: &Block, allocated: &Allocated<'_>) -> bool {
        if !field(allocated.owner, &[VIRTUAL_MACHINE]).is_null() {
            return false;
        }
        let is_for_services = block.affinity().is_some_and(|owner| owner.starts_with("virtual:"));
        !allocated.handle.is_some_and(is_windows_handle) && (self.knows_services || !is_for_services)
    }
}

fn leak(allocated: &Allocated<'_>) -> String {
    let text = |name: &str| field(allocated.owner, &[name]).as_str();
    let to = match (text("namespace"), text("pod"), text("node"), text("type")) {
        (Some(namespace), Some(pod), ..) => format!("pod {namespace}/{pod}"),
        (_, _, Some(node), Some(kind)) => format!("{kind} of node {node}"),
        (_, _, Some(node), None) => format!("node {node}"),
        _ => "no known owner".to_owned(),
    };
    match allocated.handle {
        Some(handle) => format!("is allocated to {to} by handle {}, and nothing has it", sane_handle(handle)),
        None => format!("is allocated to {to} without a handle, and nothing has it"),
    }
}
