//! One scope: its names, and the members that follow from them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ahash::{AHashMap, AHashSet};
use tortie_net::DomainName;

use crate::changes::Changes;
use crate::cluster::{Cluster, Refusal};
use crate::names::{Key, Names};
use crate::sets::Sets;
use crate::slab::Slot;
use crate::types::{Action, Member, Millis, Scope, Settings};

/// The state that all scopes share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// The time of expiry of each address: its scope, and its place there.
    pub(crate) expiries: BTreeSet<(Millis, Slot, Slot)>,
    /// The scopes with kept members, and the end of these.
    pub(crate) kept: BTreeSet<(Millis, Slot)>,
    pub(crate) changes: Changes,
}

/// Everything that an operation of a scope needs from outside.
pub(crate) struct Context<'c> {
    /// The number of the scope.
    pub(crate) place: Slot,
    pub(crate) settings: &'c Settings,
    pub(crate) cluster: &'c Cluster,
    pub(crate) sets: &'c Sets,
    pub(crate) shared: &'c mut Shared,
}

/// The effect of an answer, in pairs of a name and an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effect {
    pub(crate) added: usize,
    pub(crate) renewed: usize,
    pub(crate) matched: usize,
    pub(crate) evicted: usize,
    pub(crate) refused: [usize; Refusal::ALL.len()],
}

impl Effect {
    fn refuse(&mut self, refusal: Refusal) {
        if let Some(count) = self.refused.get_mut(refusal as usize) {
            *count += 1;
        }
    }
}

/// A learning scope.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) scope: Scope,
    /// The caller's number for the holder of the scope.
    pub(crate) owner: u64,
    /// In order.
    pub(crate) sets: Vec<Slot>,
    pub(crate) names: Names,
    /// For each set and address: the number of names in the set that have it, plus one if the
    /// member is kept.
    members: AHashMap<(Slot, Key), u32>,
    /// Members that the kernel had at a restart, and the end of the time for which they remain.
    kept: AHashSet<(Slot, Key)>,
    kept_until: Millis,
}

impl Endpoint {
    pub(crate) fn new(scope: Scope, owner: u64) -> Self {
        Self {
            scope,
            owner,
            sets: Vec::new(),
            names: Names::default(),
            members: AHashMap::default(),
            kept: AHashSet::default(),
            kept_until: Millis(0),
        }
    }

    /// Learns addresses of names, each pair once, with their times of expiry.
    pub(crate) fn learn<'n>(
        &mut self,
        context: &mut Context<'_>,
        pairs: impl Iterator<Item = (&'n DomainName, IpAddr, Millis)>,
    ) -> Effect {
        self.names.begin_answer();
        let (mut effect, mut unknown) = (Effect::default(), Vec::new());
        // Known pairs first, so that new ones do not evict them.
        for (name, address, expires) in pairs {
            let cluster = context.settings.cluster_addresses;
            if let Some(refusal) = context.cluster.refusal(name, address, cluster) {
                effect.refuse(refusal);
                continue;
            }
            let (known, key) = (self.names.find_name(name), Key::new(address));
            if let Some(slot) = known {
                self.names.touch(slot);
            }
            match known.and_then(|slot| Some((slot, self.names.find(slot, key)?))) {
                Some((slot, entry)) => {
                    let (before, after) = self.names.renew(entry, expires);
                    if before != after {
                        context.shared.expiries.remove(&(before, context.place, entry));
                        context.shared.expiries.insert((after, context.place, entry));
                    }
                    effect.renewed += 1;
                    effect.matched += usize::from(!self.names.name(slot).sets.is_empty());
                }
                None => unknown.push((name, key, expires)),
            }
        }
        for (name, key, expires) in unknown {
            self.add(context, (name, key, expires), &mut effect);
        }
        effect
    }

    /// Adds a pair that is not there, and evicts others where a limit requires it.
    fn add(&mut self, context: &mut Context<'_>, pair: (&DomainName, Key, Millis), effect: &mut Effect) {
        let (name, key, expires) = pair;
        let Some(slot) = self.place_of_name(context, name, effect) else {
            return effect.refuse(Refusal::NoRoom);
        };
        while let Some(victim) = self.excess(context, slot) {
            let Some(victim) = victim else {
                self.drop_if_empty(slot);
                return effect.refuse(Refusal::NoRoom);
            };
            let of = self.names.entry(victim).name;
            self.remove(context, victim);
            if of != slot {
                self.drop_if_empty(of);
            }
            effect.evicted += 1;
        }
        let entry = self.names.insert(slot, key, expires);
        context.shared.expiries.insert((expires, context.place, entry));
        let sets = self.names.name(slot).sets.clone();
        sets.iter().for_each(|set| self.add_member(context, (*set, key)));
        effect.added += 1;
        effect.matched += usize::from(!sets.is_empty());
    }

    /// Returns the place of a name, which is made if it does not exist; `None` if there is no room.
    fn place_of_name(&mut self, context: &mut Context<'_>, name: &DomainName, effect: &mut Effect) -> Option<Slot> {
        if let Some(slot) = self.names.find_name(name) {
            return Some(slot);
        }
        while self.names.names() >= context.settings.limits.names_per_scope {
            let victim = self.names.victim_name()?;
            effect.evicted += self.remove_name(context, victim);
        }
        let sets = context.sets.matching(name, &self.sets);
        Some(self.names.insert_name(name.clone(), sets))
    }

    /// Returns the address to evict before the name at `slot` can have one more, `Some(None)` if
    /// there is none, and `None` if there is room.
    fn excess(&self, context: &Context<'_>, slot: Slot) -> Option<Option<Slot>> {
        let limits = &context.settings.limits;
        if self.names.name(slot).len() >= limits.addresses_per_name {
            return Some(self.names.oldest_stale(slot));
        }
        let is_full =
            self.names.addresses() >= limits.addresses_per_scope || context.shared.expiries.len() >= limits.addresses;
        is_full.then(|| self.names.victim())
    }

    /// Removes an address. Its name stays, even without addresses.
    fn remove(&mut self, context: &mut Context<'_>, slot: Slot) {
        let entry = self.names.remove(slot);
        context.shared.expiries.remove(&(entry.expires, context.place, slot));
        let sets = self.names.name(entry.name).sets.clone();
        sets.into_iter().for_each(|set| self.remove_member(context, (set, entry.address)));
    }

    /// Removes an address, and its name if that has no other.
    pub(crate) fn forget(&mut self, context: &mut Context<'_>, slot: Slot) {
        let name = self.names.entry(slot).name;
        self.remove(context, slot);
        self.drop_if_empty(name);
    }

    /// Removes a name with its addresses, and returns the number of these.
    fn remove_name(&mut self, context: &mut Context<'_>, name: Slot) -> usize {
        let entries: Vec<Slot> = self.names.entries(name).collect();
        entries.iter().for_each(|entry| self.remove(context, *entry));
        self.names.remove_name(name);
        entries.len()
    }

    fn drop_if_empty(&mut self, name: Slot) {
        if self.names.name(name).len() == 0 {
            self.names.remove_name(name);
        }
    }

    /// Removes everything that the scope has learned, and all kept members.
    pub(crate) fn clear(&mut self, context: &mut Context<'_>) {
        let names: Vec<Slot> = self.names.in_order().collect();
        for name in names {
            self.remove_name(context, name);
        }
        self.end_kept(context);
    }

    /// Removes the addresses that the cluster has now and that their names may not have.
    pub(crate) fn judge_again(&mut self, context: &mut Context<'_>) {
        let entries: Vec<Slot> = self.names.in_order().flat_map(|name| self.names.entries(name)).collect();
        for slot in entries {
            let entry = self.names.entry(slot);
            let name = &self.names.name(entry.name).name;
            let cluster = context.settings.cluster_addresses;
            if context.cluster.refusal(name, entry.address.address(), cluster).is_some() {
                self.forget(context, slot);
            }
        }
    }

    /// Replaces the sets of the scope, and returns those that it had before and has no longer.
    pub(crate) fn set_sets(&mut self, context: &mut Context<'_>, sets: Vec<Slot>) -> Vec<Slot> {
        let before = std::mem::replace(&mut self.sets, sets);
        let added: Vec<Slot> = self.sets.iter().copied().filter(|set| before.binary_search(set).is_err()).collect();
        let removed: Vec<Slot> = before.into_iter().filter(|set| self.sets.binary_search(set).is_err()).collect();
        added.into_iter().chain(removed.iter().copied()).for_each(|set| self.match_again(context, set));
        removed
    }

    /// Brings the members of a set up to date after a change of its patterns or of the scope's
    /// sets.
    pub(crate) fn match_again(&mut self, context: &mut Context<'_>, set: Slot) {
        let is_used = self.sets.binary_search(&set).is_ok();
        let names: Vec<Slot> = self.names.in_order().collect();
        for slot in names {
            let name = self.names.name(slot);
            let is_matched = is_used && !context.sets.matching(&name.name, &[set]).is_empty();
            let mut sets = name.sets.clone();
            match (sets.binary_search(&set), is_matched) {
                (Ok(at), false) => drop(sets.remove(at)),
                (Err(at), true) => sets.insert(at, set),
                _ => continue,
            }
            self.names.set_sets(slot, sets);
            let keys: Vec<Key> = self.names.entries(slot).map(|entry| self.names.entry(entry).address).collect();
            for key in keys {
                if is_matched {
                    self.add_member(context, (set, key));
                } else {
                    self.remove_member(context, (set, key));
                }
            }
        }
        if !is_used || !context.sets.has_patterns(set) {
            let ended: Vec<(Slot, Key)> = self.kept.iter().copied().filter(|(of, _)| *of == set).collect();
            for member in ended {
                self.kept.remove(&member);
                self.remove_member(context, member);
            }
            if self.kept.is_empty() {
                self.end_kept(context);
            }
        }
    }

    /// Keeps members that the kernel has and that nothing learned explains, until a time.
    pub(crate) fn keep(&mut self, context: &mut Context<'_>, members: AHashSet<(Slot, Key)>, until: Millis) {
        self.end_kept(context);
        for member in &members {
            self.add_member(context, *member);
        }
        if !members.is_empty() {
            context.shared.kept.insert((until, context.place));
        }
        (self.kept, self.kept_until) = (members, until);
    }

    /// Ends the time of kept members.
    pub(crate) fn end_kept(&mut self, context: &mut Context<'_>) {
        context.shared.kept.remove(&(self.kept_until, context.place));
        for member in std::mem::take(&mut self.kept) {
            self.remove_member(context, member);
        }
    }

    pub(crate) fn members(&self) -> impl ExactSizeIterator<Item = (Slot, Key)> {
        self.members.keys().copied()
    }

    pub(crate) fn has_member(&self, member: (Slot, Key)) -> bool {
        self.members.contains_key(&member)
    }

    fn add_member(&mut self, context: &mut Context<'_>, member: (Slot, Key)) {
        let count = self.members.entry(member).or_default();
        *count += 1;
        if *count == 1 {
            self.note(context, member, Action::Added);
        }
    }

    fn remove_member(&mut self, context: &mut Context<'_>, member: (Slot, Key)) {
        let Some(count) = self.members.get_mut(&member) else { return };
        *count -= 1;
        if *count == 0 {
            self.members.remove(&member);
            self.note(context, member, Action::Removed);
        }
    }

    fn note(&self, context: &mut Context<'_>, (set, key): (Slot, Key), action: Action) {
        let member = Member { set: context.sets.id(set).clone(), scope: self.scope, address: key.address() };
        context.shared.changes.note(member, action);
    }
}
