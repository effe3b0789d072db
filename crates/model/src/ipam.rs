//! Blocks of addresses that nodes hand out to workloads.

use std::net::IpAddr;
use std::sync::Arc;

use crate::Hostname;

/// A block of addresses (IPAM): as it is written, and what routes depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct IpamBlock {
    /// The text of a JSON object in the form in which Felix reads it.
    pub text: Arc<str>,
    /// The node (or the other thing, such as a load balancer) that addresses of the block are for; `None` if for none.
    pub affinity: Option<Hostname>,
    /// The allocated addresses that nodes other than the affine one use, in ascending order.
    pub borrowed: Box<[NodeAllocation]>,
}

/// An allocated address.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct NodeAllocation {
    /// The address.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "crate::serde_forms::canonical"))]
    pub address: IpAddr,
    /// The node that has it.
    pub node: Hostname,
}
