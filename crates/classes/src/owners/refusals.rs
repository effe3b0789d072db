//! Policies that are refused since their networks would cost too much: in classes that inherit
//! atoms, or in trees of addresses.

use std::collections::{BTreeMap, BTreeSet};

use ahash::{AHashMap, AHashSet};
use tortie_evaluate::Missing;
use tortie_model::desired::Rules;
use tortie_model::{Cidr, IpSetId, Ledger};

use super::{Compilation, OwnerKey, Owners, sets as sets_of};
use crate::addresses::Addresses;
use crate::budget::Budget;
use crate::ids::{AtomId, OwnerId};
use crate::room::{self, Claimant, Division, Holding};
use crate::sets::{NetList, Set, Sets};

/// Bytes of an atom of a class.
const INHERITED: usize = 4;
/// Divisor of the tries' bound. While policies are refused, a change of more blocks divides the
/// tries again.
const STALE: usize = 64;

/// The bound that a policy's networks exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Classes of addresses would inherit too many of its atoms.
    Inherited,
    /// The trees of addresses would have too many blocks.
    Room,
}

impl Refusal {
    pub(super) fn error(self, key: &OwnerKey, limit: usize) -> Missing {
        match self {
            Self::Inherited => key.over(limit),
            Self::Room => Missing::AddressBudget { limit, policy: key.policy().cloned() },
        }
    }
}

/// The trees of addresses, as they are divided among policies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Bound of the trees, in blocks.
    pub(super) blocks: usize,
    /// Blocks that the next policy to be admitted needs; `None` if none is refused.
    needed: Option<usize>,
    /// Blocks that sets of refused policies have lost since the last division, at most.
    shrunk: usize,
    /// Whether the networks of a refused policy have changed.
    pub(super) is_stale: bool,
}

impl Default for Room {
    fn default() -> Self {
        Self { blocks: usize::MAX, needed: None, shrunk: 0, is_stale: false }
    }
}

impl Room {
    /// Reports whether the tries exceed their bound, or there may be room for a refused policy.
    pub(super) fn must_divide(&mut self, shrunk: usize, addresses: &mut Addresses) -> bool {
        self.shrunk += shrunk;
        if self.is_stale || !addresses.trees_are_within(self.blocks) {
            return true;
        }
        self.needed.is_some_and(|needed| {
            addresses.undivided_blocks().max(self.shrunk) > self.blocks / STALE
                || addresses.trees_are_within(self.blocks.saturating_sub(needed.saturating_sub(self.shrunk)))
        })
    }
}

impl Owners {
    /// Replaces the bound of the trees of addresses, in blocks.
    pub(crate) fn set_address_blocks(&mut self, blocks: usize) {
        self.room.blocks = blocks;
        self.room.is_stale = true;
    }

    pub(super) fn retry_inherited(&mut self) {
        self.refused_at = None;
        let is_inherited = |refusal| refusal == Some(Refusal::Inherited);
        let refused = self.owners.iter().filter(|(_, owner)| is_inherited(owner.refusal)).map(|(id, _)| id);
        for id in refused.collect::<Vec<_>>() {
            self.set_refusal(id, None);
        }
    }

    fn set_refusal(&mut self, id: OwnerId, refusal: Option<Refusal>) {
        self.owners.at_mut(id).refusal = refusal;
        self.set_pending(id);
    }

    /// Refuses policies until classes of addresses inherit no more atoms than a group's table may
    /// take. The policies whose networks and IP sets cause the most inherited atoms are refused
    /// first, in the namespace with the most of them. Returns whether a policy was refused.
    pub(super) fn refuse_inherited(&mut self, sets: &Sets, addresses: &mut Addresses, budget: Budget) -> bool {
        let limit = budget.group / INHERITED;
        let Some(inherited) = addresses.inheritance_over(limit) else { return false };
        let mut ledger = Ledger::default();
        // Both sides are charged: lists with wide networks, and lists with many networks within.
        let _ = ledger.set_budget(Budget { group: limit, node: limit.saturating_mul(2) });
        for (id, owner) in self.owners.iter() {
            let of_atom = |atom: &AtomId| inherited.by_atom.get(atom).copied().unwrap_or_default();
            let of_list = |list: &NetList| of_atom(&list.atom) / self.lists.users(list);
            let of_set = |id: &IpSetId| {
                let atoms = sets.get(id).into_iter().flat_map(Set::atoms);
                atoms.map(|atom| of_atom(&atom)).sum::<usize>() / self.set_users.get(id).map_or(1, |users| users.len())
            };
            let sets: BTreeSet<&IpSetId> = sets_of(owner.rules.as_ref()).collect();
            let lists: usize = owner.compiled.iter().flat_map(Compilation::lists).map(of_list).sum();
            let cost = lists + sets.into_iter().map(of_set).sum::<usize>();
            if cost > 0 && owner.refusal.is_none() {
                ledger.hold(id, owner.key.namespace(), cost);
            }
        }
        let mut has_refused = false;
        while let Some(id) = ledger.excess() {
            ledger.remove(id);
            self.set_refusal(id, Some(Refusal::Inherited));
            has_refused = true;
        }
        has_refused
    }

    /// Gives the sets of pending policies their atoms, unless these policies are refused.
    pub(super) fn admit_sets(&self, sets: &mut Sets, addresses: &mut Addresses) {
        if !sets.has_idle() {
            return;
        }
        let pending = self.pending.iter().map(|id| self.owners.at(*id));
        for owner in pending.filter(|owner| owner.refusal.is_none()) {
            sets_of(owner.rules.as_ref()).for_each(|id| sets.set_live(id, addresses));
        }
    }

    /// Refuses policies until the tries of addresses are within their bound, and admits policies
    /// for which there is room. Returns whether policies must be compiled again.
    #[expect(clippy::indexing_slicing, reason = "claimants are numbered in the order of their owners")]
    pub(super) fn divide_room(&mut self, sets: &mut Sets, addresses: &mut Addresses) -> bool {
        self.room.is_stale = false;
        self.room.shrunk = 0;
        let (owners, Division { refused, needed }) = self.division(sets, addresses);
        let refused: AHashSet<OwnerId> = refused.into_iter().map(|number| owners[number]).collect();
        self.room.needed = (!refused.is_empty()).then_some(needed);
        let all: Vec<OwnerId> = self.owners.iter().map(|(id, _)| id).collect();
        let mut has_changed = false;
        for id in all {
            let (was, is) = (self.owners.at(id).refusal == Some(Refusal::Room), refused.contains(&id));
            if was != is {
                self.set_refusal(id, is.then_some(Refusal::Room));
                has_changed = true;
            }
        }
        self.settle_sets(sets, addresses);
        has_changed
    }

    /// Divides the trees among all policies, in the order of their names.
    fn division(&self, sets: &Sets, addresses: &Addresses) -> (Vec<OwnerId>, Division) {
        let mut holdings: Vec<Holding> = Vec::new();
        let mut of_sets: AHashMap<&IpSetId, usize> = AHashMap::new();
        let is_inherited = |id: &OwnerId| self.owners.at(*id).refusal == Some(Refusal::Inherited);
        let has_users = |id: &IpSetId| self.set_users.get(id).is_some_and(|users| !users.iter().all(is_inherited));
        for id in sets.ids().filter(|id| sets.get(id).is_some() || has_users(id)) {
            of_sets.insert(id, holdings.len());
            holdings.push(sets.nets(id, addresses).into_iter().flatten().collect());
        }
        let by_key: BTreeMap<&OwnerKey, OwnerId> = self.ids.iter().map(|(key, id)| (key, *id)).collect();
        let mut of_lists: AHashMap<Vec<Cidr>, usize> = AHashMap::new();
        let mut owners = Vec::new();
        let mut claimants = Vec::new();
        for (key, id) in by_key {
            if is_inherited(&id) {
                continue;
            }
            let owner = self.owners.at(id);
            let mut held: Vec<usize> =
                sets_of(owner.rules.as_ref()).filter_map(|set| of_sets.get(set).copied()).collect();
            let lists: Vec<Vec<Cidr>> = match owner.refusal {
                None => owner.compiled.iter().flat_map(Compilation::lists).map(|list| list.nets().to_vec()).collect(),
                Some(_) => lists(owner.rules.as_ref()).collect(),
            };
            for nets in lists {
                held.push(*of_lists.entry(nets).or_insert_with_key(|nets| {
                    holdings.push(nets.clone());
                    holdings.len() - 1
                }));
            }
            held.sort_unstable();
            held.dedup();
            if !held.is_empty() {
                owners.push(id);
                claimants.push(Claimant { namespace: key.namespace(), holdings: held });
            }
        }
        let division = room::divide(self.room.blocks, &holdings, &claimants);
        (owners, division)
    }

    /// Makes sets idle if only refused policies have them.
    pub(super) fn settle_sets(&self, sets: &mut Sets, addresses: &mut Addresses) {
        let is_refused = |id: &OwnerId| self.owners.at(*id).refusal.is_some();
        for (set, users) in &self.set_users {
            if users.iter().all(is_refused) {
                sets.set_idle(set, addresses);
            } else {
                sets.set_live(set, addresses);
            }
        }
    }
}

/// The lists of networks of rules, each in order and without repetition.
fn lists(rules: Option<&[Rules; 2]>) -> impl Iterator<Item = Vec<Cidr>> {
    let sides = rules.into_iter().flatten().flat_map(Rules::iter).flat_map(|view| {
        let rule = view.rule;
        [&rule.source, &rule.destination]
    });
    let lists = sides.flat_map(|side| [&side.nets, &side.extras.not_nets]);
    lists.filter(|nets| !nets.is_empty()).map(|nets| NetList::key(nets))
}

/// Reports whether the networks or sets of two lists of rules differ.
pub(super) fn nets_differ(one: Option<&[Rules; 2]>, other: Option<&[Rules; 2]>) -> bool {
    let all = |rules| (sets_of(rules).collect::<BTreeSet<_>>(), lists(rules).collect::<BTreeSet<_>>());
    all(one) != all(other)
}
