//! One scope: its names, and the members that follow from them.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

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

impl Context<'_> {
    /// Returns the reason for which the scope may not learn an address, or not from outside of the
    /// cluster domain.
    fn refusal(&self, is_inside: bool, address: IpAddr) -> Option<Refusal> {
        self.cluster.refusal(is_inside, address, self.settings.cluster_addresses)
    }
}

/// An address that a scope learns for a name.
pub(crate) struct Pair<'n> {
    pub(crate) name: &'n DomainName,
    pub(crate) address: IpAddr,
    pub(crate) expires: Millis,
    /// The name, the owner of the address, and all names between are below the cluster domain.
    pub(crate) is_inside: bool,
}

/// The addresses that an answer may evict on top of one for each of its pairs: so many that the
/// largest name that the default limits allow can go for one new name.
pub(crate) const EVICTIONS: usize = 1_000;

/// The effect of an answer, in pairs of a name and an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effect {
    /// Pairs that the answer may still evict.
    may_evict: usize,
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

    fn evict(&mut self, pairs: usize) {
        self.evicted += pairs;
        self.may_evict = self.may_evict.saturating_sub(pairs);
    }
}

/// A learning scope.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) scope: Scope,
    /// The caller's number for the holder of the scope.
    pub(crate) owner: u64,
    /// Scopes that share room.
    pub(crate) group: Arc<str>,
    /// In order.
    pub(crate) sets: Vec<Slot>,
    pub(crate) names: Names,
    /// For each set and address: the number of names in the set that have it, plus one if the
    /// member is kept.
    members: AHashMap<(Slot, Key), u32>,
    /// The sum of these numbers without kept members.
    weight: usize,
    /// Members that the kernel had at a restart, and the end of the time for which they remain.
    kept: AHashSet<(Slot, Key)>,
    kept_until: Millis,
}

impl Endpoint {
    pub(crate) fn new(scope: Scope, owner: u64) -> Self {
        Self {
            scope,
            owner,
            group: Arc::default(),
            sets: Vec::new(),
            names: Names::default(),
            members: AHashMap::default(),
            weight: 0,
            kept: AHashSet::default(),
            kept_until: Millis(0),
        }
    }

    /// Learns addresses of names. A pair that occurs twice is a new one and then a known one.
    pub(crate) fn learn<'n>(&mut self, context: &mut Context<'_>, pairs: impl Iterator<Item = Pair<'n>>) -> Effect {
        self.names.begin_answer();
        let (mut effect, mut unknown) = (Effect { may_evict: EVICTIONS, ..Effect::default() }, Vec::new());
        // Known pairs first, so that new ones do not evict them.
        for pair in pairs {
            effect.may_evict += 1;
            if let Some(refusal) = context.refusal(pair.is_inside, pair.address) {
                effect.refuse(refusal);
                continue;
            }
            let known = self.names.find_name(pair.name);
            if let Some(slot) = known {
                self.names.touch(slot);
            }
            match known.and_then(|slot| self.names.find(slot, Key::new(pair.address))) {
                Some(entry) => {
                    self.names.renew(entry);
                    self.extend(context, entry, &pair, &mut effect);
                }
                None => unknown.push(pair),
            }
        }
        for pair in unknown {
            self.add(context, &pair, &mut effect);
        }
        effect
    }

    /// Extends the lifetime of a pair that is there.
    fn extend(&mut self, context: &mut Context<'_>, entry: Slot, pair: &Pair<'_>, effect: &mut Effect) {
        let (before, after) = self.names.extend(entry, pair.expires, pair.is_inside);
        if before != after {
            context.shared.expiries.remove(&(before, context.place, entry));
            context.shared.expiries.insert((after, context.place, entry));
        }
        effect.renewed += 1;
        let name = self.names.entry(entry).name;
        effect.matched += usize::from(!self.names.name(name).sets.is_empty());
    }

    /// Adds a pair that was not there before the answer, and evicts others where a limit requires
    /// it.
    fn add(&mut self, context: &mut Context<'_>, pair: &Pair<'_>, effect: &mut Effect) {
        let elsewhere = context.shared.expiries.len().saturating_sub(self.names.addresses());
        if elsewhere >= context.settings.limits.addresses {
            // Nothing that this scope can evict makes room.
            return effect.refuse(Refusal::NoRoom);
        }
        let Some(slot) = self.place_of_name(context, pair.name, effect) else {
            return effect.refuse(Refusal::NoRoom);
        };
        let key = Key::new(pair.address);
        if let Some(entry) = self.names.find(slot, key) {
            return self.extend(context, entry, pair, effect);
        }
        if !self.make_room(context, slot, effect) {
            self.drop_if_empty(slot);
            return effect.refuse(Refusal::NoRoom);
        }
        let entry = self.names.insert(slot, key, pair.expires, pair.is_inside);
        context.shared.expiries.insert((pair.expires, context.place, entry));
        let sets = self.names.name(slot).sets.clone();
        self.weight += sets.len();
        sets.iter().for_each(|set| self.add_member(context, (*set, key)));
        effect.added += 1;
        effect.matched += usize::from(!sets.is_empty());
    }

    /// Returns the place of a name, which is made if it does not exist; `None` if there is no room.
    fn place_of_name(&mut self, context: &mut Context<'_>, name: &DomainName, effect: &mut Effect) -> Option<Slot> {
        if let Some(slot) = self.names.find_name(name) {
            return Some(slot);
        }
        let sets = context.sets.matching(name, &self.sets);
        if sets.len() > context.settings.limits.members_per_scope {
            return None;
        }
        while self.names.names() >= context.settings.limits.names_per_scope {
            let victim = self.names.victim_name()?;
            self.evict_name(context, victim, effect)?;
        }
        Some(self.names.insert_name(name.clone(), sets))
    }

    /// Evicts a name with its addresses; only some of these, and `None`, if the answer may not
    /// evict more.
    fn evict_name(&mut self, context: &mut Context<'_>, name: Slot, effect: &mut Effect) -> Option<()> {
        let entries: Vec<Slot> = self.names.entries(name).take(effect.may_evict).collect();
        entries.iter().for_each(|entry| self.remove(context, *entry));
        effect.evict(entries.len());
        (self.names.name(name).len() == 0).then(|| self.names.remove_name(name))
    }

    /// Evicts addresses until the name at `slot` can have one more, and reports whether it can.
    fn make_room(&mut self, context: &mut Context<'_>, slot: Slot, effect: &mut Effect) -> bool {
        if self.names.name(slot).sets.len() > context.settings.limits.members_per_scope {
            return false;
        }
        while let Some(victim) = self.excess(context, slot) {
            let Some(victim) = victim.filter(|_| effect.may_evict > 0) else { return false };
            let of = self.names.entry(victim).name;
            self.remove(context, victim);
            if of != slot {
                self.drop_if_empty(of);
            }
            effect.evict(1);
        }
        true
    }

    /// Returns the address to evict before the name at `slot` can have one more, `Some(None)` if
    /// there is none, and `None` if there is room.
    fn excess(&self, context: &Context<'_>, slot: Slot) -> Option<Option<Slot>> {
        let (limits, name) = (&context.settings.limits, self.names.name(slot));
        if name.len() >= limits.addresses_per_name {
            return Some(self.names.oldest_stale(slot));
        }
        let is_full =
            self.names.addresses() >= limits.addresses_per_scope || context.shared.expiries.len() >= limits.addresses;
        if is_full {
            return Some(self.names.victim());
        }
        let members = name.sets.len();
        (members > 0 && self.weight + members > limits.members_per_scope).then(|| self.names.victim_matched())
    }

    /// Removes addresses until the members are within their limit, after a change of sets.
    pub(crate) fn trim(&mut self, context: &mut Context<'_>) {
        self.names.begin_answer();
        while self.weight > context.settings.limits.members_per_scope
            && let Some(victim) = self.names.victim_matched()
        {
            self.forget(context, victim);
        }
    }

    /// Removes the addresses that were answered least recently, those without a set first, in
    /// favour of another scope.
    pub(crate) fn give_way(&mut self, context: &mut Context<'_>, addresses: usize) {
        self.names.begin_answer();
        for _ in 0..addresses {
            if let Some(victim) = self.names.victim() {
                self.forget(context, victim);
            }
        }
    }

    /// Removes an address. Its name stays, even without addresses.
    fn remove(&mut self, context: &mut Context<'_>, slot: Slot) {
        let entry = self.names.remove(slot);
        context.shared.expiries.remove(&(entry.expires, context.place, slot));
        let sets = self.names.name(entry.name).sets.clone();
        self.weight -= sets.len();
        sets.into_iter().for_each(|set| self.remove_member(context, (set, entry.address)));
    }

    /// Removes an address, and its name if that has no other.
    pub(crate) fn forget(&mut self, context: &mut Context<'_>, slot: Slot) {
        let name = self.names.entry(slot).name;
        self.remove(context, slot);
        self.drop_if_empty(name);
    }

    /// Removes a name with its addresses.
    fn remove_name(&mut self, context: &mut Context<'_>, name: Slot) {
        let entries: Vec<Slot> = self.names.entries(name).collect();
        entries.iter().for_each(|entry| self.remove(context, *entry));
        self.names.remove_name(name);
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

    /// Removes the addresses that the cluster has now and that their names may not have, and kept
    /// members, which have no names, with such addresses.
    pub(crate) fn judge_again(&mut self, context: &mut Context<'_>) {
        let entries: Vec<Slot> = self.names.in_order().flat_map(|name| self.names.entries(name)).collect();
        for slot in entries {
            let entry = self.names.entry(slot);
            let is_inside = entry.is_inside && context.cluster.owns(&self.names.name(entry.name).name);
            if context.refusal(is_inside, entry.address.address()).is_some() {
                self.forget(context, slot);
            }
        }
        self.drop_kept(context, |context, (_, key)| context.refusal(false, key.address()).is_some());
    }

    /// Replaces the sets of the scope, and returns those that it had before and has no longer.
    pub(crate) fn set_sets(&mut self, context: &mut Context<'_>, sets: Vec<Slot>) -> Vec<Slot> {
        let before = std::mem::replace(&mut self.sets, sets);
        let added: Vec<Slot> = self.sets.iter().copied().filter(|set| before.binary_search(set).is_err()).collect();
        let removed: Vec<Slot> = before.into_iter().filter(|set| self.sets.binary_search(set).is_err()).collect();
        added.into_iter().chain(removed.iter().copied()).for_each(|set| self.match_again(context, set));
        self.trim(context);
        removed
    }

    /// Brings the members of a set up to date after a change of its patterns or of the scope's
    /// sets. The caller trims them afterwards.
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
            if is_matched {
                self.weight += self.names.name(slot).len();
            } else {
                self.weight -= self.names.name(slot).len();
            }
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
            self.drop_kept(context, |_, (of, _)| of == set);
        }
    }

    /// Keeps members that the kernel has and that nothing learned explains, until a time. Those
    /// whose addresses a name from outside of the cluster domain may not have are left out.
    pub(crate) fn keep(&mut self, context: &mut Context<'_>, mut members: AHashSet<(Slot, Key)>, until: Millis) {
        self.end_kept(context);
        members.retain(|(_, key)| context.refusal(false, key.address()).is_none());
        for member in &members {
            self.add_member(context, *member);
        }
        if !members.is_empty() {
            context.shared.kept.insert((until, context.place));
        }
        (self.kept, self.kept_until) = (members, until);
    }

    /// Returns the time for which members are kept, if there are some.
    pub(crate) fn kept_until(&self) -> Option<Millis> {
        (!self.kept.is_empty()).then_some(self.kept_until)
    }

    /// Removes some kept members.
    fn drop_kept(&mut self, context: &mut Context<'_>, is_gone: impl Fn(&Context<'_>, (Slot, Key)) -> bool) {
        let gone: Vec<(Slot, Key)> = self.kept.iter().copied().filter(|member| is_gone(context, *member)).collect();
        for member in gone {
            self.kept.remove(&member);
            self.remove_member(context, member);
        }
        if self.kept.is_empty() {
            self.end_kept(context);
        }
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
