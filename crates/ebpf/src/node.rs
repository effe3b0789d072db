//! State of a node as values of maps.

mod adopt;
mod description;
mod endpoints;
mod exact;
mod learned;
mod slots;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use tortie_classes::evaluate::{DecidedBy, Layer, Settings, UpdateError, Verdict};
use tortie_classes::{Budget, Classes, Compiled, GroupId, GroupName};
use tortie_model::desired::DesiredUpdate;
use tortie_model::{Cidr, Direction, Family, WorkloadEndpoint, WorkloadEndpointId};

use crate::blocks::{Assignment, Blocks, Cell};
use crate::group_roots::GroupRoots;
use crate::layout::{
    EndpointKind, EndpointRecord, HOST_LEARNER, LearnedKey, LearnedRecord, MAX_BLOCKS, MapKind, ROOTS, RootsRecord,
};
use crate::tables::{AddressKey, Closed, DecisionId, Limits, Tables};
use endpoints::{Endpoints, InterfaceEndpoints, UNTRACKED};
use exact::Exact;
use learned::Learned;
use slots::Slots;

pub use adopt::AdoptError;
pub use description::{Description, Located, Numbered};
pub use endpoints::{EndpointName, Interface};
pub use learned::{LearnedMember, LearnedWrite, Learner, OwnerNumber};
pub use write::{Flush, MapSizes, Write};

/// Configuration of a node.
#[derive(Clone, Debug)]
#[allow(clippy::exhaustive_structs, reason = "made by the owner of the configuration")]
pub struct NodeSettings {
    /// Settings besides policy on which verdicts depend.
    pub evaluate: Settings,
    /// Name prefixes of workload interfaces; all others are host interfaces.
    pub workload_prefixes: Vec<Arc<str>>,
    /// Maximum number of blocks of 1,024 bytes for the policies of all namespaces and the networks
    /// that workloads may send from; 131,072 by default. Each group counts as if it shared no block
    /// with others; one that exceeds the share of its namespace denies everything.
    ///
    /// The address tries have the rest of half of [`MAX_BLOCKS`], at least a quarter of that half.
    /// A change needs the other half, for the tries before and after it. Over the limit, policies
    /// with the most networks are refused ([`Classes::set_address_blocks`]).
    pub max_blocks: u32,
    /// Memory limits of verdict tables. A group that exceeds them denies everything; the others are
    /// not affected.
    pub budget: Budget,
    /// Number of the holder of an interface, as [`Learner::Workload`] has it; by default the index
    /// of the interface.
    pub owner: OwnerNumber,
}

impl Default for NodeSettings {
    /// Returns the defaults of [`Settings`], the interface prefix `cali`, and as many blocks for
    /// policies as for addresses.
    fn default() -> Self {
        Self {
            evaluate: Settings::default(),
            workload_prefixes: vec!["cali".into()],
            max_blocks: MAX_BLOCKS / 4,
            budget: Budget::default(),
            owner: |_, _, index| index.into(),
        }
    }
}

impl NodeSettings {
    /// Returns empty tables with these limits.
    fn tables(&self) -> Tables {
        Tables::with_limits(Limits { blocks: self.policy_blocks(), places: MAX_BLOCKS, ..Limits::default() })
    }

    /// Returns empty classes with these limits.
    fn classes(&self) -> Classes {
        let mut classes = Classes::new(self.evaluate.clone());
        classes.set_learns();
        classes.set_budget(self.budget);
        classes.set_address_blocks((MAX_BLOCKS / 2 - self.policy_blocks()) as usize);
        classes
    }

    fn policy_blocks(&self) -> u32 {
        self.max_blocks.min(MAX_BLOCKS / 8 * 3)
    }
}

/// A group of an endpoint that denies everything.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("policy of {endpoint} ({layer:?}, {direction:?}) denies everything")]
#[non_exhaustive]
pub struct Problem {
    /// Endpoint of the group.
    pub endpoint: EndpointName,
    /// Layer of policy of the group.
    pub layer: Layer,
    /// Direction of the group.
    pub direction: Direction,
    /// Reason.
    #[source]
    pub why: Closed,
}

/// Networks that a workload may send from, as tries.
#[derive(Debug)]
struct Sources {
    nets: Vec<Cidr>,
    /// Maximum number of blocks of the tries, without sharing.
    charge: u64,
    /// `None` if no blocks are left for them: the workload may send nothing.
    trees: Option<[Cell; 2]>,
}

/// State of a node as values of maps: it takes changes of the desired state and of interfaces, and
/// returns the map writes.
///
/// Programs filter packets by the values that [`MapKind::Current`] leads to. None of these is
/// rewritten: a flush writes new values to unused places, and last the one number by which all of
/// them come into force. Packets in flight may still use values that are no longer in force. Their
/// places are reused only after [`Node::reclaim`].
#[derive(Debug)]
pub struct Node {
    classes: Classes,
    tables: Tables,
    endpoints: Endpoints,
    is_in_sync: bool,
    /// Whether anything changed since the last flush.
    has_changes: bool,
    groups: Slots<GroupRoots>,
    group_numbers: BTreeMap<GroupId, u32>,
    records: Slots<EndpointRecord>,
    sources: BTreeMap<WorkloadEndpointId, Sources>,
    exact: Exact,
    /// Interface trie, and its content.
    interfaces: Cell,
    at: BTreeMap<u32, u32>,
    /// Values of roots, each with whether an endpoint has untracked policy.
    roots: [(RootsRecord, bool); ROOTS as usize],
    current: u32,
    /// Values of roots that packets may still use.
    retired_roots: Vec<u32>,
    logs: bool,
    learned: Learned,
    owner: OwnerNumber,
    /// Endpoints at interfaces as of the last flush, by index.
    in_place: BTreeMap<u32, EndpointName>,
}

impl Node {
    /// Returns a node without any desired state.
    #[must_use]
    pub fn new(settings: NodeSettings) -> Self {
        Self {
            classes: settings.classes(),
            tables: settings.tables(),
            endpoints: Endpoints::new(settings.workload_prefixes),
            is_in_sync: false,
            has_changes: false,
            groups: Slots::default(),
            group_numbers: BTreeMap::new(),
            records: Slots::default(),
            sources: BTreeMap::new(),
            exact: Exact::default(),
            interfaces: Cell::value(0),
            at: BTreeMap::new(),
            roots: [(RootsRecord::default(), true); ROOTS as usize],
            current: 0,
            retired_roots: Vec::new(),
            logs: false,
            learned: Learned::default(),
            owner: settings.owner,
            in_place: BTreeMap::new(),
        }
    }

    /// Takes an update. It takes effect with the next [flush](Self::flush) after
    /// [`DesiredUpdate::InSync`].
    ///
    /// # Errors
    /// If the update changes the members of a set that does not exist or is of another type. Then
    /// nothing is changed.
    pub fn on_update(&mut self, update: &DesiredUpdate) -> Result<(), UpdateError> {
        self.classes.apply(update)?;
        self.endpoints.on_update(update);
        self.is_in_sync |= matches!(update, DesiredUpdate::InSync);
        self.has_changes = true;
        Ok(())
    }

    /// Sets whether programs log their decisions from the next flush on, see [`MapKind::Log`]; off
    /// by default.
    pub fn set_logs(&mut self, logs: bool) {
        self.has_changes |= logs != self.logs;
        self.logs = logs;
    }

    /// Takes an interface that is new, or has another name or other addresses.
    pub fn on_interface(&mut self, interface: Interface) {
        self.has_changes |= self.endpoints.on_interface(interface);
    }

    /// Notes that the interface with this index is gone.
    pub fn on_interface_gone(&mut self, index: u32) {
        self.has_changes |= self.endpoints.on_interface_gone(index);
    }

    /// Computes the changes since the last flush, and returns the writes for them. Before
    /// [`DesiredUpdate::InSync`] there are none.
    ///
    /// After more flushes without [`Node::reclaim`] than maps have room for, nothing changes, and
    /// [`Flush::needs_reclaim`] is true.
    pub fn flush(&mut self) -> Flush<'_> {
        let slot = (0..ROOTS).find(|slot| *slot != self.current && !self.retired_roots.contains(slot));
        let entries = match slot {
            _ if !self.has_changes || !self.is_in_sync => Vec::new(),
            Some(slot) => self.follow(slot),
            None => return Flush::new(self, Vec::new(), Vec::new(), true),
        };
        let learned = if self.is_in_force() { self.learned.take_dirty() } else { Vec::new() };
        Flush::new(self, entries, learned, false)
    }

    fn is_in_force(&self) -> bool {
        self.roots.iter().any(|(roots, _)| roots.is_in_force)
    }

    /// Adds members (`true`) or removes them. They take effect with the next flush, which only
    /// writes their entries if other addresses are of the same kind already.
    pub fn learn(&mut self, changes: &[(LearnedMember, bool)]) {
        for (member, is_present) in changes {
            let is_quiet = self.is_in_force() && !self.has_changes && self.retired_roots.is_empty();
            if *is_present
                && !self.learned.has_place(&member.learner)
                && let Some(number) = self.place_of(member.learner)
            {
                self.learned.add_place(member.learner, number);
            }
            let Some(key) = self.learned.change(member, *is_present, &mut self.classes) else { continue };
            let (classes, tables) = (&self.classes, &self.tables);
            let class_of = |id| tables.class_value(classes.learned_class(id)?, Family::of(key.address));
            self.has_changes |= !(is_quiet && self.learned.settle_at_once(&key, class_of));
        }
    }

    /// Returns all learned addresses, those of endpoints that are not in place included, in order.
    pub fn learned(&self) -> impl Iterator<Item = LearnedMember> + '_ {
        self.learned.members()
    }

    /// Notes that the kernel has no room for an entry, which is closed until it is added again.
    pub fn note_refused(&mut self, key: LearnedKey) {
        self.learned.note_refused(key);
    }

    /// Reports whether the kernel has no room for an address.
    #[must_use]
    pub fn is_refused(&self, member: &LearnedMember) -> bool {
        self.learned.is_refused(member)
    }

    /// Returns the number of entries for which the kernel has no room.
    #[must_use]
    pub fn refused(&self) -> usize {
        self.learned.refused()
    }

    /// Returns all entries of [`MapKind::Learned`] as of the last flush.
    pub fn all_learned(&self) -> impl Iterator<Item = (LearnedKey, LearnedRecord)> + '_ {
        self.learned.all()
    }

    /// Returns the number of a workload that is in place since the last flush.
    fn place_of(&self, learner: Learner) -> Option<u32> {
        let Learner::Workload { interface, owner } = learner else { return None };
        let of_interface = |index: &&u32| self.endpoints.interface_name(**index) == Some(interface);
        let index = *self.in_place.keys().find(of_interface)?;
        let id = self.in_place.get(&index).and_then(EndpointName::workload)?;
        let workload = self.endpoints.workload(id)?;
        ((self.owner)(id, &workload.endpoint, index) == owner).then_some(index)
    }

    /// Returns the learners in place that may have learned addresses, with their numbers.
    fn places(&self, at: &BTreeMap<u32, EndpointName>) -> BTreeMap<Learner, u32> {
        let workloads = at.iter().filter_map(|(index, name)| {
            let interface = self.endpoints.interface_name(*index)?;
            let id = name.workload().filter(|_| self.learned.concerns(interface))?;
            let owner = (self.owner)(id, &self.endpoints.workload(id)?.endpoint, *index);
            Some((Learner::Workload { interface, owner }, *index))
        });
        workloads.chain([(Learner::Host, HOST_LEARNER)]).collect()
    }

    /// Updates everything, with an unused value of roots. Returns the entries to write, in order.
    #[expect(clippy::expect_used, reason = "slots are below the number of roots")]
    fn follow(&mut self, slot: u32) -> Vec<(MapKind, u32)> {
        self.has_changes = false;
        let is_first = !self.is_in_force();
        let interface_endpoints = self.endpoints.interface_endpoints();
        let places = self.places(&interface_endpoints.at);
        self.learned.set_places(places, &mut self.classes);
        let compiled = self.classes.flush();
        self.endpoints.find_groups(&compiled);
        claim_sources(&mut self.tables, &mut self.sources, (&self.endpoints, &interface_endpoints), &compiled);
        self.tables.adopt_learned(self.learned.hints(self.current));
        for group in self.tables.update(&compiled) {
            match self.tables.group(group) {
                Some(roots) if roots != GroupRoots::CLOSED => {
                    self.group_numbers.insert(group, self.groups.number_of(roots));
                }
                _ => drop(self.group_numbers.remove(&group)),
            }
        }
        self.groups.retain(&self.group_numbers.values().copied().collect());
        self.update_sources();
        let all_interfaces = self.update_records(&interface_endpoints);
        for (net, hosts) in self.tables.take_changed_hosts() {
            self.exact.update(addresses_of(net), &hosts);
        }
        let exact = self.exact.take_written(is_first);
        let record = RootsRecord {
            exact_buckets: self.exact.buckets(),
            addresses: Family::ALL.map(|family| self.tables.addresses(family)),
            networks: self.tables.networks(),
            all_interfaces,
            is_in_force: true,
            logs: self.logs,
            ..RootsRecord::default()
        };
        let record = record.with_interfaces(self.interfaces, self.tables.all_blocks());
        let roots = (record, self.records.values().any(|record| record.evaluated & UNTRACKED != 0));

        let mut entries = self.take_written(exact, is_first);
        if self.roots.get(self.current as usize) != Some(&roots) {
            *self.roots.get_mut(slot as usize).expect("a slot is a place in the array") = roots;
            self.retired_roots.push(self.current);
            self.current = slot;
            entries.extend([(MapKind::Roots, slot), (MapKind::Current, 0)]);
        }
        self.settle_learned();
        self.in_place = interface_endpoints.at;
        entries
    }

    /// Returns the entries to write before the roots, in order.
    fn take_written(&mut self, exact: Vec<u32>, is_first: bool) -> Vec<(MapKind, u32)> {
        self.tables.release_adopted();
        let mut entries: Vec<(MapKind, u32)> = Vec::new();
        let mut add = |map, numbers: Vec<u32>| entries.extend(numbers.into_iter().map(|number| (map, number)));
        // Entries closed by this write no longer count when the change comes into force; entries
        // opened by it are valid already.
        add(MapKind::Exact, exact);
        add(MapKind::Blocks, self.tables.blocks().take_written());
        if is_first {
            add(MapKind::Groups, vec![0]);
        }
        add(MapKind::Groups, self.groups.take_written());
        add(MapKind::Endpoints, self.records.take_written());
        let reused = self.tables.take_reused_decisions();
        add(MapKind::Counters, reused.into_iter().map(DecisionId::number).collect());
        let named = self.tables.take_named_decisions();
        add(MapKind::Decisions, named.into_iter().map(DecisionId::number).collect());
        entries
    }

    /// Gives learned addresses the classes that belong to the current roots.
    fn settle_learned(&mut self) {
        let (classes, tables) = (&self.classes, &self.tables);
        self.learned.settle(&self.retired_roots, |id, address| {
            tables.class_value(classes.learned_class(id)?, Family::of(address))
        });
    }

    /// Assigns a record to each endpoint at an interface, and the record's number to each of these
    /// interfaces. Groups of endpoints at no interface are kept at interface numbers that the
    /// kernel does not use. Returns the number of the endpoint of all interfaces.
    fn update_records(&mut self, interface_endpoints: &InterfaceEndpoints) -> u32 {
        let mut at = BTreeMap::new();
        for (index, name) in &interface_endpoints.at {
            let record = self.record(name, Some(*index));
            at.insert(*index, self.records.number_of(record));
        }
        let all = interface_endpoints.at_all.as_ref().map(|name| {
            let record = self.record(&EndpointName::Host(name.clone()), None);
            self.records.number_of(record)
        });
        let idle = self.records_of_idle_groups(at.values().copied().chain(all));
        at.extend((NO_INTERFACE..).zip(idle));
        self.records.retain(&at.values().copied().chain(all).collect());
        let gone = self.at.keys().filter(|index| !at.contains_key(index)).map(|index| (*index, 0));
        let there = at.iter().filter(|(index, number)| self.at.get(index) != Some(number));
        let changed: Vec<([u8; 4], u32)> = gone
            .chain(there.map(|(index, number)| (*index, *number)))
            .map(|(index, to)| (index.to_be_bytes(), to))
            .collect();
        let changed: Vec<Assignment<'_>> =
            changed.iter().map(|(key, value)| Assignment { key, bits: 32, value: *value }).collect();
        let interfaces = self.tables.blocks().assign(self.interfaces, &changed);
        self.tables.blocks().release(std::mem::replace(&mut self.interfaces, interfaces));
        self.at = at;
        all.unwrap_or(0)
    }

    /// Returns the numbers of placeholder records for the groups that are in none of these records,
    /// so that the next process finds all groups in the maps.
    fn records_of_idle_groups(&mut self, records: impl Iterator<Item = u32>) -> Vec<u32> {
        let used: BTreeSet<u32> =
            records.filter_map(|number| self.records.get(number)).flat_map(|record| record.groups).collect();
        let all: BTreeSet<u32> = self.group_numbers.values().copied().collect();
        let idle: Vec<u32> = all.difference(&used).copied().collect();
        let record = |groups: &[u32]| {
            let mut record = EndpointRecord::default();
            record.groups.iter_mut().zip(groups).for_each(|(to, group)| *to = *group);
            record
        };
        idle.chunks(EndpointRecord::default().groups.len())
            .map(|groups| self.records.number_of(record(groups)))
            .collect()
    }

    /// Returns the record of an endpoint at the interface with this index; `None` for all
    /// interfaces.
    #[expect(clippy::expect_used, reason = "places are those of the same endpoints")]
    fn record(&self, name: &EndpointName, interface: Option<u32>) -> EndpointRecord {
        let learns = |group: Option<GroupId>| group.is_some_and(|group| self.tables.learns(group));
        let number = |group: &Option<GroupId>| {
            group.as_ref().and_then(|group| self.group_numbers.get(group)).copied().unwrap_or(0)
        };
        match name {
            EndpointName::Workload(id) => {
                let workload = self.endpoints.workload(id).expect("a workload in place is known");
                let [ingress, egress] = workload.groups.each_ref().map(number);
                let sources = self.sources.get(id).and_then(|sources| sources.trees);
                let [_, normal_egress] = workload.groups;
                EndpointRecord {
                    kind: EndpointKind::Workload,
                    evaluated: 0b11,
                    groups: [ingress, egress, 0, 0, 0, 0, 0, 0],
                    sources: sources.unwrap_or([Cell::value(0); 2]),
                    domains: interface.filter(|_| learns(normal_egress)).unwrap_or(0),
                }
            }
            EndpointName::Host(name) => {
                let host = self.endpoints.host(name).expect("a host endpoint in place is known");
                let evaluated = if interface.is_none() { host.evaluated & !UNTRACKED } else { host.evaluated };
                let groups = host.groups.each_ref().map(number);
                let [_, normal_egress, ..] = host.groups;
                let domains = if learns(normal_egress) { HOST_LEARNER } else { 0 };
                EndpointRecord { kind: EndpointKind::Host, evaluated, groups, sources: [Cell::value(0); 2], domains }
            }
        }
    }

    /// Builds or releases the tries of source networks according to the division of the blocks.
    fn update_sources(&mut self) {
        for (id, sources) in &mut self.sources {
            let is_refused = self.tables.refused_sources(id).is_some();
            let blocks = self.tables.blocks();
            match sources.trees {
                Some(trees) if is_refused => {
                    sources.trees = None;
                    trees.into_iter().for_each(|tree| blocks.release(tree));
                }
                None if !is_refused => sources.trees = Some(source_trees(&sources.nets, blocks)),
                _ => {}
            }
        }
    }

    /// Makes unused places available again. The caller ensures that all writes of the last flush
    /// are done, and that no packet uses the state before it any more.
    pub fn reclaim(&mut self) {
        self.tables.reclaim();
        self.groups.reclaim();
        self.records.reclaim();
        self.retired_roots.clear();
        self.exact.reclaim();
        self.has_changes |= self.tables.has_room_again() || self.exact.is_pending();
    }

    /// Reports whether a flush after [`Node::reclaim`] has writes even without changes: entries
    /// that speed up address lookups.
    #[must_use]
    pub fn is_settling(&self) -> bool {
        self.exact.is_pending()
    }

    /// Returns the content of the maps as of the last flush, in the order in which new maps must be
    /// written; all other values are zeros.
    pub fn all(&self) -> impl Iterator<Item = Write> + '_ {
        let has_any = self.is_in_force();
        let once = |entries: [(MapKind, u32); 1]| entries.into_iter().filter(move |_| has_any);
        let numbers = |map: MapKind, numbers: Vec<u32>| numbers.into_iter().map(move |number| (map, number));
        let entries = numbers(MapKind::Exact, (0..self.exact.buckets()).collect())
            .chain(numbers(MapKind::Blocks, self.tables.all_blocks().numbers().collect()))
            .chain(once([(MapKind::Groups, 0)]))
            .chain(numbers(MapKind::Groups, self.groups.in_use().collect()))
            .chain(numbers(MapKind::Endpoints, self.records.in_use().collect()))
            .chain(numbers(MapKind::Decisions, self.tables.decisions().map(DecisionId::number).collect()))
            .chain(once([(MapKind::Roots, self.current)]))
            .chain(once([(MapKind::Current, 0)]));
        entries.map(|(map, index)| self.write(map, index))
    }

    #[expect(clippy::expect_used, reason = "entries to write are in use until the next change")]
    fn write(&self, map: MapKind, index: u32) -> Write {
        let value = match map {
            MapKind::Blocks => {
                let cells = self.tables.all_blocks().cells(index).expect("a written block is in use");
                cells.iter().flat_map(|cell| cell.bits().to_ne_bytes()).collect()
            }
            MapKind::Exact => self.exact.record(index).to_bytes().to_vec(),
            MapKind::Groups if index == 0 => GroupRoots::CLOSED.to_bytes().to_vec(),
            MapKind::Groups => self.groups.get(index).expect("a written group is in use").to_bytes().to_vec(),
            MapKind::Endpoints => self.records.get(index).expect("a written record is in use").to_bytes().to_vec(),
            MapKind::Counters | MapKind::Log | MapKind::Lost | MapKind::Learned => vec![0; map.value_size()],
            MapKind::Decisions => {
                let identity = self.tables.identity(DecisionId::from_number(index));
                identity.expect("a written decision is in use").to_vec()
            }
            MapKind::Roots => {
                let roots = self.roots.get(index as usize);
                let (roots, has_untracked) = roots.expect("a slot is a place in the array");
                roots.to_bytes_at(index, *has_untracked).to_vec()
            }
            MapKind::Current => u64::from(self.current).to_ne_bytes().to_vec(),
        };
        Write { map, index, value }
    }

    /// Returns the required number of map entries, for values in use and for those that packets may
    /// still use.
    #[must_use]
    #[expect(clippy::expect_used, reason = "blocks and decisions have numbers of 32 bits")]
    pub fn sizes(&self) -> MapSizes {
        let number = |extent: usize| u32::try_from(extent).expect("there are fewer than 2^32 numbers");
        MapSizes {
            blocks: number(self.tables.all_blocks().extent()),
            groups: self.groups.extent(),
            endpoints: self.records.extent(),
            counters: number(self.tables.decision_extent()),
            exact: self.exact.buckets(),
        }
    }

    /// Returns the groups of endpoints that deny everything, as of the last flush.
    #[must_use]
    pub fn problems(&self) -> Vec<Problem> {
        let refused = self.sources.iter().filter(|(_, sources)| sources.trees.is_none());
        let mut problems: Vec<Problem> = refused.filter_map(|(id, _)| self.problem_of_sources(id)).collect();
        let closed: BTreeMap<GroupId, &Closed> = self.tables.closed().collect();
        if closed.is_empty() {
            return problems;
        }
        let problem = |(endpoint, layer, direction, group)| {
            let why = (*closed.get(&group)?).clone();
            Some(Problem { endpoint, layer, direction, why })
        };
        problems.extend(self.endpoints.groups().filter_map(problem));
        problems
    }

    /// Returns the problem of a workload that may send nothing, because no blocks are left for its
    /// source networks.
    fn problem_of_sources(&self, id: &WorkloadEndpointId) -> Option<Problem> {
        let why = self.tables.refused_sources(id)?;
        let endpoint = EndpointName::Workload(id.clone());
        Some(Problem { endpoint, layer: Layer::Normal, direction: Direction::Egress, why })
    }

    /// Returns the verdict of a decision and its origin; denial without an origin for an unknown
    /// decision.
    #[must_use]
    pub fn decided(&self, decision: DecisionId) -> (Verdict, Option<&DecidedBy>) {
        self.tables.decided(decision)
    }

    /// Reports whether a decision is about packets to endpoints (ingress) or from them (egress);
    /// `None` for an unknown decision.
    #[must_use]
    pub fn decided_direction(&self, decision: DecisionId) -> Option<Direction> {
        self.tables.decided_direction(decision)
    }

    /// Returns the tries of all groups, as of the last flush.
    #[must_use]
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Reports whether nothing is enforced, and no object is left. Call it after a flush and
    /// [`Node::reclaim`].
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.classes.is_empty()
            && self.endpoints.is_empty()
            && self.tables.is_empty()
            && self.sources.is_empty()
            && self.at.is_empty()
            && self.group_numbers.is_empty()
            && self.groups.in_use().next().is_none()
            && self.records.in_use().next().is_none()
            && self.learned.is_empty()
    }
}

/// First number that the kernel never assigns to an interface.
const NO_INTERFACE: u32 = 1 << 31;

/// Returns the first and the last address of an IPv6 network.
fn addresses_of(net: Cidr) -> RangeInclusive<[u8; 16]> {
    let first = net.masked().bits();
    let inside = u128::MAX.checked_shr(net.prefix_len().into()).unwrap_or(0);
    first.to_be_bytes()..=(first | inside).to_be_bytes()
}

/// Returns the networks that a workload may send from: its addresses, its allowed source prefixes,
/// and the IPv6 sources of neighbour discovery (link-local addresses and the unspecified one).
#[expect(clippy::expect_used, reason = "the prefix is a constant")]
fn sources(endpoint: &WorkloadEndpoint) -> Vec<Cidr> {
    let link_local = Cidr::new(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0).into(), 10);
    let link_local = link_local.expect("an IPv6 prefix may have 10 bits");
    let neighbours = [link_local, Cidr::host(Ipv6Addr::UNSPECIFIED.into())];
    let allowed = endpoint.extras.iter().flat_map(|extras| extras.allowed_source_prefixes.iter().copied());
    endpoint.nets().chain(allowed).chain(neighbours).collect()
}

/// Charges namespaces with the tries of the networks that their workloads at interfaces may send
/// from, and releases those of other workloads.
#[expect(clippy::expect_used, reason = "places are those of the same endpoints")]
fn claim_sources(
    tables: &mut Tables,
    known: &mut BTreeMap<WorkloadEndpointId, Sources>,
    (endpoints, interface_endpoints): (&Endpoints, &InterfaceEndpoints),
    compiled: &Compiled<'_>,
) {
    let in_place: BTreeSet<&WorkloadEndpointId> =
        interface_endpoints.at.values().filter_map(EndpointName::workload).collect();
    known.retain(|id, sources| {
        let stays = in_place.contains(id);
        if !stays {
            sources.trees.iter().flatten().for_each(|tree| tables.blocks().release(*tree));
            tables.claim_sources(id, None);
        }
        stays
    });
    for id in in_place {
        let workload = endpoints.workload(id).expect("an endpoint in place is known");
        let name = compiled.workload_group(id, Direction::Egress).and_then(|group| compiled.group_name(group));
        let namespace = name.as_ref().map_or("", GroupName::namespace);
        let nets = sources(&workload.endpoint);
        let charge = match known.get(id) {
            Some(same) if same.nets == nets => same.charge,
            _ => {
                let trees = source_trees(&nets, tables.blocks());
                let charge = trees.iter().map(|tree| u64::from(tables.blocks().paths(*tree))).sum();
                let before = known.insert(id.clone(), Sources { nets, charge, trees: Some(trees) });
                let before = before.and_then(|before| before.trees);
                before.into_iter().flatten().for_each(|tree| tables.blocks().release(tree));
                charge
            }
        };
        tables.claim_sources(id, Some((namespace, charge)));
    }
}

fn source_trees(nets: &[Cidr], blocks: &mut Blocks) -> [Cell; 2] {
    Family::ALL.map(|family| {
        let keys: Vec<(AddressKey, u8)> = nets
            .iter()
            .filter(|net| net.family() == family)
            .map(|net| (AddressKey::new(*net), net.prefix_len()))
            .collect();
        let assigned = keys.iter().map(|(key, bits)| Assignment { key: key.bytes(), bits: *bits, value: 1 });
        blocks.assign(Cell::value(0), &assigned.collect::<Vec<_>>())
    })
}
