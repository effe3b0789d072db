//! Shapes: lists of label names that items and parents have.
//!
//! A cluster has few of them. The presence of a label is a property of the shape, so `has()` and
//! `!has()` never need an item's values.

use std::sync::Arc;

use ahash::RandomState;
use rustc_hash::FxHashMap;
use tortie_model::{LabelValues, Labels, Shape};

use crate::facts::{Facts, same};
use crate::id_table::{IdTable, hash_of};
use crate::list::List;
use crate::slab::{GroupId, NameId, ParentId, ShapeId, Slab, SlotId};

/// A shape in use.
#[derive(Clone, Debug)]
pub(crate) struct ShapeUse {
    /// The shape, shared with one of the label sets that have it; `None` for the empty one.
    shape: Option<Arc<Shape>>,
    hash: u32,
    /// The names in the order of the shape, each with the position of this shape among the name's
    /// shapes.
    pub(crate) names: Box<[(NameId, u32)]>,
    /// Positions of the visible names.
    pub(crate) visible: List<u32>,
    /// Groups of items with this shape.
    pub(crate) groups: List<GroupId>,
    /// Parents (of items in groups) with this shape.
    pub(crate) parents: List<ParentId>,
}

impl ShapeUse {
    /// Returns the visible names of labels with this shape, with their values.
    pub(crate) fn visible_values<'a>(
        &'a self,
        values: Option<&'a LabelValues>,
    ) -> impl Iterator<Item = (NameId, &'a [u8])> {
        let value =
            move |place: usize| Some((self.names.get(place)?.0, self.shape.as_ref()?.value_bytes(values?, place)?));
        self.visible.iter().filter_map(move |&place| value(place as usize))
    }

    /// Returns the labels with these values.
    pub(crate) fn labels(&self, values: Option<&LabelValues>) -> Labels {
        self.shape.as_ref().zip(values).map(|(shape, values)| Labels::of(shape, values)).unwrap_or_default()
    }

    /// Returns the value of a name in labels with this shape.
    pub(crate) fn value<'a>(&self, values: Option<&'a LabelValues>, key: &str) -> Option<&'a str> {
        self.shape.as_ref()?.value(values?, key)
    }

    /// Reports whether the shape has this name.
    pub(crate) fn has(&self, name: NameId, text: &str) -> bool {
        const SCAN_LIMIT: usize = 32;
        if self.names.len() <= SCAN_LIMIT {
            self.names.iter().any(same(name))
        } else {
            self.shape.as_ref().is_some_and(|shape| shape.position(text).is_some())
        }
    }
}

/// All shapes in use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shapes {
    pub(crate) uses: Slab<ShapeId, ShapeUse>,
    /// Ids by address of the stored shape; address 0 is the empty shape.
    by_address: FxHashMap<usize, ShapeId>,
    by_content: IdTable,
    hasher: RandomState,
}

fn address(shape: Option<&Arc<Shape>>) -> usize {
    shape.map_or(0, |shape| Arc::as_ptr(shape) as usize)
}

fn keys(shape: Option<&Arc<Shape>>) -> &[Arc<str>] {
    shape.map_or(&[], |shape| shape.keys())
}

impl Shapes {
    /// Returns the id of a shape. The caller must link a new shape to a group or parent at once.
    pub(crate) fn intern(&mut self, facts: &mut Facts, shape: Option<&Arc<Shape>>) -> ShapeId {
        if let Some(&id) = self.by_address.get(&address(shape)) {
            return id;
        }
        let hash = self.hash(keys(shape));
        let equal = |place| keys(self.uses[ShapeId::from_place(place)].shape.as_ref()) == keys(shape);
        if let Some(place) = self.by_content.find(hash, equal) {
            return ShapeId::from_place(place);
        }
        let names: Box<[NameId]> = keys(shape).iter().map(|key| facts.name(key)).collect();
        let id = self.uses.insert(ShapeUse {
            shape: shape.cloned(),
            hash,
            names: Box::default(),
            visible: List::Empty,
            groups: List::Empty,
            parents: List::Empty,
        });
        self.by_address.insert(address(shape), id);
        self.by_content.insert(hash, id.place());
        let link = |&name: &NameId| (name, facts.names[name].shapes.push(id));
        self.uses[id].names = names.iter().map(link).collect();
        self.refresh_visible(facts, id);
        id
    }

    fn hash(&self, keys: &[Arc<str>]) -> u32 {
        hash_of(&self.hasher, keys)
    }

    /// Recomputes the visible names.
    pub(crate) fn refresh_visible(&mut self, facts: &Facts, id: ShapeId) {
        let shape = &mut self.uses[id];
        let visible = (0..).zip(&shape.names).filter(|(_, (name, _))| facts.names[*name].visible);
        shape.visible = visible.map(|(place, _)| place).collect();
    }

    /// Removes a shape without groups and parents. Returns the number of stale names that were
    /// removed with it.
    #[expect(clippy::expect_used, reason = "names list the shapes that have them")]
    pub(crate) fn release(&mut self, facts: &mut Facts, id: ShapeId) -> usize {
        let shape = &self.uses[id];
        if !shape.groups.is_empty() || !shape.parents.is_empty() {
            return 0;
        }
        let shape = self.uses.remove(id);
        self.by_address.remove(&address(shape.shape.as_ref()));
        self.by_content.remove(shape.hash, id.place());
        let mut stale = 0;
        for (name, at) in shape.names {
            if let Some(moved) = facts.names[name].shapes.swap_remove(at) {
                let moved = &mut self.uses[moved];
                let place = keys(moved.shape.as_ref()).binary_search(&facts.names[name].text);
                moved.names[place.expect("shapes of a name have it")].1 = at;
            }
            stale += usize::from(facts.release_name(name));
        }
        if self.uses.is_empty() {
            self.by_address = FxHashMap::default();
        }
        stale
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.uses.is_empty() && self.by_address.is_empty() && self.by_content.is_empty()
    }
}
