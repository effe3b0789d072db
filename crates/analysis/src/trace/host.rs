//! Host endpoints of a node that filter a packet, and their layers.

use std::net::IpAddr;

use tortie_evaluate::{Evaluator, Layer, Verdict};
use tortie_model::{Direction, HostEndpointName, HostInterface};

use crate::trace::index::host_endpoint_addresses;

/// Kind of a packet for the host endpoints of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "there are no others")]
pub enum Traffic {
    /// Traffic of the node itself.
    Own,
    /// Forwarded traffic to or from a place outside the cluster, or another node.
    Forwarded,
    /// Forwarded traffic between workloads of different nodes.
    BetweenWorkloads,
}

impl Traffic {
    /// Returns the layers of a host endpoint that a packet passes on entry (ingress) or exit
    /// (egress), in order.
    #[must_use]
    pub const fn layers(self, direction: Direction) -> &'static [Layer] {
        match (direction, self) {
            (Direction::Ingress, Self::Own) => &[Layer::Untracked, Layer::PreDnat, Layer::Normal],
            (Direction::Ingress, _) => &[Layer::Untracked, Layer::PreDnat, Layer::Forward],
            (Direction::Egress, Self::Own) => &[Layer::Untracked, Layer::Normal],
            // Conntrack has seen forwarded packets before they leave.
            (Direction::Egress, _) => &[Layer::Forward],
        }
    }

    /// Reports whether a layer with this verdict is the last one of the host endpoint that is
    /// evaluated.
    #[must_use]
    pub fn ends(self, layer: Layer, verdict: Verdict) -> bool {
        match layer {
            // A packet that an untracked policy allows skips the other policies of the host.
            Layer::Untracked => verdict == Verdict::Deny || verdict == Verdict::Allow && self == Self::Own,
            _ => verdict == Verdict::Deny,
        }
    }

    /// Returns the host endpoints of a node that may filter a packet, sorted by name. `own` is the
    /// address of the packet at the node's end. The interface of the packet is unknown: the result
    /// is the host endpoints that expect this address, else those of all interfaces, else all.
    #[must_use]
    pub fn host_endpoints(self, evaluator: &Evaluator, own: IpAddr) -> Vec<HostEndpointName> {
        let mut all: Vec<_> = evaluator.host_endpoints().collect();
        all.sort_by_key(|(name, _)| *name);
        let of_all_interfaces: Vec<_> =
            all.iter().filter(|(_, state)| state.endpoint.iface == Some(HostInterface::All)).copied().collect();
        let expecting: Vec<_> = all
            .iter()
            .filter(|(_, state)| host_endpoint_addresses(&state.endpoint).any(|address| address == own))
            .copied()
            .collect();
        let chosen = match self {
            Self::BetweenWorkloads => of_all_interfaces,
            Self::Own | Self::Forwarded if !expecting.is_empty() => expecting,
            Self::Own | Self::Forwarded if !of_all_interfaces.is_empty() => of_all_interfaces,
            Self::Own | Self::Forwarded => all,
        };
        chosen.into_iter().map(|(name, _)| name.clone()).collect()
    }
}
