//! A model of inotify whose events are delayed, lost, duplicated or reordered, when their names may
//! belong to other files.

use std::collections::VecDeque;

use notify::event::{AccessKind, AccessMode, CreateKind, DataChange, Flag, ModifyKind, RemoveKind, RenameMode};
use notify::{Event, EventKind};
use proptest::prelude::*;

use super::writers::{FileOperation, Style, a_file_operation, an_edit, edit, tiers};
use super::*;
use crate::dir_source::events::{FileEvents, Names, Signs};

/// The reading of the next event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// It is not read before the next scan.
    Late,
    Lost,
    Doubled,
    /// The one after it is read first.
    Swapped,
    /// The queue overflows: this event and all queued ones are lost, and the reader is notified.
    Overflow,
}

/// The queue of the kernel and its reader.
#[derive(Debug)]
pub(super) struct Inotify {
    queue: VecDeque<(EventKind, PathBuf)>,
    events: FileEvents,
    /// Fate of each event, used in turn.
    faults: Vec<Fault>,
    next: usize,
}

impl Inotify {
    fn new(faults: Vec<Fault>) -> Self {
        Self { queue: VecDeque::new(), events: FileEvents::default(), faults, next: 0 }
    }

    pub(super) fn happens(&mut self, file_event: FileEvent, path: &str) {
        let kind = match file_event {
            FileEvent::Created => EventKind::Create(CreateKind::File),
            FileEvent::Written => EventKind::Modify(ModifyKind::Data(DataChange::Any)),
            FileEvent::Closed => EventKind::Access(AccessKind::Close(AccessMode::Write)),
            FileEvent::Renamed => EventKind::Modify(ModifyKind::Name(RenameMode::To)),
            FileEvent::Touched => EventKind::Modify(ModifyKind::Metadata(notify::event::MetadataKind::Any)),
        };
        self.queue.push_back((kind, path.into()));
    }

    pub(super) fn removed(&mut self, path: &str) {
        self.queue.push_back((EventKind::Remove(RemoveKind::File), path.into()));
    }

    pub(super) fn renamed_from(&mut self, path: &str) {
        self.queue.push_back((EventKind::Modify(ModifyKind::Name(RenameMode::From)), path.into()));
    }

    /// Reads events until one is late.
    pub(super) fn read(&mut self, world: &World, directory: &mut Directory) {
        while let Some(event) = self.queue.pop_front() {
            let fault = self.faults.get(self.next % self.faults.len().max(1)).copied().unwrap_or(Fault::None);
            self.next += 1;
            match fault {
                Fault::None => self.handle_event(world, event),
                Fault::Late => {
                    self.queue.push_front(event);
                    break;
                }
                Fault::Lost => {}
                Fault::Doubled => {
                    self.handle_event(world, event.clone());
                    self.handle_event(world, event);
                }
                Fault::Swapped => {
                    if let Some(other) = self.queue.pop_front() {
                        self.handle_event(world, other);
                    }
                    self.handle_event(world, event);
                }
                Fault::Overflow => {
                    self.queue.clear();
                    let rescan = Event::new(EventKind::Other).set_flag(Flag::Rescan);
                    self.events.handle_event(world, Some(&rescan), world.now.get());
                }
            }
        }
        let Signs { notes, changed, lost, .. } = self.events.take();
        if lost {
            directory.clear_events();
        }
        world.changed.replace((!lost).then_some(changed));
        for (file_event, stamp, at) in notes {
            directory.note(file_event, &stamp, at);
        }
    }

    fn handle_event(&mut self, world: &World, (kind, path): (EventKind, PathBuf)) {
        self.events.handle_event(world, Some(&Event::new(kind).add_path(path)), world.now.get());
    }
}

impl Names for World {
    fn stamp(&self, path: &Path) -> Option<Stamp> {
        Disk::stamp(self, path)
    }

    fn is_link(&self, _: &Path) -> bool {
        false
    }

    fn is_folder(&self, _: &Path) -> bool {
        false
    }

    fn below(&self, path: &Path) -> Vec<Stamp> {
        let files = self.files.borrow();
        files.iter().filter(|(name, _)| name.starts_with(path)).map(|(_, file)| file.stamp()).collect()
    }
}

/// Changes how events are read from now on.
fn faults(world: &World, faults: &[Fault]) {
    if let Some(inotify) = &world.inotify {
        (inotify.borrow_mut().faults, inotify.borrow_mut().next) = (faults.to_vec(), 0);
    }
}

/// Returns a world in which a file has been read, and whose later events arrive with these faults.
fn world(first: &[(char, u32)], all: &[Fault], by_name: bool) -> World {
    let world = World { inotify: Some(RefCell::new(Inotify::new(Vec::new()))), by_name, ..World::new(true) };
    world.write(FILE, &text(first));
    for _ in 0..2 {
        world.pass(millis(20_000));
        world.look();
    }
    faults(&world, all);
    world
}

fn shown(tiers: &[(char, u32)]) -> String {
    tiers.iter().map(|(name, order)| format!("{name}{order}")).collect::<Vec<_>>().join(" ")
}

/// Reports whether all of these are in force.
fn holds(world: &World, tiers: &[(char, u32)]) -> bool {
    let all = world.tiers.borrow();
    tiers.iter().all(|(name, order)| all.get(&name.to_string()) == Some(&f64::from(*order)))
}

fn only_late() -> impl Strategy<Value = Vec<Fault>> {
    prop::collection::vec(prop::sample::select(vec![Fault::None, Fault::None, Fault::Late, Fault::Doubled]), 1..30)
        .prop_filter("every event is read some time", |all| all.iter().any(|fault| *fault != Fault::Late))
}

fn any_fault() -> impl Strategy<Value = Vec<Fault>> {
    use Fault::{Doubled, Late, Lost, None, Overflow, Swapped};
    prop::collection::vec(prop::sample::select(vec![None, None, None, Late, Lost, Doubled, Swapped, Overflow]), 1..30)
        .prop_filter("every event is read some time", |all| all.iter().any(|fault| *fault != Late))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(600) })]

    #[test]
    fn a_replacement_is_in_force_with_its_last_event_however_late(
        first in tiers(),
        edits in prop::collection::vec(an_edit(), 1..4),
        late in only_late(),
        by_name in any::<bool>(),
    ) {
        let world = world(&first, &late, by_name);
        for each in &edits {
            let each = writers::Edit { style: Style::Rename, ..each.clone() };
            edit(&world, &each, &|| drop(world.look()));
            // The reader has caught up.
            faults(&world, &[]);
            world.look();
            prop_assert!(holds(&world, &each.new), "{}", world.tiers());
            // A lost definition may be kept for a second, if the file was seen before the event of
            // its renaming.
            world.look_on(AFTER + millis(1));
            prop_assert_eq!(world.tiers(), shown(&each.new));
            faults(&world, &late);
        }
    }

    #[test]
    fn a_replacement_with_a_lost_event_waits_no_longer_than_a_silent_writer(
        first in tiers(),
        each in an_edit(),
        all in any_fault(),
    ) {
        let world = world(&first, &all, false);
        let each = writers::Edit { style: Style::Rename, ..each };
        edit(&world, &each, &|| drop(world.look()));
        world.look_on(EMPTY + millis(1));
        prop_assert!(holds(&world, &each.new), "{}", world.tiers());
        world.look_on(AFTER + millis(1));
        prop_assert_eq!(world.tiers(), shown(&each.new));
    }

    #[test]
    fn objects_in_both_versions_survive_late_events(
        first in tiers(),
        edits in prop::collection::vec(an_edit(), 1..4),
        late in only_late(),
        by_name in any::<bool>(),
    ) {
        let world = world(&first, &late, by_name);
        let mut old = first;
        for each in &edits {
            let look = || {
                world.look();
                for (name, _) in old.iter().filter(|(name, _)| each.new.iter().any(|(other, _)| other == name)) {
                    assert!(world.tiers.borrow().contains_key(&name.to_string()), "{name}");
                }
            };
            edit(&world, each, &look);
            faults(&world, &[]);
            world.look_on(AFTER + millis(1));
            prop_assert_eq!(world.tiers(), shown(&each.new));
            faults(&world, &late);
            old.clone_from(&each.new);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(3000) })]

    #[test]
    fn the_final_files_win_after_any_loss_of_events(
        operations in prop::collection::vec(a_file_operation(), 0..40),
        all in any_fault(),
        looks_alike in any::<bool>(),
        by_name in any::<bool>(),
    ) {
        let inotify = Some(RefCell::new(Inotify::new(all)));
        let world = World { looks_alike, inotify, by_name, ..World::new(true) };
        for operation in &operations {
            FileOperation::do_in(operation, &world);
        }
        // Before a scan, nothing tells a change whose event was lost.
        world.pass(PERIOD);
        world.look_on(EMPTY + AFTER + AFTER);
        let fresh = World::new(false);
        fresh.files.replace(world.files.borrow().clone());
        fresh.now.set(world.now.get());
        fresh.look();
        prop_assert_eq!(world.tiers(), fresh.tiers());
    }
}
