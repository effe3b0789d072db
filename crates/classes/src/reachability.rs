//! Packets that pass between all workloads and networks, with the decisions of each end.
//!
//! Workloads and networks that no rule distinguishes are one party, as in differences. The rulings
//! of a side on a peer are computed once for each of its rows. They are kept as stretches of
//! parties with equal rulings.

use std::sync::Arc;

use ahash::AHashMap;
use tortie_model::{Direction, Family, PolicyId, Protocol, WorkloadEndpointId};

use crate::comparison::{IPIP, Passing, Ruling, VerdictComparison};
use crate::compiled::Compiled;
use crate::each::ByDirection;
use crate::ids::{Id, RulingsId, number_of};
use crate::line::{Intervals, L4_END, L4Detail, point_of};
use crate::parties::{HostPaths, Parties, Party};
use crate::program::GroupKey;
use crate::sides::{Cell, Side};
use crate::states::States;
use crate::traffic::{Traffic, domain};

/// Rulings of one end on all packets, and the number of its line of verdicts.
#[derive(Clone, Debug)]
struct EndRulings {
    rulings: Arc<[Ruling]>,
    passing: usize,
}

/// Rulings of a side, each from a party on until the next entry.
type Stretches = Box<[(u32, RulingsId)]>;

/// Packets that pass between all workloads and networks of a state, exactly. See
/// [`Compiled::reachability`].
#[derive(Debug)]
pub struct Reachability<'a> {
    parties: Vec<Party>,
    /// Networks have none.
    sides: Vec<ByDirection<Option<usize>>>,
    /// By side.
    rulings_by_side: ByDirection<Vec<Stretches>>,
    end_rulings: Vec<EndRulings>,
    comparison: VerdictComparison<'a>,
    passing: AHashMap<[Option<usize>; 2], Arc<[Passing]>>,
    unrestricted: Traffic,
}

impl Compiled<'_> {
    /// Returns the packets that pass between all workloads and networks by the first addresses of a
    /// family, with the decisions of each end. Unless `ports` is empty, only packets to these ports
    /// are covered. Workloads without an address of the family are left out.
    ///
    /// A workload whose policies refer to a missing object is denied everything.
    #[must_use]
    pub fn reachability(&self, family: Family, ports: &[(Protocol, u16)]) -> Reachability<'_> {
        let states = States { before: self, after: self };
        let mut kinds = Intervals::between(0, L4_END);
        if !ports.is_empty() {
            let mut points: Vec<u32> =
                ports.iter().map(|(protocol, port)| point_of(protocol.number(), L4Detail::Port(*port))).collect();
            points.sort_unstable();
            kinds = Intervals::ascending(points.into_iter().map(|point| (point, point + 1)));
        }
        let mut comparison = VerdictComparison::new(states, family);
        comparison.restrict(&kinds);
        let parties = Parties::new(states, family, HostPaths::none(states));
        let sides = (0..parties.len()).map(|party| ByDirection::new(|direction| parties.side_of(party, direction)));
        let sides = sides.collect();
        let mut builder =
            RulingsBuilder { comparison, all: Vec::new(), numbers: AHashMap::new(), by_cell: AHashMap::new() };
        let rulings_by_side = ByDirection::new(|direction| {
            parties.sides(direction).iter().map(|side| builder.of_side(&parties, direction, side)).collect()
        });
        let RulingsBuilder { comparison, all: end_rulings, .. } = builder;
        let unrestricted = self.unrestricted(family, &kinds);
        let parties = parties.into_public();
        Reachability {
            parties,
            sides,
            rulings_by_side,
            end_rulings,
            comparison,
            passing: AHashMap::new(),
            unrestricted,
        }
    }

    /// Returns the packets that workloads may send if no policy restricts them.
    fn unrestricted(&self, family: Family, kinds: &Intervals) -> Traffic {
        let settings = self.classes.nodes.common();
        let vxlan = point_of(Protocol::UDP.number(), L4Detail::Port(settings.vxlan_port));
        let mut denied = Vec::new();
        if !settings.ipip_from_workloads {
            denied.extend(Intervals::protocol(IPIP).iter());
        }
        if !settings.vxlan_from_workloads {
            denied.push((vxlan, vxlan + 1));
        }
        let allowed = Intervals::ascending(denied.into_iter()).not(L4_END).and(kinds);
        let mut points: Vec<(u32, u32)> = [true, false]
            .iter()
            .flat_map(|has_ports| allowed.and(&domain(family, *has_ports)).iter().collect::<Vec<_>>())
            .collect();
        points.sort_unstable();
        Traffic::new(family, &Intervals::ascending(points.into_iter()))
    }

    /// The policies that govern a workload in a direction, in order of evaluation, staged ones
    /// included.
    pub fn policies_of(&self, workload: &WorkloadEndpointId, direction: Direction) -> impl Iterator<Item = &PolicyId> {
        let group = self.workload_group(workload, direction);
        let key = group.and_then(|group| self.classes.groups.key(group));
        key.into_iter().flat_map(GroupKey::policies)
    }
}

/// Rulings of all ends, without duplicates.
struct RulingsBuilder<'a> {
    comparison: VerdictComparison<'a>,
    all: Vec<EndRulings>,
    numbers: AHashMap<Arc<[Ruling]>, RulingsId>,
    by_cell: AHashMap<(Direction, Cell), RulingsId>,
}

impl RulingsBuilder<'_> {
    fn of_side(&mut self, parties: &Parties<'_>, direction: Direction, side: &Side) -> Stretches {
        let by_party = parties.of_cells(side, |cell| self.of_cell(direction, cell));
        let mut stretches: Vec<(u32, RulingsId)> = Vec::new();
        for (party, rulings) in (0..).zip(by_party) {
            if stretches.last().is_none_or(|(_, last)| *last != rulings) {
                stretches.push((party, rulings));
            }
        }
        stretches.into()
    }

    fn of_cell(&mut self, direction: Direction, cell: &Cell) -> RulingsId {
        if let Some(known) = self.by_cell.get(&(direction, *cell)) {
            return *known;
        }
        let rulings: Arc<[Ruling]> = self.comparison.rulings(direction, cell).into();
        let number = match self.numbers.get(&rulings) {
            Some(number) => *number,
            None => {
                let number = RulingsId::new(number_of(self.all.len()));
                let passing = self.comparison.line(direction, cell);
                self.all.push(EndRulings { rulings: Arc::clone(&rulings), passing });
                self.numbers.insert(rulings, number);
                number
            }
        };
        self.by_cell.insert((direction, *cell), number);
        number
    }
}

impl Reachability<'_> {
    /// Parties that rules distinguish: workloads in the order of their first members, then
    /// networks.
    #[must_use]
    pub fn parties(&self) -> &[Party] {
        &self.parties
    }

    /// Packets that workloads may send if no policy restricts them: all but packets of tunnels,
    /// unless the settings allow these.
    #[must_use]
    pub fn unrestricted(&self) -> &Traffic {
        &self.unrestricted
    }

    /// Returns the rulings of a party on packets of a peer, as the source of packets (egress) or as
    /// their destination (ingress); `None` for networks, which have no policies. Equal rulings have
    /// the same number.
    #[must_use]
    pub fn rulings_id(&self, party: usize, direction: Direction, peer: usize) -> Option<RulingsId> {
        let side = self.sides.get(party)?[direction]?;
        let stretches = self.rulings_by_side[direction].get(side)?;
        let peer = u32::try_from(peer).ok()?;
        let found = stretches.partition_point(|(start, _)| *start <= peer).checked_sub(1)?;
        stretches.get(found).map(|(_, rulings)| *rulings)
    }

    /// Returns the rulings of a party that are the same for all peers; `None` if they depend on the
    /// peer, or the party is networks.
    #[must_use]
    pub fn uniform_rulings_id(&self, party: usize, direction: Direction) -> Option<RulingsId> {
        let side = self.sides.get(party)?[direction]?;
        match &**self.rulings_by_side[direction].get(side)? {
            [(_, rulings)] => Some(*rulings),
            _ => None,
        }
    }

    /// Returns the decisions with the deciding rules. Each kind of packets is in exactly one of
    /// them.
    #[must_use]
    pub fn rulings(&self, id: RulingsId) -> &[Ruling] {
        self.end_rulings.get(id.number() as usize).map_or(&[], |end| &end.rulings)
    }

    /// Number of different [rulings](Self::rulings). They are numbered from 0.
    #[must_use]
    pub fn rulings_count(&self) -> usize {
        self.end_rulings.len()
    }

    /// Returns the packets that pass both ends, of which one may have no policies. Connections of a
    /// workload to itself meet neither.
    pub fn passing(&mut self, egress: Option<RulingsId>, ingress: Option<RulingsId>) -> Arc<[Passing]> {
        let number = |id: RulingsId| self.end_rulings.get(id.number() as usize).map(|end| end.passing);
        let ends = [egress.and_then(number), ingress.and_then(number)];
        let comparison = &self.comparison;
        Arc::clone(self.passing.entry(ends).or_insert_with(|| comparison.passing(ends).into()))
    }

    /// Returns a number for the packets that an end allows: two ends with the same number allow the
    /// same packets.
    #[must_use]
    pub fn passing_number(&self, id: RulingsId) -> Option<usize> {
        self.end_rulings.get(id.number() as usize).map(|end| end.passing)
    }
}
