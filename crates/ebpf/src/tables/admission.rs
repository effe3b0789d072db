//! Admission of groups within the blocks of a node: charges of groups and of the networks that
//! workloads may send from, and the groups that a division of the blocks closes or opens again.

use std::collections::{BTreeMap, BTreeSet};

use tortie_classes::{Compiled, GroupId, GroupName};
use tortie_model::WorkloadEndpointId;

use super::shares::ShareChanges;
use super::{Closed, Tables};
use crate::group_roots::GroupRoots;

/// Object that is charged with blocks, see [`Shares`](super::shares::Shares).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Holder {
    /// Tries of a group.
    Group(GroupName, GroupId),
    /// Tries of the networks that a workload may send from.
    Sources(WorkloadEndpointId),
}

/// Charge of a group.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) name: GroupName,
    /// Blocks of the tries that do not depend on addresses.
    pub(super) fixed: u64,
}

/// Changes of groups by an update so far.
#[derive(Debug, Default)]
pub(super) struct Update {
    /// Earlier roots of groups whose tries may have changed.
    pub(super) before: BTreeMap<GroupId, Option<GroupRoots>>,
    /// Groups with tries of this update.
    pub(super) made: BTreeSet<GroupId>,
    /// Groups that the last division refused or admitted, whose state may not match it yet.
    pub(super) undecided: BTreeSet<GroupId>,
}

impl Tables {
    /// Returns the number of blocks charged to groups and to the networks of workloads, including
    /// refused ones. Each counts as if it shared no block with others.
    #[must_use]
    pub fn charged_blocks(&self) -> u64 {
        self.shares.total()
    }

    /// Returns the number of blocks charged to a group; `None` for one that takes none.
    #[must_use]
    pub fn charge(&self, group: GroupId) -> Option<u64> {
        let claim = self.claims.get(&group)?;
        self.shares.charge(&Holder::Group(claim.name.clone(), group))
    }

    /// Notes the roots of a group before the update.
    pub(super) fn note(&self, id: GroupId, update: &mut Update) {
        update.before.entry(id).or_insert_with(|| self.group(id));
    }

    /// Charges a group with its fixed blocks and with all of them; `None` for one that takes none.
    pub(super) fn claim(&mut self, id: GroupId, compiled: &Compiled<'_>, charge: Option<(u64, u64)>) -> Option<Holder> {
        let new = compiled.group_name(id).zip(charge);
        let known = self.claims.get(&id).filter(|claim| new.as_ref().is_none_or(|(name, _)| *name != claim.name));
        if let Some(claim) = known {
            self.shares.remove(&Holder::Group(claim.name.clone(), id));
            self.claims.remove(&id);
        }
        let (name, (fixed, charge)) = new?;
        let holder = Holder::Group(name.clone(), id);
        self.shares.set(holder.clone(), name.namespace(), charge);
        self.claims.insert(id, Claim { name, fixed });
        Some(holder)
    }

    /// Divides the blocks. Refused tries of this update are released at once, so that the number of
    /// blocks never exceeds the limit by much. Groups in force stay until the end of the update,
    /// when all charges are known.
    pub(super) fn settle(&mut self, update: &mut Update) {
        let ShareChanges { refused, admitted } = self.shares.settle();
        for holder in refused.into_iter().chain(admitted) {
            let Holder::Group(_, id) = holder else { continue };
            update.undecided.insert(id);
            if update.made.remove(&id) {
                self.close_refused(id, update);
            }
        }
    }

    /// Opens and closes groups according to the present division. Each group that is rebuilt for
    /// this then has its present charge, so the loop ends.
    pub(super) fn align(&mut self, compiled: &Compiled<'_>, update: &mut Update) {
        self.settle(update);
        while let Some(id) = update.undecided.pop_first() {
            let holder = self.claims.get(&id).map(|claim| Holder::Group(claim.name.clone(), id));
            let is_refused = holder.is_some_and(|holder| self.shares.is_refused(&holder));
            match self.groups.get(&id) {
                Some(Ok(_)) if is_refused => self.close_refused(id, update),
                Some(Err(Closed::NoBlocks { .. })) if !is_refused => self.replace(id, compiled, update),
                _ => {}
            }
        }
    }

    /// Closes a group that the division refuses.
    fn close_refused(&mut self, id: GroupId, update: &mut Update) {
        self.note(id, update);
        let Some(Ok(trees)) = self.groups.get(&id) else { return };
        let why = Closed::NoBlocks { needed: trees.charge(&self.blocks), limit: self.limits.blocks };
        if let Some(Ok(trees)) = self.groups.insert(id, Err(why)) {
            trees.release(&mut self.blocks, &mut self.decisions);
        }
    }

    /// Charges a workload's namespace with the tries of the networks that the workload may send
    /// from; `None` removes the charge.
    pub(crate) fn claim_sources(&mut self, id: &WorkloadEndpointId, charge: Option<(&str, u64)>) {
        let holder = Holder::Sources(id.clone());
        match charge {
            Some((namespace, charge)) => self.shares.set(holder, namespace, charge),
            None => self.shares.remove(&holder),
        }
    }

    /// Returns the reason why the tries of the networks that a workload may send from are refused,
    /// as of the last update.
    pub(crate) fn refused_sources(&self, id: &WorkloadEndpointId) -> Option<Closed> {
        let holder = Holder::Sources(id.clone());
        let needed = self.shares.charge(&holder).filter(|_| self.shares.is_refused(&holder))?;
        Some(Closed::NoBlocksForSources { needed, limit: self.limits.blocks })
    }
}
