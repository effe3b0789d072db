//! Assignment of keys to objects.

use std::collections::BTreeMap;

use ahash::RandomState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use tortie_model::{Key, Update};
use tortie_resources::manifest::ObjectId;

use super::store::{Claim, Store};

/// The claims, by key. Nearly all keys have one claimant.
#[derive(Debug, Default)]
pub(super) struct Claims {
    winners: HashTable<Claim>,
    /// The claims that lose to the winner's, for contested keys.
    losers: BTreeMap<Key, Vec<Claim>>,
    hasher: RandomState,
}

/// Two objects that claim one key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conflict<'r> {
    /// The object that takes effect.
    pub(crate) winner: &'r ObjectId,
    /// The ignored object.
    pub(crate) loser: &'r ObjectId,
    /// Whether both have the same value, so that nothing is lost.
    pub(crate) same: bool,
    /// Whether the loser is a policy whose endpoints are denied.
    pub(crate) denies: bool,
}

impl Claims {
    pub(super) fn winner(&self, key: &Key, store: &Store) -> Option<Claim> {
        self.winners.find(self.hasher.hash_one(key), |claim| store.claimed(*claim).is_about(key)).copied()
    }

    pub(super) fn winners(&self) -> impl Iterator<Item = Claim> {
        self.winners.iter().copied()
    }

    pub(super) fn is_in_conflict(&self) -> bool {
        !self.losers.is_empty()
    }

    /// Reports whether more than one object claims a key.
    pub(super) fn is_contested(&self, key: &Key) -> bool {
        self.losers.contains_key(key)
    }

    /// Returns the ignored values of a key that differ from the one in effect, in the order of
    /// their objects.
    pub(super) fn ignored<'r>(&'r self, key: &Key, store: &'r Store) -> impl Iterator<Item = &'r Update> {
        let winner = self.winner(key, store);
        let mut losers = self.losers.get(key).cloned().unwrap_or_default();
        losers.sort_by_key(|loser| &store.object(loser.slot).id);
        let is_other = move |update: &&Update| winner.is_some_and(|winner| store.claimed(winner) != *update);
        losers.into_iter().map(|loser| store.claimed(loser)).filter(is_other)
    }

    /// Returns the conflicts in the order of keys. Equal claims of a tier, as by several policies
    /// in it, are no conflict.
    pub(super) fn conflicts<'r>(&'r self, store: &'r Store) -> impl Iterator<Item = Conflict<'r>> {
        let id = |claim: Claim| &store.object(claim.slot).id;
        let of_key = move |(key, losers): (&'r Key, &'r Vec<Claim>)| {
            let winner = self.winner(key, store);
            winner.into_iter().flat_map(move |winner| {
                let conflicts = losers.iter().map(move |loser| Conflict {
                    winner: id(winner),
                    loser: id(*loser),
                    same: store.claimed(winner) == store.claimed(*loser),
                    denies: matches!(key, Key::Policy(id) if !id.kind.is_staged())
                        && store.claimed(winner) != store.claimed(*loser),
                });
                conflicts.filter(move |conflict| !conflict.same || !matches!(key, Key::Tier(_)))
            })
        };
        self.losers.iter().flat_map(of_key)
    }

    /// Adds a claim of an object that does not claim the same key already.
    pub(super) fn add(&mut self, claim: Claim, store: &Store) {
        let key = store.claimed(claim).key();
        let hasher = &self.hasher;
        let entry = self.winners.entry(
            hasher.hash_one(&key),
            |other| store.claimed(*other).is_about(&key),
            |other| hasher.hash_one(store.claimed(*other).key()),
        );
        match entry {
            Entry::Vacant(entry) => {
                entry.insert(claim);
            }
            Entry::Occupied(mut entry) => {
                let wins = store.object(claim.slot).id < store.object(entry.get().slot).id;
                let loser = if wins { std::mem::replace(entry.get_mut(), claim) } else { claim };
                self.losers.entry(key).or_default().push(loser);
            }
        }
    }

    pub(super) fn remove(&mut self, claim: Claim, store: &Store) {
        let key = &store.claimed(claim).key();
        let entry = self.winners.find_entry(self.hasher.hash_one(key), |other| store.claimed(*other).is_about(key));
        let Ok(mut winner) = entry else { return };
        let Some(losers) = self.losers.get_mut(key) else {
            if *winner.get() == claim {
                winner.remove();
            }
            return;
        };
        let rank = |claim: Claim| &store.object(claim.slot).id;
        if *winner.get() == claim {
            let next = losers.iter().enumerate().min_by(|(_, a), (_, b)| rank(**a).cmp(rank(**b)));
            if let Some((next, _)) = next {
                *winner.get_mut() = losers.swap_remove(next);
            }
        } else {
            losers.retain(|loser| *loser != claim);
        }
        if losers.is_empty() {
            self.losers.remove(key);
        }
    }
}
