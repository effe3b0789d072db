//! What is to be written.

use crate::layout::{LOG_BYTES, MapKind, ROOTS};
use crate::node::{Node, Problem};

/// A value of a map. One of [`MapKind::Counters`] is for all CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "whoever stands in for a kernel makes some")]
pub struct Write {
    /// Which map.
    pub map: MapKind,
    /// Which entry.
    pub index: u32,
    /// The value, of [`MapKind::value_size`] bytes.
    pub value: Vec<u8>,
}

/// What changed since the flush before.
#[derive(Debug)]
#[must_use = "maps must be written"]
pub struct Flush<'a> {
    node: &'a Node,
    entries: Vec<(MapKind, u32)>,
    needs_reclaim: bool,
}

impl<'a> Flush<'a> {
    pub(super) fn new(node: &'a Node, entries: Vec<(MapKind, u32)>, needs_reclaim: bool) -> Self {
        Self { node, entries, needs_reclaim }
    }

    /// What must be written, in this order. By the last one, to [`MapKind::Current`], all of it comes into force. There is none to
    /// that if nothing changes but in which of two places a program finds an address.
    #[must_use]
    pub fn writes(&self) -> impl ExactSizeIterator<Item = Write> + '_ {
        self.entries.iter().map(|(map, index)| self.node.write(*map, *index))
    }

    /// Whether nothing is to be written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether [`Node::reclaim`] must be called before anything can be changed.
    #[must_use]
    pub fn needs_reclaim(&self) -> bool {
        self.needs_reclaim
    }

    /// What the maps must have room for.
    #[must_use]
    pub fn sizes(&self) -> MapSizes {
        self.node.sizes()
    }

    /// Groups of endpoints that deny everything.
    #[must_use]
    pub fn problems(&self) -> Vec<Problem> {
        self.node.problems()
    }
}

/// How many entries maps have or must have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "whoever makes maps must know all")]
pub struct MapSizes {
    /// Of [`MapKind::Blocks`].
    pub blocks: u32,
    /// Of [`MapKind::Groups`].
    pub groups: u32,
    /// Of [`MapKind::Endpoints`].
    pub endpoints: u32,
    /// Of [`MapKind::Counters`] and [`MapKind::Decisions`].
    pub counters: u32,
    /// Of [`MapKind::Exact`].
    pub exact: u32,
}

impl MapSizes {
    /// The entries of a map, of which each has one at least; the bytes of the ring.
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
        };
        entries.max(1)
    }

    /// Whether maps of these sizes have room for what needs others.
    #[must_use]
    pub fn hold(&self, needed: &Self) -> bool {
        MapKind::ALL.into_iter().all(|map| self.get(map) >= needed.get(map))
    }
}
