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
    /// Whose peer it is.
    pub nodes: PeerNodes,
    /// The workloads that are the peer, on these nodes. One that cannot be read selects nothing, as no selector does.
    pub local_workloads: Option<Selector>,
}

/// The nodes that have a BGP peer.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[allow(clippy::exhaustive_enums, reason = "there are no other ways to choose nodes")]
pub enum PeerNodes {
    /// One.
    Named(Hostname),
    /// Those that a selector picks.
    Selected(Selector),
    /// None: the selector cannot be read.
    Nobody,
}
