//! Parents of items, whose labels the items inherit, and the lists of parents that items have.
//!
//! There are few distinct lists, because all pods of a namespace have the same one. Only parents of
//! items are stored. When the first list with a parent appears, the labels of the parent are read
//! from the caller's [`ParentLabels`].

use std::borrow::Cow;
use std::sync::Arc;

use ahash::RandomState;
use tortie_model::{LabelValues, Labels, ProfileName};

use crate::facts::{Facts, same};
use crate::id_table::{IdTable, hash_of};
use crate::list::{List, relink};
use crate::shapes::Shapes;
use crate::slab::{GroupId, KeyTable, ListId, ParentId, ShapeId, Slab, SlotId, TermId};
use crate::types::ParentLabels;

/// State of a parent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parent {
    /// Shape of the labels, and the position among the shape's parents; `None` for a parent that
    /// does not exist.
    pub(crate) shape: Option<(ShapeId, u32)>,
    /// The values of the labels.
    values: Option<LabelValues>,
    /// Terms of the visible labels, each with the position among the term's parents; empty without
    /// a shape.
    pub(crate) terms: List<(TermId, u32)>,
    /// The lists with this parent.
    pub(crate) lists: List<ListId>,
    /// The list that consists of this parent only.
    alone: Option<ListId>,
}

/// A list of parents in use.
#[derive(Clone, Debug)]
pub(crate) struct ParentList {
    /// Names of the parents; `None` for a list of one parent, which is found through the parent.
    names: Option<Arc<[ProfileName]>>,
    /// The parents, each once, with the position of this list among the parent's lists.
    pub(crate) parents: List<(ParentId, u32)>,
    /// Groups of items with these parents.
    pub(crate) groups: List<GroupId>,
}

/// All parents and all lists in use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parents {
    parents: KeyTable<ParentId, ProfileName, Parent>,
    pub(crate) lists: Slab<ListId, ParentList>,
    list_table: IdTable,
    hasher: RandomState,
}

impl Parents {
    pub(crate) fn len(&self) -> usize {
        self.parents.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parents.is_empty() && self.lists.is_empty() && self.list_table.is_empty()
    }

    pub(crate) fn find(&self, name: &ProfileName) -> Option<ParentId> {
        self.parents.find(name)
    }

    pub(crate) fn get(&self, id: ParentId) -> &Parent {
        &self.parents[id]
    }

    /// Returns the labels of a parent; `None` if it does not exist.
    pub(crate) fn labels(&self, shapes: &Shapes, id: ParentId) -> Option<Labels> {
        let parent = self.get(id);
        let (shape, _) = parent.shape?;
        Some(shapes.uses[shape].labels(parent.values.as_ref()))
    }

    /// Returns the value of a label from the first parent in a list that has it.
    pub(crate) fn value<'a>(&'a self, shapes: &Shapes, list: ListId, key: &str) -> Option<&'a str> {
        self.lists[list].parents.iter().find_map(|&(parent, _)| {
            let parent = self.get(parent);
            shapes.uses[parent.shape?.0].value(parent.values.as_ref(), key)
        })
    }

    /// Returns the id of a list. The caller must link a new list to a group at once.
    pub(crate) fn intern(
        &mut self,
        facts: &mut Facts,
        shapes: &mut Shapes,
        names: &Arc<[ProfileName]>,
        known: &impl ParentLabels,
    ) -> ListId {
        if let [name] = &**names {
            let parent = self.parent(facts, shapes, name, known);
            if let Some(list) = self.parents[parent].alone {
                return list;
            }
            let id = self.lists.insert(ParentList { names: None, parents: List::Empty, groups: List::Empty });
            let entry = &mut self.parents[parent];
            self.lists[id].parents.push((parent, entry.lists.push(id)));
            entry.alone = Some(id);
            return id;
        }
        let hash = hash_of(&self.hasher, &**names);
        let equal = |place| {
            let list = &self.lists[ListId::from_place(place)];
            list.names.as_ref() == Some(names)
        };
        if let Some(place) = self.list_table.find(hash, equal) {
            return ListId::from_place(place);
        }
        let id =
            self.lists.insert(ParentList { names: Some(Arc::clone(names)), parents: List::Empty, groups: List::Empty });
        self.list_table.insert(hash, id.place());
        for name in names.iter() {
            let parent = self.parent(facts, shapes, name, known);
            let links = &mut self.lists[id].parents;
            if links.iter().any(same(parent)) {
                continue;
            }
            links.push((parent, self.parents[parent].lists.push(id)));
        }
        id
    }

    /// Returns the parent with this name. The caller must link a new parent to a list at once.
    fn parent(
        &mut self,
        facts: &mut Facts,
        shapes: &mut Shapes,
        name: &ProfileName,
        known: &impl ParentLabels,
    ) -> ParentId {
        let (parent, is_new) = self.parents.find_or_insert(Cow::Borrowed(name), Parent::default);
        if is_new {
            self.index(facts, shapes, parent, known.labels(name));
        }
        parent
    }

    /// Removes a list without groups. Returns the number of stale names that were removed with it.
    pub(crate) fn release_list(&mut self, facts: &mut Facts, shapes: &mut Shapes, id: ListId) -> usize {
        if !self.lists[id].groups.is_empty() {
            return 0;
        }
        let list = self.lists.remove(id);
        if let Some(names) = list.names {
            self.list_table.remove(hash_of(&self.hasher, &*names), id.place());
        }
        let mut stale = 0;
        for &(parent, at) in &list.parents {
            let entry = &mut self.parents[parent];
            if let Some(moved) = entry.lists.swap_remove(at) {
                relink(&mut self.lists[moved].parents, parent, at);
            }
            if entry.alone == Some(id) {
                entry.alone = None;
            }
            if entry.lists.is_empty() {
                stale += self.unindex(facts, shapes, parent);
                self.parents.remove(parent);
            }
        }
        stale
    }

    /// Sets the labels of a parent that has none, and adds it to the lists of their facts.
    pub(crate) fn index(&mut self, facts: &mut Facts, shapes: &mut Shapes, id: ParentId, labels: Option<&Labels>) {
        let Some(labels) = labels else { return };
        let parent = &mut self.parents[id];
        parent.values = labels.values().cloned();
        let shape = shapes.intern(facts, labels.shape());
        parent.shape = Some((shape, shapes.uses[shape].parents.push(id)));
        self.index_terms(facts, shapes, id);
    }

    /// Adds a parent to the lists of the terms of its visible labels.
    pub(crate) fn index_terms(&mut self, facts: &mut Facts, shapes: &Shapes, id: ParentId) {
        let parent = &mut self.parents[id];
        let Some((shape, _)) = parent.shape else { return };
        let terms = shapes.uses[shape].visible_values(parent.values.as_ref()).map(|(name, value)| {
            let term = facts.term(name, value);
            (term, facts.terms[term].parents.push(id))
        });
        parent.terms = terms.collect();
    }

    /// Removes the labels of a parent, and the parent from the lists of their facts. Returns the
    /// number of stale names that were removed with them.
    pub(crate) fn unindex(&mut self, facts: &mut Facts, shapes: &mut Shapes, id: ParentId) -> usize {
        self.unindex_terms(facts, id);
        let parent = &mut self.parents[id];
        parent.values = None;
        let Some((shape, at)) = parent.shape.take() else { return 0 };
        if let Some(moved) = shapes.uses[shape].parents.swap_remove(at) {
            self.parents[moved].shape = Some((shape, at));
        }
        shapes.release(facts, shape)
    }

    /// Removes a parent from the lists of its terms.
    pub(crate) fn unindex_terms(&mut self, facts: &mut Facts, id: ParentId) {
        for &(term, at) in &std::mem::take(&mut self.parents[id].terms) {
            if let Some(moved) = facts.terms[term].parents.swap_remove(at) {
                relink(&mut self.parents[moved].terms, term, at);
            }
            facts.release_term(term);
        }
    }
}
