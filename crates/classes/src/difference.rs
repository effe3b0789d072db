//! Connections that one state allows and another does not.
//!
//! Workloads and networks that no rule distinguishes, before and after, are one party. For each
//! side of a connection, the parties whose cells differ are found. Only pairs with such a party are
//! evaluated at both ends. In clusters with policies for forwarded packets, host endpoints on the
//! way are sides, too.

mod pairs;

use std::sync::Arc;

use ahash::AHashMap;
use tortie_evaluate::Layer;
use tortie_model::{Direction, Family, HostEndpointName};

use crate::classes::HOST_GROUPS;
use crate::comparison::{Shift, VerdictComparison};
use crate::compiled::Compiled;
use crate::parties::{HostPaths, Nodes, Parties, Party};
use crate::sides::{End, HostEnd, Own, Side};
use crate::states::States;

type Shifts = Arc<[Shift]>;

/// Connections that pass on one side of a change only.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// Sources of the connections: places in [`Difference::parties`], ascending.
    pub from: Vec<usize>,
    /// Destinations of each source: places in [`Difference::parties`], ascending. Of a party in
    /// both lists, connections of a workload to itself are excluded.
    pub to: Vec<usize>,
    /// Pairs that are meant, by the nodes of their ends.
    pub nodes: Nodes,
    /// Kinds of packets, the same for all pairs.
    pub shifts: Arc<[Shift]>,
}

/// Packets that a layer of host endpoints allows on one side of a change only.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostChange {
    /// The host endpoints, in order.
    pub endpoints: Vec<HostEndpointName>,
    /// The layer.
    pub layer: Layer,
    /// Whether packets come in by the endpoint, or leave by it.
    pub direction: Direction,
    /// The other end: places in [`Difference::parties`], ascending.
    pub peers: Vec<usize>,
    /// Kinds of packets.
    pub shifts: Arc<[Shift]>,
}

/// Connections and packets that a change allows or denies. See [`Compiled::difference`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Difference {
    /// Parties of the changes.
    pub parties: Vec<Party>,
    /// Connections from and to workloads.
    pub workloads: Vec<Change>,
    /// Packets at host endpoints.
    pub hosts: Vec<HostChange>,
}

impl Compiled<'_> {
    /// Returns exactly the connections of a family that `after` allows and this state does not, or
    /// the other way round. All pairs of workloads, all pairs of a workload and a network, and all
    /// packets are compared. Workloads that only one state has are left out, as are workloads
    /// without an address of the family. If a workload has several addresses, the first counts. A
    /// host endpoint that is missing in a state denies nothing there.
    ///
    /// If workloads have a [node](crate::Classes::set_workload_node), their connections pass the
    /// policies of its host endpoints for forwarded packets: those of all interfaces at the
    /// workload's interface, and between workloads of different nodes. Connections with other peers
    /// pass the first host endpoint by name of each interface, or else those of all interfaces.
    /// Connections of a workload with the addresses of its own node are then left out.
    ///
    /// Connections of a workload to itself meet no policy. An endpoint whose policies refer to a
    /// missing object is denied everything. The two states may be a [`Classes`](crate::Classes) and
    /// a changed clone, or unrelated.
    #[must_use]
    pub fn difference(&self, after: &Compiled<'_>, family: Family) -> Difference {
        let states = States { before: self, after };
        let parties = Parties::new(states, family, HostPaths::new(states));
        let mut comparison = VerdictComparison::new(states, family);
        let workloads = pairs::between_workloads(&parties, &mut comparison);
        let hosts = at_hosts(states, family, &parties, &comparison);
        Difference { parties: parties.into_public(), workloads, hosts }
    }
}

fn at_hosts(
    states: States<&Compiled<'_>>,
    family: Family,
    parties: &Parties<'_>,
    comparison: &VerdictComparison<'_>,
) -> Vec<HostChange> {
    let (before, after) = (&states.before.classes.hosts, &states.after.classes.hosts);
    let mut names: Vec<&HostEndpointName> = before.keys().chain(after.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let mut changes = Vec::new();
    for (layer, direction) in HOST_GROUPS {
        let mut by_side: AHashMap<Side, Vec<HostEndpointName>> = AHashMap::new();
        for name in &names {
            let has_all =
                |state: &Compiled<'_>| state.classes.hosts.get(*name).is_some_and(|host| host.has_all_interfaces);
            // Untracked policy of all interfaces is not enforced.
            if layer == Layer::Untracked && (has_all(states.before) || has_all(states.after)) {
                continue;
            }
            let side = states.map(|state| Own::of_host(state, name, (layer, direction), family));
            by_side.entry(side).or_default().push((*name).clone());
        }
        for (side, endpoints) in by_side {
            let mut peers: AHashMap<Shifts, Vec<usize>> = AHashMap::new();
            for peer in parties.where_cells(&side, |_| true) {
                let host = HostEnd { layer, peer: parties.address(peer), list: None };
                let shifts =
                    comparison.shifts(&[End { direction, host: Some(host), cell: parties.cell_of(&side, peer) }]);
                if !shifts.is_empty() {
                    peers.entry(shifts.into()).or_default().push(peer);
                }
            }
            changes.extend(peers.into_iter().map(|(shifts, peers)| HostChange {
                endpoints: endpoints.clone(),
                layer,
                direction,
                peers,
                shifts,
            }));
        }
    }
    changes.sort_by(|one, other| {
        let key = |change: &HostChange| HOST_GROUPS.iter().position(|asked| *asked == (change.layer, change.direction));
        (&one.endpoints, key(one), &one.peers).cmp(&(&other.endpoints, key(other), &other.peers))
    });
    changes
}
