//! Map writes.

use crate::layout::{LEARNED_ENTRIES, LOG_BYTES, MapKind, ROOTS};
use crate::node::learned::LearnedWrite;
use crate::node::{Node, Problem};

/// Write of a map value. One to [`MapKind::Counters`] sets the values of all CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "implementers of a kernel construct them")]
pub struct Write {
    /// Map.
    pub map: MapKind,
    /// Index of the entry.
    pub index: u32,
    /// Value, of [`MapKind::value_size`] bytes.
    pub value: Vec<u8>,
}

/// Changes since the previous flush.
#[derive(Debug)]
#[must_use = "maps must be written"]
pub struct Flush<'a> {
    node: &'a Node,
    entries: Vec<(MapKind, u32)>,
    learned: Vec<LearnedWrite>,
    needs_reclaim: bool,
}

impl<'a> Flush<'a> {
    pub(super) fn new(
        node: &'a Node,
        entries: Vec<(MapKind, u32)>,
        learned: Vec<LearnedWrite>,
        needs_reclaim: bool,
    ) -> Self {
        Self { node, entries, learned, needs_reclaim }
    }

    /// Returns the changes of [`MapKind::Learned`], which precede all [`Flush::writes`].
    #[must_use]
    pub fn learned(&self) -> &[LearnedWrite] {
        &self.learned
    }

    /// Returns the writes in their required order. The last one, to [`MapKind::Current`], puts all
    /// of them into force. It is missing if only the place changes in which a program finds an
    /// address.
    #[must_use]
    pub fn writes(&self) -> impl ExactSizeIterator<Item = Write> + '_ {
        self.entries.iter().map(|(map, index)| self.node.write(*map, *index))
    }

    /// Reports whether there are no writes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.learned.is_empty()
    }

    /// Reports whether [`Node::reclaim`] must be called before anything can change.
    #[must_use]
    pub fn needs_reclaim(&self) -> bool {
        self.needs_reclaim
    }

    /// Returns the required sizes of the maps.
    #[must_use]
    pub fn sizes(&self) -> MapSizes {
        self.node.sizes()
    }

    /// Returns the groups of endpoints that deny everything.
    #[must_use]
    pub fn problems(&self) -> Vec<Problem> {
        self.node.problems()
    }
}

/// Numbers of map entries, present or required.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "creators of maps must set every size")]
pub struct MapSizes {
    /// Entries of [`MapKind::Blocks`].
    pub blocks: u32,
    /// Entries of [`MapKind::Groups`].
    pub groups: u32,
    /// Entries of [`MapKind::Endpoints`].
    pub endpoints: u32,
    /// Entries of [`MapKind::Counters`] and [`MapKind::Decisions`].
    pub counters: u32,
    /// Entries of [`MapKind::Exact`].
    pub exact: u32,
}

impl MapSizes {
    /// Returns the number of entries of a map, at least 1; for the ring buffer, its size in bytes.
    #[must_use]
    pub fn get(&self, map: MapKind) -> u32 {
        let entries = match map {
            MapKind::Current | MapKind::Lost => 1,
            MapKind::Log => LOG_BYTES,
            MapKind::Roots => ROOTS,
            MapKind::Blocks => self.blocks,
            MapKind::Groups => self.groups,
            MapKind::Endpoints => self.endpoints,
            MapKind::Counters | MapKind::Decisions => self.counters,
            MapKind::Exact => self.exact,
            MapKind::Learned => LEARNED_ENTRIES,
        };
        entries.max(1)
    }

    /// Reports whether maps of these sizes are large enough for `needed`.
    #[must_use]
    pub fn hold(&self, needed: &Self) -> bool {
        MapKind::ALL.into_iter().all(|map| self.get(map) >= needed.get(map))
    }
}
