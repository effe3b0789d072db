//! Groups of endpoints with equal policies, and their tables.

use std::sync::Arc;

use ahash::{AHashMap, AHashSet};
use tortie_evaluate::Missing;

use crate::addresses::{Addresses, BucketChanges};
use crate::axis::BucketAtoms;
use crate::ids::{AtomId, BucketId, GroupId, Slab};
use crate::owners::{OwnerKey, Owners};
use crate::program::{GroupKey, Program};
use crate::table::Table;

#[derive(Clone, Debug)]
struct Group {
    key: Arc<GroupKey>,
    endpoints: u32,
    /// None before its first flush, or what it lacks.
    table: Option<Result<Table, Missing>>,
}

/// All groups.
#[derive(Clone, Debug, Default)]
pub(crate) struct Groups {
    groups: Slab<GroupId, Group>,
    ids: AHashMap<Arc<GroupKey>, GroupId>,
    by_atom: AHashMap<AtomId, AHashSet<GroupId>>,
    pending: AHashSet<GroupId>,
    /// Those whose rows, columns or cells may be others than at the last flush, and those that are gone.
    changed: AHashSet<GroupId>,
}

impl Groups {
    pub(crate) fn is_empty(&self) -> bool {
        self.groups.len() == 0 && self.ids.is_empty() && self.by_atom.is_empty()
    }

    /// The group with this key, with one endpoint more.
    pub(crate) fn acquire(&mut self, key: GroupKey, owners: &mut Owners) -> GroupId {
        if let Some(id) = self.ids.get(&key) {
            if let Some(group) = self.groups.get_mut(*id) {
                group.endpoints += 1;
            }
            return *id;
        }
        let key = Arc::new(key);
        let id = self.groups.insert(Group { key: Arc::clone(&key), endpoints: 1, table: None });
        for owner in owner_keys(&key) {
            owners.add_group(&owner, id, key.direction);
        }
        self.ids.insert(key, id);
        self.pending.insert(id);
        id
    }

    /// Takes an endpoint from a group, which goes with its last one.
    pub(crate) fn release(&mut self, id: GroupId, owners: &mut Owners) {
        let Some(group) = self.groups.get_mut(id) else { return };
        group.endpoints -= 1;
        if group.endpoints > 0 {
            return;
        }
        let Some(group) = self.groups.remove(id) else { return };
        for owner in owner_keys(&group.key) {
            owners.remove_group(&owner, id);
        }
        if let Some(Ok(table)) = &group.table {
            forget_atoms(&mut self.by_atom, table, id);
        }
        self.ids.remove(&group.key);
        self.pending.remove(&id);
        self.changed.insert(id);
    }

    pub(crate) fn set_pending(&mut self, groups: impl IntoIterator<Item = GroupId>) {
        self.pending.extend(groups);
    }

    /// Brings all tables up to date. Gives those that changed, in order.
    pub(crate) fn flush(&mut self, buckets: &BucketChanges, owners: &Owners, addresses: &Addresses) -> Vec<GroupId> {
        for (bucket, own) in &buckets.gone {
            for id in self.users(own.iter().copied()) {
                if self.table_mut(id).is_some_and(|table| table.remove(*bucket)) {
                    self.changed.insert(id);
                }
            }
        }
        for bucket in &buckets.born {
            let bucket_atoms = BucketAtoms::new(*bucket, addresses);
            for id in self.users(addresses.own_atoms(*bucket)) {
                if self.table_mut(id).is_some_and(|table| table.add(&bucket_atoms)) {
                    self.changed.insert(id);
                }
            }
        }
        for id in self.users(buckets.inherited.atoms.iter().copied()) {
            let Some(table) = self.table_mut(id) else { continue };
            let touched: AHashSet<BucketId> =
                table.buckets().filter(|bucket| buckets.inherited.buckets.contains(bucket)).collect();
            let mut has_other_rows = false;
            for bucket in touched {
                has_other_rows |= table.remove(bucket);
                has_other_rows |= table.add(&BucketAtoms::new(bucket, addresses));
            }
            if has_other_rows {
                self.changed.insert(id);
            }
        }
        for id in std::mem::take(&mut self.pending) {
            self.build(id, owners, addresses);
        }
        let mut changed: Vec<GroupId> = std::mem::take(&mut self.changed).into_iter().collect();
        changed.sort_unstable();
        changed
    }

    /// The groups with a table that tells an atom apart, in no order.
    pub(crate) fn asking(&self, atom: AtomId) -> impl Iterator<Item = GroupId> + '_ {
        self.by_atom.get(&atom).into_iter().flatten().copied()
    }

    /// The groups that tell these atoms apart and are not going to be made again.
    fn users(&self, atoms: impl Iterator<Item = AtomId>) -> AHashSet<GroupId> {
        let users = atoms.filter_map(|atom| self.by_atom.get(&atom)).flatten();
        users.copied().filter(|id| !self.pending.contains(id)).collect()
    }

    fn table_mut(&mut self, id: GroupId) -> Option<&mut Table> {
        self.groups.get_mut(id)?.table.as_mut()?.as_mut().ok()
    }

    fn build(&mut self, id: GroupId, owners: &Owners, addresses: &Addresses) {
        let Some(group) = self.groups.get_mut(id) else { return };
        if let Some(Ok(before)) = &group.table {
            forget_atoms(&mut self.by_atom, before, id);
        }
        let table = Program::new(&group.key, owners).map(|program| {
            let mut table = Table::new(program, group.key.direction);
            let atoms: AHashSet<AtomId> = table.atoms().collect();
            for atom in atoms {
                for bucket in addresses.buckets_with(atom) {
                    table.add_row(&BucketAtoms::new(bucket, addresses));
                }
                self.by_atom.entry(atom).or_default().insert(id);
            }
            table.fill();
            table
        });
        group.table = Some(table);
        self.changed.insert(id);
    }

    pub(crate) fn key(&self, id: GroupId) -> Option<&GroupKey> {
        self.groups.get(id).map(|group| &*group.key)
    }

    /// The table of a group, or what is missing for it.
    pub(crate) fn table(&self, id: GroupId) -> Option<Result<&Table, &Missing>> {
        Some(self.groups.get(id)?.table.as_ref()?.as_ref())
    }

    /// All groups, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = GroupId> + '_ {
        self.groups.iter().map(|(id, _)| id)
    }
}

fn forget_atoms(by_atom: &mut AHashMap<AtomId, AHashSet<GroupId>>, table: &Table, id: GroupId) {
    for atom in table.atoms() {
        if let Some(users) = by_atom.get_mut(&atom) {
            users.remove(&id);
            if users.is_empty() {
                by_atom.remove(&atom);
            }
        }
    }
}

fn owner_keys(key: &GroupKey) -> impl Iterator<Item = OwnerKey> + '_ {
    let profiles = key.profiles.iter().cloned().map(OwnerKey::Profile);
    key.policies().cloned().map(OwnerKey::Policy).chain(profiles)
}
