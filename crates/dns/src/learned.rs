//! Names with addresses by scope, and the members of sets that follow from them.

use std::net::IpAddr;
use std::sync::Arc;

use ahash::{AHashMap, AHashSet};
use tortie_net::{DomainName, DomainPattern, IpSetId};

use crate::cache::{self, RestoreError, Saved, Writer};
use crate::cluster::{Cluster, Refusal};
use crate::endpoint::{Context, Effect, Endpoint, Shared};
use crate::message::Answer;
use crate::names::Key;
use crate::sets::Sets;
use crate::slab::{Slab, Slot};
use crate::types::{Action, Change, MatchNames, Member, Millis, Scope, Settings};

/// The addresses that scopes have learned from answers, and the members of their sets.
///
/// A *set* has patterns of names ([`Learned::set_domains`]). A *scope* uses some sets
/// ([`Learned::set_scope`]). An address is a member of a set in a scope while the scope has learned
/// it for a name that the set matches. Changes of members are collected until
/// [`Learned::take_changes`].
///
/// Costs: n is the number of names of a scope, at most 2,000 by default, and k the number of its
/// addresses, at most 10,000. Operations that affect every scope with a set cost the sum of these.
///
/// ```
/// use tortie_dns::{Answer, Learned, Millis, Scope, Settings};
/// let mut learned = Learned::new(Settings::default());
/// learned.set_domains(&"d:cdn".into(), ["*.example.com".parse()?].into());
/// let scope = Scope::Interface("cali1".parse()?);
/// learned.set_scope(scope, 1, ["d:cdn".into()]);
///
/// let answer = Answer::new("www.example.com".parse()?, [("192.0.2.1".parse()?, 300)]);
/// learned.answer(Millis(0), scope, &answer).expect("the scope learns");
/// let changes = learned.take_changes();
/// assert_eq!(changes[0].member.address.to_string(), "192.0.2.1");
/// assert_eq!(learned.next_expiry(), Some(Millis(300_000)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Learned {
    settings: Settings,
    cluster: Cluster,
    sets: Sets,
    places: AHashMap<Scope, Slot>,
    endpoints: Slab<Endpoint>,
    shared: Shared,
}

/// The effect of an answer. Its numbers are pairs of a name and an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Pairs that the scope did not have.
    pub added: usize,
    /// Pairs that the scope had; their lifetime is extended, unless it was longer.
    pub renewed: usize,
    /// Pairs among these whose name is in a set of the scope. If there are none, the answer changes
    /// no member.
    pub matched: usize,
    /// Pairs of earlier answers that made room.
    pub evicted: usize,
    refused: [usize; Refusal::ALL.len()],
}

impl Outcome {
    /// Returns the number of pairs that were refused for a reason.
    #[must_use]
    pub fn refused(&self, refusal: Refusal) -> usize {
        self.refused.get(refusal as usize).copied().unwrap_or_default()
    }
}

/// A name that a scope has learned, with one of its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known<'l> {
    /// The name.
    pub name: &'l DomainName,
    /// The address.
    pub address: IpAddr,
    /// The end of the lifetime.
    pub expires: Millis,
    /// The sets of the scope that match the name, in no particular order.
    pub sets: Vec<&'l IpSetId>,
}

/// The result of [`Learned::restore`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Pairs of a name and an address that were restored.
    pub addresses: usize,
    /// Pairs that were not: expired, refused, over a limit, or of a scope that is unknown or has
    /// another owner.
    pub dropped: usize,
}

/// Sizes of the learned state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Learning scopes.
    pub scopes: usize,
    /// Names of all scopes.
    pub names: usize,
    /// Pairs of a name and an address in all scopes.
    pub addresses: usize,
    /// Members of all sets in all scopes.
    pub members: usize,
}

impl Learned {
    /// The length in bytes of the longest cache that [`Learned::restore`] reads.
    pub const MAX_SAVED: usize = cache::MAX_LEN;

    /// Makes an empty value without pools and nodes.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            cluster: Cluster::default(),
            sets: Sets::default(),
            places: AHashMap::default(),
            endpoints: Slab::default(),
            shared: Shared::default(),
        }
    }

    /// Replaces the settings. Known lifetimes stay; addresses that are refused now are removed.
    /// Lower limits take effect with the next answers. Cost: all addresses.
    pub fn set_settings(&mut self, settings: Settings) {
        self.settings = settings;
        self.judge_again();
    }

    /// Replaces the addresses of pools and nodes. Addresses that are refused now are removed. Cost:
    /// all addresses, unless nothing changes.
    pub fn set_cluster(&mut self, cluster: Cluster) {
        if cluster != self.cluster {
            self.cluster = cluster;
            self.judge_again();
        }
    }

    /// Replaces the patterns of a set, which count at once for all names that are known.
    ///
    /// Cost: the number of patterns, and for each scope with the set n lookups of a name and the
    /// number of its changed members.
    pub fn set_domains(&mut self, set: &IpSetId, patterns: Arc<[DomainPattern]>) {
        self.set_patterns(set, Some(patterns));
    }

    /// Removes a set with all its members. A scope that uses it has an empty set until patterns
    /// come back. Cost: as for [`Learned::set_domains`].
    pub fn remove_domains(&mut self, set: &IpSetId) {
        self.set_patterns(set, None);
    }

    /// Makes a scope learn, for the given sets and for all that it uses later; a set may be unknown
    /// as yet. `owner` is a number for the holder of the scope, for example a hash of the endpoint,
    /// its addresses, the index of the interface and the container: another number empties the
    /// scope.
    ///
    /// Cost: the number of sets; for each that is new or gone as for [`Learned::set_domains`]; for
    /// a new owner as for [`Learned::remove_scope`].
    pub fn set_scope(&mut self, scope: Scope, owner: u64, sets: impl IntoIterator<Item = IpSetId>) {
        let place = match self.places.get(&scope) {
            Some(place) => *place,
            None => *self.places.entry(scope).or_insert(self.endpoints.insert(Endpoint::new(scope, owner))),
        };
        let mut numbers: Vec<Slot> = sets.into_iter().map(|set| self.sets.begin_use(&set, place)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let removed = self.with(place, |endpoint, context| {
            if endpoint.owner != owner {
                endpoint.clear(context);
                endpoint.owner = owner;
            }
            endpoint.set_sets(context, numbers)
        });
        removed.into_iter().for_each(|set| self.sets.end_use(set, place));
    }

    /// Ends the learning of a scope, and removes all its members. Before another workload can use
    /// the interface, the caller takes these changes and writes them to the kernel. Cost: k log k.
    pub fn remove_scope(&mut self, scope: Scope) {
        let Some(place) = self.places.remove(&scope) else { return };
        let sets = self.with(place, |endpoint, context| {
            endpoint.clear(context);
            endpoint.set_sets(context, Vec::new())
        });
        sets.into_iter().for_each(|set| self.sets.end_use(set, place));
        self.endpoints.remove(place);
    }

    /// Learns the addresses of an answer that a scope has received. Returns `None` if the scope
    /// does not learn.
    ///
    /// Where a limit is reached, the least recently answered address goes: of the name, if the
    /// limit is that of a name, otherwise of the least recently answered name of the scope, but one
    /// that no set matches before all others. Addresses of the same answer and of other scopes
    /// never go; the new address is then refused ([`Refusal::NoRoom`]).
    ///
    /// Cost: the number of pairs in the answer times log k, and for each new name a lookup of its
    /// sets; the number of patterns does not count.
    pub fn answer(&mut self, now: Millis, scope: Scope, answer: &Answer) -> Option<Outcome> {
        let place = *self.places.get(&scope)?;
        let question = answer.question();
        let of_question = self.settings.match_names == MatchNames::Question;
        let effect = self.with(place, |endpoint, context| {
            let settings = context.settings;
            let pairs = answer.addresses().filter(|(name, ..)| !of_question || Some(*name) == question);
            endpoint
                .learn(context, pairs.map(|(name, address, ttl)| (name, address, now.after(settings.lifetime(ttl)))))
        });
        let Effect { added, renewed, matched, evicted, refused } = effect;
        Some(Outcome { added, renewed, matched, evicted, refused })
    }

    /// Removes all addresses whose lifetime has ended. Cost: their number times log k.
    pub fn expire(&mut self, now: Millis) {
        while let Some((_, place, entry)) = self.shared.expiries.first().copied().filter(|(at, ..)| *at <= now) {
            self.with(place, |endpoint, context| endpoint.forget(context, entry));
        }
        while let Some((_, place)) = self.shared.kept.first().copied().filter(|(at, _)| *at <= now) {
            self.with(place, Endpoint::end_kept);
        }
    }

    /// Returns the time for which [`Learned::expire`] is due next.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Millis> {
        let address = self.shared.expiries.first().map(|(at, ..)| *at);
        let kept = self.shared.kept.first().map(|(at, _)| *at);
        address.into_iter().chain(kept).min()
    }

    /// Returns the changes of members since the last call, in order, at most one for each member.
    /// Cost: c log c for c changes.
    #[must_use]
    pub fn take_changes(&mut self) -> Vec<Change> {
        self.shared.changes.take()
    }

    /// Returns the names for which a scope has learned an address, in order. Cost: n.
    pub fn names(&self, scope: Scope, address: IpAddr) -> impl Iterator<Item = Known<'_>> {
        let key = Key::new(address);
        let endpoint = self.endpoint(scope);
        let found = endpoint.into_iter().flat_map(move |endpoint| {
            endpoint
                .names
                .in_order()
                .filter_map(move |name| endpoint.names.find(name, key))
                .map(move |entry| (endpoint, entry))
        });
        self.sorted(found)
    }

    /// Returns everything that a scope has learned, by name and address. Cost: k log k.
    pub fn known(&self, scope: Scope) -> impl Iterator<Item = Known<'_>> {
        let found = self.endpoint(scope).into_iter().flat_map(|endpoint| {
            let entries = endpoint.names.in_order().flat_map(|name| endpoint.names.entries(name));
            entries.map(move |entry| (endpoint, entry))
        });
        self.sorted(found)
    }

    /// Returns the sizes of the state. Cost: the number of scopes.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = Counts { scopes: self.places.len(), ..Counts::default() };
        for (_, endpoint) in self.endpoints.iter() {
            counts.names += endpoint.names.names();
            counts.addresses += endpoint.names.addresses();
            counts.members += endpoint.members().len();
        }
        counts
    }

    /// Reports whether there is neither a set nor a scope, and no change that was not taken.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
            && self.endpoints.len() == 0
            && self.sets.is_empty()
            && self.shared.expiries.is_empty()
            && self.shared.kept.is_empty()
            && self.shared.changes.is_empty()
    }

    /// Returns the learned state as bytes with a checksum. Cost: all addresses.
    #[must_use]
    pub fn save(&self, now: Millis) -> Vec<u8> {
        let mut places: Vec<(Scope, Slot)> = self.places.iter().map(|(scope, place)| (*scope, *place)).collect();
        places.sort_unstable();
        let mut writer = Writer::new(&self.settings.epoch, now, places.len());
        for (scope, place) in places {
            let endpoint = self.endpoints.at(place);
            let names = &endpoint.names;
            writer.scope(scope, endpoint.owner, names.names());
            for slot in names.by_answer() {
                let name = names.name(slot);
                writer.name(&name.name, name.len());
                for entry in names.entries(slot) {
                    let entry = names.entry(entry);
                    writer.address(entry.address.address(), entry.expires.since(now));
                }
            }
        }
        writer.finish()
    }

    /// Restores a saved state after a restart. The caller has set cluster, sets and scopes before,
    /// and lists the members that the kernel has; the changes that are taken next lead from these
    /// to the members that should be.
    ///
    /// Addresses come back to scopes with the same owner. No lifetime grows: the time that has
    /// passed since `saved` is deducted; if `now` is earlier, nothing is, but no address outlives
    /// its remaining lifetime. A member that only the kernel has stays for `Settings::grace`, but
    /// goes at once if its set or scope is unknown, or if its scope had another owner in the cache.
    ///
    /// Cost: the length of `saved` and the number of all members, times log k.
    ///
    /// # Errors
    /// If `saved` cannot be read. The members of the kernel are treated all the same, as if nothing
    /// had been saved; an absent cache is `None`.
    pub fn restore(&mut self, now: Millis, saved: Option<&[u8]>, kernel: &[Member]) -> Result<Restored, RestoreError> {
        let decoded = saved.map(|bytes| cache::decode(bytes, &self.settings.epoch)).transpose();
        let (mut restored, mut replaced) = (Restored::default(), AHashSet::default());
        if let Ok(Some(saved)) = &decoded {
            self.learn_saved(now, saved, &mut restored, &mut replaced);
        }
        self.adopt(now, kernel, &replaced);
        decoded.map(|_| restored)
    }

    /// Learns the addresses of a cache, and collects the scopes with another owner.
    fn learn_saved(&mut self, now: Millis, saved: &Saved, restored: &mut Restored, replaced: &mut AHashSet<Slot>) {
        let (passed, longest) = (now.since(saved.at), self.settings.longest());
        for scope in &saved.scopes {
            let all: usize = scope.names.iter().map(|(_, addresses)| addresses.len()).sum();
            let before = restored.addresses;
            if let Some(place) = self.places.get(&scope.scope).copied() {
                if self.endpoints.at(place).owner == scope.owner {
                    for (name, addresses) in &scope.names {
                        let remaining = addresses.iter().filter_map(|(address, remaining)| {
                            let left = remaining.checked_sub(passed).filter(|left| !left.is_zero())?;
                            Some((name, *address, now.after(left.min(longest))))
                        });
                        let effect = self.with(place, |endpoint, context| endpoint.learn(context, remaining));
                        restored.addresses += effect.added + effect.renewed;
                    }
                } else {
                    replaced.insert(place);
                }
            }
            restored.dropped += all - (restored.addresses - before).min(all);
        }
    }

    /// Takes the members of the kernel as given, and notes the changes that lead from them to the
    /// present ones. Members that only the kernel has are kept for a while, except in scopes with a
    /// new owner.
    fn adopt(&mut self, now: Millis, kernel: &[Member], replaced: &AHashSet<Slot>) {
        let until = now.after(self.settings.grace);
        let mut kept: AHashMap<Slot, AHashSet<(Slot, Key)>> = AHashMap::default();
        for member in kernel {
            let (place, set) = (self.places.get(&member.scope), self.sets.find(&member.set));
            let (Some(place), Some(set)) = (place.copied(), set) else { continue };
            let endpoint = self.endpoints.at(place);
            let member = (set, Key::new(member.address));
            let is_used = endpoint.sets.binary_search(&set).is_ok() && self.sets.has_patterns(set);
            if is_used && !endpoint.has_member(member) && !replaced.contains(&place) {
                kept.entry(place).or_default().insert(member);
            }
        }
        for (place, members) in kept {
            self.with(place, |endpoint, context| endpoint.keep(context, members, until));
        }
        self.shared.changes.clear();
        let kernel: AHashSet<&Member> = kernel.iter().collect();
        let mut present = AHashSet::with_capacity(kernel.len());
        for (_, endpoint) in self.endpoints.iter() {
            present.extend(endpoint.members().map(|(set, key)| Member {
                set: self.sets.id(set).clone(),
                scope: endpoint.scope,
                address: key.address(),
            }));
        }
        for member in present.iter().filter(|member| !kernel.contains(member)) {
            self.shared.changes.note(member.clone(), Action::Added);
        }
        for member in kernel.into_iter().filter(|member| !present.contains(*member)) {
            self.shared.changes.note(member.clone(), Action::Removed);
        }
    }

    fn set_patterns(&mut self, set: &IpSetId, patterns: Option<Arc<[DomainPattern]>>) {
        let Some(number) = self.sets.set_patterns(set, patterns) else { return };
        for place in self.sets.users(number) {
            self.with(place, |endpoint, context| endpoint.match_again(context, number));
        }
        self.sets.release(number);
    }

    fn judge_again(&mut self) {
        let places: Vec<Slot> = self.places.values().copied().collect();
        for place in places {
            self.with(place, Endpoint::judge_again);
        }
    }

    /// Calls a function with a scope and the state around it.
    fn with<R>(&mut self, place: Slot, call: impl FnOnce(&mut Endpoint, &mut Context<'_>) -> R) -> R {
        let mut context = Context {
            place,
            settings: &self.settings,
            cluster: &self.cluster,
            sets: &self.sets,
            shared: &mut self.shared,
        };
        call(self.endpoints.at_mut(place), &mut context)
    }

    fn endpoint(&self, scope: Scope) -> Option<&Endpoint> {
        self.places.get(&scope).map(|place| self.endpoints.at(*place))
    }

    /// Returns the content of places, sorted by name and address.
    fn sorted<'l>(&'l self, found: impl Iterator<Item = (&'l Endpoint, Slot)>) -> impl Iterator<Item = Known<'l>> {
        let known = |(endpoint, entry): (&'l Endpoint, Slot)| {
            let entry = endpoint.names.entry(entry);
            let name = endpoint.names.name(entry.name);
            let sets = name.sets.iter().map(|set| self.sets.id(*set)).collect();
            Known { name: &name.name, address: entry.address.address(), expires: entry.expires, sets }
        };
        let mut known: Vec<Known<'l>> = found.map(known).collect();
        known.sort_unstable_by(|a, b| (a.name, a.address).cmp(&(b.name, b.address)));
        known.into_iter()
    }
}
