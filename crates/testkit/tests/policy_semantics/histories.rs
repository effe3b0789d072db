//! Tables after any history of changes decide as new tables of the resulting state.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::{Strategy, any};
use proptest::sample::Index;
use proptest::test_runner::TestCaseError;
use tortie_classes::{Classes, Compiled, GroupId};
use tortie_ebpf::layout::MapKind;
use tortie_ebpf::{Cell, DecisionId, GroupRoots, Tables};
use tortie_evaluate::{DecidedBy, Packet, Verdict};
use tortie_model::desired::{DesiredUpdate, IpSetDelta, Members};
use tortie_model::{Direction, Family};

use crate::evaluate::{evaluated, messages, settings};
use crate::maps::{Maps, octets};
use crate::runner;
use crate::scenario::{Scenario, scenarios};
use crate::tables::{groups, written};

/// A change: index into all messages, and the sort of change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edit {
    message: Index,
    kind: u8,
}

/// Some changes, a flush, and whether unused blocks may be reused afterwards.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    edits: Vec<Edit>,
    pub(crate) reclaims: bool,
}

/// Two states, and a history from the first to a state between them.
#[derive(Clone, Debug)]
pub(crate) struct History {
    pub(crate) first: Scenario,
    second: Scenario,
    pub(crate) steps: Vec<Step>,
}

pub(crate) fn histories() -> impl Strategy<Value = History> {
    let edit = (any::<Index>(), 0..8_u8).prop_map(|(message, kind)| Edit { message, kind });
    let step = (vec(edit, 0..4), any::<bool>()).prop_map(|(edits, reclaims)| Step { edits, reclaims });
    (scenarios(), scenarios(), vec(step, 2..14)).prop_map(|(first, second, steps)| History { first, second, steps })
}

impl History {
    pub(crate) fn packets(&self) -> Vec<Packet> {
        self.first.packets.iter().chain(&self.second.packets).map(evaluated).collect()
    }

    pub(crate) fn messages(&self) -> Vec<DesiredUpdate> {
        messages(&self.first.state).chain(messages(&self.second.state)).collect()
    }

    /// Returns the updates of a step. Some of them are invalid.
    pub(crate) fn updates(&self, step: &Step) -> Vec<DesiredUpdate> {
        let all = self.messages();
        let update = |edit: &Edit| {
            let message = edit.message.get(&all).clone();
            match (edit.kind, message) {
                (0, message) => removal(message),
                (1..=4, DesiredUpdate::IpSet(set)) => {
                    let (none, half) = half(&set.members, edit.kind.is_multiple_of(2));
                    let (added, removed) = if edit.kind <= 2 { (half, none) } else { (none, half) };
                    DesiredUpdate::IpSetDelta(IpSetDelta { id: set.id, added, removed })
                }
                (_, message) => message,
            }
        };
        step.edits.iter().map(update).collect()
    }
}

/// Returns no members, and every other member.
fn half(members: &Members, is_first: bool) -> (Members, Members) {
    let skipped = usize::from(!is_first);
    match members {
        Members::Nets(nets) => {
            let half = nets.iter().copied().skip(skipped).step_by(2).collect();
            (Members::Nets(Vec::new()), Members::Nets(half))
        }
        Members::IpPorts(ports) => {
            let half = ports.iter().copied().skip(skipped).step_by(2).collect();
            (Members::IpPorts(Vec::new()), Members::IpPorts(half))
        }
        Members::Domains(_) => panic!("sets of domains have no deltas"),
    }
}

pub(crate) fn removal(update: DesiredUpdate) -> DesiredUpdate {
    match update {
        DesiredUpdate::IpSet(set) => DesiredUpdate::IpSetRemove(set.id),
        DesiredUpdate::Policy(id, _) => DesiredUpdate::PolicyRemove(id),
        DesiredUpdate::Profile(name, _) => DesiredUpdate::ProfileRemove(name),
        DesiredUpdate::WorkloadEndpoint(id, _) => DesiredUpdate::WorkloadEndpointRemove(id),
        DesiredUpdate::HostEndpoint(name, _) => DesiredUpdate::HostEndpointRemove(name),
        other => panic!("{other:?}"),
    }
}

/// Answers of an earlier time, by roots that must not change until they are reclaimed.
struct Earlier {
    addresses: [Cell; 2],
    answers: Vec<(GroupRoots, Direction, Packet, u32, Verdict, Option<DecidedBy>)>,
}

impl Earlier {
    fn new(tables: &Tables, maps: &Maps, groups: &[(GroupId, Direction)], packets: &[Packet]) -> Self {
        let addresses = Family::ALL.map(|family| tables.addresses(family));
        let mut earlier = Self { addresses, answers: Vec::new() };
        for (group, direction) in groups {
            let Some(roots) = tables.group(*group) else { continue };
            for packet in packets {
                let cell = earlier.ask(maps, &roots, *direction, packet);
                let (verdict, by) = tables.decided(DecisionId::from_cell(cell));
                earlier.answers.push((roots, *direction, *packet, cell, verdict, by.cloned()));
            }
        }
        earlier
    }

    fn ask(&self, maps: &Maps, roots: &GroupRoots, direction: Direction, packet: &Packet) -> u32 {
        let addresses = self.addresses[usize::from(packet.family() == Family::V6)].bits();
        maps.group(roots.cells().map(Cell::bits), |address| maps.tree(addresses, &octets(address)), direction, packet)
    }

    fn is_answered_alike(&self, tables: &Tables, maps: &Maps) -> Result<(), TestCaseError> {
        for (roots, direction, packet, cell, verdict, by) in &self.answers {
            let now = self.ask(maps, roots, *direction, packet);
            let decided = tables.decided(DecisionId::from_cell(now));
            if (now, decided) != (*cell, (*verdict, by.as_ref())) {
                return Err(TestCaseError::fail(format!("{packet:?} at earlier roots: {decided:?}, not {verdict:?}")));
            }
        }
        Ok(())
    }
}

/// Tables that follow a history, and their written values.
struct Live {
    tables: Tables,
    maps: Maps,
    earlier: Vec<Earlier>,
}

impl Live {
    fn follow(&mut self, compiled: &Compiled<'_>, packets: &[Packet]) -> Result<(), TestCaseError> {
        let before: Vec<(GroupId, Option<GroupRoots>)> =
            compiled.groups().map(|group| (group, self.tables.group(group))).collect();
        let changed: BTreeSet<GroupId> = self.tables.update(compiled).into_iter().collect();
        for (number, cells) in written(&mut self.tables) {
            self.maps.write(MapKind::Blocks, number, &cells.map(|cell| cell.bits().to_ne_bytes()).concat());
        }
        for (group, roots) in before {
            let is_other = self.tables.group(group) != roots;
            if changed.contains(&group) != is_other {
                return Err(TestCaseError::fail(format!("{group:?} changed: {is_other}, reported {changed:?}")));
            }
        }
        for earlier in &self.earlier {
            earlier.is_answered_alike(&self.tables, &self.maps)?;
        }
        let fresh = Tables::new(compiled);
        let groups = groups(compiled);
        for (group, direction) in &groups {
            for packet in packets {
                let decided = self.tables.decided(self.tables.decide(*group, *direction, packet));
                let expected = fresh.decided(fresh.decide(*group, *direction, packet));
                let is_open = matches!(compiled.table(*group), Some(Ok(_)))
                    && !self.tables.closed().any(|(closed, _)| closed == *group);
                let cell = is_open.then(|| super::classes::by_cell(compiled, *group, *direction, packet));
                let cell = cell.as_ref().map(|answer| (answer.verdict, Some(&answer.decided_by)));
                if decided != expected || decided != cell.unwrap_or((Verdict::Deny, None)) {
                    let found = format!("{packet:?}, {direction:?}: {decided:?}, not {expected:?}, cell {cell:?}");
                    return Err(TestCaseError::fail(found));
                }
            }
        }
        if fresh.decision_count() > self.tables.decision_count() {
            return Err(TestCaseError::fail("fewer decisions than tables have"));
        }
        self.earlier.push(Earlier::new(&self.tables, &self.maps, &groups, packets));
        Ok(())
    }

    fn reclaim(&mut self) {
        self.tables.reclaim();
        // The last is in force.
        self.earlier.drain(..self.earlier.len() - 1);
    }
}

fn check(history: &History) -> Result<(), TestCaseError> {
    let mut classes = Classes::new(settings(&crate::chains::config()));
    let packets = history.packets();
    let (some, _) = packets.split_at(8);
    messages(&history.first.state).for_each(|update| classes.apply(&update).unwrap());
    let mut live = Live { tables: Tables::with_max_blocks(u32::MAX), maps: Maps::default(), earlier: Vec::new() };
    live.follow(&classes.flush(), &packets)?;
    for step in &history.steps {
        for update in history.updates(step) {
            // Members of sets that do not exist, or have another type.
            let _ = classes.apply(&update);
        }
        live.follow(&classes.flush(), some)?;
        if step.reclaims {
            live.reclaim();
        }
    }
    let decisions = live.tables.decision_count();
    live.reclaim();
    let fresh = Tables::new(&classes.flush());
    assert!(live.tables.decision_count() <= decisions);
    assert_eq!(live.tables.decision_count(), fresh.decision_count());
    for update in history.messages().into_iter().rev() {
        classes.apply(&removal(update)).unwrap();
    }
    let _ = live.tables.update(&classes.flush());
    live.tables.reclaim();
    assert!(classes.is_empty());
    assert_eq!((live.tables.blocks().in_use(), live.tables.decision_count()), (0, 0));
    Ok(())
}

#[test]
fn tables_follow_any_history() {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(25);
    if let Err(error) = runner(cases, 200).run(&histories(), |history| check(&history)) {
        panic!("{error}");
    }
}
