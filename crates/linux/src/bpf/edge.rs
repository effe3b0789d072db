//! What is asked of the kernel, in steps between which the process may end.

use std::fmt;
use std::io;

use tortie_ebpf::hooks::Hook;
use tortie_ebpf::layout::MapKind;
use tortie_model::Family;

use super::log::LogSource;

/// A hook of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Where packets meet a program.
    pub hook: Hook,
    /// Of which packets.
    pub family: Family,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.hook.name(), self.family.number())
    }
}

/// Which of the two priorities that programs have by turns: two sets of programs can be attached at the same time, and a packet
/// must be let through by both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Turn {
    /// The first of them.
    Even,
    /// The second of them.
    Odd,
}

impl Turn {
    /// That of a generation.
    #[must_use]
    pub const fn of(generation: u64) -> Self {
        if generation.is_multiple_of(2) { Self::Even } else { Self::Odd }
    }
}

/// The number of the generation by which the name of a folder begins.
pub(super) fn generation_of(folder: &str) -> Option<u64> {
    folder.split('-').next()?.parse().ok()
}

/// What is kept beyond the end of the process besides links.
#[derive(Clone, Copy, Debug)]
pub enum Kept<'a, M, P> {
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
    /// That a program is attached. When it is dropped, and was not pinned, the program is attached no longer, or until the folder of its
    /// generation is removed.
    type Link: fmt::Debug + Send;

    /// Why the kernel has no programs at hooks of netfilter; `None` if it has.
    ///
    /// # Errors
    /// What else the kernel says.
    fn lacks_hooks(&mut self) -> io::Result<Option<String>>;

    /// Makes a map of zeros.
    ///
    /// # Errors
    /// What the kernel says.
    fn create_map(&mut self, kind: MapKind, entries: u32) -> io::Result<Self::Map>;

    /// Writes a value.
    ///
    /// # Errors
    /// What the kernel says.
    fn write(&mut self, map: &Self::Map, index: u32, value: &[u8]) -> io::Result<()>;

    /// Where programs that have these maps log; `None` if nobody can read that.
    ///
    /// # Errors
    /// What the kernel says.
    fn open_log(&mut self, maps: &[(MapKind, Self::Map)]) -> io::Result<Option<LogSource>>;

    /// Reads a value; of a map that has values for each CPU, one behind the other.
    ///
    /// # Errors
    /// What the kernel says.
    fn read(&mut self, map: &Self::Map, index: u32) -> io::Result<Vec<u8>>;

    /// Loads the program of a hook, which reads these maps.
    ///
    /// # Errors
    /// What the kernel says.
    fn load(&mut self, place: Place, maps: &[(MapKind, Self::Map)]) -> io::Result<Self::Program>;

    /// Attaches a program of a generation, whose folder is there already.
    ///
    /// # Errors
    /// [`io::ErrorKind::ResourceBusy`] if one is attached there in this turn; otherwise what the kernel says.
    fn attach(&mut self, place: Place, generation: u64, program: &Self::Program) -> io::Result<Self::Link>;

    /// A number that changes when somebody may have detached a program, whoever it was; `None` if that needs no looking after.
    ///
    /// # Errors
    /// What the kernel says.
    fn changes(&mut self) -> io::Result<Option<u32>>;

    /// What programs are made from: which version of maps they read, and their instructions. The same text means that programs
    /// that are attached need not be replaced.
    ///
    /// # Errors
    /// What the kernel says.
    fn made_of(&mut self, places: &[Place]) -> io::Result<String>;

    /// Keeps a map, a program and a link, and what they were made from, beyond the end of the process, under these names in a
    /// folder, which is made. Whatever has the name loses it.
    ///
    /// # Errors
    /// What the kernel says.
    fn keep(&mut self, folder: &str, name: &str, what: Kept<'_, Self::Map, Self::Program>) -> io::Result<()>;

    /// A map that is kept, and how many values it has.
    ///
    /// # Errors
    /// What the kernel says, or if it is no such map.
    fn kept_map(&mut self, folder: &str, name: &str, kind: MapKind) -> io::Result<(Self::Map, u32)>;

    /// A program that is kept, and its link, which is attached or was.
    ///
    /// # Errors
    /// What the kernel says, or if it is another program's link.
    fn kept_program(&mut self, folder: &str, name: &str, link: &str) -> io::Result<(Self::Program, Self::Link)>;

    /// What was kept as what programs are made from.
    ///
    /// # Errors
    /// What the kernel says.
    fn kept_text(&mut self, folder: &str, name: &str) -> io::Result<String>;

    /// Keeps a link attached beyond the end of the process, under this name in a folder, which is made. Whatever has the name
    /// loses it.
    ///
    /// # Errors
    /// What the kernel says.
    fn pin(&mut self, folder: &str, name: &str, link: &Self::Link) -> io::Result<()>;

    /// The folders in which links are pinned, and those of generations that are attached all the same.
    ///
    /// # Errors
    /// What the kernel says.
    fn folders(&mut self) -> io::Result<Vec<String>>;

    /// The names in a folder; none if there is no such folder.
    ///
    /// # Errors
    /// What the kernel says.
    fn names(&mut self, folder: &str) -> io::Result<Vec<String>>;

    /// Gives a folder another name.
    ///
    /// # Errors
    /// What the kernel says.
    fn rename(&mut self, folder: &str, name: &str) -> io::Result<()>;

    /// Detaches all links of a folder, which begins with the number of its generation, and removes it.
    ///
    /// # Errors
    /// What the kernel says.
    fn remove(&mut self, folder: &str) -> io::Result<()>;

    /// Has the kernel track connections.
    ///
    /// # Errors
    /// What the kernel says.
    fn track_connections(&mut self) -> io::Result<()>;

    /// Waits until no program runs any more that was running.
    ///
    /// # Errors
    /// What the kernel says.
    fn wait_for_packets(&mut self) -> io::Result<()>;
}
