//! Parents, whose labels items inherit, and the lists of parents that items have.
//!
//! Few lists are distinct, as all pods of a namespace have the same. A parent without children is only remembered: its
//! labels are looked at when the first list with it appears.

use std::sync::Arc;

use ahash::RandomState;
use smallvec::SmallVec;
use tortie_model::{Labels, ProfileName};

use crate::facts::{Facts, same, unlink, unlink_vec};
use crate::shapes::Shapes;
use crate::slab::{GroupId, IdTable, KeyTable, ListId, ParentId, ShapeId, SideTable, Slab, TermId, position};

/// What is known of a parent; unknown parents with children have nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parent {
    pub(crate) labels: Option<Labels>,
    /// The shape of the labels and the place among its parents, while there are children and labels.
    pub(crate) shape: Option<(ShapeId, u32)>,
    /// The terms of the visible labels, each with the place among the term's parents; as long as there is a shape.
    pub(crate) terms: SmallVec<[(TermId, u32); 2]>,
    /// The lists with this parent.
    pub(crate) lists: SmallVec<[ListId; 4]>,
}

/// A list of parents in use.
#[derive(Clone, Debug)]
pub(crate) struct ParentList {
    names: Arc<[ProfileName]>,
    hash: u32,
    /// The parents, each once, with the place of this list among the parent's lists.
    pub(crate) parents: SmallVec<[(ParentId, u32); 2]>,
    /// Groups of items with these parents.
    pub(crate) groups: Vec<GroupId>,
}

/// All parents and all lists in use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parents {
    names: KeyTable<ProfileName, ParentId>,
    parents: SideTable<ParentId, Parent>,
    pub(crate) lists: Slab<ListId, ParentList>,
    list_table: IdTable,
    hasher: RandomState,
}

impl Parents {
    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty() && self.lists.is_empty() && self.list_table.is_empty()
    }

    pub(crate) fn get(&self, id: ParentId) -> Option<&Parent> {
        self.parents.get(id)
    }

    pub(crate) fn get_mut(&mut self, id: ParentId) -> &mut Parent {
        self.parents.entry(id)
    }

    /// The labels of the parents in a list, in order.
    pub(crate) fn labels(&self, list: ListId) -> impl Iterator<Item = &Labels> {
        self.lists[list].parents.iter().filter_map(|&(parent, _)| self.get(parent)?.labels.as_ref())
    }

    /// The id of a list, which must be put to use at once.
    pub(crate) fn intern(&mut self, facts: &mut Facts, shapes: &mut Shapes, names: &Arc<[ProfileName]>) -> ListId {
        let hash = IdTable::fold(self.hasher.hash_one(&**names));
        let equal = |id| {
            let list: &ParentList = &self.lists[ListId(id)];
            Arc::ptr_eq(&list.names, names) || list.names == *names
        };
        if let Some(id) = self.list_table.find(hash, equal) {
            return ListId(id);
        }
        let id = self.lists.insert(ParentList {
            names: Arc::clone(names),
            hash,
            parents: SmallVec::new(),
            groups: Vec::new(),
        });
        self.list_table.insert(hash, id.0);
        let mut links: SmallVec<[(ParentId, u32); 2]> = SmallVec::new();
        for name in names.iter() {
            let (parent, _) = self.names.find_or_insert(name);
            if links.iter().any(same(parent)) {
                continue;
            }
            let entry = self.parents.entry(parent);
            entry.lists.push(id);
            links.push((parent, position(entry.lists.len() - 1)));
            if entry.lists.len() == 1 {
                self.index(facts, shapes, parent);
            }
        }
        self.lists[id].parents = links;
        id
    }

    /// Forgets a list that no group has. Answers how many names went with it that groups were told apart by needlessly.
    pub(crate) fn release_list(&mut self, facts: &mut Facts, shapes: &mut Shapes, id: ListId) -> usize {
        if !self.lists[id].groups.is_empty() {
            return 0;
        }
        let Some(list) = self.lists.remove(id) else { return 0 };
        self.list_table.remove(list.hash, id.0);
        let mut stale = 0;
        for (parent, at) in list.parents {
            let entry = self.parents.entry(parent);
            if let Some(moved) = unlink(&mut entry.lists, at)
                && let Some(link) = self.lists[moved].parents.iter_mut().find(|l| l.0 == parent)
            {
                link.1 = at;
            }
            if self.parents.entry(parent).lists.is_empty() {
                stale += self.unindex(facts, shapes, parent);
            }
            self.release(parent);
        }
        stale
    }

    /// The parent with this name and labels.
    pub(crate) fn find(&self, name: &ProfileName) -> Option<ParentId> {
        self.names.find(name)
    }

    pub(crate) fn find_or_insert(&mut self, name: &ProfileName) -> ParentId {
        self.names.find_or_insert(name).0
    }

    /// Forgets a parent without labels and children.
    pub(crate) fn release(&mut self, id: ParentId) {
        let parent = self.parents.entry(id);
        if parent.labels.is_none() && parent.lists.is_empty() {
            self.parents.take(id);
            self.names.remove(id);
            if self.names.is_empty() {
                self.parents.clear();
            }
        }
    }

    /// Makes the labels of a parent with children known to the facts.
    pub(crate) fn index(&mut self, facts: &mut Facts, shapes: &mut Shapes, id: ParentId) {
        let parent = self.parents.entry(id);
        let Some(labels) = &parent.labels else { return };
        let shape = shapes.intern(facts, labels.shape());
        let users = &mut shapes.uses[shape].parents;
        users.push(id);
        parent.shape = Some((shape, position(users.len() - 1)));
        self.index_terms(facts, shapes, id);
    }

    /// Makes the visible values known.
    pub(crate) fn index_terms(&mut self, facts: &mut Facts, shapes: &Shapes, id: ParentId) {
        let parent = self.parents.entry(id);
        let (Some((shape, _)), Some(labels)) = (parent.shape, &parent.labels) else { return };
        let shape = &shapes.uses[shape];
        let terms = shape.visible.iter().map(|&place| {
            let name = shape.names[place as usize].0;
            let term = facts.term(name, labels.value_bytes_at(place as usize).unwrap_or_default());
            let parents = &mut facts.terms[term].parents;
            parents.push(id);
            (term, position(parents.len() - 1))
        });
        parent.terms = terms.collect();
    }

    /// The opposite of [`Parents::index`].
    pub(crate) fn unindex(&mut self, facts: &mut Facts, shapes: &mut Shapes, id: ParentId) -> usize {
        self.unindex_terms(facts, id);
        let Some((shape, at)) = self.parents.entry(id).shape.take() else { return 0 };
        if let Some(moved) = unlink_vec(&mut shapes.uses[shape].parents, at) {
            self.parents.entry(moved).shape = Some((shape, at));
        }
        shapes.release(facts, shape)
    }

    /// The opposite of [`Parents::index_terms`].
    pub(crate) fn unindex_terms(&mut self, facts: &mut Facts, id: ParentId) {
        for (term, at) in std::mem::take(&mut self.parents.entry(id).terms) {
            if let Some(moved) = unlink(&mut facts.terms[term].parents, at)
                && let Some(link) = self.parents.entry(moved).terms.iter_mut().find(|l| l.0 == term)
            {
                link.1 = at;
            }
            facts.release_term(term);
        }
    }
}
