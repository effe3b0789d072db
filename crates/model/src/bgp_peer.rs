//! BGP peers, as far as endpoints depend on them.

use std::sync::Arc;

use tortie_selector::Selector;

use crate::Hostname;

/// A `BGPPeer`.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct BgpPeer {
    /// The text of the resource as a JSON object, in the form in which Felix reads it.
    pub text: Arc<str>,
    /// The nodes that have this peer.
    pub nodes: PeerNodes,
    /// Selector of the workloads on these nodes that are the peer. An unreadable or missing
    /// selector matches nothing.
    pub local_workloads: Option<Selector>,
}

/// The nodes that have a BGP peer.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[allow(clippy::exhaustive_enums, reason = "there are no other ways to choose nodes")]
pub enum PeerNodes {
    /// One node.
    Named(Hostname),
    /// The nodes that match a selector.
    Selected(Selector),
    /// No nodes: the selector cannot be read.
    Nobody,
}
