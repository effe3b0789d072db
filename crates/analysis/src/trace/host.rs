//! Which host endpoints of a node see a packet, and which of their layers.

use std::net::IpAddr;

use tortie_evaluate::{Evaluator, Layer, Verdict};
use tortie_model::{Direction, HostEndpointName, HostInterface};

use crate::trace::index::host_endpoint_addresses;

/// What a packet is to the host endpoints of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "there are no others")]
pub enum Traffic {
    /// The node's own.
    Own,
    /// Forwarded to or from what is outside the cluster, or another node.
    Forwarded,
    /// Forwarded between workloads of different nodes.
    BetweenWorkloads,
}

impl Traffic {
    /// The layers that a packet meets that comes in by a host endpoint (ingress), or leaves by one (egress), in order.
    #[must_use]
    pub const fn layers(self, direction: Direction) -> &'static [Layer] {
        match (direction, self) {
            (Direction::Ingress, Self::Own) => &[Layer::Untracked, Layer::PreDnat, Layer::Normal],
            (Direction::Ingress, _) => &[Layer::Untracked, Layer::PreDnat, Layer::Forward],
            (Direction::Egress, Self::Own) => &[Layer::Untracked, Layer::Normal],
            // Packets that are forwarded have been tracked before they leave.
            (Direction::Egress, _) => &[Layer::Forward],
        }
    }

    /// Whether no other layer of the host endpoint is asked behind one that says this.
    #[must_use]
    pub fn ends(self, layer: Layer, verdict: Verdict) -> bool {
        match layer {
            // What is let through untracked meets no other policy of its host.
            Layer::Untracked => verdict == Verdict::Deny || verdict == Verdict::Allow && self == Self::Own,
            _ => verdict == Verdict::Deny,
        }
    }

    /// The host endpoints of a node that may see a packet, in order of their names. `own` is the address of the packet at the
    /// node's end. By which interface it comes or goes is not known: of the node's host endpoints those are meant that expect
    /// this address, else those of all interfaces, else all.
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
