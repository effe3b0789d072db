//! In-memory kernel in which any step can fail, and after each step of which the process may be
//! gone.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use tortie_ebpf::LearnedWrite;
use tortie_ebpf::layout::MapKind;

use super::edge::{AttachPoint, Edge, Pinned, PrioritySlot, generation_of};
use super::log::LogSource;

/// State that survives a process.
#[derive(Debug, Default)]
pub(super) struct FakeState {
    maps: BTreeMap<u32, BTreeMap<u32, Vec<u8>>>,
    /// Entries of hash tables.
    pub(super) learned: BTreeMap<u32, BTreeMap<Vec<u8>, Vec<u8>>>,
    /// Number of entries for which a hash table has room; `None`: as many as it was made for.
    pub(super) room: Option<usize>,
    sizes: BTreeMap<u32, (MapKind, u32)>,
    links: BTreeMap<u32, FakeLink>,
    pins: BTreeMap<String, BTreeMap<String, Pin>>,
    next: u32,
    /// The values that were written into maps.
    pub(super) writes: Vec<(MapKind, u32)>,
    /// Number of steps so far.
    pub(super) steps: usize,
    /// The steps that fail.
    pub(super) fail: BTreeSet<usize>,
    /// The step before which the process ended.
    pub(super) ended_at: Option<usize>,
    /// Places at which a program has been attached since its generation became complete.
    guarded: BTreeSet<AttachPoint>,
    /// Places at which, after some step, no program or one with incomplete maps was attached.
    pub(super) open: Vec<String>,
    pub(super) tracks: bool,
    /// Whether the kernel does not support programs at netfilter hooks.
    pub(super) is_old: bool,
    /// Whether programs are attached by rules, which outlive the process and their pins.
    pub(super) by_rules: bool,
    /// Number of changes by other processes.
    changes: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Pin {
    Link(u32),
    Map(u32),
    Program(Vec<(MapKind, u32)>),
    Text(String),
}

#[derive(Debug)]
struct FakeLink {
    place: AttachPoint,
    generation: u64,
    maps: Vec<(MapKind, u32)>,
    process: Weak<()>,
    is_detached: bool,
}

impl FakeState {
    fn is_attached(&self, id: u32, link: &FakeLink) -> bool {
        let is_pinned = self.pins.values().any(|names| names.values().any(|pinned| *pinned == Pin::Link(id)));
        !link.is_detached && (self.by_rules || is_pinned || link.process.strong_count() > 0)
    }

    /// Returns the number of programs attached at a place.
    pub(super) fn attached(&self, place: AttachPoint) -> usize {
        let links = self.links.iter().filter(|(id, link)| link.place == place && self.is_attached(**id, link));
        links.count()
    }

    /// Returns the [`version`](Self::version) that each attached program of a place enforces.
    pub(super) fn enforced(&self, place: AttachPoint) -> Vec<Option<u32>> {
        let links = self.links.iter().filter(|(id, link)| link.place == place && self.is_attached(**id, link));
        links.map(|(_, link)| self.version(&link.maps)).collect()
    }

    /// Returns the number in the block to which the current roots lead, if it is the number of that
    /// block.
    fn version(&self, maps: &[(MapKind, u32)]) -> Option<u32> {
        let number = |kind: MapKind, index: u32| {
            let (_, map) = maps.iter().find(|(of, _)| *of == kind)?;
            let bytes = self.maps.get(map)?.get(&index)?;
            Some(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?))
        };
        let block = number(MapKind::Roots, number(MapKind::Current, 0)?)?;
        number(MapKind::Blocks, block).filter(|version| *version == block)
    }

    fn check_protection(&mut self) {
        let places: BTreeSet<AttachPoint> = self.links.values().map(|link| link.place).collect();
        for place in places {
            let enforced = self.enforced(place);
            if self.guarded.contains(&place) && enforced.is_empty() {
                self.open.push(format!("step {}: nothing at {place}", self.steps));
            }
            if enforced.contains(&None) {
                self.open.push(format!("step {}: incomplete maps at {place}", self.steps));
            }
        }
    }

    /// Detaches a program, as another process.
    pub(super) fn detach(&mut self, place: AttachPoint) {
        self.changes += 1;
        self.links.values_mut().filter(|link| link.place == place).for_each(|link| link.is_detached = true);
        self.guarded.remove(&place);
    }

    /// Writes into all maps of a kind, as another process.
    pub(super) fn spoil(&mut self, kind: MapKind) {
        let maps: BTreeSet<u32> = self
            .links
            .values()
            .flat_map(|link| &link.maps)
            .filter(|(of, _)| *of == kind)
            .map(|(_, map)| *map)
            .collect();
        for values in self.maps.iter_mut().filter(|(map, _)| maps.contains(map)).map(|(_, values)| values) {
            values.values_mut().for_each(|value| value.fill(0xee));
        }
    }

    /// Returns the numbers of the attached links.
    pub(super) fn link_ids(&self) -> Vec<u32> {
        self.links.iter().filter(|(id, link)| self.is_attached(**id, link)).map(|(id, _)| *id).collect()
    }

    /// Removes the pins of that name, as another process.
    pub(super) fn unpin_name(&mut self, name: &str) {
        self.pins.values_mut().for_each(|pins| drop(pins.remove(name)));
    }

    /// Replaces the pinned maps of a kind by maps with one value, as another process.
    pub(super) fn shrink(&mut self, kind: MapKind) {
        self.sizes.values_mut().filter(|(of, _)| *of == kind).for_each(|(_, entries)| *entries = 1);
    }

    /// Removes all pins, as another process.
    pub(super) fn unpin(&mut self) {
        self.pins.clear();
    }

    pub(super) fn folders(&self) -> Vec<String> {
        let named: BTreeSet<u64> = self.pins.keys().filter_map(|name| generation_of(name)).collect();
        let attached = self.links.iter().filter(|(id, link)| self.by_rules && self.is_attached(**id, link));
        let unnamed = attached.map(|(_, link)| link.generation).filter(|number| !named.contains(number));
        let unnamed: BTreeSet<u64> = unnamed.collect();
        self.pins.keys().cloned().chain(unnamed.into_iter().map(|number| number.to_string())).collect()
    }
}

/// Process that uses the kernel.
#[derive(Debug)]
pub(super) struct FakeEdge {
    held: Arc<Mutex<FakeState>>,
    process: Arc<()>,
    /// Layout version of the maps that it writes.
    pub(super) layout_version: u32,
    /// Stands for the settings of the programs.
    pub(super) settings: &'static str,
}

impl FakeEdge {
    pub(super) fn new(held: &Arc<Mutex<FakeState>>) -> Self {
        Self { held: Arc::clone(held), process: Arc::new(()), layout_version: 1, settings: "" }
    }

    fn pinned(held: &FakeState, folder: &str, name: &str) -> io::Result<Pin> {
        let pin = held.pins.get(folder).and_then(|pins| pins.get(name));
        pin.cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn step<T>(&mut self, act: impl FnOnce(&mut FakeState, &Arc<()>) -> io::Result<T>) -> io::Result<T> {
        let mut held = lock(&self.held);
        held.steps += 1;
        let step = held.steps;
        if held.ended_at.is_some_and(|end| step >= end) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        if held.fail.contains(&step) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let result = act(&mut held, &self.process);
        held.check_protection();
        result
    }
}

pub(super) fn lock(held: &Mutex<FakeState>) -> MutexGuard<'_, FakeState> {
    held.lock().unwrap()
}

impl Edge for FakeEdge {
    type Map = u32;
    type Program = Vec<(MapKind, u32)>;
    /// Number of the link, and a handle that keeps it attached.
    type Link = (u32, Arc<()>);

    fn lacks_hooks(&mut self) -> io::Result<Option<String>> {
        Ok(lock(&self.held).is_old.then(|| "the kernel (5.15) is too old".to_owned()))
    }

    fn open_log(&mut self, _: &[(MapKind, u32)]) -> io::Result<Option<LogSource>> {
        Ok(None)
    }

    fn create_map(&mut self, kind: MapKind, entries: u32) -> io::Result<u32> {
        self.step(|held, _| {
            assert!(entries > 0);
            held.next += 1;
            held.maps.insert(held.next, BTreeMap::new());
            held.sizes.insert(held.next, (kind, entries));
            Ok(held.next)
        })
    }

    fn write(&mut self, map: &u32, index: u32, value: &[u8]) -> io::Result<()> {
        self.step(|held, _| {
            assert!(index < held.sizes[map].1);
            held.writes.push((held.sizes[map].0, index));
            held.maps.get_mut(map).unwrap().insert(index, value.to_vec());
            Ok(())
        })
    }

    fn read(&mut self, map: &u32, index: u32) -> io::Result<Vec<u8>> {
        self.step(|held, _| {
            let (kind, entries) = held.sizes[map];
            if index >= entries {
                return Err(io::ErrorKind::NotFound.into());
            }
            Ok(held.maps[map].get(&index).cloned().unwrap_or_else(|| vec![0; kind.value_size()]))
        })
    }

    fn write_learned(&mut self, map: &u32, write: &LearnedWrite) -> io::Result<()> {
        self.step(|held, _| {
            let (kind, entries) = held.sizes[map];
            assert_eq!(kind, MapKind::Learned);
            let room = held.room.unwrap_or(entries as usize);
            let entries = held.learned.entry(*map).or_default();
            let key = write.key.to_bytes().to_vec();
            match write.value {
                Some(_) if entries.len() >= room && !entries.contains_key(&key) => {
                    return Err(io::ErrorKind::ArgumentListTooLong.into());
                }
                Some(value) => drop(entries.insert(key, value.to_bytes().to_vec())),
                None => drop(entries.remove(&key)),
            }
            Ok(())
        })
    }

    fn read_learned(&mut self, map: &u32) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.step(|held, _| Ok(held.learned.get(map).cloned().unwrap_or_default().into_iter().collect()))
    }

    fn load(&mut self, _: AttachPoint, maps: &[(MapKind, u32)]) -> io::Result<Self::Program> {
        self.step(|_, _| Ok(maps.to_vec()))
    }

    fn changes(&mut self) -> io::Result<Option<u32>> {
        self.step(|held, _| Ok(held.by_rules.then_some(held.changes)))
    }

    fn attach(&mut self, place: AttachPoint, generation: u64, program: &Self::Program) -> io::Result<Self::Link> {
        self.step(|held, _| {
            let at = |link: &FakeLink| (link.place, PrioritySlot::of(link.generation));
            let is_taken = held
                .links
                .iter()
                .any(|(id, link)| at(link) == (place, PrioritySlot::of(generation)) && held.is_attached(*id, link));
            if is_taken {
                return Err(io::ErrorKind::ResourceBusy.into());
            }
            held.next += 1;
            let handle = Arc::new(());
            let process = Arc::downgrade(&handle);
            held.links
                .insert(held.next, FakeLink { place, generation, maps: program.clone(), process, is_detached: false });
            Ok((held.next, handle))
        })
    }

    fn made_of(&mut self, places: &[AttachPoint]) -> io::Result<String> {
        let made_of = format!("layout {}, {} programs {}", self.layout_version, places.len(), self.settings);
        self.step(|_, _| Ok(made_of))
    }

    fn pin_object(&mut self, folder: &str, name: &str, object: Pinned<'_, u32, Self::Program>) -> io::Result<()> {
        let pin = match object {
            Pinned::Map(map) => Pin::Map(*map),
            Pinned::Program(program) => Pin::Program(program.clone()),
            Pinned::Text(text) => Pin::Text(text.to_owned()),
        };
        self.step(|held, _| {
            held.pins.entry(folder.to_owned()).or_default().insert(name.to_owned(), pin);
            Ok(())
        })
    }

    fn pinned_map(&mut self, folder: &str, name: &str, kind: MapKind) -> io::Result<(u32, u32)> {
        self.step(|held, _| match Self::pinned(held, folder, name)? {
            Pin::Map(map) if held.sizes[&map].0 == kind => Ok((map, held.sizes[&map].1)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        })
    }

    fn pinned_program(&mut self, folder: &str, name: &str, link: &str) -> io::Result<(Self::Program, Self::Link)> {
        self.step(|held, _| match (Self::pinned(held, folder, name)?, Self::pinned(held, folder, link)?) {
            (Pin::Program(program), Pin::Link(link)) if held.links[&link].maps == program => {
                Ok((program, (link, Arc::new(()))))
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        })
    }

    fn pinned_text(&mut self, folder: &str, name: &str) -> io::Result<String> {
        self.step(|held, _| match Self::pinned(held, folder, name)? {
            Pin::Text(text) => Ok(text),
            _ => Err(io::ErrorKind::InvalidData.into()),
        })
    }

    fn pin(&mut self, folder: &str, name: &str, link: &Self::Link) -> io::Result<()> {
        self.step(|held, _| {
            held.pins.entry(folder.to_owned()).or_default().insert(name.to_owned(), Pin::Link(link.0));
            Ok(())
        })
    }

    fn folders(&mut self) -> io::Result<Vec<String>> {
        self.step(|held, _| Ok(held.folders()))
    }

    fn names(&mut self, folder: &str) -> io::Result<Vec<String>> {
        self.step(|held, _| Ok(held.pins.get(folder).into_iter().flat_map(BTreeMap::keys).cloned().collect()))
    }

    fn rename(&mut self, folder: &str, name: &str) -> io::Result<()> {
        self.step(|held, _| {
            let pins = held.pins.remove(folder).unwrap();
            held.guarded.extend(
                held.links
                    .iter()
                    .filter(|(id, _)| pins.values().any(|pin| *pin == Pin::Link(**id)))
                    .map(|(_, l)| l.place),
            );
            held.pins.insert(name.to_owned(), pins);
            Ok(())
        })
    }

    fn remove(&mut self, folder: &str) -> io::Result<()> {
        self.step(|held, _| {
            let number = generation_of(folder);
            let by_rules = held.by_rules;
            held.links
                .values_mut()
                .filter(|link| by_rules && Some(link.generation) == number)
                .for_each(|link| link.is_detached = true);
            Ok(())
        })?;
        // One pin at a time.
        loop {
            let is_done = self.step(|held, _| {
                let Some(names) = held.pins.get_mut(folder) else { return Ok(true) };
                let Some((_, pin)) = names.pop_first() else {
                    held.pins.remove(folder);
                    return Ok(true);
                };
                if let Pin::Link(id) = pin
                    && let Some(link) = held.links.get_mut(&id)
                {
                    link.is_detached = true;
                }
                Ok(false)
            })?;
            if is_done {
                return Ok(());
            }
        }
    }

    fn track_connections(&mut self) -> io::Result<()> {
        self.step(|held, _| {
            held.tracks = true;
            Ok(())
        })
    }

    fn wait_for_packets(&mut self) -> io::Result<()> {
        self.step(|_, _| Ok(()))
    }
}
