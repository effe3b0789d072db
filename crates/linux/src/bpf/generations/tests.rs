use std::sync::{Arc, Mutex};

use tortie_ebpf::layout::MapKind;

use super::*;
use crate::bpf::fake::{FakeEdge, FakeState, lock};

/// Contents with a number: current leads to roots, roots to a block, and the block has the number.
#[derive(Debug)]
struct Numbered {
    number: u32,
    flushed: u32,
    needs: u32,
}

impl Numbered {
    fn new(number: u32) -> Self {
        Self { number, flushed: 0, needs: 10 }
    }

    fn set(&mut self, number: u32) {
        self.number = number;
    }

    fn writes(number: u32) -> Vec<Write> {
        let write = |map, index, value: u32| Write { map, index, value: value.to_ne_bytes().to_vec() };
        let slot = number % ROOTS;
        vec![
            write(MapKind::Blocks, number, number),
            write(MapKind::Roots, slot, number),
            write(MapKind::Current, 0, slot),
        ]
    }
}

impl Contents for Numbered {
    fn entries(&self, map: MapKind) -> u32 {
        if map == MapKind::Blocks { self.needs } else { 1 }
    }

    fn flush(&mut self) -> Vec<Write> {
        if self.flushed == self.number {
            return Vec::new();
        }
        self.flushed = self.number;
        Self::writes(self.number)
    }

    fn all(&self) -> Vec<Write> {
        Self::writes(self.flushed)
    }

    fn take_learned(&mut self) -> Vec<LearnedWrite> {
        Vec::new()
    }

    fn all_learned(&self) -> Vec<(LearnedKey, LearnedRecord)> {
        Vec::new()
    }

    fn note_refused(&mut self, _: LearnedKey) {}

    fn reclaim(&mut self) {}

    fn adopt(
        &mut self,
        _: u32,
        _: &[(Vec<u8>, Vec<u8>)],
        read: &mut dyn FnMut(MapKind, u32) -> io::Result<Vec<u8>>,
    ) -> Result<(), AdoptError<io::Error>> {
        let mut number = |map, index| {
            let bytes = read(map, index).map_err(AdoptError::Read)?;
            let number = u32::from_ne_bytes(bytes[..4].try_into().unwrap());
            if number > 1000 { Err(AdoptError::Unknown { map, index }) } else { Ok(number) }
        };
        let slot = number(MapKind::Current, 0)?;
        let block = number(MapKind::Roots, slot)?;
        self.flushed = number(MapKind::Blocks, block)?;
        Ok(())
    }
}

type Kernel = Arc<Mutex<FakeState>>;

/// Returns a kernel with attachment by links, or by rules.
fn kernel(by_rules: bool) -> Kernel {
    let kernel = Kernel::default();
    lock(&kernel).by_rules = by_rules;
    kernel
}

fn generations(kernel: &Kernel) -> Generations<FakeEdge> {
    Generations::new(FakeEdge::new(kernel), Family::ALL.into())
}

fn places() -> impl Iterator<Item = AttachPoint> {
    Family::ALL.into_iter().flat_map(|family| Hook::ALL.map(|hook| AttachPoint { hook, family }))
}

/// Asserts that each place has exactly one program, which enforces this number.
#[track_caller]
fn assert_enforced(kernel: &Kernel, number: u32) {
    let held = lock(kernel);
    for place in places() {
        assert_eq!(held.enforced(place), [Some(number)], "{place}");
    }
    assert_eq!(held.open, [""; 0]);
    assert_eq!(held.folders().len(), 1, "{:?}", held.folders());
    assert!(held.tracks);
}

#[test]
fn a_change_is_written_and_one_that_needs_more_room_gets_larger_maps() {
    for by_rules in [false, true] {
        let kernel = kernel(by_rules);
        let mut generations = generations(&kernel);
        let mut contents = Numbered::new(1);
        assert!(!generations.is_in_force());
        generations.reconcile(&mut contents).unwrap();
        assert!(generations.is_in_force());
        assert_enforced(&kernel, 1);
        let folder = lock(&kernel).folders();
        contents.set(2);
        generations.reconcile(&mut contents).unwrap();
        assert_enforced(&kernel, 2);
        assert_eq!(lock(&kernel).folders(), folder, "the same maps");
        // Without a change, nothing is written.
        let steps = lock(&kernel).steps;
        generations.reconcile(&mut contents).unwrap();
        assert_eq!(lock(&kernel).steps, steps);
        (contents.needs, contents.number) = (100_000, 3);
        generations.reconcile(&mut contents).unwrap();
        assert_enforced(&kernel, 3);
        assert_ne!(lock(&kernel).folders(), folder);
    }
}

type History = fn(&mut Generations<FakeEdge>, &mut Numbered) -> Result<(), EdgeError>;

/// Returns the histories of a kernel that enforces number 1, with a process that continues.
fn histories() -> Vec<(&'static str, History)> {
    fn change(generations: &mut Generations<FakeEdge>, contents: &mut Numbered) -> Result<(), EdgeError> {
        contents.set(2);
        generations.reconcile(contents)
    }
    fn grow(generations: &mut Generations<FakeEdge>, contents: &mut Numbered) -> Result<(), EdgeError> {
        contents.needs = 100_000;
        change(generations, contents)
    }
    fn check(generations: &mut Generations<FakeEdge>, contents: &mut Numbered) -> Result<(), EdgeError> {
        generations.check(contents)?;
        change(generations, contents)
    }
    vec![("change", change), ("grow", grow), ("check", check)]
}

#[test]
fn a_step_that_fails_opens_nothing_and_the_next_try_enforces_everything() {
    for by_rules in [false, true] {
        for (name, history) in histories() {
            for failing in 1.. {
                let kernel = kernel(by_rules);
                let mut generations = generations(&kernel);
                let mut contents = Numbered::new(1);
                generations.reconcile(&mut contents).unwrap();
                let first = lock(&kernel).steps + failing;
                lock(&kernel).fail.insert(first);
                let result = history(&mut generations, &mut contents);
                if lock(&kernel).steps < first {
                    assert!(failing > 3, "{name}");
                    break;
                }
                assert!(result.is_err(), "{name}: step {failing}");
                assert_eq!(lock(&kernel).open, [""; 0], "{name}: step {failing}");
                for place in places() {
                    let enforced = lock(&kernel).enforced(place);
                    assert!(
                        enforced.contains(&Some(1)) || enforced == [Some(2)],
                        "{name}: step {failing}: {enforced:?}"
                    );
                }
                contents.set(2);
                generations.reconcile(&mut contents).unwrap();
                assert!(generations.is_in_force());
                assert_enforced(&kernel, 2);
            }
        }
    }
}

#[test]
fn a_failed_first_start_reports_that_nothing_is_in_force() {
    for by_rules in [false, true] {
        for failing in 1.. {
            let kernel = kernel(by_rules);
            let mut generations = generations(&kernel);
            let mut contents = Numbered::new(1);
            lock(&kernel).fail.insert(failing);
            let result = generations.reconcile(&mut contents);
            if lock(&kernel).steps < failing {
                assert!(failing > 20);
                break;
            }
            // The search for generations of another process may fail without consequences.
            assert_eq!(result.is_ok(), failing == 1, "step {failing}");
            let is_everywhere = places().all(|place| lock(&kernel).enforced(place) == [Some(1)]);
            assert!(!generations.is_in_force() || is_everywhere, "step {failing}");
            generations.reconcile(&mut contents).unwrap();
            assert_enforced(&kernel, 1);
        }
    }
}

#[test]
fn whenever_a_process_ends_the_next_one_enforces_everything_and_nothing_opens() {
    for by_rules in [false, true] {
        let starts: [(&str, bool); 2] = [("first start", false), ("restart", true)];
        let each = |is_begun: bool, end: usize, history: Option<History>| {
            let kernel = kernel(by_rules);
            if is_begun {
                let mut before = generations(&kernel);
                before.reconcile(&mut Numbered::new(1)).unwrap();
                drop(before);
                assert_enforced(&kernel, 1);
            }
            let mut process = generations(&kernel);
            let mut contents = Numbered::new(1);
            let begin = if let Some(history) = history {
                process.reconcile(&mut contents).unwrap();
                let begin = lock(&kernel).steps;
                lock(&kernel).ended_at = Some(begin + end);
                let _ = history(&mut process, &mut contents);
                begin
            } else {
                let begin = lock(&kernel).steps;
                lock(&kernel).ended_at = Some(begin + end);
                let _ = process.reconcile(&mut contents);
                begin
            };
            drop(process);
            let has_ended = lock(&kernel).steps >= begin + end;
            lock(&kernel).ended_at = None;
            // Pinned programs still enforce.
            if is_begun || history.is_some() {
                for place in places() {
                    assert!(!lock(&kernel).enforced(place).is_empty(), "{place} after {end}");
                }
            }
            let mut contents = Numbered::new(3);
            generations(&kernel).reconcile(&mut contents).unwrap();
            assert_enforced(&kernel, 3);
            has_ended
        };
        for (name, is_begun) in starts {
            let count = (1..).take_while(|end| each(is_begun, *end, None)).count();
            assert!(count > 20, "{name}: {count}");
        }
        for (name, history) in histories() {
            let count = (1..).take_while(|end| each(true, *end, Some(history))).count();
            assert!(count > 3, "{name}: {count}");
        }
    }
}

#[test]
fn foreign_detachments_are_found_and_repaired() {
    for by_rules in [false, true] {
        let kernel = kernel(by_rules);
        let mut generations = generations(&kernel);
        let mut contents = Numbered::new(1);
        generations.reconcile(&mut contents).unwrap();
        assert_eq!(generations.check(&contents).unwrap(), Repairs::default());

        let place = AttachPoint { hook: Hook::Forward, family: Family::V4 };
        lock(&kernel).detach(place);
        assert_eq!(lock(&kernel).enforced(place), []);
        let repairs = generations.check(&contents).unwrap();
        assert_eq!(repairs.repaired, ["the program forward-4 was not attached"]);
        assert_enforced(&kernel, 1);

        lock(&kernel).unpin();
        assert_eq!(
            generations.check(&contents).unwrap().repaired.len(),
            2 * 2 * Hook::ALL.len() + MapKind::ALL.len() + 1
        );
        assert_enforced(&kernel, 1);
        drop(generations);
        assert_enforced(&kernel, 1);
    }
}

#[test]
fn maps_that_others_wrote_are_replaced() {
    for by_rules in [false, true] {
        for kind in [MapKind::Current, MapKind::Roots, MapKind::Blocks] {
            let kernel = kernel(by_rules);
            let mut generations = generations(&kernel);
            let mut contents = Numbered::new(1);
            generations.reconcile(&mut contents).unwrap();
            lock(&kernel).spoil(kind);
            let repairs = generations.check(&contents).unwrap();
            assert_eq!(repairs.repaired, [format!("the map {} was out of sync", kind.name())]);
            assert!(!generations.is_in_force());
            lock(&kernel).open.clear();
            generations.reconcile(&mut contents).unwrap();
            lock(&kernel).open.clear();
            assert!(generations.is_in_force());
            assert_enforced(&kernel, 1);
        }
    }
}

/// Returns the links, the folders and the number of writes.
fn shown(kernel: &Kernel) -> (Vec<u32>, Vec<String>, usize) {
    let held = lock(kernel);
    (held.link_ids(), held.folders(), held.writes.len())
}

#[test]
fn a_restart_with_nothing_changed_writes_nothing() {
    for by_rules in [false, true] {
        let kernel = kernel(by_rules);
        generations(&kernel).reconcile(&mut Numbered::new(1)).unwrap();
        let before = shown(&kernel);
        for _ in 0..3 {
            let mut process = generations(&kernel);
            let mut contents = Numbered::new(1);
            process.reconcile(&mut contents).unwrap();
            assert!(process.is_in_force());
            assert_eq!(shown(&kernel), before);
            assert_eq!(process.check(&contents).unwrap(), Repairs::default());
        }
        // Only the changes of the meantime are written.
        let mut process = generations(&kernel);
        process.reconcile(&mut Numbered::new(2)).unwrap();
        let (links, folders, writes) = shown(&kernel);
        assert_eq!((links, folders, writes - before.2), (before.0, before.1, 3));
        assert_enforced(&kernel, 2);
    }
}

#[test]
fn generations_that_cannot_be_adopted_are_replaced_without_gap() {
    for by_rules in [false, true] {
        type Change = fn(&mut FakeState, &mut FakeEdge);
        let changes: [(&str, Change); 9] = [
            ("another layout", |_, edge| edge.layout_version = 2),
            ("a former layout", |_, edge| edge.layout_version = 0),
            ("other programs", |_, edge| edge.settings = "with another failsafe port"),
            ("no record", |held, _| held.unpin_name("made-of")),
            ("no map", |held, _| held.unpin_name("map-groups")),
            ("no program", |held, _| held.unpin_name("program-input-6")),
            ("too small a map", |held, _| held.shrink(MapKind::Blocks)),
            ("no link", |held, _| held.unpin_name("output-4")),
            ("a detached link", |held, _| held.detach(AttachPoint { hook: Hook::Forward, family: Family::V4 })),
        ];
        for (name, change) in changes {
            let kernel = kernel(by_rules);
            generations(&kernel).reconcile(&mut Numbered::new(1)).unwrap();
            let before = lock(&kernel).folders();
            let mut edge = FakeEdge::new(&kernel);
            change(&mut lock(&kernel), &mut edge);
            // The hook of a detached program is open until another one is attached.
            lock(&kernel).open.clear();
            let mut process = Generations::new(edge, Family::ALL.into());
            process.reconcile(&mut Numbered::new(1)).unwrap();
            assert_ne!(lock(&kernel).folders(), before, "{name}");
            if name == "no link" || name == "a detached link" {
                lock(&kernel).open.clear();
            }
            assert_enforced(&kernel, 1);
        }
        // One family less.
        let kernel = kernel(by_rules);
        generations(&kernel).reconcile(&mut Numbered::new(1)).unwrap();
        Generations::new(FakeEdge::new(&kernel), vec![Family::V4]).reconcile(&mut Numbered::new(1)).unwrap();
        let attached = |family| lock(&kernel).attached(AttachPoint { hook: Hook::Forward, family });
        assert_eq!((attached(Family::V4), attached(Family::V6)), (1, 0));
    }
}

#[test]
fn whenever_a_restart_ends_or_fails_the_next_one_enforces_everything() {
    for by_rules in [false, true] {
        for (version, number) in [(1, 1), (1, 2), (2, 1)] {
            for at in 1.. {
                let kernel = kernel(by_rules);
                generations(&kernel).reconcile(&mut Numbered::new(1)).unwrap();
                let begin = lock(&kernel).steps;
                let mut is_over = true;
                for ends in [true, false] {
                    let mut edge = FakeEdge::new(&kernel);
                    edge.layout_version = version;
                    let begin = lock(&kernel).steps;
                    if ends {
                        lock(&kernel).ended_at = Some(begin + at);
                    } else {
                        lock(&kernel).fail.insert(begin + at);
                    }
                    let mut process = Generations::new(edge, Family::ALL.into());
                    let _ = process.reconcile(&mut Numbered::new(number));
                    drop(process);
                    is_over &= lock(&kernel).steps < begin + at;
                    let mut held = lock(&kernel);
                    held.ended_at = None;
                    held.fail.clear();
                    for place in places() {
                        assert!(!held.enforced(place).is_empty(), "{version}, {number}: {place} after {at}");
                    }
                }
                let mut edge = FakeEdge::new(&kernel);
                edge.layout_version = version;
                Generations::new(edge, Family::ALL.into()).reconcile(&mut Numbered::new(number)).unwrap();
                assert_enforced(&kernel, number);
                if is_over {
                    assert!(at > 20 && begin > 0, "{version}, {number}: {at}");
                    break;
                }
            }
        }
    }
}

#[test]
fn folders_of_other_versions_go_once_the_own_programs_are_attached() {
    let kernel = Kernel::default();
    let mut before = FakeEdge::new(&kernel);
    let place = AttachPoint { hook: Hook::Forward, family: Family::V4 };
    let link = before.attach(place, 2, &Vec::new()).unwrap();
    before.pin("layout-of-another-version", "x", &link).unwrap();
    drop((before, link));
    lock(&kernel).open.clear();
    generations(&kernel).reconcile(&mut Numbered::new(1)).unwrap();
    lock(&kernel).open.clear();
    assert_enforced(&kernel, 1);
}

#[test]
fn rules_without_pins_are_removed_once_replacements_exist() {
    let kernel = kernel(true);
    generations(&kernel).reconcile(&mut Numbered::new(1)).unwrap();
    lock(&kernel).unpin();
    assert_eq!(lock(&kernel).folders(), ["1"]);
    generations(&kernel).reconcile(&mut Numbered::new(1)).unwrap();
    assert_eq!(lock(&kernel).folders(), ["2"]);
    assert_enforced(&kernel, 1);
}

#[test]
fn links_are_looked_at_once_something_has_changed() {
    let kernel = kernel(true);
    let mut generations = generations(&kernel);
    assert_eq!(generations.watch().unwrap(), Repairs::default());
    generations.reconcile(&mut Numbered::new(1)).unwrap();
    assert_eq!(generations.watch().unwrap(), Repairs::default());
    let steps = |generations: &mut Generations<FakeEdge>, found: usize| {
        let before = lock(&kernel).steps;
        assert_eq!(generations.watch().unwrap().repaired.len(), found);
        lock(&kernel).steps - before
    };
    assert_eq!(steps(&mut generations, 0), 1, "only asked");
    let place = AttachPoint { hook: Hook::Forward, family: Family::V4 };
    for _ in 0..2 {
        lock(&kernel).detach(place);
        assert!(steps(&mut generations, 1) > 1);
        assert_enforced(&kernel, 1);
        assert_eq!(steps(&mut generations, 0), 1);
    }
    // One that fails is tried again.
    lock(&kernel).detach(place);
    let failing = lock(&kernel).steps + 3;
    lock(&kernel).fail.insert(failing);
    generations.watch().unwrap_err();
    assert!(steps(&mut generations, 1) > 1);
    assert_enforced(&kernel, 1);
}
