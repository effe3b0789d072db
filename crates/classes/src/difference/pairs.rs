//! Connections from and to workloads that pass on one side of a change only.

use ahash::AHashMap;
use smallvec::{SmallVec, smallvec};
use tortie_evaluate::Layer;
use tortie_model::Direction;

use super::{Change, Shifts};
use crate::comparison::VerdictComparison;
use crate::parties::{Nodes, Parties};
use crate::sides::{Cell, End, HostEnd, HostSide, Own, Side};
use crate::states::States;
use crate::traffic::Traffic;

pub(super) fn between_workloads(parties: &Parties<'_>, comparison: &mut VerdictComparison<'_>) -> Vec<Change> {
    let candidates = Candidates::new(parties, comparison);
    let nodes_themselves: Vec<usize> = (0..parties.len()).filter(|party| parties.is_nodes(*party)).collect();
    // Sources by destinations, nodes and shifts.
    let mut sources: AHashMap<(Vec<usize>, Nodes, Shifts), Vec<usize>> = AHashMap::new();
    for from in 0..parties.len() {
        let mut tos: AHashMap<(Nodes, Shifts), Vec<usize>> = AHashMap::new();
        for to in candidates.of(from) {
            for shifting in between(parties, comparison, from, to) {
                tos.entry(shifting).or_default().push(to);
            }
        }
        for ((nodes, shifts), mut to) in tos {
            // One workload alone has no connections with itself.
            if to == [from] && !parties.has_several(from) {
                continue;
            }
            if nodes == Nodes::Different {
                add_own(&mut to, &nodes_themselves, |node| is_only_own(parties, from, node));
            }
            sources.entry((to, nodes, shifts)).or_default().push(from);
        }
    }
    let change = |((to, nodes, shifts), mut from): ((Vec<usize>, Nodes, Shifts), Vec<usize>)| {
        if nodes == Nodes::Different {
            add_own(&mut from, &nodes_themselves, |node| to.iter().all(|to| is_only_own(parties, *to, node)));
        }
        Change { from, to, nodes, shifts }
    };
    let mut changes: Vec<Change> = sources.into_iter().map(change).collect();
    changes.sort_by(|one, other| {
        let key = |change: &Change| change.nodes;
        (&one.from, &one.to, key(one))
            .cmp(&(&other.from, &other.to, key(other)))
            .then_with(|| traffic(one).cmp(traffic(other)))
    });
    changes
}

/// No two changes of the same parties have this in common.
fn traffic(change: &Change) -> impl Iterator<Item = (&Traffic, Option<(u16, u16)>)> {
    change.shifts.iter().map(|shift| (&shift.traffic, shift.source_ports))
}

/// Adds addresses of nodes whose connections with the workloads are left out, since both ends are
/// on one node. So fewer kinds of peers remain.
fn add_own(peers: &mut Vec<usize>, nodes: &[usize], is_only_own: impl Fn(usize) -> bool) {
    let others: Vec<usize> = nodes.iter().copied().filter(|node| !peers.contains(node) && is_only_own(*node)).collect();
    if !others.is_empty() {
        peers.extend(others);
        peers.sort_unstable();
    }
}

/// Whether all pairs of workloads and addresses of nodes are of one node, before and after.
fn is_only_own(parties: &Parties<'_>, workloads: usize, node: usize) -> bool {
    let pairs = parties.location(workloads).pairs(parties.location(node), false);
    parties.is_workloads(workloads) && pairs.iter().all(|(_, same)| same.before && same.after)
}

/// Returns the shifts between two parties: once, or separately for pairs on one node and on
/// different nodes.
fn between(
    parties: &Parties<'_>,
    comparison: &mut VerdictComparison<'_>,
    from: usize,
    to: usize,
) -> SmallVec<[(Nodes, Shifts); 2]> {
    let (egress, ingress) = (parties.cell(from, Direction::Egress, to), parties.cell(to, Direction::Ingress, from));
    let mut found: SmallVec<[(Nodes, Shifts); 2]> = SmallVec::new();
    if !parties.have_nodes() {
        found.push((Nodes::Any, comparison.between(egress, ingress)));
        found.retain(|(_, shifts)| !shifts.is_empty());
        return found;
    }
    let is_between = parties.is_workloads(from) && parties.is_workloads(to);
    let legs = [(from, Direction::Egress, to), (to, Direction::Ingress, from)]
        .map(|(own, direction, peer)| (parties.legs_of(own, direction, is_between), direction, peer));
    let at_source = parties.at_workload_of(from, Direction::Egress);
    let at_destination = parties.at_workload_of(to, Direction::Ingress);
    let has_none_at_workloads = at_source == 0 && at_destination == 0;
    let is_plain = has_none_at_workloads && legs.iter().all(|(number, ..)| *number == 0);
    let pairs = match is_between && is_plain {
        true => smallvec![(Nodes::Any, States::default())],
        false => parties.location(from).pairs(parties.location(to), from == to),
    };
    for (nodes, same) in pairs {
        let nodes = if is_between { nodes } else { Nodes::Different };
        // Connections of a workload with its own node are left out.
        if !is_between && (same.before || same.after) {
            continue;
        }
        let shifts = if is_plain || has_none_at_workloads && same.before && same.after {
            comparison.between(egress, ingress)
        } else {
            let hosts = legs.iter().flat_map(|(number, direction, peer)| {
                let legs = parties.legs_with(*number).iter();
                legs.filter_map(|leg| end_at(parties, *leg, *direction, *peer, same))
            });
            let end = |direction, cell: Option<Cell>| cell.map(|cell| End { direction, cell, host: None });
            let entering = parties.at_workload_with(at_source, to);
            let entering = entering.filter_map(|leg| end_at(parties, leg, Direction::Ingress, from, States::default()));
            let leaving = parties.at_workload_with(at_destination, from);
            let leaving = leaving.filter_map(|leg| end_at(parties, leg, Direction::Egress, to, States::default()));
            // The lists at the source's interface have other numbers.
            let entering =
                entering.map(|end| End { host: end.host.map(|host| HostEnd { list: Some(u32::MAX), ..host }), ..end });
            let ends = entering.chain(end(Direction::Egress, egress)).chain(hosts);
            comparison.via_hosts(ends.chain(end(Direction::Ingress, ingress)).chain(leaving))
        };
        if !shifts.is_empty() {
            found.push((nodes, shifts));
        }
    }
    if let [(Nodes::Same, same), (Nodes::Different, different)] = &found[..]
        && same == different
    {
        found.truncate(1);
        found.iter_mut().for_each(|(nodes, _)| *nodes = Nodes::Any);
    }
    found
}

/// A host endpoint on the way; `None` if it is on it neither before nor after, since both ends are
/// of its node.
fn end_at(
    parties: &Parties<'_>,
    HostSide { layer, list, mut side }: HostSide,
    direction: Direction,
    peer: usize,
    same: States<bool>,
) -> Option<End> {
    if same.before {
        side.before = Own::Absent;
    }
    if same.after {
        side.after = Own::Absent;
    }
    if side == (States { before: Own::Absent, after: Own::Absent }) {
        return None;
    }
    let cell = parties.cell_of(&side, peer);
    let list = (direction == Direction::Ingress).then_some(list);
    // Failsafe ports do not apply to forwarded packets.
    let address = if layer == Layer::Forward { parties.unspecified() } else { parties.address(peer) };
    Some(End { direction, cell, host: Some(HostEnd { layer, peer: address, list }) })
}

/// Pairs whose verdicts may differ from before.
struct Candidates<'p, 'a> {
    parties: &'p Parties<'a>,
    /// By the side of the source, the destinations with other verdicts, and the other way round.
    by_sides: Differing,
    /// The same by the host endpoints on the way at that end.
    by_legs: Differing,
    /// The parties by their side for ingress.
    with_side: Vec<Vec<usize>>,
    /// The parties by the host endpoints on their way for ingress: from other peers, and from
    /// workloads.
    with_legs: [Vec<Vec<usize>>; 2],
    /// Destinations of sources by host endpoints at the interfaces of workloads.
    at_workloads: AHashMap<usize, Vec<usize>>,
    /// Those that move to other nodes.
    moving: Vec<usize>,
}

/// Peers with other verdicts than before.
struct Differing {
    /// Destinations, by the side or the host endpoints at the source's end.
    egress: Vec<Vec<usize>>,
    /// Sides or host endpoints at the destination's end, by source.
    towards: AHashMap<usize, Vec<usize>>,
}

impl Differing {
    fn new(mut differing: impl FnMut(Direction) -> Vec<Vec<usize>>) -> Self {
        let mut towards: AHashMap<usize, Vec<usize>> = AHashMap::new();
        for (number, sources) in differing(Direction::Ingress).into_iter().enumerate() {
            sources.into_iter().for_each(|source| towards.entry(source).or_default().push(number));
        }
        Self { egress: differing(Direction::Egress), towards }
    }

    fn towards(&self, source: usize) -> &[usize] {
        self.towards.get(&source).map_or(&[], |numbers| numbers)
    }
}

impl<'p, 'a> Candidates<'p, 'a> {
    #[expect(clippy::indexing_slicing, reason = "parties have legs among all legs")]
    fn new(parties: &'p Parties<'a>, comparison: &mut VerdictComparison<'_>) -> Self {
        let by_sides = Differing::new(|direction| {
            let sides = parties.sides(direction).iter();
            sides.map(|side| parties.where_cells(side, |cell| comparison.differs(direction, cell))).collect()
        });
        let by_legs = Differing::new(|direction| {
            parties.all_legs().map(|legs| differing_via_hosts(parties, comparison, direction, legs)).collect()
        });
        let with_legs = [false, true].map(|is_between| {
            let mut members = vec![Vec::new(); parties.all_legs().len()];
            for party in 0..parties.len() {
                let number = parties.legs_of(party, Direction::Ingress, is_between);
                // Number 0 stands for no host endpoints, as most parties have.
                if number > 0 {
                    members[number].push(party);
                }
            }
            members
        });
        let moves = |party: &usize| parties.location(*party).moves();
        let moving = (0..parties.len()).filter(moves).collect();
        let with_side = parties.with_side(Direction::Ingress);
        let at_workloads = differing_at_workloads(parties, comparison);
        Self { parties, by_sides, by_legs, with_side, with_legs, at_workloads, moving }
    }

    /// Returns the destinations for which verdicts on a source's packets may differ, ascending.
    #[expect(clippy::indexing_slicing, reason = "there is a list for each side, and for each list of legs")]
    fn of(&self, from: usize) -> Vec<usize> {
        let parties = self.parties;
        if self.moving.binary_search(&from).is_ok() {
            return (0..parties.len()).collect();
        }
        let own = parties.side_of(from, Direction::Egress);
        let by_egress = own.into_iter().flat_map(|side| &self.by_sides.egress[side]);
        let by_ingress = self.by_sides.towards(from).iter().flat_map(|side| &self.with_side[*side]);
        let mut destinations: Vec<usize> = by_egress.chain(by_ingress).chain(&self.moving).copied().collect();
        for is_between in [false, true] {
            let legs = &self.by_legs.egress[parties.legs_of(from, Direction::Egress, is_between)];
            let seen = legs.iter().filter(|to| parties.is_workloads(**to) == is_between);
            destinations.extend(seen);
        }
        let [outside, between] = &self.with_legs;
        let with_legs = if parties.is_workloads(from) { between } else { outside };
        let by_legs = self.by_legs.towards(from).iter();
        destinations.extend(by_legs.flat_map(|number| &with_legs[*number]));
        destinations.extend(self.at_workloads.get(&from).into_iter().flatten());
        destinations.sort_unstable();
        destinations.dedup();
        destinations
    }
}

/// Returns the parties for which the verdicts of host endpoints on the way may differ from before.
fn differing_via_hosts(
    parties: &Parties<'_>,
    comparison: &mut VerdictComparison<'_>,
    direction: Direction,
    legs: &[HostSide],
) -> Vec<usize> {
    let mut found: Vec<usize> = Vec::new();
    for HostSide { layer, side, .. } in legs {
        let has_other_ports = *layer != Layer::Forward && comparison.has_other_failsafe(side);
        let differs = |cell: &_| has_other_ports || comparison.differs_at_host(direction, cell);
        found.extend(parties.where_cells(side, differs));
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Returns, by source, the destinations for which the verdicts of host endpoints at the interfaces
/// of workloads may differ from before.
fn differing_at_workloads(
    parties: &Parties<'_>,
    comparison: &mut VerdictComparison<'_>,
) -> AHashMap<usize, Vec<usize>> {
    let mut found: AHashMap<usize, Vec<usize>> = AHashMap::new();
    let mut known: AHashMap<(Direction, Side), Vec<usize>> = AHashMap::new();
    for number in 1..parties.at_workload_count() {
        for own in 0..parties.len() {
            // The direction at the interface, whose own end is `own`, is against the workload's.
            for (direction, of_workload) in
                [(Direction::Ingress, Direction::Egress), (Direction::Egress, Direction::Ingress)]
            {
                for HostSide { layer, side, .. } in parties.at_workload_with(number, own) {
                    let peers = known.entry((direction, side)).or_insert_with(|| {
                        let has_other_ports = layer != Layer::Forward && comparison.has_other_failsafe(&side);
                        let differs = |cell: &_| has_other_ports || comparison.differs_at_host(direction, cell);
                        parties.where_cells(&side, differs)
                    });
                    for peer in peers.iter().filter(|peer| parties.at_workload_of(**peer, of_workload) == number) {
                        let (from, to) = if direction == Direction::Ingress { (*peer, own) } else { (own, *peer) };
                        found.entry(from).or_default().push(to);
                    }
                }
            }
        }
    }
    found
}
