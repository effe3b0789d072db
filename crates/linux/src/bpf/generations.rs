//! Generations of maps and programs: a new one is made, filled and attached beside the current one
//! before that is detached.
//!
//! Links, programs, maps and a text that identifies the programs are pinned in a folder named by
//! the number of their generation. While the generation is being attached, the folder's name ends
//! in `-new`. If a process ends then, the next one removes the incomplete generation, and also one
//! that a complete generation supersedes. Generations alternate between two priorities. While two
//! are attached, both must allow a packet, so that nothing opens.
//!
//! A process that finds a generation of the same map layout and the same programs takes it over and
//! writes only the differences.

use std::collections::BTreeMap;
use std::io;

use tortie_ebpf::hooks::Hook;
use tortie_ebpf::layout::{LEARNED_ENTRIES, LOG_BYTES, LearnedKey, LearnedRecord, MAX_BLOCKS, MapKind, ROOTS};
use tortie_ebpf::{AdoptError, LearnedWrite, Write};
use tortie_model::{Family, with_causes};

use super::edge::{AttachPoint, Edge, Pinned};
use super::log::LogSource;

const UNFINISHED: &str = "-new";
/// Name of the pinned text that identifies the map layout and the programs.
const MADE_OF: &str = "made-of";

/// Desired contents of the maps.
pub(super) trait Contents {
    /// Returns the number of values that a map must have.
    fn entries(&self, map: MapKind) -> u32;
    /// Returns the changes since the last call, in the order of writing.
    fn flush(&mut self) -> Vec<Write>;
    /// Returns the changes of [`MapKind::Learned`] by the last flush, which come first.
    fn take_learned(&mut self) -> Vec<LearnedWrite>;
    /// Returns all values as of the last flush, in the order of writing.
    fn all(&self) -> Vec<Write>;
    /// Returns all entries of [`MapKind::Learned`] as of the last flush.
    fn all_learned(&self) -> Vec<(LearnedKey, LearnedRecord)>;
    /// Notes that there is no room for an entry of [`MapKind::Learned`].
    fn note_refused(&mut self, key: LearnedKey);
    /// Allows reuse of all that was in use before the last flush: no packet uses it any more.
    fn reclaim(&mut self);
    /// Takes over maps that another process has written; `decisions` is the number of values in its
    /// maps of decisions, and `learned` all keys and values of [`MapKind::Learned`]. Must precede
    /// all other calls.
    ///
    /// # Errors
    /// The reason why this is impossible. Nothing is taken over then.
    fn adopt(
        &mut self,
        decisions: u32,
        learned: &[(Vec<u8>, Vec<u8>)],
        read: &mut dyn FnMut(MapKind, u32) -> io::Result<Vec<u8>>,
    ) -> Result<(), AdoptError<io::Error>>;
}

/// Reason why this process cannot take over the programs and maps of a former one.
#[derive(Debug, thiserror::Error)]
enum TakeOverError {
    #[error(transparent)]
    Kernel(#[from] io::Error),
    #[error("they are {found}, and not {wanted}")]
    MadeOf { found: String, wanted: String },
    #[error("they are not at the same hooks")]
    Hooks,
    #[error("the program {0} is not attached")]
    NotAttached(String),
    /// A pinned object cannot be read.
    #[error(transparent)]
    Pinned(#[from] EdgeError),
    #[error(transparent)]
    Content(#[from] AdoptError<io::Error>),
}

/// Operation that failed, with the error of the kernel.
#[derive(Debug, thiserror::Error)]
#[error("{operation}")]
pub struct EdgeError {
    /// Description of the operation.
    pub operation: String,
    /// Error of the kernel.
    #[source]
    pub error: io::Error,
}

fn failed(operation: impl Into<String>) -> impl FnOnce(io::Error) -> EdgeError {
    let operation = operation.into();
    move |error| EdgeError { operation, error }
}

/// Result of a check of the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Repairs {
    /// Repaired changes of other processes.
    pub repaired: Vec<String>,
}

/// The maps and programs in use.
#[derive(Debug)]
pub(super) struct Generations<E: Edge> {
    edge: E,
    families: Vec<Family>,
    current: Option<Generation<E>>,
    /// Whether the maps in use differ from the desired contents.
    is_spoilt: bool,
    /// Whether a superseded generation may still be attached.
    has_old: bool,
    /// Whether generations of a former process have yet to be looked for.
    is_new: bool,
    /// Result of [`Edge::changes`] at the last check of the links.
    changes: Option<u32>,
    counts: Counts,
}

/// Totals of operations in the kernel since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Written values of maps.
    pub writes: u64,
    /// Generations that were made and attached.
    pub built: u64,
    /// Repaired changes of other processes.
    pub repairs: u64,
}

#[derive(Debug)]
struct Generation<E: Edge> {
    number: u64,
    maps: Vec<(MapKind, E::Map)>,
    entries: Vec<(MapKind, u32)>,
    attached: Vec<Attached<E>>,
    made_of: String,
}

#[derive(Debug)]
struct Attached<E: Edge> {
    place: AttachPoint,
    program: E::Program,
    link: E::Link,
}

impl<E: Edge> Generations<E> {
    /// Creates it without any access to the kernel.
    pub(super) fn new(edge: E, families: Vec<Family>) -> Self {
        Self {
            edge,
            families,
            current: None,
            is_spoilt: false,
            has_old: true,
            is_new: true,
            changes: None,
            counts: Counts::default(),
        }
    }

    /// Returns the reason why the kernel can never enforce anything; `None` if it can.
    ///
    /// # Errors
    /// If this cannot be determined.
    pub(super) fn lacks_hooks(&mut self) -> Result<Option<String>, EdgeError> {
        self.edge.lacks_hooks().map_err(failed("asking the kernel for programs at hooks of netfilter"))
    }

    /// Makes the kernel enforce the desired contents. After an error the kernel enforces the former
    /// contents, and maybe the new ones as well; then both must allow a packet.
    ///
    /// # Errors
    /// The operation that failed.
    pub(super) fn reconcile(&mut self, contents: &mut impl Contents) -> Result<(), EdgeError> {
        if std::mem::take(&mut self.is_new) {
            match self.adopt(contents) {
                Ok(generation) => self.current = generation,
                Err(why) => {
                    tracing::info!(why = %with_causes(&why), "eBPF programs of a former process are replaced");
                }
            }
        }
        if self.is_spoilt || self.current.is_none() {
            // Maps in use by packets are not written again.
            contents.reclaim();
        }
        let (writes, learned) = (contents.flush(), contents.take_learned());
        let has_room =
            |current: &Generation<E>| current.entries.iter().all(|(kind, entries)| contents.entries(*kind) <= *entries);
        if !self.is_spoilt
            && let Some(current) = self.current.as_ref().filter(|current| has_room(current))
        {
            let result = current.write_learned(&mut self.edge, &learned, contents);
            let result = result.and_then(|()| current.write(&mut self.edge, &writes));
            self.counts.writes += (writes.len() + learned.len()) as u64;
            // The next flush does not repeat these writes.
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

    /// Takes over the newest complete generation of another process; `None` if there is none.
    fn adopt(&mut self, contents: &mut impl Contents) -> Result<Option<Generation<E>>, TakeOverError> {
        let folders = self.edge.folders()?;
        let Some(number) = folders.iter().filter_map(|folder| folder.parse::<u64>().ok()).max() else {
            return Ok(None);
        };
        let folder = number.to_string();
        let places = self.places();
        let made_of = self.edge.made_of(&places)?;
        let found = self.edge.pinned_text(&folder, MADE_OF).map_err(failed(MADE_OF))?;
        if found != made_of {
            return Err(TakeOverError::MadeOf { found, wanted: made_of });
        }
        let mut links = self.edge.names(&folder)?;
        links.retain(|name| !is_kept_beside(name));
        if links.len() != places.len() {
            return Err(TakeOverError::Hooks);
        }
        let mut generation =
            Generation { number, maps: Vec::new(), entries: Vec::new(), attached: Vec::new(), made_of };
        for kind in MapKind::ALL {
            let (map, entries) = self
                .edge
                .pinned_map(&folder, &map_name(kind), kind)
                .map_err(failed(format!("the map {}", kind.name())))?;
            generation.maps.push((kind, map));
            generation.entries.push((kind, entries));
        }
        for place in places {
            let name = place.to_string();
            let (program, link) = self
                .edge
                .pinned_program(&folder, &program_name(place), &name)
                .map_err(failed(format!("the program {name}")))?;
            match self.edge.attach(place, number, &program) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
                Err(error) => return Err(failed(format!("the program {name}"))(error).into()),
                Ok(_) => return Err(TakeOverError::NotAttached(name)),
            }
            generation.attached.push(Attached { place, program, link });
        }
        self.edge.track_connections()?;
        // Afterwards no packet uses values that the former process has replaced.
        self.edge.wait_for_packets()?;
        let of =
            |kind: MapKind| generation.entries.iter().find(|(of, _)| *of == kind).map_or(0, |(_, entries)| *entries);
        let decisions = of(MapKind::Decisions).min(of(MapKind::Counters));
        let edge = &mut self.edge;
        let learned = edge.read_learned(generation.map(MapKind::Learned))?;
        let mut read = |kind: MapKind, index| edge.read(generation.map(kind), index);
        contents.adopt(decisions, &learned, &mut read)?;
        tracing::info!(generation = number, "going on with the eBPF programs and maps of a former process");
        Ok(Some(generation))
    }

    fn places(&self) -> Vec<AttachPoint> {
        self.families.iter().flat_map(|family| Hook::ALL.map(|hook| AttachPoint { hook, family: *family })).collect()
    }

    /// Reports whether the maps in use had the desired contents after the last attempt.
    pub(super) fn is_in_force(&self) -> bool {
        self.current.is_some() && !self.is_spoilt
    }

    /// Detaches all generations but the newest complete one, and returns the number of that one.
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

    fn build(&mut self, contents: &mut impl Contents) -> Result<(), EdgeError> {
        let newest = self.remove_others()?;
        let number = newest.map_or(1, |newest| newest.wrapping_add(1));
        self.edge.track_connections().map_err(failed("having connections tracked"))?;
        let mut generation = Generation::empty(&mut self.edge, number, contents)?;
        let learned = contents.all_learned().into_iter();
        let learned: Vec<LearnedWrite> = learned.map(|(key, value)| LearnedWrite { key, value: Some(value) }).collect();
        generation.write_learned(&mut self.edge, &learned, contents)?;
        let writes = contents.all();
        self.counts.writes += (writes.len() + learned.len()) as u64;
        generation.write(&mut self.edge, &writes)?;
        let unfinished = format!("{number}{UNFINISHED}");
        self.has_old = true;
        let places = self.places();
        if let Err(error) = generation.pin_objects(&mut self.edge, &places, &unfinished) {
            // Programs that are already attached must not deny packets that the former programs
            // allow.
            drop(generation);
            let _ = self.edge.remove(&unfinished);
            return Err(error);
        }
        self.edge.rename(&unfinished, &number.to_string()).map_err(failed("naming the folder of attached programs"))?;
        self.current = Some(generation);
        self.counts.built += 1;
        Ok(())
    }

    /// Checks whether programs may have been detached since the last call, as far as changes of
    /// other processes indicate it, and attaches them again.
    ///
    /// # Errors
    /// The operation that failed.
    pub(super) fn watch(&mut self) -> Result<Repairs, EdgeError> {
        if self.current.is_none() {
            return Ok(Repairs::default());
        }
        let changes = self.edge.changes().map_err(failed("reading changes by other processes"))?;
        if changes == self.changes {
            return Ok(Repairs::default());
        }
        let repairs = self.check_links()?;
        // A change during the check causes another check.
        self.changes = changes;
        Ok(repairs)
    }

    /// Reports whether other processes can detach programs, so that they must be watched.
    pub(super) fn is_watched(&self) -> bool {
        self.changes.is_some()
    }

    /// Checks links and maps, and repairs them. Detached links are attached again. Maps that
    /// another process has written are replaced by the next [`reconcile`](Self::reconcile).
    ///
    /// # Errors
    /// The operation that failed.
    pub(super) fn check(&mut self, contents: &impl Contents) -> Result<Repairs, EdgeError> {
        let mut repairs = self.check_links()?;
        let Some(current) = &self.current else { return Ok(repairs) };
        let before = repairs.repaired.len();
        for Write { map, index, value } in contents.all().into_iter().filter(|write| !write.map.is_per_cpu()) {
            let found =
                self.edge.read(current.map(map), index).map_err(failed(format!("reading the map {}", map.name())))?;
            if found != value {
                repairs.repaired.push(format!("the map {} was out of sync", map.name()));
                self.is_spoilt = true;
                break;
            }
        }
        if !self.is_spoilt && self.are_learned_changed(contents)? {
            repairs.repaired.push(format!("the map {} was out of sync", MapKind::Learned.name()));
            self.is_spoilt = true;
        }
        self.counts.repairs += (repairs.repaired.len() - before) as u64;
        Ok(repairs)
    }

    /// Reports whether [`MapKind::Learned`] differs from the desired content.
    fn are_learned_changed(&mut self, contents: &impl Contents) -> Result<bool, EdgeError> {
        let Some(current) = &self.current else { return Ok(false) };
        let operation = || format!("reading the map {}", MapKind::Learned.name());
        let found = self.edge.read_learned(current.map(MapKind::Learned)).map_err(failed(operation()))?;
        let found: BTreeMap<Vec<u8>, Vec<u8>> = found.into_iter().collect();
        let wanted = contents.all_learned().into_iter();
        let wanted = wanted.map(|(key, record)| (key.to_bytes().to_vec(), record.to_bytes().to_vec()));
        Ok(found != wanted.collect())
    }

    fn check_links(&mut self) -> Result<Repairs, EdgeError> {
        let mut repairs = Repairs::default();
        let Some(current) = &mut self.current else { return Ok(repairs) };
        self.edge.track_connections().map_err(failed("having connections tracked"))?;
        let folder = current.number.to_string();
        let pinned = self.edge.names(&folder).map_err(failed("reading which programs are attached"))?;
        for attached in &mut current.attached {
            let name = attached.place.to_string();
            let must_pin = match self.edge.attach(attached.place, current.number, &attached.program) {
                Ok(link) => {
                    repairs.repaired.push(format!("the program {name} was not attached"));
                    attached.link = link;
                    true
                }
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    let is_pinned = pinned.contains(&name);
                    if !is_pinned {
                        repairs.repaired.push(format!("the program {name} was not pinned"));
                    }
                    !is_pinned
                }
                Err(error) => return Err(failed(format!("attaching the program {name}"))(error)),
            };
            if must_pin {
                self.edge.pin(&folder, &name, &attached.link).map_err(failed(format!("pinning the program {name}")))?;
            }
        }
        let repinned = current.pin_rest(&mut self.edge, &folder, &pinned)?;
        repairs.repaired.extend(repinned.into_iter().map(|name| format!("{name} was not pinned")));
        self.counts.repairs += repairs.repaired.len() as u64;
        Ok(repairs)
    }

    /// Opens the log of the programs in use; `None` if it cannot be read, or there are no programs.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub(super) fn open_log(&mut self) -> Result<Option<LogSource>, EdgeError> {
        let Some(current) = &self.current else { return Ok(None) };
        self.edge.open_log(&current.maps).map_err(failed("opening the log of programs"))
    }

    /// Returns the totals of operations in the kernel.
    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the number of the generation in use; 0 if there is none.
    pub(super) fn number(&self) -> u64 {
        self.current.as_ref().map_or(0, |current| current.number)
    }

    /// Reads a value of a map from the kernel.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) fn read(&mut self, map: MapKind, index: u32) -> Result<Option<Vec<u8>>, EdgeError> {
        let Some(current) = &self.current else { return Ok(None) };
        self.edge.read(current.map(map), index).map(Some).map_err(failed(format!("reading the map {}", map.name())))
    }
}

impl<E: Edge> Generation<E> {
    /// Creates maps of zeros, with room for twice the present number of values.
    fn empty(edge: &mut E, number: u64, contents: &impl Contents) -> Result<Self, EdgeError> {
        let room = |kind| match kind {
            MapKind::Current | MapKind::Lost => 1,
            MapKind::Roots => ROOTS,
            MapKind::Log => LOG_BYTES,
            MapKind::Learned => LEARNED_ENTRIES,
            MapKind::Blocks => {
                let needed = contents.entries(kind);
                needed.saturating_mul(2).max(4096).min(MAX_BLOCKS.max(needed))
            }
            MapKind::Counters | MapKind::Decisions => contents.entries(kind).saturating_mul(2).max(1024),
            MapKind::Exact | MapKind::Groups | MapKind::Endpoints => contents.entries(kind).saturating_mul(2).max(256),
        };
        let entries: Vec<(MapKind, u32)> = MapKind::ALL.map(|kind| (kind, room(kind))).into();
        let mut maps = Vec::new();
        for (kind, entries) in &entries {
            let map = edge.create_map(*kind, *entries);
            maps.push((
                *kind,
                map.map_err(failed(format!("creating the map {} with {entries} entries", kind.name())))?,
            ));
        }
        Ok(Self { number, maps, entries, attached: Vec::new(), made_of: String::new() })
    }

    /// Attaches the programs, and pins all objects.
    fn pin_objects(&mut self, edge: &mut E, places: &[AttachPoint], folder: &str) -> Result<(), EdgeError> {
        self.made_of = edge.made_of(places).map_err(failed("making programs"))?;
        // Pinned first, since a generation without a folder could not be recognized as incomplete.
        edge.pin_object(folder, MADE_OF, Pinned::Text(&self.made_of)).map_err(failed(format!("pinning {MADE_OF}")))?;
        for place in places {
            self.attach(edge, *place, folder)?;
        }
        self.pin_rest(edge, folder, &[MADE_OF.to_owned()]).map(drop)
    }

    /// Pins the maps, programs and the text that are not pinned yet, and returns their names.
    fn pin_rest(&self, edge: &mut E, folder: &str, names: &[String]) -> Result<Vec<String>, EdgeError> {
        let maps = self.maps.iter().map(|(kind, map)| (map_name(*kind), Pinned::Map(map)));
        let programs =
            self.attached.iter().map(|attached| (program_name(attached.place), Pinned::Program(&attached.program)));
        let text = [(MADE_OF.to_owned(), Pinned::Text(&self.made_of))];
        let missing = maps.chain(programs).chain(text).filter(|(name, _)| !names.contains(name));
        let pin = |(name, pinned): (String, Pinned<'_, E::Map, E::Program>)| {
            edge.pin_object(folder, &name, pinned).map_err(failed(format!("pinning {name}")))?;
            Ok(name)
        };
        missing.map(pin).collect()
    }

    #[expect(clippy::expect_used, reason = "a generation is made, and taken over, with all its maps")]
    fn map(&self, kind: MapKind) -> &E::Map {
        let found = self.maps.iter().find(|(of, _)| *of == kind);
        &found.expect("a generation has a map of each kind").1
    }

    /// Writes learned addresses. An address for which there is no room has no entry.
    fn write_learned(
        &self,
        edge: &mut E,
        writes: &[LearnedWrite],
        contents: &mut impl Contents,
    ) -> Result<(), EdgeError> {
        use io::ErrorKind::{ArgumentListTooLong, OutOfMemory};
        let map = self.map(MapKind::Learned);
        let operation = || failed(format!("writing the map {}", MapKind::Learned.name()));
        for write in writes {
            match edge.write_learned(map, write) {
                Err(error) if write.value.is_some() && matches!(error.kind(), ArgumentListTooLong | OutOfMemory) => {
                    // A former value belongs to other roots.
                    edge.write_learned(map, &LearnedWrite { value: None, ..*write }).map_err(operation())?;
                    contents.note_refused(write.key);
                }
                result => result.map_err(operation())?,
            }
        }
        Ok(())
    }

    fn write(&self, edge: &mut E, writes: &[Write]) -> Result<(), EdgeError> {
        for Write { map, index, value } in writes {
            edge.write(self.map(*map), *index, value).map_err(failed(format!("writing the map {}", map.name())))?;
        }
        Ok(())
    }

    fn attach(&mut self, edge: &mut E, place: AttachPoint, folder: &str) -> Result<(), EdgeError> {
        let program = edge.load(place, &self.maps).map_err(failed(format!("loading the program {place}")))?;
        let link = edge.attach(place, self.number, &program);
        let link = link.map_err(failed(format!("attaching the program {place}")))?;
        edge.pin(folder, &place.to_string(), &link).map_err(failed(format!("pinning the program {place}")))?;
        self.attached.push(Attached { place, program, link });
        Ok(())
    }
}

fn map_name(kind: MapKind) -> String {
    format!("map-{}", kind.name())
}

fn program_name(place: AttachPoint) -> String {
    format!("program-{place}")
}

/// Reports whether this is the name of a pinned object other than a link.
fn is_kept_beside(name: &str) -> bool {
    name == MADE_OF || name.starts_with("map-") || name.starts_with("program-")
}

#[cfg(test)]
mod tests;
