//! Generations of maps and programs: one is made, filled and attached beside the other before that is detached.
//!
//! Links are pinned in a folder that has the number of their generation. While it is being attached the folder's name ends in
//! `-new`: what is not complete when a process ends is taken away by the next one, and so is what a complete one supersedes.
//! Generations take turns in two priorities. While two are attached a packet must be let through by both, so that nothing opens.

use std::io;

use tortie_ebpf::Write;
use tortie_ebpf::hooks::Hook;
use tortie_ebpf::layout::{MapKind, ROOTS};
use tortie_model::Family;

use super::edge::{Edge, Place, Turn};

const UNFINISHED: &str = "-new";

/// What maps are to hold.
pub trait Contents {
    /// How many values a map must have.
    fn entries(&self, map: MapKind) -> u32;
    /// What has changed since the last time, in the order of writing.
    fn flush(&mut self) -> Vec<Write>;
    /// Everything that maps must hold since then, in the order of writing.
    fn all(&self) -> Vec<Write>;
    /// No packet is at what was in use before the last time.
    fn reclaim(&mut self);
}

/// What could not be done.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub struct EdgeError {
    /// What it was.
    pub what: String,
    /// Why.
    #[source]
    pub source: io::Error,
}

fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> EdgeError {
    let what = what.into();
    move |source| EdgeError { what, source }
}

/// What a look at the kernel has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mended {
    /// What somebody else had done, and was undone.
    pub things: Vec<String>,
}

/// The maps and programs in use.
#[derive(Debug)]
pub struct Generations<E: Edge> {
    edge: E,
    families: Vec<Family>,
    current: Option<Generation<E>>,
    /// What is in the maps in use is not what it should be.
    is_spoilt: bool,
    /// Something that is superseded may still be attached.
    has_old: bool,
}

#[derive(Debug)]
struct Generation<E: Edge> {
    number: u64,
    maps: Vec<(MapKind, E::Map)>,
    entries: Vec<(MapKind, u32)>,
    attached: Vec<Attached<E>>,
}

#[derive(Debug)]
struct Attached<E: Edge> {
    place: Place,
    program: E::Program,
    link: E::Link,
}

impl<E: Edge> Generations<E> {
    /// Touches nothing yet.
    pub fn new(edge: E, families: Vec<Family>) -> Self {
        Self { edge, families, current: None, is_spoilt: false, has_old: true }
    }

    /// Has the kernel enforce what is wanted now. After an error it enforces what it did before, and maybe what is wanted
    /// besides: then a packet must be let through by both.
    ///
    /// # Errors
    /// What could not be done.
    pub fn bring(&mut self, contents: &mut impl Contents) -> Result<(), EdgeError> {
        if self.is_spoilt || self.current.is_none() {
            // Maps that packets meet are not written again.
            contents.reclaim();
        }
        let writes = contents.flush();
        let has_room =
            |current: &Generation<E>| current.entries.iter().all(|(kind, entries)| contents.entries(*kind) <= *entries);
        if !self.is_spoilt
            && let Some(current) = self.current.as_ref().filter(|current| has_room(current))
        {
            let result = current.write(&mut self.edge, &writes);
            // What the next flush tells does not include what this one did.
            self.is_spoilt = result.is_err();
            result?;
            if !writes.is_empty() {
                self.edge.wait_for_packets().map_err(failed("waiting for packets"))?;
                contents.reclaim();
            }
        } else {
            self.is_spoilt = true;
            self.build(contents)?;
            self.is_spoilt = false;
            contents.reclaim();
        }
        if self.has_old {
            self.remove_others()?;
        }
        Ok(())
    }

    /// Whether the maps in use hold what was wanted when it was last tried.
    pub fn is_in_force(&self) -> bool {
        self.current.is_some() && !self.is_spoilt
    }

    /// Takes away what is attached besides the newest that is complete. Returns the number of that.
    fn remove_others(&mut self) -> Result<Option<u64>, EdgeError> {
        let folders = self.edge.folders().map_err(failed("reading which programs are attached"))?;
        let own = self.current.as_ref().map(|current| current.number);
        let newest = own.or_else(|| folders.iter().filter_map(|folder| folder.parse().ok()).max());
        for folder in folders.iter().filter(|folder| newest.is_none_or(|newest| **folder != newest.to_string())) {
            self.edge.remove(folder).map_err(failed(format!("detaching former programs ({folder})")))?;
        }
        self.has_old = false;
        Ok(newest)
    }

    fn build(&mut self, contents: &impl Contents) -> Result<(), EdgeError> {
        let newest = self.remove_others()?;
        let number = newest.map_or(1, |newest| newest.wrapping_add(1));
        self.edge.track_connections().map_err(failed("having connections tracked"))?;
        let mut generation = Generation::empty(&mut self.edge, number, contents)?;
        generation.write(&mut self.edge, &contents.all())?;
        let unfinished = format!("{number}{UNFINISHED}");
        self.has_old = true;
        let places = self.families.iter().flat_map(|family| Hook::ALL.map(|hook| Place { hook, family: *family }));
        for place in places {
            if let Err(error) = generation.attach(&mut self.edge, place, &unfinished) {
                // Who is attached already must not keep what the former programs would let through.
                drop(generation);
                let _ = self.edge.remove(&unfinished);
                return Err(error);
            }
        }
        self.edge.rename(&unfinished, &number.to_string()).map_err(failed("naming the folder of attached programs"))?;
        self.current = Some(generation);
        Ok(())
    }

    /// Looks whether links and maps are as they should be, and puts them right: links that somebody detached are attached again;
    /// maps that somebody wrote are replaced by the next [`bring`](Self::bring).
    ///
    /// # Errors
    /// What could not be done.
    pub fn check(&mut self, contents: &impl Contents) -> Result<Mended, EdgeError> {
        let mut mended = Mended::default();
        let Some(current) = &mut self.current else { return Ok(mended) };
        self.edge.track_connections().map_err(failed("having connections tracked"))?;
        let folder = current.number.to_string();
        let pinned = self.edge.names(&folder).map_err(failed("reading which programs are attached"))?;
        for attached in &mut current.attached {
            let name = attached.place.to_string();
            let must_pin = match self.edge.attach(attached.place, turn(current.number), &attached.program) {
                Ok(link) => {
                    mended.things.push(format!("the program {name} was not attached"));
                    attached.link = link;
                    true
                }
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    let is_pinned = pinned.contains(&name);
                    if !is_pinned {
                        mended.things.push(format!("the program {name} was not pinned"));
                    }
                    !is_pinned
                }
                Err(error) => return Err(failed(format!("attaching the program {name}"))(error)),
            };
            if must_pin {
                self.edge.pin(&folder, &name, &attached.link).map_err(failed(format!("pinning the program {name}")))?;
            }
        }
        for Write { map, index, value } in contents.all() {
            let of_kind = current.maps.iter().find(|(kind, _)| *kind == map && !kind.is_per_cpu());
            let Some((_, handle)) = of_kind else { continue };
            let found = self.edge.read(handle, index).map_err(failed(format!("reading the map {}", map.name())))?;
            if found != value {
                mended.things.push(format!("the map {} was not as it should be", map.name()));
                self.is_spoilt = true;
                break;
            }
        }
        Ok(mended)
    }

    /// The value of a map, as the kernel has it.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read(&mut self, map: MapKind, index: u32) -> Result<Option<Vec<u8>>, EdgeError> {
        let Some(current) = &self.current else { return Ok(None) };
        let Some((_, handle)) = current.maps.iter().find(|(kind, _)| *kind == map) else { return Ok(None) };
        self.edge.read(handle, index).map(Some).map_err(failed(format!("reading the map {}", map.name())))
    }
}

impl<E: Edge> Generation<E> {
    /// Maps of zeros, with room for twice as much as there is.
    fn empty(edge: &mut E, number: u64, contents: &impl Contents) -> Result<Self, EdgeError> {
        let room = |kind| match kind {
            MapKind::Current => 1,
            MapKind::Roots => ROOTS,
            MapKind::Blocks => contents.entries(kind).saturating_mul(2).max(4096),
            MapKind::Counters => contents.entries(kind).saturating_mul(2).max(1024),
            MapKind::Groups | MapKind::Endpoints => contents.entries(kind).saturating_mul(2).max(256),
        };
        let entries: Vec<(MapKind, u32)> = MapKind::ALL.map(|kind| (kind, room(kind))).into();
        let mut maps = Vec::new();
        for (kind, entries) in &entries {
            let map = edge.create_map(*kind, *entries);
            maps.push((*kind, map.map_err(failed(format!("making the map {} of {entries} values", kind.name())))?));
        }
        Ok(Self { number, maps, entries, attached: Vec::new() })
    }

    fn write(&self, edge: &mut E, writes: &[Write]) -> Result<(), EdgeError> {
        for Write { map, index, value } in writes {
            let Some((_, handle)) = self.maps.iter().find(|(kind, _)| kind == map) else { continue };
            edge.write(handle, *index, value).map_err(failed(format!("writing the map {}", map.name())))?;
        }
        Ok(())
    }

    fn attach(&mut self, edge: &mut E, place: Place, folder: &str) -> Result<(), EdgeError> {
        let program = edge.load(place, &self.maps).map_err(failed(format!("loading the program {place}")))?;
        let link = edge.attach(place, turn(self.number), &program);
        let link = link.map_err(failed(format!("attaching the program {place}")))?;
        edge.pin(folder, &place.to_string(), &link).map_err(failed(format!("pinning the program {place}")))?;
        self.attached.push(Attached { place, program, link });
        Ok(())
    }
}

const fn turn(number: u64) -> Turn {
    if number.is_multiple_of(2) { Turn::Even } else { Turn::Odd }
}

#[cfg(test)]
mod tests;
