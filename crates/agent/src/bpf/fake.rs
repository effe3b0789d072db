//! A kernel in memory in which any step can fail, and after any step the process may be gone.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use tortie_ebpf::layout::MapKind;

use super::edge::{Edge, Place, Turn};

/// What survives a process.
#[derive(Debug, Default)]
pub(super) struct Held {
    maps: BTreeMap<u32, BTreeMap<u32, Vec<u8>>>,
    links: BTreeMap<u32, HeldLink>,
    pins: BTreeMap<String, BTreeMap<String, u32>>,
    next: u32,
    /// How many steps were made.
    pub(super) steps: usize,
    /// The steps that fail.
    pub(super) fail: BTreeSet<usize>,
    /// The step before which the process ended.
    pub(super) ended_at: Option<usize>,
    /// Places where a program was attached when all of its generation were.
    guarded: BTreeSet<Place>,
    /// Places where, after some step, no program or one with incomplete maps was attached.
    pub(super) open: Vec<String>,
    pub(super) tracks: bool,
}

#[derive(Debug)]
struct HeldLink {
    place: Place,
    turn: Turn,
    maps: Vec<(MapKind, u32)>,
    process: Weak<()>,
    is_detached: bool,
}

impl Held {
    fn is_attached(&self, id: u32, link: &HeldLink) -> bool {
        let is_pinned = self.pins.values().any(|names| names.values().any(|pinned| *pinned == id));
        !link.is_detached && (is_pinned || link.process.strong_count() > 0)
    }

    /// How many programs are attached at a place.
    pub(super) fn attached(&self, place: Place) -> usize {
        let links = self.links.iter().filter(|(id, link)| link.place == place && self.is_attached(**id, link));
        links.count()
    }

    /// What each attached program of a place enforces, by [`version`](Self::version).
    pub(super) fn enforced(&self, place: Place) -> Vec<Option<u32>> {
        let links = self.links.iter().filter(|(id, link)| link.place == place && self.is_attached(**id, link));
        links.map(|(_, link)| self.version(&link.maps)).collect()
    }

    /// The number in the block to which the current roots lead, if it is where it should be.
    fn version(&self, maps: &[(MapKind, u32)]) -> Option<u32> {
        let number = |kind: MapKind, index: u32| {
            let (_, map) = maps.iter().find(|(of, _)| *of == kind)?;
            let bytes = self.maps.get(map)?.get(&index)?;
            Some(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?))
        };
        let block = number(MapKind::Roots, number(MapKind::Current, 0)?)?;
        number(MapKind::Blocks, block).filter(|version| *version == block)
    }

    fn judge(&mut self) {
        let places: BTreeSet<Place> = self.links.values().map(|link| link.place).collect();
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

    /// Somebody else detaches a program.
    pub(super) fn detach(&mut self, place: Place) {
        self.links.values_mut().filter(|link| link.place == place).for_each(|link| link.is_detached = true);
        self.guarded.remove(&place);
    }

    /// Somebody else writes into all maps of a kind.
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

    /// Somebody else removes all pins.
    pub(super) fn unpin(&mut self) {
        self.pins.clear();
    }

    pub(super) fn folders(&self) -> Vec<String> {
        self.pins.keys().cloned().collect()
    }
}

/// One process on it.
#[derive(Debug)]
pub(super) struct FakeEdge {
    held: Arc<Mutex<Held>>,
    process: Arc<()>,
}

impl FakeEdge {
    pub(super) fn new(held: &Arc<Mutex<Held>>) -> Self {
        Self { held: Arc::clone(held), process: Arc::new(()) }
    }

    fn step<T>(&mut self, act: impl FnOnce(&mut Held, &Arc<()>) -> io::Result<T>) -> io::Result<T> {
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
        held.judge();
        result
    }
}

pub(super) fn lock(held: &Mutex<Held>) -> MutexGuard<'_, Held> {
    held.lock().unwrap()
}

impl Edge for FakeEdge {
    type Map = u32;
    type Program = Vec<(MapKind, u32)>;
    /// Its number; it is attached for as long as somebody has the other part.
    type Link = (u32, Arc<()>);

    fn create_map(&mut self, _: MapKind, entries: u32) -> io::Result<u32> {
        self.step(|held, _| {
            assert!(entries > 0);
            held.next += 1;
            held.maps.insert(held.next, BTreeMap::new());
            Ok(held.next)
        })
    }

    fn write(&mut self, map: &u32, index: u32, value: &[u8]) -> io::Result<()> {
        self.step(|held, _| {
            held.maps.get_mut(map).unwrap().insert(index, value.to_vec());
            Ok(())
        })
    }

    fn read(&mut self, map: &u32, index: u32) -> io::Result<Vec<u8>> {
        self.step(|held, _| Ok(held.maps[map].get(&index).cloned().unwrap_or_default()))
    }

    fn load(&mut self, _: Place, maps: &[(MapKind, u32)]) -> io::Result<Self::Program> {
        self.step(|_, _| Ok(maps.to_vec()))
    }

    fn attach(&mut self, place: Place, turn: Turn, program: &Self::Program) -> io::Result<Self::Link> {
        self.step(|held, _| {
            let is_taken = held
                .links
                .iter()
                .any(|(id, link)| (link.place, link.turn) == (place, turn) && held.is_attached(*id, link));
            if is_taken {
                return Err(io::ErrorKind::ResourceBusy.into());
            }
            held.next += 1;
            let handle = Arc::new(());
            let process = Arc::downgrade(&handle);
            held.links.insert(held.next, HeldLink { place, turn, maps: program.clone(), process, is_detached: false });
            Ok((held.next, handle))
        })
    }

    fn pin(&mut self, folder: &str, name: &str, link: &Self::Link) -> io::Result<()> {
        self.step(|held, _| {
            held.pins.entry(folder.to_owned()).or_default().insert(name.to_owned(), link.0);
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
            held.guarded
                .extend(held.links.iter().filter(|(id, _)| pins.values().any(|pin| pin == *id)).map(|(_, l)| l.place));
            held.pins.insert(name.to_owned(), pins);
            Ok(())
        })
    }

    fn remove(&mut self, folder: &str) -> io::Result<()> {
        // One after the other.
        loop {
            let is_done = self.step(|held, _| {
                let Some(names) = held.pins.get_mut(folder) else { return Ok(true) };
                let Some((_, id)) = names.pop_first() else {
                    held.pins.remove(folder);
                    return Ok(true);
                };
                if let Some(link) = held.links.get_mut(&id) {
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
