//! Operations of the kernel, as steps between which the process may end.

use std::fmt;
use std::io;

use tortie_ebpf::LearnedWrite;
use tortie_ebpf::hooks::Hook;
use tortie_ebpf::layout::MapKind;
use tortie_model::Family;

use super::log::LogSource;

/// Netfilter hook of an address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AttachPoint {
    /// Hook of the program.
    pub hook: Hook,
    /// Address family of the packets.
    pub family: Family,
}

impl fmt::Display for AttachPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.hook.name(), self.family.number())
    }
}

/// One of two alternating priorities of programs. Two generations can be attached at the same time;
/// then both must allow a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PrioritySlot {
    /// The first priority.
    Even,
    /// The second priority.
    Odd,
}

impl PrioritySlot {
    /// Returns the turn of a generation.
    #[must_use]
    pub const fn of(generation: u64) -> Self {
        if generation.is_multiple_of(2) { Self::Even } else { Self::Odd }
    }
}

/// Returns the number of the generation with which the name of a folder begins.
pub(super) fn generation_of(folder: &str) -> Option<u64> {
    folder.split('-').next()?.parse().ok()
}

/// Pinned object other than a link.
#[derive(Clone, Copy, Debug)]
pub enum Pinned<'a, M, P> {
    /// A map.
    Map(&'a M),
    /// A program.
    Program(&'a P),
    /// A text of at most 200 bytes.
    Text(&'a str),
}

/// Maps, programs and links of this network namespace.
pub trait Edge: fmt::Debug + Send {
    /// A map.
    type Map: fmt::Debug + Send;
    /// A program that the kernel has accepted.
    type Program: fmt::Debug + Send;
    /// Attachment of a program. When it is dropped without a pin, the program is detached, or stays
    /// attached until the folder of its generation is removed.
    type Link: fmt::Debug + Send;

    /// Returns the reason why the kernel does not support programs at netfilter hooks; `None` if it
    /// does.
    ///
    /// # Errors
    /// Any other error of the kernel.
    fn lacks_hooks(&mut self) -> io::Result<Option<String>>;

    /// Creates a map of zeros.
    ///
    /// # Errors
    /// The error of the kernel.
    fn create_map(&mut self, kind: MapKind, entries: u32) -> io::Result<Self::Map>;

    /// Writes a value.
    ///
    /// # Errors
    /// The error of the kernel.
    fn write(&mut self, map: &Self::Map, index: u32, value: &[u8]) -> io::Result<()>;

    /// Writes an entry of [`MapKind::Learned`].
    ///
    /// # Errors
    /// The error of the kernel: [`io::ErrorKind::ArgumentListTooLong`] if the map is full.
    fn write_learned(&mut self, map: &Self::Map, write: &LearnedWrite) -> io::Result<()>;

    /// Returns all keys of [`MapKind::Learned`] with their values.
    ///
    /// # Errors
    /// The error of the kernel.
    fn read_learned(&mut self, map: &Self::Map) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>>;

    /// Opens the log of programs with these maps; `None` if it cannot be read.
    ///
    /// # Errors
    /// The error of the kernel.
    fn open_log(&mut self, maps: &[(MapKind, Self::Map)]) -> io::Result<Option<LogSource>>;

    /// Reads a value; of a per-CPU map, the values of all CPUs in sequence.
    ///
    /// # Errors
    /// The error of the kernel.
    fn read(&mut self, map: &Self::Map, index: u32) -> io::Result<Vec<u8>>;

    /// Loads the program of a hook, which reads these maps.
    ///
    /// # Errors
    /// The error of the kernel.
    fn load(&mut self, place: AttachPoint, maps: &[(MapKind, Self::Map)]) -> io::Result<Self::Program>;

    /// Attaches a program of a generation whose folder exists.
    ///
    /// # Errors
    /// [`io::ErrorKind::ResourceBusy`] if a program of this turn is attached there; otherwise the
    /// error of the kernel.
    fn attach(&mut self, place: AttachPoint, generation: u64, program: &Self::Program) -> io::Result<Self::Link>;

    /// Returns a number that changes whenever any process may have detached a program; `None` if
    /// programs need not be watched.
    ///
    /// # Errors
    /// The error of the kernel.
    fn changes(&mut self) -> io::Result<Option<u32>>;

    /// Returns a text that identifies the programs: the version of the maps that they read, and
    /// their instructions. Attached programs with the same text need not be replaced.
    ///
    /// # Errors
    /// The error of the kernel.
    fn made_of(&mut self, places: &[AttachPoint]) -> io::Result<String>;

    /// Pins a map, a program or a text under this name in a folder, so that it outlives the
    /// process. The folder is created if missing; an existing object of that name is replaced.
    ///
    /// # Errors
    /// The error of the kernel.
    fn pin_object(&mut self, folder: &str, name: &str, object: Pinned<'_, Self::Map, Self::Program>) -> io::Result<()>;

    /// Opens a pinned map, and returns its number of values.
    ///
    /// # Errors
    /// The error of the kernel, or that the object is no such map.
    fn pinned_map(&mut self, folder: &str, name: &str, kind: MapKind) -> io::Result<(Self::Map, u32)>;

    /// Opens a pinned program and its link, which may have been detached.
    ///
    /// # Errors
    /// The error of the kernel, or that the link belongs to another program.
    fn pinned_program(&mut self, folder: &str, name: &str, link: &str) -> io::Result<(Self::Program, Self::Link)>;

    /// Reads a pinned text.
    ///
    /// # Errors
    /// The error of the kernel.
    fn pinned_text(&mut self, folder: &str, name: &str) -> io::Result<String>;

    /// Pins a link under this name in a folder, so that it stays attached beyond the end of the
    /// process. The folder is created if missing; an existing object of that name is replaced.
    ///
    /// # Errors
    /// The error of the kernel.
    fn pin(&mut self, folder: &str, name: &str, link: &Self::Link) -> io::Result<()>;

    /// Returns the folders of pinned links, and those of generations that are attached without a
    /// folder.
    ///
    /// # Errors
    /// The error of the kernel.
    fn folders(&mut self) -> io::Result<Vec<String>>;

    /// Returns the names in a folder; empty if the folder does not exist.
    ///
    /// # Errors
    /// The error of the kernel.
    fn names(&mut self, folder: &str) -> io::Result<Vec<String>>;

    /// Renames a folder.
    ///
    /// # Errors
    /// The error of the kernel.
    fn rename(&mut self, folder: &str, name: &str) -> io::Result<()>;

    /// Detaches all links of a folder, whose name begins with the number of its generation, and
    /// removes it.
    ///
    /// # Errors
    /// The error of the kernel.
    fn remove(&mut self, folder: &str) -> io::Result<()>;

    /// Enables connection tracking in the kernel.
    ///
    /// # Errors
    /// The error of the kernel.
    fn track_connections(&mut self) -> io::Result<()>;

    /// Waits until the programs that are running now have ended.
    ///
    /// # Errors
    /// The error of the kernel.
    fn wait_for_packets(&mut self) -> io::Result<()>;
}
