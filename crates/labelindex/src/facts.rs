//! Facts about labels: "the label exists" and "the label has this value".
//!
//! A *name* stands for `has(name)`, a *term* for `name == value`. Each lists its carriers (shapes
//! or groups, and parents) and the selectors that are filed under it because they cannot match
//! without it. The index removes a fact that has neither carriers nor selectors, so memory follows
//! use.
//!
//! A name is *visible* once a selector compares its value. Terms exist for visible names, and for
//! names that the next flush makes visible. The values of all other labels are never examined.

use std::sync::Arc;

use ahash::RandomState;

use crate::id_table::{IdTable, hash_of};
use crate::list::List;
use crate::slab::{GroupId, NameId, ParentId, SelId, ShapeId, Slab, SlotId, TermId};

/// A label name.
#[derive(Clone, Debug)]
pub(crate) struct Name {
    pub(crate) text: Arc<str>,
    /// Shapes with this name.
    pub(crate) shapes: List<ShapeId>,
    /// Selectors that need the label and are filed here.
    pub(crate) filed: List<SelId>,
    /// Number of selectors that mention the name.
    pub(crate) mentions: u32,
    /// Number of selectors that compare the value, as of the last flush.
    pub(crate) comparers: u32,
    /// Whether groups are split by the value. The first comparing selector sets it; it is cleared
    /// some time after the last one is removed.
    pub(crate) visible: bool,
}

/// A label name with a value.
#[derive(Clone, Debug)]
pub(crate) struct Term {
    pub(crate) name: NameId,
    pub(crate) value: Box<[u8]>,
    /// Groups whose items have the label themselves.
    pub(crate) groups: List<GroupId>,
    /// Parents (of items in groups) that have the label.
    pub(crate) parents: List<ParentId>,
    /// Selectors that need this value, or one of several, and are filed here.
    pub(crate) filed: List<SelId>,
    /// The selector that consists of this comparison only. It is filed here, at the latest by the
    /// next flush.
    pub(crate) equality: Option<SelId>,
}

/// A name or a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Fact {
    /// The label exists.
    Name(NameId),
    /// The label has this value.
    Term(TermId),
}

/// All names and terms in use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) names: Slab<NameId, Name>,
    pub(crate) terms: Slab<TermId, Term>,
    name_table: IdTable,
    term_table: IdTable,
    hasher: RandomState,
}

impl Facts {
    fn name_hash(&self, text: &str) -> u32 {
        hash_of(&self.hasher, text)
    }

    fn term_hash(&self, name: NameId, value: &[u8]) -> u32 {
        hash_of(&self.hasher, (name, value))
    }

    pub(crate) fn find_name(&self, text: &str) -> Option<NameId> {
        self.find_name_hashed(self.name_hash(text), text)
    }

    fn find_name_hashed(&self, hash: u32, text: &str) -> Option<NameId> {
        let is = |place| *self.names[NameId::from_place(place)].text == *text;
        self.name_table.find(hash, is).map(NameId::from_place)
    }

    /// Returns the name with this text. The caller must link a new name to a shape or selector at
    /// once.
    pub(crate) fn name(&mut self, text: &str) -> NameId {
        let hash = self.name_hash(text);
        if let Some(id) = self.find_name_hashed(hash, text) {
            return id;
        }
        let id = self.names.insert(Name {
            text: text.into(),
            shapes: List::Empty,
            filed: List::Empty,
            mentions: 0,
            comparers: 0,
            visible: false,
        });
        self.name_table.insert(hash, id.place());
        id
    }

    /// Removes a name without shapes and selectors. Returns whether a name was removed that was
    /// still visible and therefore counted as stale.
    pub(crate) fn release_name(&mut self, id: NameId) -> bool {
        let name = &self.names[id];
        if !name.shapes.is_empty() || name.mentions > 0 {
            return false;
        }
        let (hash, stale) = (self.name_hash(&name.text), name.visible);
        self.names.remove(id);
        self.name_table.remove(hash, id.place());
        stale
    }

    pub(crate) fn find_term(&self, name: NameId, value: &[u8]) -> Option<TermId> {
        self.find_term_hashed(self.term_hash(name, value), name, value)
    }

    fn find_term_hashed(&self, hash: u32, name: NameId, value: &[u8]) -> Option<TermId> {
        let is = |place| {
            let term = &self.terms[TermId::from_place(place)];
            term.name == name && *term.value == *value
        };
        self.term_table.find(hash, is).map(TermId::from_place)
    }

    /// Returns the term of this name and value. The caller must link a new term to a group, parent
    /// or selector at once.
    pub(crate) fn term(&mut self, name: NameId, value: &[u8]) -> TermId {
        let hash = self.term_hash(name, value);
        if let Some(id) = self.find_term_hashed(hash, name, value) {
            return id;
        }
        let id = self.terms.insert(Term {
            name,
            value: value.into(),
            groups: List::Empty,
            parents: List::Empty,
            filed: List::Empty,
            equality: None,
        });
        self.term_table.insert(hash, id.place());
        id
    }

    /// Removes a term without groups, parents and selectors.
    pub(crate) fn release_term(&mut self, id: TermId) {
        let term = &self.terms[id];
        if term.groups.is_empty() && term.parents.is_empty() && term.filed.is_empty() && term.equality.is_none() {
            let hash = self.term_hash(term.name, &term.value);
            self.terms.remove(id);
            self.term_table.remove(hash, id.place());
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty() && self.terms.is_empty() && self.name_table.is_empty() && self.term_table.is_empty()
    }
}

/// Returns a predicate: whether a link refers to this id.
pub(crate) fn same<K: SlotId + PartialEq>(id: K) -> impl Fn(&(K, u32)) -> bool {
    move |&(other, _)| other == id
}
