//! Groups of endpoints with equal policies, and their tables.

use std::sync::Arc;

use ahash::{AHashMap, AHashSet};
use tortie_evaluate::Missing;
use tortie_model::{Ledger, PolicyId};

use crate::addresses::{Addresses, BucketChanges};
use crate::axis::BucketAtoms;
use crate::budget::{Budget, Meter};
use crate::ids::{AtomId, BucketId, GroupId, Slab};
use crate::owners::{OwnerKey, Owners};
use crate::program::{GroupKey, GroupName, Program};
use crate::table::Table;

#[derive(Clone, Debug)]
struct Group {
    key: Arc<GroupKey>,
    endpoints: u32,
    /// `None` before its first flush; the error if the group refers to a missing object or is over
    /// budget.
    table: Option<Result<Table, Missing>>,
}

/// Number of policies that the error of a group over budget names: those with the most clauses.
const NAMED_POLICIES: usize = 3;

/// All groups.
#[derive(Clone, Debug, Default)]
pub(crate) struct Groups {
    groups: Slab<GroupId, Group>,
    ids: AHashMap<Arc<GroupKey>, GroupId>,
    by_atom: AHashMap<AtomId, AHashSet<GroupId>>,
    pending: AHashSet<GroupId>,
    /// Groups whose rows, columns or cells may differ from the last flush, and removed groups.
    changed: AHashSet<GroupId>,
    /// Bytes of all tables.
    ledger: Ledger<GroupId>,
}

impl Groups {
    pub(crate) fn is_empty(&self) -> bool {
        self.groups.len() == 0 && self.ids.is_empty() && self.by_atom.is_empty() && self.ledger.is_empty()
    }

    /// The group with this key, with one endpoint more.
    pub(crate) fn acquire(&mut self, key: GroupKey, owners: &mut Owners) -> GroupId {
        if let Some(id) = self.ids.get(&key) {
            self.groups.at_mut(*id).endpoints += 1;
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

    /// Removes an endpoint from a group. The group is removed with its last endpoint.
    pub(crate) fn release(&mut self, id: GroupId, owners: &mut Owners) {
        let group = self.groups.at_mut(id);
        group.endpoints -= 1;
        if group.endpoints > 0 {
            return;
        }
        let group = self.groups.remove(id);
        for owner in owner_keys(&group.key) {
            owners.remove_group(&owner, id);
        }
        if let Some(Ok(table)) = &group.table {
            forget_atoms(&mut self.by_atom, table.atoms(), id);
        }
        self.ids.remove(&group.key);
        self.ledger.remove(id);
        self.pending.remove(&id);
        self.changed.insert(id);
    }

    pub(crate) fn set_pending(&mut self, groups: impl IntoIterator<Item = GroupId>) {
        self.pending.extend(groups);
    }

    /// Updates all tables. Returns the changed groups, in order.
    pub(crate) fn flush(&mut self, buckets: &BucketChanges, owners: &Owners, addresses: &Addresses) -> Vec<GroupId> {
        for (bucket, own) in &buckets.removed {
            for id in self.users(own.iter().copied()) {
                if self.table_mut(id).is_some_and(|table| table.remove(*bucket)) {
                    self.changed.insert(id);
                }
                self.account(id, owners);
            }
        }
        for bucket in &buckets.born {
            let bucket_atoms = BucketAtoms::new(*bucket, addresses);
            for id in sorted(self.users(addresses.own_atoms(*bucket))) {
                self.bound(id);
                if self.table_mut(id).is_some_and(|table| table.add(&bucket_atoms)) {
                    self.changed.insert(id);
                }
                self.account(id, owners);
            }
        }
        for id in sorted(self.users(buckets.inherited.atoms.iter().copied())) {
            self.bound(id);
            let Some(table) = self.table_mut(id) else { continue };
            let touched: AHashSet<BucketId> =
                table.buckets().filter(|bucket| buckets.inherited.buckets.contains(bucket)).collect();
            let mut has_other_rows = false;
            for bucket in touched {
                has_other_rows |= table.remove(bucket);
                has_other_rows |= table.add(&BucketAtoms::new(bucket, addresses));
                if table.meter().is_over() {
                    break;
                }
            }
            if has_other_rows {
                self.changed.insert(id);
            }
            self.account(id, owners);
        }
        self.refuse_largest(owners);
        // A refusal may leave room for groups that were refused before.
        for _ in 0..2 {
            self.pending.extend(self.ledger.with_room());
            for id in sorted(std::mem::take(&mut self.pending)) {
                self.build(id, owners, addresses);
                self.refuse_largest(owners);
            }
        }
        let mut changed: Vec<GroupId> = std::mem::take(&mut self.changed).into_iter().collect();
        changed.sort_unstable();
        changed
    }

    /// Returns the groups with a table that asks for an atom, in no order.
    pub(crate) fn asking(&self, atom: AtomId) -> impl Iterator<Item = GroupId> + '_ {
        self.by_atom.get(&atom).into_iter().flatten().copied()
    }

    /// Returns the groups that ask for one of these atoms and are not to be rebuilt.
    fn users(&self, atoms: impl Iterator<Item = AtomId>) -> AHashSet<GroupId> {
        let users = atoms.filter_map(|atom| self.by_atom.get(&atom)).flatten();
        users.copied().filter(|id| !self.pending.contains(id)).collect()
    }

    fn table_mut(&mut self, id: GroupId) -> Option<&mut Table> {
        self.groups.at_mut(id).table.as_mut()?.as_mut().ok()
    }

    /// Bounds the growth of a table.
    fn bound(&mut self, id: GroupId) {
        let limit = self.ledger.budget().group;
        if let Some(table) = self.table_mut(id) {
            table.set_limit(limit);
        }
    }

    /// Records the current cost of a table, and refuses the table if it is over budget.
    fn account(&mut self, id: GroupId, owners: &Owners) {
        let group = self.groups.at(id);
        let Some(Ok(table)) = &group.table else { return };
        let (cost, limit) = (table.meter().spent(), table.meter().limit());
        self.ledger.hold(id, group.key.namespace(), cost);
        if table.meter().is_over() {
            self.refuse(id, limit, owners);
        }
    }

    /// Drops a table that does not fit within `limit` bytes.
    fn refuse(&mut self, id: GroupId, limit: usize, owners: &Owners) {
        let group = self.groups.at_mut(id);
        let why = match Program::sizes(&group.key, owners) {
            Ok((_, policies)) => over_budget(limit, policies),
            Err(missing) => missing,
        };
        let mut needed = 0;
        if let Some(Ok(table)) = group.table.replace(Err(why)) {
            forget_atoms(&mut self.by_atom, table.atoms(), id);
            needed = table.meter().spent();
        }
        self.ledger.refuse(id, group.key.namespace(), needed);
        self.changed.insert(id);
    }

    /// Drops the largest table of the namespace that takes the most, until all tables fit.
    fn refuse_largest(&mut self, owners: &Owners) {
        while let Some(id) = self.ledger.excess() {
            self.refuse(id, self.ledger.budget().node, owners);
        }
    }

    /// Bytes of all tables.
    pub(crate) fn used(&self) -> usize {
        self.ledger.used()
    }

    pub(crate) fn budget(&self) -> Budget {
        self.ledger.budget()
    }

    /// Replaces the bounds. At the next flush, tables over the new bounds are refused, and groups
    /// over the previous ones are built again.
    pub(crate) fn set_budget(&mut self, budget: Budget) {
        let over = self.ledger.set_budget(budget);
        self.pending.extend(over);
    }

    fn build(&mut self, id: GroupId, owners: &Owners, addresses: &Addresses) {
        let limit = self.ledger.budget().group;
        let group = self.groups.at_mut(id);
        let atoms_before = match group.table.take() {
            Some(Ok(before)) => before.sorted_atoms(),
            _ => Vec::new(),
        };
        let built = table(&group.key, owners, addresses, Meter::new(limit));
        let atoms = built.as_ref().map_or(Vec::new(), Table::sorted_atoms);
        let is_in = |atoms: &[AtomId], atom: &AtomId| atoms.binary_search(atom).is_ok();
        forget_atoms(&mut self.by_atom, atoms_before.iter().copied().filter(|atom| !is_in(&atoms, atom)), id);
        for atom in atoms.iter().filter(|atom| !is_in(&atoms_before, atom)) {
            self.by_atom.entry(*atom).or_default().insert(id);
        }
        match &built {
            Ok(table) => {
                self.ledger.hold(id, group.key.namespace(), table.meter().spent());
            }
            Err(Missing::TableBudget { .. }) => {
                self.ledger.refuse(id, group.key.namespace(), limit.saturating_add(1));
            }
            Err(_) => self.ledger.hold(id, group.key.namespace(), 0),
        }
        group.table = Some(built);
        self.changed.insert(id);
    }

    pub(crate) fn key(&self, id: GroupId) -> Option<&GroupKey> {
        self.groups.get(id).map(|group| &*group.key)
    }

    pub(crate) fn name(&self, id: GroupId) -> Option<GroupName> {
        self.groups.get(id).map(|group| GroupName(Arc::clone(&group.key)))
    }

    /// Returns the table of a group, or the reason why it has none.
    pub(crate) fn table(&self, id: GroupId) -> Option<Result<&Table, &Missing>> {
        Some(self.groups.get(id)?.table.as_ref()?.as_ref())
    }

    /// All groups, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = GroupId> + '_ {
        self.groups.iter().map(|(id, _)| id)
    }
}

/// The table of a group, unless it is over budget: then the rest is not worked out.
fn table(key: &GroupKey, owners: &Owners, addresses: &Addresses, mut meter: Meter) -> Result<Table, Missing> {
    let (clauses, policies) = Program::sizes(key, owners)?;
    meter.clauses(clauses);
    let limit = meter.limit();
    if meter.is_over() {
        return Err(over_budget(limit, policies));
    }
    let mut table = Table::new(Program::new(key, owners)?, key.direction, meter);
    for bucket in table.sorted_atoms().into_iter().flat_map(|atom| addresses.buckets_with(atom)) {
        if table.meter().is_over() {
            break;
        }
        table.add_row(&BucketAtoms::new(bucket, addresses));
    }
    if table.meter().is_over() {
        return Err(over_budget(limit, policies));
    }
    table.fill();
    Ok(table)
}

fn over_budget(limit: usize, policies: Vec<(usize, PolicyId)>) -> Missing {
    let policies = policies.into_iter().take(NAMED_POLICIES).map(|(_, id)| id).collect();
    Missing::TableBudget { limit, policies }
}

fn sorted(groups: AHashSet<GroupId>) -> Vec<GroupId> {
    let mut groups: Vec<GroupId> = groups.into_iter().collect();
    groups.sort_unstable();
    groups
}

fn forget_atoms(by_atom: &mut AHashMap<AtomId, AHashSet<GroupId>>, atoms: impl Iterator<Item = AtomId>, id: GroupId) {
    for atom in atoms {
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
