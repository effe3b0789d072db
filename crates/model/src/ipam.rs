//! IPAM blocks.

use std::net::IpAddr;
use std::sync::Arc;

use crate::Hostname;

/// An IPAM block: its text, and the attributes that routes depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct IpamBlock {
    /// The text of a JSON object in the form in which Felix reads it.
    pub text: Arc<str>,
    /// The node (or another owner, such as a load balancer) that the block is affine to; `None`
    /// without affinity.
    pub affinity: Option<Hostname>,
    /// The allocated addresses that other nodes use, in ascending order.
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
