//! Names with addresses by scope, and the members of sets that follow from them.

mod restore;
mod shares;

use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;
use tortie_net::{DomainName, DomainPattern, IpSetId};

use crate::cache;
use crate::cluster::{Cluster, Refusal};
use crate::endpoint::{Context, Effect, Endpoint, Pair, Shared};
use crate::message::Answer;
use crate::names::Key;
use crate::sets::Sets;
use crate::slab::{Slab, Slot};
use crate::types::{Change, MatchNames, Member, Millis, Scope, Settings};
pub use restore::Restored;
pub use shares::Crowding;

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
    /// Pairs among these whose name is in a set of the scope.
    pub matched: usize,
    /// Members that began or ceased to exist. If there are none, the answer changes no member;
    /// otherwise, it may do so even if no pair matched, since new pairs evict others.
    pub changed: usize,
    /// Pairs of earlier answers that made room.
    pub evicted: usize,
    /// Those of them that other scopes had, beyond their shares.
    pub displaced: usize,
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

    /// Replaces the settings. Addresses that are refused now are removed; with another epoch,
    /// everything that was learned is. Cost: all addresses, times log k for another epoch.
    ///
    /// Other changes count for the next answers only. Known lifetimes stay, even above a lower
    /// `max_ttl`, and names that were targets of aliases keep their addresses when
    /// [`MatchNames::Question`] would no longer give them these: both end with their lifetimes, at
    /// the latest after the former `max_ttl` and `extra_ttl`. A caller that cannot wait sets
    /// another epoch. Lower limits evict no more at once than an answer may.
    pub fn set_settings(&mut self, settings: Settings) {
        if settings.epoch != self.settings.epoch {
            self.for_each_scope(Endpoint::clear);
        }
        self.settings = settings;
        self.judge_again();
    }

    /// Replaces the addresses of pools and nodes. Addresses that are refused now are removed; if
    /// the domain changes, so are all addresses of pools and nodes that its names had, until they
    /// are answered again. Cost: all addresses, unless nothing changes.
    pub fn set_cluster(&mut self, cluster: Cluster) {
        if cluster != self.cluster {
            if cluster.domain() != self.cluster.domain() {
                self.for_each_scope(|endpoint, _| endpoint.names.end_inside());
            }
            self.cluster = cluster;
            self.judge_again();
        }
    }

    /// Replaces the patterns of a set, which count at once for all names that are known. Where this
    /// gives a scope more members than its limit, its least recently answered addresses in sets go.
    ///
    /// Cost: the number of patterns, and for each scope with the set n lookups of a name and the
    /// number of its changed members.
    pub fn set_domains(&mut self, set: &IpSetId, patterns: Arc<[DomainPattern]>) {
        self.set_patterns(set, Some(patterns));
    }

    /// Removes a set with all its members. A scope that uses it has an empty set until patterns
    /// come back. Cost: as for [`Learned::set_domains`].
    ///
    /// A removal that a later call takes back before [`Learned::take_changes`] gives no change: a
    /// caller that makes the set of the kernel anew meanwhile takes the changes between the two
    /// calls, or writes all of [`Learned::members`].
    pub fn remove_domains(&mut self, set: &IpSetId) {
        self.set_patterns(set, None);
    }

    /// Makes a scope learn, for the given sets and for all that it uses later; a set may be unknown
    /// as yet. `owner` is a number for the holder of the scope, for example a hash of the endpoint,
    /// its addresses, the index of the interface and the container: another number empties the
    /// scope.
    ///
    /// If the caller uses a cache, it writes [`Learned::save`] to disk after this call for a new
    /// scope or another owner, once the kernel has the changes up to this call. A cache that names
    /// the new owner earlier could pass members of the former one on to it at a restart. A scope
    /// that the cache lacks or has with another owner keeps no member at a restart.
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

    /// Puts a scope, which may be unknown, into a group, such as a namespace: each group of
    /// scopes can have an equal share of all addresses. A new scope is in the group without a
    /// name, until this call.
    pub fn set_group(&mut self, scope: Scope, group: &Arc<str>) {
        if let Some(place) = self.places.get(&scope) {
            self.endpoints.at_mut(*place).group = Arc::clone(group);
        }
    }

    /// Ends the learning of a scope, and removes all its members. Before another workload can use
    /// the interface, and before the scope comes back, the caller takes these changes and writes
    /// them to the kernel. Cost: k log k.
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
    /// limit is that of a name, otherwise of the least recently answered name of the scope, but
    /// one that no set matches before all others. Addresses of the same answer never go; the new
    /// address is then refused ([`Refusal::NoRoom`]). At the limit of members, addresses of names
    /// in sets go in the same order. Addresses of other scopes go only at the limit of all
    /// addresses ([`Limits::addresses`](crate::Limits::addresses)): of groups with more than an
    /// equal share of it if the group of this scope has less, otherwise of scopes of the same
    /// group with more than an equal share of the group's one if this scope has less. An answer
    /// evicts at most one address for each of its pairs and 1,000 more of its scope, and as many
    /// of the others; further new addresses are refused.
    ///
    /// Cost: the number of pairs in the answer and of evicted ones (together at most three times
    /// the pairs and 2,000) times log k, for each new name a lookup of its sets, and the number of
    /// changed members: a pair has one in each set of the scope that matches its name, all pairs
    /// of a scope together at most
    /// [`Limits::members_per_scope`](crate::Limits::members_per_scope). The number of patterns
    /// does not count. Where other scopes give way, for each of these the number of scopes comes on
    /// top.
    pub fn answer(&mut self, now: Millis, scope: Scope, answer: &Answer) -> Option<Outcome> {
        let place = *self.places.get(&scope)?;
        let question = answer.question();
        let of_question = self.settings.match_names == MatchNames::Question;
        let noted = self.shared.changes.noted();
        let others = self.claim_share(place, answer.addresses().count());
        let effect = self.with(place, |endpoint, context| {
            let (settings, cluster) = (context.settings, context.cluster);
            let pairs = answer.statements(|name| cluster.owns(name)).map(|statement| Pair {
                name: statement.name,
                address: statement.address,
                expires: now.after(settings.lifetime(statement.ttl)),
                is_inside: statement.is_inside,
            });
            endpoint.learn(context, pairs.filter(|pair| !of_question || Some(pair.name) == question))
        });
        let Effect { added, renewed, matched, evicted, refused, .. } = effect;
        let changed = self.shared.changes.noted().wrapping_sub(noted);
        Some(Outcome { added, renewed, matched, changed, evicted: evicted + others, displaced: others, refused })
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

    /// Returns the members of a set in all scopes, in order, with those that a restart has kept and
    /// with all changes, whether taken or not. Cost: all members of the scopes that use the set.
    #[must_use]
    pub fn members(&self, set: &IpSetId) -> Vec<Member> {
        let number = self.sets.find(set);
        let places = number.map(|number| self.sets.users(number)).unwrap_or_default();
        let mut members: Vec<Member> = (places.into_iter())
            .flat_map(|place| {
                let endpoint = self.endpoints.at(place);
                let keys = endpoint.members().filter(move |(of, _)| Some(*of) == number);
                keys.map(|(_, key)| Member { set: set.clone(), scope: endpoint.scope, address: key.address() })
            })
            .collect();
        members.sort_unstable();
        members
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

    /// Returns the longest beginning of a name that a set of the scope matches, such as `a.io` of
    /// `a.io.shop.svc.cluster.local`, to which a resolver has added a search suffix. `None` if
    /// there is none, or if a set matches the name itself. Cost: a lookup for each label.
    ///
    /// ```
    /// use tortie_dns::{Learned, Scope, Settings};
    /// let mut learned = Learned::new(Settings::default());
    /// learned.set_domains(&"d:x".into(), ["a.io".parse()?].into());
    /// learned.set_scope(Scope::Host, 1, ["d:x".into()]);
    /// let near = |name: &str| Some(learned.near_miss(Scope::Host, &name.parse().ok()?)?.to_string());
    /// assert_eq!(near("a.io.shop.svc.cluster.local").as_deref(), Some("a.io"));
    /// assert_eq!(near("a.io"), None);
    /// assert_eq!(near("b.io.shop.svc.cluster.local"), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn near_miss(&self, scope: Scope, name: &DomainName) -> Option<DomainName> {
        let among = &*self.endpoint(scope)?.sets;
        let is_matched = |name: &DomainName| !self.sets.matching(name, among).is_empty();
        if is_matched(name) {
            return None;
        }
        let dots = name.as_str().rmatch_indices('.');
        let beginnings = dots.filter_map(|(at, _)| name.as_str().get(..at)?.parse().ok());
        beginnings.into_iter().find(is_matched)
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

    fn set_patterns(&mut self, set: &IpSetId, patterns: Option<Arc<[DomainPattern]>>) {
        let Some(number) = self.sets.set_patterns(set, patterns) else { return };
        for place in self.sets.users(number) {
            self.with(place, |endpoint, context| {
                endpoint.match_again(context, number);
                endpoint.trim(context);
            });
        }
        self.sets.release(number);
    }

    fn judge_again(&mut self) {
        self.for_each_scope(Endpoint::judge_again);
    }

    fn for_each_scope(&mut self, call: impl Fn(&mut Endpoint, &mut Context<'_>)) {
        let places: Vec<Slot> = self.places.values().copied().collect();
        for place in places {
            self.with(place, &call);
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
