//! The learned state across a restart.

use std::time::Duration;

use ahash::{AHashMap, AHashSet};

use super::Learned;
use crate::cache::{self, RestoreError, Saved, SavedAddress, SavedScope, Writer};
use crate::endpoint::Pair;
use crate::names::Key;
use crate::slab::Slot;
use crate::types::{Action, Member, Millis, Scope};

/// The result of [`Learned::restore`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Pairs of a name and an address that were restored.
    pub addresses: usize,
    /// Pairs that were not: expired, refused, over a limit, repeated, or of a scope that is unknown
    /// or has another owner.
    pub dropped: usize,
}

/// Everything that a cache says about the members of a scope with the same owner.
struct Evidence {
    /// The addresses that the cache names. If such a member is not learned again, its address has
    /// expired, or was refused or evicted: it is not kept.
    named: AHashSet<Key>,
    /// The time for which members with other addresses are kept.
    grace: Duration,
}

impl Learned {
    /// Returns the learned state as bytes with a checksum. Cost: all addresses.
    ///
    /// The caller writes these bytes to disk at regular intervals, shorter than
    /// [`Settings::grace`](crate::Settings::grace); after [`Learned::restore`], so that a crash
    /// loop does not begin the grace time anew; and after [`Learned::set_scope`] with a new scope
    /// or another owner. In all cases, the kernel has all changes up to this call before the disk
    /// has the bytes.
    #[must_use]
    pub fn save(&self, now: Millis) -> Vec<u8> {
        let mut places: Vec<(Scope, Slot)> = self.places.iter().map(|(scope, place)| (*scope, *place)).collect();
        places.sort_unstable();
        let mut writer = Writer::new(&self.settings.epoch, self.cluster.domain(), now, places.len());
        for (scope, place) in places {
            let endpoint = self.endpoints.at(place);
            let names = &endpoint.names;
            let kept = endpoint.kept_until().map(|until| until.since(now));
            writer.scope(scope, endpoint.owner, kept, names.names());
            for slot in names.by_answer() {
                let name = names.name(slot);
                writer.name(&name.name, name.len());
                for entry in names.entries(slot) {
                    let entry = names.entry(entry);
                    let (address, remaining) = (entry.address.address(), entry.expires.since(now));
                    writer.address(&SavedAddress { address, remaining, is_inside: entry.is_inside });
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
    /// its remaining lifetime.
    ///
    /// A member that only the kernel has stays for [`Settings::grace`](crate::Settings::grace), or
    /// for the rest of this time if its scope had kept members already when the cache was saved. It
    /// goes at once
    /// - if its set or scope is unknown;
    /// - if the cache lacks its scope, or names another owner of it;
    /// - if the cache names its address in this scope: then the address has expired, or was refused
    ///   or evicted;
    /// - if its address is refused to names outside of the cluster domain: no name of the member is
    ///   known;
    /// - if the cache has another epoch.
    ///
    /// Without a readable cache, it goes at once only if its set or scope is unknown, or if its
    /// address is refused.
    ///
    /// Cost: the length of `saved` and the number of all members, times log k.
    ///
    /// # Errors
    /// If `saved` cannot be read. The members of the kernel are treated all the same, as if nothing
    /// had been saved, but for [`RestoreError::Epoch`]; an absent cache is `None`.
    pub fn restore(&mut self, now: Millis, saved: Option<&[u8]>, kernel: &[Member]) -> Result<Restored, RestoreError> {
        let decoded = saved.map(|bytes| cache::decode(bytes, &self.settings.epoch)).transpose();
        let mut restored = Restored::default();
        let evidence = match &decoded {
            Ok(Some(saved)) => Some(self.learn_saved(now, saved, &mut restored)),
            // Everything from another epoch ends, as if a cache without scopes had been saved.
            Err(RestoreError::Epoch) => Some(AHashMap::default()),
            Ok(None) | Err(_) => None,
        };
        self.keep(now, kernel, evidence.as_ref());
        self.note_differences(kernel);
        decoded.map(|_| restored)
    }

    /// Learns the addresses of a cache, and returns its evidence about scopes with the same owner.
    fn learn_saved(&mut self, now: Millis, saved: &Saved, restored: &mut Restored) -> AHashMap<Slot, Evidence> {
        let passed = now.since(saved.at);
        let mut all: AHashMap<Slot, Evidence> = AHashMap::default();
        for scope in &saved.scopes {
            let addresses = scope.names.iter().flat_map(|(_, addresses)| addresses);
            let place = self.places.get(&scope.scope).copied();
            let Some(place) = place.filter(|place| self.endpoints.at(*place).owner == scope.owner) else {
                restored.dropped += addresses.count();
                continue;
            };
            let grace = scope.kept.map_or(Duration::MAX, |kept| kept.saturating_sub(passed));
            let none = || Evidence { named: AHashSet::default(), grace: self.settings.grace };
            let evidence = all.entry(place).or_insert_with(none);
            evidence.grace = evidence.grace.min(grace);
            evidence.named.extend(addresses.clone().map(|saved| Key::new(saved.address)));
            let before = self.endpoints.at(place).names.addresses();
            self.learn_scope(now, place, saved, scope);
            let came_back = self.endpoints.at(place).names.addresses().saturating_sub(before);
            restored.addresses += came_back;
            restored.dropped += addresses.count() - came_back;
        }
        all
    }

    fn learn_scope(&mut self, now: Millis, place: Slot, saved: &Saved, scope: &SavedScope) {
        let (passed, longest) = (now.since(saved.at), self.settings.longest());
        let same_domain = saved.domain.as_ref() == self.cluster.domain();
        for (name, addresses) in &scope.names {
            self.with(place, |endpoint, context| {
                let is_inside = same_domain && context.cluster.owns(name);
                let pairs = addresses.iter().filter_map(|saved| {
                    let left = saved.remaining.checked_sub(passed).filter(|left| !left.is_zero())?;
                    let (address, expires) = (saved.address, now.after(left.min(longest)));
                    Some(Pair { name, address, expires, is_inside: is_inside && saved.is_inside })
                });
                endpoint.learn(context, pairs)
            });
        }
    }

    /// Keeps members that only the kernel has for a while; without evidence, those of all scopes.
    fn keep(&mut self, now: Millis, kernel: &[Member], evidence: Option<&AHashMap<Slot, Evidence>>) {
        let mut kept: AHashMap<Slot, AHashSet<(Slot, Key)>> = AHashMap::default();
        for member in kernel {
            let (place, set) = (self.places.get(&member.scope), self.sets.find(&member.set));
            let (Some(place), Some(set)) = (place.copied(), set) else { continue };
            let endpoint = self.endpoints.at(place);
            let (set, key) = (set, Key::new(member.address));
            let is_used = endpoint.sets.binary_search(&set).is_ok() && self.sets.has_patterns(set);
            let is_open = evidence.is_none_or(|all| {
                all.get(&place).is_some_and(|evidence| !evidence.grace.is_zero() && !evidence.named.contains(&key))
            });
            if is_used && is_open && !endpoint.has_member((set, key)) {
                kept.entry(place).or_default().insert((set, key));
            }
        }
        for (place, members) in kept {
            let grace = evidence.and_then(|all| all.get(&place)).map_or(self.settings.grace, |evidence| evidence.grace);
            self.with(place, |endpoint, context| endpoint.keep(context, members, now.after(grace)));
        }
    }

    /// Notes the changes that lead from the members of the kernel to the present ones.
    fn note_differences(&mut self, kernel: &[Member]) {
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
}
