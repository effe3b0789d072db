//! Parties that a change distinguishes, and the cells in which each sees the others.

mod failsafe;
mod host_paths;
mod node_pairs;

pub(crate) use host_paths::HostPaths;
pub use node_pairs::Nodes;

use std::net::IpAddr;

use ahash::{AHashMap, AHashSet};
use tortie_model::{Cidr, Direction, Family, WorkloadEndpointId};

use crate::compiled::Compiled;
use crate::each::ByDirection;
use crate::ids::{BucketId, ClassId, GroupId, SettingsId};
use crate::networks::{not_filled, unspecified};
use crate::sides::{Cell, HostSide, Own, Side};
use crate::states::States;
use failsafe::Failsafe;
use host_paths::{Leg, NodeNumber};
use node_pairs::Location;

/// Addresses that policy treats alike, before a change and after it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "there are no others")]
pub enum Party {
    /// Workloads, in order; never none.
    Workloads(Vec<WorkloadEndpointId>),
    /// All other addresses in these networks: those in no longer network of any party, and of no
    /// workload.
    Networks(Vec<Cidr>),
}

/// Host endpoints on the way, by the places of lists.
#[derive(Clone, Copy, Debug, Default)]
struct Legs {
    /// To and from workloads.
    between: ByDirection<usize>,
    /// To and from other peers.
    outside: ByDirection<usize>,
}

/// A party, with its buckets in both states.
struct Entry {
    party: Party,
    buckets: States<Option<BucketId>>,
    /// Of workloads.
    sides: Option<ByDirection<usize>>,
    legs: Legs,
    /// Host endpoints at the interfaces of workloads, by the places of lists.
    at_workload: ByDirection<usize>,
    location: Location,
    /// An address that failsafe ports treat as those of the party.
    address: IpAddr,
}

/// All parties of a family.
pub(crate) struct Parties<'a> {
    states: States<&'a Compiled<'a>>,
    family: Family,
    entries: Vec<Entry>,
    /// All sides, without duplicates.
    sides: ByDirection<Vec<Side>>,
    by_bucket: States<AHashMap<BucketId, Vec<usize>>>,
    /// Parties by the buckets straight around theirs.
    by_around: AHashMap<States<Option<BucketId>>, Vec<usize>>,
    /// Lists of host endpoints on the way, without duplicates; the first list is empty.
    legs: Vec<Box<[HostSide]>>,
    leg_numbers: AHashMap<Box<[HostSide]>, usize>,
    /// Lists of host endpoints at the interfaces of workloads, without duplicates; the first list
    /// is empty.
    at_workloads: Vec<Vec<Leg>>,
    have_nodes: bool,
}

impl<'a> Parties<'a> {
    pub(crate) fn new(states: States<&'a Compiled<'a>>, family: Family, mut host_paths: HostPaths<'a>) -> Self {
        let mut parties = Self {
            states,
            family,
            entries: Vec::new(),
            sides: ByDirection::default(),
            by_bucket: States::default(),
            by_around: AHashMap::new(),
            legs: vec![Box::default()],
            leg_numbers: [(Box::default(), 0)].into_iter().collect(),
            at_workloads: vec![Vec::new()],
            have_nodes: !host_paths.is_none(),
        };
        let mut failsafe = Failsafe::new(states, family);
        parties.add_workloads(&mut host_paths, &mut failsafe);
        parties.add_networks(&host_paths, &mut failsafe);
        parties.index();
        parties
    }

    fn add_workloads(&mut self, host_paths: &mut HostPaths<'a>, failsafe: &mut Failsafe) {
        let (before, after) = (&self.states.before.classes.workloads, &self.states.after.classes.workloads);
        let mut ids: Vec<&WorkloadEndpointId> = before.keys().filter(|id| after.contains_key(*id)).collect();
        ids.sort_unstable();
        let mut numbers: ByDirection<AHashMap<Side, usize>> = ByDirection::default();
        type PartyKey = (usize, Option<States<NodeNumber>>, IpAddr);
        let mut known: AHashMap<(ByDirection<usize>, States<ClassId>, PartyKey), usize> = AHashMap::new();
        for id in ids {
            let address = |state: &Compiled<'_>| {
                let nets = &state.classes.workloads.get(id)?.addresses;
                nets.iter().find(|net| net.family() == self.family).map(|net| net.address())
            };
            let addresses = States { before: address(self.states.before), after: address(self.states.after) };
            // A workload without an address of the family, before or after, is left out.
            let States { before: Some(before), after: Some(after) } = addresses else { continue };
            let seen = [(self.states.before, before), (self.states.after, after)]
                .map(|(state, address)| (state.classes.addresses.bucket_of(address), state.class_of(address)));
            let [(bucket, class), (bucket_after, class_after)] = seen;
            let buckets = States { before: bucket, after: bucket_after };
            let classes = States { before: class, after: class_after };
            let sides = ByDirection::new(|direction| {
                let side = States {
                    before: Own::of_workload(self.states.before, id, direction, buckets.before, self.family),
                    after: Own::of_workload(self.states.after, id, direction, buckets.after, self.family),
                };
                let all = &mut self.sides[direction];
                *numbers[direction].entry(side).or_insert_with(|| {
                    all.push(side);
                    all.len() - 1
                })
            });
            let location = host_paths.location(id);
            let is_single = host_paths.is_single(location);
            let path = host_paths.of(location);
            let address = failsafe.like(after);
            let place = (path, is_single.then_some(location), address);
            if let Some(entry) = known.get(&(sides, classes, place)) {
                if let Some(Entry { party: Party::Workloads(members), location: of, .. }) = self.entries.get_mut(*entry)
                {
                    members.push(id.clone());
                    of.add(location);
                }
                continue;
            }
            let party = Party::Workloads(vec![id.clone()]);
            let legs = self.legs(host_paths, path, buckets);
            let at_workload = self.at_workload(host_paths, path);
            let location = Location::new(location, is_single);
            known.insert((sides, classes, place), self.entries.len());
            self.entries.push(Entry { party, buckets, sides: Some(sides), legs, at_workload, location, address });
        }
    }

    /// Returns the policies of the host endpoints on a way for workloads with addresses in these
    /// buckets.
    fn legs(&mut self, host_paths: &HostPaths<'a>, path: usize, buckets: States<Option<BucketId>>) -> Legs {
        let own = |state, group: Option<(GroupId, SettingsId)>, bucket| {
            group.map_or(Own::Absent, |(group, settings)| Own::of_group(state, group, bucket, self.family, settings))
        };
        let mut numbers = |legs: &ByDirection<Vec<Leg>>| {
            ByDirection::new(|direction| {
                let sides = legs[direction].iter().map(|Leg { layer, list, groups }| HostSide {
                    layer: *layer,
                    list: *list,
                    side: States {
                        before: own(self.states.before, groups.before, buckets.before),
                        after: own(self.states.after, groups.after, buckets.after),
                    },
                });
                *self.leg_numbers.entry(sides.collect()).or_insert_with_key(|sides| {
                    self.legs.push(sides.clone());
                    self.legs.len() - 1
                })
            })
        };
        let path = host_paths.path(path);
        Legs { between: numbers(&path.between), outside: numbers(&path.outside) }
    }

    /// Returns the numbers of the lists of host endpoints at the interfaces of workloads.
    fn at_workload(&mut self, host_paths: &HostPaths<'a>, path: usize) -> ByDirection<usize> {
        ByDirection::new(|direction| {
            let legs = &host_paths.path(path).at_workload[direction];
            self.at_workloads.iter().position(|known| known == legs).unwrap_or_else(|| {
                self.at_workloads.push(legs.clone());
                self.at_workloads.len() - 1
            })
        })
    }

    #[expect(clippy::indexing_slicing, clippy::unreachable, reason = "`by_buckets` has the places of networks")]
    fn add_networks(&mut self, host_paths: &HostPaths<'a>, failsafe: &mut Failsafe) {
        let both = [self.states.before, self.states.after];
        let workloads: AHashSet<Cidr> = both
            .iter()
            .flat_map(|state| state.classes.workloads.values().flat_map(|workload| &workload.addresses))
            .map(|net| Cidr::host(net.address()))
            .collect();
        let nodes: AHashMap<Cidr, States<NodeNumber>> =
            host_paths.addresses().map(|(address, location)| (Cidr::host(address), location)).collect();
        let known = both.iter().flat_map(|state| state.prefixes().map(|(net, _)| net));
        let mut nets: Vec<Cidr> = known
            .chain(workloads.iter().copied())
            .chain(nodes.keys().copied())
            .chain(failsafe.nets())
            .chain(Cidr::new(unspecified(self.family), 0))
            .filter(|net| net.family() == self.family)
            .collect();
        nets.sort_unstable();
        nets.dedup();
        type PartyKey = (Option<Option<States<NodeNumber>>>, IpAddr);
        let mut by_buckets: AHashMap<(States<Option<BucketId>>, PartyKey), usize> = AHashMap::new();
        for (net, has_rest) in nets.iter().zip(not_filled(&nets)) {
            if !has_rest || workloads.contains(net) {
                continue;
            }
            let buckets = self.states.map(|state| state.classes.addresses.bucket_of_net(*net));
            let node = nodes.get(net).copied();
            let single = node.map(|location| Some(location).filter(|location| host_paths.is_single(*location)));
            let address = failsafe.like(net.address());
            let location = node.unwrap_or_default();
            if let Some(entry) = by_buckets.get(&(buckets, (single, address))) {
                let Entry { party, location: of, .. } = &mut self.entries[*entry];
                let Party::Networks(nets) = party else { unreachable!("entries by buckets are of networks") };
                nets.push(*net);
                of.add(location);
                continue;
            }
            by_buckets.insert((buckets, (single, address)), self.entries.len());
            let location = Location::new(location, single.flatten().is_some());
            let (party, legs) = (Party::Networks(vec![*net]), Legs::default());
            let at_workload = ByDirection::default();
            self.entries.push(Entry { party, buckets, sides: None, legs, at_workload, location, address });
        }
    }

    fn index(&mut self) {
        for (number, entry) in self.entries.iter().enumerate() {
            if let Some(bucket) = entry.buckets.before {
                self.by_bucket.before.entry(bucket).or_default().push(number);
            }
            if let Some(bucket) = entry.buckets.after {
                self.by_bucket.after.entry(bucket).or_default().push(number);
            }
            let around = |state: &Compiled<'_>, bucket: Option<BucketId>| state.classes.addresses.around(bucket?);
            let around = States {
                before: around(self.states.before, entry.buckets.before),
                after: around(self.states.after, entry.buckets.after),
            };
            self.by_around.entry(around).or_default().push(number);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn into_public(self) -> Vec<Party> {
        self.entries.into_iter().map(|entry| entry.party).collect()
    }

    pub(crate) fn sides(&self, direction: Direction) -> &[Side] {
        &self.sides[direction]
    }

    /// The side of a party; `None` for networks, which have none.
    pub(crate) fn side_of(&self, party: usize, direction: Direction) -> Option<usize> {
        Some(self.entry(party).sides?[direction])
    }

    #[expect(clippy::indexing_slicing, reason = "parties are named by their places")]
    fn entry(&self, party: usize) -> &Entry {
        &self.entries[party]
    }

    /// For each side the parties that have it.
    #[expect(clippy::indexing_slicing, reason = "parties have sides among all sides")]
    pub(crate) fn with_side(&self, direction: Direction) -> Vec<Vec<usize>> {
        let mut members = vec![Vec::new(); self.sides(direction).len()];
        for party in 0..self.entries.len() {
            if let Some(side) = self.side_of(party, direction) {
                members[side].push(party);
            }
        }
        members
    }

    /// Whether a party is several workloads.
    pub(crate) fn has_several(&self, party: usize) -> bool {
        matches!(&self.entry(party).party, Party::Workloads(members) if members.len() > 1)
    }

    /// An address that failsafe ports treat as those of a party.
    pub(crate) fn address(&self, party: usize) -> IpAddr {
        self.entry(party).address
    }

    /// Returns the nodes of a party.
    pub(crate) fn location(&self, party: usize) -> &Location {
        &self.entry(party).location
    }

    /// Whether a party is addresses of nodes that have host endpoints that may be on the way.
    pub(crate) fn is_nodes(&self, party: usize) -> bool {
        !self.is_workloads(party) && self.location(party).is_somewhere()
    }

    pub(crate) fn is_workloads(&self, party: usize) -> bool {
        self.entry(party).sides.is_some()
    }

    /// Whether nodes have host endpoints that may be on the way.
    pub(crate) fn have_nodes(&self) -> bool {
        self.have_nodes
    }

    pub(crate) fn unspecified(&self) -> IpAddr {
        unspecified(self.family)
    }

    /// Returns the lists of host endpoints on the way, in the order of their numbers.
    pub(crate) fn all_legs(&self) -> impl ExactSizeIterator<Item = &[HostSide]> {
        self.legs.iter().map(|legs| &**legs)
    }

    /// Returns the number of the list of host endpoints at a party's end, if the other end is
    /// workloads (`is_between`) or not.
    pub(crate) fn legs_of(&self, party: usize, direction: Direction, is_between: bool) -> usize {
        let Legs { between, outside } = &self.entry(party).legs;
        let legs = if is_between { between } else { outside };
        legs[direction]
    }

    /// See [`Self::legs_of`].
    #[expect(clippy::indexing_slicing, reason = "lists of legs are named by their places")]
    pub(crate) fn legs_with(&self, number: usize) -> &[HostSide] {
        &self.legs[number]
    }

    /// Returns the number of the list of host endpoints at the interface of workloads, for packets
    /// from them (egress) or to them (ingress).
    pub(crate) fn at_workload_of(&self, party: usize, direction: Direction) -> usize {
        self.entry(party).at_workload[direction]
    }

    /// Returns the number of such lists.
    pub(crate) fn at_workload_count(&self) -> usize {
        self.at_workloads.len()
    }

    /// Returns the policies of host endpoints at the interface of workloads, for packets whose end
    /// in the direction of the packets at the interface is a party.
    pub(crate) fn at_workload_with(&self, number: usize, own: usize) -> impl Iterator<Item = HostSide> + '_ {
        let buckets = self.entry(own).buckets;
        let of = move |state, group: Option<(GroupId, SettingsId)>, bucket| {
            group.map_or(Own::Absent, |(group, settings)| Own::of_group(state, group, bucket, self.family, settings))
        };
        self.at_workloads.get(number).into_iter().flatten().map(move |Leg { layer, list, groups }| HostSide {
            layer: *layer,
            list: *list,
            side: States {
                before: of(self.states.before, groups.before, buckets.before),
                after: of(self.states.after, groups.after, buckets.after),
            },
        })
    }

    /// Returns the cell in which a party sees a peer in a direction; `None` for networks, which
    /// have no policies.
    #[expect(clippy::indexing_slicing, reason = "parties have sides among all sides")]
    pub(crate) fn cell(&self, party: usize, direction: Direction, peer: usize) -> Option<Cell> {
        let side = &self.sides(direction)[self.side_of(party, direction)?];
        Some(self.cell_of(side, peer))
    }

    pub(crate) fn cell_of(&self, side: &Side, peer: usize) -> Cell {
        let buckets = self.entry(peer).buckets;
        let rows = States {
            before: side.before.row_of_peer(self.states.before, buckets.before, self.family),
            after: side.after.row_of_peer(self.states.after, buckets.after, self.family),
        };
        Cell { side: *side, rows }
    }

    /// Computes a value for the cell in which a side sees each party. Parties without rows of their
    /// own share the value of the network around them.
    #[expect(clippy::indexing_slicing, reason = "parties are named by their places")]
    pub(crate) fn of_cells<T: Copy + Default>(&self, side: &Side, mut of: impl FnMut(&Cell) -> T) -> Vec<T> {
        let mut found = vec![T::default(); self.entries.len()];
        let own = self.with_own_rows(side);
        for parties in self.by_around.values() {
            let mut others = parties.iter().copied().filter(|party| !own.contains(party)).peekable();
            if let Some(first) = others.peek() {
                let value = of(&self.cell_of(side, *first));
                others.for_each(|party| found[party] = value);
            }
        }
        for party in own {
            found[party] = of(&self.cell_of(side, party));
        }
        found
    }

    /// Returns the parties that may have other rows at a side than the network around them.
    fn with_own_rows(&self, side: &Side) -> AHashSet<usize> {
        let mut own: AHashSet<usize> = AHashSet::new();
        for (state, side, by_bucket) in [
            (self.states.before, side.before, &self.by_bucket.before),
            (self.states.after, side.after, &self.by_bucket.after),
        ] {
            let buckets = side.table(state).into_iter().flat_map(|table| table.peer().buckets());
            own.extend(buckets.filter_map(|(bucket, _)| by_bucket.get(&bucket)).flatten());
        }
        own
    }

    /// Returns the parties that a side sees in cells with some property, ascending. Parties without
    /// separate rows share the answer of the network around them.
    pub(crate) fn where_cells(&self, side: &Side, mut holds: impl FnMut(&Cell) -> bool) -> Vec<usize> {
        let own = self.with_own_rows(side);
        let mut found: Vec<usize> = own.iter().copied().filter(|peer| holds(&self.cell_of(side, *peer))).collect();
        for parties in self.by_around.values() {
            let mut others = parties.iter().copied().filter(|party| !own.contains(party)).peekable();
            if others.peek().is_some_and(|first| holds(&self.cell_of(side, *first))) {
                found.extend(others);
            }
        }
        found.sort_unstable();
        found
    }
}
