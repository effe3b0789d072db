//! Verdicts of two states on packets in one place.

use std::borrow::Cow;
use std::slice;
use std::sync::Arc;

use ahash::AHashMap;
use smallvec::SmallVec;
use tortie_evaluate::{DecidedBy, Layer, Packet, Payload, Settings, Verdict};
use tortie_model::{Direction, Family, Protocol};

use crate::compiled::Compiled;
use crate::ids::Row;
use crate::line::{Intervals, L4_END, L4Detail, PORTS_END, at_l4_point, at_source_port_point, point_of};
use crate::networks::unspecified;
use crate::sides::{Cell, End, HostEnd, Own, Side};
use crate::states::States;
use crate::traffic::{Traffic, domain};

pub(crate) const IPIP: u8 = 4;

/// Some kinds of packets that pass on one side of a change only.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Shift {
    /// Whether they pass after the change, and did not before.
    pub opens: bool,
    /// Class of the packets.
    pub traffic: Traffic,
    /// Only those from these ports, both ends included.
    pub source_ports: Option<(u16, u16)>,
    /// The end that denies them, before or after: the source's, if both do.
    pub direction: Direction,
    /// The layer of a host endpoint at this end that does; `None` if the workload's own policies
    /// do.
    pub layer: Option<Layer>,
    /// Decision at that end before the change.
    pub before: DecidedBy,
    /// Decision at that end after it.
    pub after: DecidedBy,
}

/// Decision of one end about some packets.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Ruling {
    /// Class of the packets.
    pub traffic: Traffic,
    /// Only those from these ports, both ends included.
    pub source_ports: Option<(u16, u16)>,
    /// The verdict.
    pub verdict: Verdict,
    /// The rule or default of the verdict.
    pub by: DecidedBy,
}

/// Packets that pass.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Passing {
    /// Class of the packets.
    pub traffic: Traffic,
    /// Only those from these ports, both ends included.
    pub source_ports: Option<(u16, u16)>,
}

/// A verdict and its rule or default.
type Decision<'a> = (Verdict, Cow<'a, DecidedBy>);

/// All ends of a connection that host endpoints see.
type Ends = SmallVec<[End; 5]>;

/// Direction, place and reason of a shift.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ShiftReason {
    opens: bool,
    direction: Direction,
    layer: Option<Layer>,
    before: DecidedBy,
    after: DecidedBy,
}

/// From a point of a line to another, exclusive.
type Stretch = (u32, u32);

/// Points of the line of protocols that shift.
#[derive(Default)]
struct Points {
    without_ports: Vec<Stretch>,
    /// For each stretch of source ports.
    with_ports: Vec<(Stretch, Vec<Stretch>)>,
}

/// Effect of an end on packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Effect {
    Deny,
    Pass,
    /// They pass, and are spared the following layers at the interface.
    Spare,
}

impl Effect {
    fn of(end: &End, (verdict, by): &Decision<'_>) -> Self {
        let is_at_interface = end.host.is_some_and(|host| host.list.is_some());
        match verdict {
            Verdict::Deny => Self::Deny,
            Verdict::Allow if is_at_interface && matches!(**by, DecidedBy::PolicyRule { .. }) => Self::Spare,
            Verdict::Allow | Verdict::Undecided => Self::Pass,
        }
    }
}

/// Effects of both states in a cell: for each stretch of source ports, from each point on.
type Line = Vec<(u32, Vec<(u32, States<Effect>)>)>;

/// Line of an end, and the interface of a host endpoint.
type NumberedLine = (usize, Option<u32>);

/// Compares the verdicts of two states. Results are cached.
#[derive(Debug)]
pub(crate) struct VerdictComparison<'a> {
    states: States<&'a Compiled<'a>>,
    family: Family,
    /// Few are different, since the deciding rule is not part of them.
    lines: Vec<Line>,
    line_numbers: AHashMap<Line, usize>,
    line_of: AHashMap<End, usize>,
    /// Whether verdicts shift between two ends with these lines.
    shifting: AHashMap<[Option<usize>; 2], bool>,
    between: AHashMap<[Option<Cell>; 2], Arc<[Shift]>>,
    /// The same where host endpoints are on the way.
    shifting_via_hosts: AHashMap<SmallVec<[NumberedLine; 5]>, bool>,
    via_hosts: AHashMap<Ends, Arc<[Shift]>>,
    with_ports: Intervals,
    without_ports: Intervals,
}

impl<'a> VerdictComparison<'a> {
    pub(crate) fn new(states: States<&'a Compiled<'a>>, family: Family) -> Self {
        Self {
            states,
            family,
            lines: Vec::new(),
            line_numbers: AHashMap::new(),
            line_of: AHashMap::new(),
            shifting: AHashMap::new(),
            between: AHashMap::new(),
            shifting_via_hosts: AHashMap::new(),
            via_hosts: AHashMap::new(),
            with_ports: domain(family, true),
            without_ports: domain(family, false),
        }
    }

    /// Reports whether the verdicts on packets of workloads in a cell differ.
    pub(crate) fn differs(&mut self, direction: Direction, cell: &Cell) -> bool {
        let number = self.line(direction, cell);
        self.shifts_anything([Some(number), None])
    }

    /// Reports whether the verdicts of a host endpoint's policies in a cell differ. Failsafe ports
    /// are left out.
    pub(crate) fn differs_at_host(&mut self, direction: Direction, cell: &Cell) -> bool {
        // Failsafe ports do not apply to forwarded packets.
        let host = HostEnd { layer: Layer::Forward, peer: unspecified(self.family), list: Some(0) };
        let number = self.line_at(End { direction, cell: *cell, host: Some(host) });
        let line = self.numbered(std::iter::once(&number));
        line.iter().any(|line| line.iter().any(|(_, of)| of.iter().any(|(_, effect)| effect.before != effect.after)))
    }

    /// Reports whether the failsafe ports of a side have changed.
    pub(crate) fn has_other_failsafe(&self, side: &Side) -> bool {
        let settings =
            States { before: side.before.settings(self.states.before), after: side.after.settings(self.states.after) };
        let failsafe = settings.map(|settings| (&settings.failsafe_inbound, &settings.failsafe_outbound));
        failsafe.before != failsafe.after
    }

    /// Returns the number of the line of verdicts in a cell.
    pub(crate) fn line(&mut self, direction: Direction, cell: &Cell) -> usize {
        self.line_at(End { direction, cell: *cell, host: None })
    }

    fn line_at(&mut self, end: End) -> usize {
        if let Some(number) = self.line_of.get(&end) {
            return *number;
        }
        let (l4, source_ports) = self.cuts(slice::from_ref(&end));
        let mut line: Line = Vec::new();
        for source_port in source_ports {
            let mut passing: Vec<(u32, States<Effect>)> = Vec::new();
            for point in &l4 {
                let decision = self.decision_at(&end, *point, source_port);
                let passes = decision.map(|decision| Effect::of(&end, &decision));
                if passing.last().is_none_or(|(_, last)| *last != passes) {
                    passing.push((*point, passes));
                }
            }
            if line.last().is_none_or(|(_, last)| *last != passing) {
                line.push((source_port, passing));
            }
        }
        let number = *self.line_numbers.entry(line).or_insert_with_key(|line| {
            self.lines.push(line.clone());
            self.lines.len() - 1
        });
        self.line_of.insert(end, number);
        number
    }

    fn shifts_anything(&mut self, numbers: [Option<usize>; 2]) -> bool {
        if let Some(known) = self.shifting.get(&numbers) {
            return *known;
        }
        let numbered: Vec<NumberedLine> = numbers.iter().flatten().map(|number| (*number, None)).collect();
        let shifts = self.is_shifting(&numbered);
        self.shifting.insert(numbers, shifts);
        shifts
    }

    #[expect(clippy::indexing_slicing, reason = "lines are numbered by their places")]
    fn numbered<'n>(&self, numbers: impl Iterator<Item = &'n usize>) -> Vec<&Line> {
        numbers.map(|number| &self.lines[*number]).collect()
    }

    /// Reports whether some packets pass all of these lines on one side of the change only.
    fn is_shifting(&self, numbers: &[NumberedLine]) -> bool {
        let lines = self.numbered(numbers.iter().map(|(number, _)| number));
        let (source_ports, points) = starts(&lines);
        source_ports.iter().any(|source_port| {
            let passing = along(&lines, *source_port);
            points.iter().any(|point| {
                let effects = passing.iter().zip(numbers).map(|(passing, (_, list))| (*at(passing, *point), *list));
                let passes = |of: fn(&States<Effect>) -> Effect| {
                    first_denying(effects.clone().map(|(effect, list)| (of(&effect), list))).is_none()
                };
                passes(|effect| effect.before) != passes(|effect| effect.after)
            })
        })
    }

    /// Returns the shifts between two ends, of which one may be absent.
    pub(crate) fn between(&mut self, egress: Option<Cell>, ingress: Option<Cell>) -> Arc<[Shift]> {
        let numbers = [(Direction::Egress, egress), (Direction::Ingress, ingress)]
            .map(|(direction, cell)| cell.map(|cell| self.line(direction, &cell)));
        if !self.shifts_anything(numbers) {
            return Arc::default();
        }
        if let Some(known) = self.between.get(&[egress, ingress]) {
            return Arc::clone(known);
        }
        let end = |direction, cell: Option<Cell>| cell.map(|cell| End { direction, cell, host: None });
        let ends: Ends = end(Direction::Egress, egress).into_iter().chain(end(Direction::Ingress, ingress)).collect();
        let shifts: Arc<[Shift]> = self.shifts(&ends).into();
        self.between.insert([egress, ingress], Arc::clone(&shifts));
        shifts
    }

    /// Returns the shifts for packets that pass these ends, in order: workloads, and host endpoints
    /// on the way.
    pub(crate) fn via_hosts(&mut self, ends: impl Iterator<Item = End>) -> Arc<[Shift]> {
        let ends: Ends = ends.collect();
        // The lines alone settle most pairs: there are few different lines, but there may be as
        // many ends as pairs.
        let list = |end: &End| end.host.and_then(|host| host.list);
        let numbers: SmallVec<[NumberedLine; 5]> = ends.iter().map(|end| (self.line_at(*end), list(end))).collect();
        let is_shifting = match self.shifting_via_hosts.get(&numbers) {
            Some(known) => *known,
            None => {
                let is_shifting = self.is_shifting(&numbers);
                self.shifting_via_hosts.insert(numbers, is_shifting);
                is_shifting
            }
        };
        if !is_shifting {
            return Arc::default();
        }
        if let Some(known) = self.via_hosts.get(&ends) {
            return Arc::clone(known);
        }
        let shifts: Arc<[Shift]> = self.shifts(&ends).into();
        self.via_hosts.insert(ends, Arc::clone(&shifts));
        shifts
    }

    /// Returns the shifts for packets that have to pass all ends.
    pub(crate) fn shifts(&self, ends: &[End]) -> Vec<Shift> {
        let (l4, source_ports) = self.cuts(ends);
        let mut found: Vec<(ShiftReason, Points)> = Vec::new();
        for stretch in stretches(&source_ports, PORTS_END) {
            for (start, end) in stretches(&l4, L4_END) {
                if let Some(reason) = self.reason(ends, start, stretch.0) {
                    points_of(&mut found, reason).add(stretch, (start, end));
                }
            }
        }
        let shifts = |(reason, points): (ShiftReason, Points)| {
            self.kinds(points).into_iter().map(move |(traffic, source_ports)| {
                let ShiftReason { opens, direction, layer, before, after } = reason.clone();
                Shift { opens, traffic, source_ports, direction, layer, before, after }
            })
        };
        found.into_iter().flat_map(shifts).collect()
    }

    /// Returns all decisions in a cell with the deciding rules, where the states before and after
    /// are the same.
    pub(crate) fn rulings(&self, direction: Direction, cell: &Cell) -> Vec<Ruling> {
        let end = End { direction, cell: *cell, host: None };
        let own = (cell.side.after, cell.rows.after);
        let (l4, source_ports) = self.cuts(slice::from_ref(&end));
        let mut found: Vec<(Decision<'a>, Points)> = Vec::new();
        for stretch in stretches(&source_ports, PORTS_END) {
            for (start, stop) in stretches(&l4, L4_END) {
                let decision = self.decision(self.states.after, &end, own, start, stretch.0);
                points_of(&mut found, decision).add(stretch, (start, stop));
            }
        }
        let rulings = |((verdict, by), points): (Decision<'a>, Points)| {
            let by = by.into_owned();
            let ruling = move |(traffic, source_ports)| Ruling { traffic, source_ports, verdict, by: by.clone() };
            self.kinds(points).into_iter().map(ruling)
        };
        found.into_iter().flat_map(rulings).collect()
    }

    /// Returns the packets that pass both ends, of which one may be absent, where the states before
    /// and after are the same.
    pub(crate) fn passing(&self, numbers: [Option<usize>; 2]) -> Vec<Passing> {
        let lines = self.numbered(numbers.iter().flatten());
        let (source_ports, l4) = starts(&lines);
        let mut points = Points::default();
        for stretch in stretches(&source_ports, PORTS_END) {
            let passing = along(&lines, stretch.0);
            for (start, end) in stretches(&l4, L4_END) {
                if passing.iter().all(|passing| at(passing, start).after != Effect::Deny) {
                    points.add(stretch, (start, end));
                }
            }
        }
        self.kinds(points).into_iter().map(|(traffic, source_ports)| Passing { traffic, source_ports }).collect()
    }

    /// Restricts all further results to these kinds of packets.
    pub(crate) fn restrict(&mut self, kinds: &Intervals) {
        self.with_ports = self.with_ports.and(kinds);
        self.without_ports = self.without_ports.and(kinds);
    }

    /// Returns the points at which a decision may change, on the lines of protocols and of source
    /// ports.
    fn cuts(&self, ends: &[End]) -> (Vec<u32>, Vec<u32>) {
        let (mut l4, mut source_ports) = (vec![0], vec![0, 1]);
        let mut answers: Vec<Stretch> = Vec::new();
        let mut cut = |point: u32| l4.extend([point, point + 1]);
        let port = |protocol: Protocol, port: u16| point_of(protocol.number(), L4Detail::Port(port));
        for end in ends {
            let (before, after) = (self.states.before, self.states.after);
            for settings in [end.cell.side.before.settings(before), end.cell.side.after.settings(after)] {
                let Settings { failsafe_inbound, failsafe_outbound, vxlan_port, .. } = settings;
                if let Some(host) = end.host {
                    for failsafe in failsafe_inbound.iter().chain(failsafe_outbound) {
                        cut(port(failsafe.protocol, failsafe.port));
                        // Before connection tracking, answers from failsafe ports are allowed as
                        // well, whatever port they go to.
                        if host.layer == Layer::Untracked {
                            answers.extend(Intervals::protocol(failsafe.protocol.number()).iter());
                            let point = u32::from(failsafe.port) + 1;
                            source_ports.extend([point, point + 1]);
                        }
                    }
                } else {
                    cut(port(Protocol::UDP, *vxlan_port));
                    // For any payload.
                    cut(point_of(IPIP, L4Detail::Other));
                    cut(point_of(IPIP + 1, L4Detail::Other));
                }
            }
        }
        for end in ends {
            let tables = [end.cell.side.before.table(self.states.before), end.cell.side.after.table(self.states.after)];
            for table in tables.into_iter().flatten() {
                l4.extend(table.l4().starts());
                source_ports.extend(table.source_ports().starts());
            }
        }
        l4.extend(answers.into_iter().flat_map(|(start, end)| [start, end]));
        (ascending(l4, L4_END), ascending(source_ports, PORTS_END))
    }

    /// Returns the decision of each end about packets at a point.
    fn decisions<'e>(
        &self,
        ends: &'e [End],
        l4: u32,
        source_port: u32,
    ) -> impl Iterator<Item = (&'e End, States<Decision<'a>>)> {
        ends.iter().map(move |end| (end, self.decision_at(end, l4, source_port)))
    }

    fn decision_at(&self, end: &End, l4: u32, source_port: u32) -> States<Decision<'a>> {
        let States { before, after } = self.states;
        let Cell { side, rows } = end.cell;
        States {
            before: self.decision(before, end, (side.before, rows.before), l4, source_port),
            after: self.decision(after, end, (side.after, rows.after), l4, source_port),
        }
    }

    /// Whether packets at a point pass on one side of the change only, and why.
    fn reason(&self, ends: &[End], l4: u32, source_port: u32) -> Option<ShiftReason> {
        let decisions: Vec<(&End, States<Decision<'a>>)> = self.decisions(ends, l4, source_port).collect();
        let denied = |of: for<'d> fn(&'d States<Decision<'a>>) -> &'d Decision<'a>| {
            let list = |end: &End| end.host.and_then(|host| host.list);
            let effects = decisions.iter().map(|(end, decision)| (Effect::of(end, of(decision)), list(end)));
            first_denying(effects).and_then(|place| decisions.get(place).cloned())
        };
        let denied_before = denied(|decision| &decision.before);
        let denied_after = denied(|decision| &decision.after);
        let (opens, (end, decision)) = match (denied_before, denied_after) {
            (Some(before), None) => (true, before),
            (None, Some(after)) => (false, after),
            _ => return None,
        };
        let States { before, after } = decision.map(|(_, by)| by.into_owned());
        let layer = end.host.map(|host| host.layer);
        Some(ShiftReason { opens, direction: end.direction, layer, before, after })
    }

    fn decision(
        &self,
        state: &'a Compiled<'a>,
        end: &End,
        (own, peer_row): (Own, Row),
        l4: u32,
        source_port: u32,
    ) -> Decision<'a> {
        let own_row = match own {
            Own::Inactive => return (Verdict::Deny, Cow::Owned(DecidedBy::EndpointInactive)),
            Own::Absent => return (Verdict::Allow, Cow::Owned(DecidedBy::Nothing)),
            Own::Table(_, row, _) => row,
        };
        let settings = own.settings(state);
        if let Some(packet) = self.packet(end, l4, source_port) {
            match end.host {
                Some(HostEnd { layer, .. }) => {
                    if let Some(port) = settings.failsafe(layer, end.direction, &packet) {
                        return (Verdict::Allow, Cow::Owned(DecidedBy::Failsafe(port)));
                    }
                }
                None if end.direction == Direction::Egress => {
                    if let Some((guard, _)) = settings.guards(&packet).find(|(_, denies)| *denies) {
                        return (Verdict::Deny, Cow::Owned(DecidedBy::Guard(guard)));
                    }
                }
                None => {}
            }
        }
        let lacking = (Verdict::Deny, Cow::Owned(DecidedBy::Nothing));
        let Some(table) = own.table(state) else { return lacking };
        let (l4, source_port) = (table.l4().of(l4), table.source_ports().of(source_port));
        let decision = table.decision_at(own_row, peer_row, l4, source_port);
        decision.map_or(lacking, |(verdict, by)| (*verdict, Cow::Borrowed(by)))
    }

    /// Returns a packet at a point, with the fields that settings depend on.
    fn packet(&self, end: &End, l4: u32, source_port: u32) -> Option<Packet> {
        let unspecified = unspecified(self.family);
        let peer = end.host.map_or(unspecified, |host| host.peer);
        let (source, destination) = match end.direction {
            Direction::Ingress => (peer, unspecified),
            Direction::Egress => (unspecified, peer),
        };
        let (protocol, detail) = at_l4_point(l4);
        let payload = match detail {
            L4Detail::Port(destination) => {
                Payload::Ports { source: at_source_port_point(source_port).unwrap_or_default(), destination }
            }
            L4Detail::Icmp { icmp_type, code } => Payload::Icmp { icmp_type, code },
            L4Detail::Other => Payload::Other,
        };
        Packet::new(source, destination, protocol, payload).ok()
    }

    /// Converts points to existing kinds of packets, with the source ports that they come from.
    fn kinds(&self, points: Points) -> Vec<(Traffic, Option<(u16, u16)>)> {
        let kind = |intervals: &Intervals, source_ports| {
            (!intervals.is_empty()).then(|| (Traffic::new(self.family, intervals), source_ports))
        };
        let without = Intervals::ascending(points.without_ports.into_iter()).and(&self.without_ports);
        let mut with: Vec<(Stretch, Intervals)> = Vec::new();
        for (stretch, intervals) in points.with_ports {
            let intervals = Intervals::ascending(intervals.into_iter()).and(&self.with_ports);
            match with.last_mut() {
                Some(((_, end), last)) if *end == stretch.0 && *last == intervals => *end = stretch.1,
                _ => with.push((stretch, intervals)),
            }
        }
        if let [((1, PORTS_END), intervals)] = &with[..] {
            let mut all: Vec<Stretch> = without.iter().chain(intervals.iter()).collect();
            all.sort_unstable();
            return kind(&Intervals::ascending(all.into_iter()), None).into_iter().collect();
        }
        let with = with.iter().filter_map(|((start, end), intervals)| {
            kind(intervals, at_source_port_point(*start).zip(at_source_port_point(end - 1)))
        });
        kind(&without, None).into_iter().chain(with).collect()
    }
}

impl Points {
    fn add(&mut self, stretch: Stretch, points: Stretch) {
        if stretch.0 == 0 {
            self.without_ports.push(points);
            return;
        }
        match self.with_ports.last_mut() {
            Some((last, all)) if *last == stretch => all.push(points),
            _ => self.with_ports.push((stretch, vec![points])),
        }
    }
}

/// Returns the points of a value, which is added if it is new.
#[expect(clippy::indexing_slicing, reason = "the last place is that of the value")]
fn points_of<T: PartialEq>(found: &mut Vec<(T, Points)>, value: T) -> &mut Points {
    let place = found.iter().position(|(known, _)| *known == value).unwrap_or_else(|| {
        found.push((value, Points::default()));
        found.len() - 1
    });
    &mut found[place].1
}

/// Returns the points of a line before its end, sorted and without duplicates.
fn ascending(mut points: Vec<u32>, end: u32) -> Vec<u32> {
    points.retain(|point| *point < end);
    points.sort_unstable();
    points.dedup();
    points
}

/// Returns the points at which lines change: source ports, and points of the line of protocols.
fn starts(lines: &[&Line]) -> (Vec<u32>, Vec<u32>) {
    let source_ports = lines.iter().flat_map(|line| line.iter().map(|(start, _)| *start));
    let points = lines.iter().flat_map(|line| line.iter().flat_map(|(_, passing)| passing.iter().map(|(at, _)| *at)));
    (ascending(source_ports.chain([0, 1]).collect(), PORTS_END), ascending(points.chain([0]).collect(), L4_END))
}

/// Returns the place of the first end that denies packets. `effects` are those of the ends, with
/// the interface of host endpoints.
fn first_denying(effects: impl Iterator<Item = (Effect, Option<u32>)>) -> Option<usize> {
    let mut spared = None;
    for (place, (effect, list)) in effects.enumerate() {
        match effect {
            _ if list.is_some() && list == spared => {}
            Effect::Deny => return Some(place),
            Effect::Spare => spared = list,
            Effect::Pass => {}
        }
    }
    None
}

/// Returns, for each line, the effects on packets from a source port.
fn along<'a>(lines: &[&'a Line], source_port: u32) -> Vec<&'a [(u32, States<Effect>)]> {
    lines.iter().map(|line| &**at(line, source_port)).collect()
}

/// Returns the value at a point from ascending values, each of which applies from a point on.
#[expect(clippy::indexing_slicing, reason = "the first stretch starts at 0")]
fn at<T>(stretches: &[(u32, T)], point: u32) -> &T {
    &stretches[stretches.partition_point(|(start, _)| *start <= point) - 1].1
}

/// From each point to the next.
fn stretches(starts: &[u32], end: u32) -> impl Iterator<Item = Stretch> + '_ {
    let ends = starts.iter().copied().skip(1).chain([end]);
    starts.iter().copied().zip(ends).filter(|(start, end)| start < end)
}
