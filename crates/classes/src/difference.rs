//! Which connections one state lets through and another does not.
//!
//! Workloads and networks that nothing tells apart, before and after, are one party. For each side of a connection, those
//! parties are found whose cells differ; only pairs with such a party are looked at from both ends. Host endpoints on the way
//! are such sides, too, in clusters that have policies for what is forwarded.

mod pairs;

use std::sync::Arc;

use ahash::AHashMap;
use tortie_evaluate::Layer;
use tortie_model::{Direction, Family, HostEndpointName};

use crate::classes::HOST_GROUPS;
use crate::compiled::Compiled;
use crate::judge::{Judge, Shift};
use crate::parties::{Nodes, Parties, Party, Ways};
use crate::sides::{End, HostEnd, Own, Side};
use crate::states::States;

type Shifts = Arc<[Shift]>;

/// Connections that pass on one side of a change only.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// Who opens them: places in [`Difference::parties`], ascending.
    pub from: Vec<usize>,
    /// To whom: the same for each of them. A workload that is on both lists has no part in it with itself.
    pub to: Vec<usize>,
    /// Which of the pairs are meant.
    pub nodes: Nodes,
    /// Which ones, the same for all pairs.
    pub shifts: Arc<[Shift]>,
}

/// What a layer of host endpoints lets through on one side of a change only.
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
    /// Which packets.
    pub shifts: Arc<[Shift]>,
}

/// What a change opens and closes. See [`Compiled::difference`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Difference {
    /// Those who are named in the changes.
    pub parties: Vec<Party>,
    /// Connections from and to workloads.
    pub workloads: Vec<Change>,
    /// Packets at host endpoints.
    pub hosts: Vec<HostChange>,
}

impl Compiled<'_> {
    /// Which connections of a family `after` lets through and this does not, or the other way round, exactly: for all pairs of
    /// workloads, and of workloads and networks, and all packets. Workloads that are only in one of them have no part in it,
    /// nor have those without an address of the family; of several addresses the first counts. Where a host endpoint is not,
    /// everything passes.
    ///
    /// Where it was said [on which node](crate::Classes::set_workload_node) workloads are, connections meet what host endpoints of
    /// their nodes say of what is forwarded: with workloads of other nodes, those of all interfaces; with what is no workload,
    /// those that expect the workload's address, else those of all interfaces, else all. Connections of a workload with its own
    /// node's addresses have no part in it then.
    ///
    /// A workload that talks to itself meets no policy. What lacks something that its policies refer to is denied everything.
    /// The two may be of one [`Classes`](crate::Classes) and a clone that was changed, or have nothing in common.
    #[must_use]
    pub fn difference(&self, after: &Compiled<'_>, family: Family) -> Difference {
        let states = States { before: self, after };
        let parties = Parties::new(states, family, Ways::new(states));
        let mut judge = Judge::new(states, family);
        let workloads = pairs::between_workloads(&parties, &mut judge);
        let hosts = at_hosts(states, family, &parties, &judge);
        Difference { parties: parties.into_public(), workloads, hosts }
    }
}

fn at_hosts(
    states: States<&Compiled<'_>>,
    family: Family,
    parties: &Parties<'_>,
    judge: &Judge<'_>,
) -> Vec<HostChange> {
    let (before, after) = (&states.before.classes.hosts, &states.after.classes.hosts);
    let mut names: Vec<&HostEndpointName> = before.keys().chain(after.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let mut changes = Vec::new();
    for (layer, direction) in HOST_GROUPS {
        let mut by_side: AHashMap<Side, Vec<HostEndpointName>> = AHashMap::new();
        for name in &names {
            let side = states.map(|state| Own::of_host(state, name, (layer, direction), family));
            by_side.entry(side).or_default().push((*name).clone());
        }
        for (side, endpoints) in by_side {
            let mut peers: AHashMap<Shifts, Vec<usize>> = AHashMap::new();
            for peer in parties.where_cells(&side, |_| true) {
                let host = HostEnd { layer, peer: parties.address(peer) };
                let shifts = judge.shifts(&[End { direction, host: Some(host), cell: parties.cell_of(&side, peer) }]);
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
