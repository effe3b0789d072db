//! Room for addresses, divided among groups of scopes, and among the scopes of a group.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Learned;
use crate::endpoint::EVICTIONS;
use crate::slab::Slot;
use crate::types::Scope;

/// Learned addresses near their limit, with the groups that have more than their share.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Crowding {
    /// Addresses of all scopes.
    pub addresses: usize,
    /// The limit of these ([`Limits::addresses`](crate::Limits::addresses)).
    pub limit: usize,
    /// The share of a group.
    pub share: usize,
    /// Groups with more than this share, with the numbers of their addresses; the largest first.
    pub groups: Vec<(Arc<str>, usize)>,
}

/// The scopes of a group.
#[derive(Debug, Default)]
struct Group {
    addresses: usize,
    /// Scopes with their addresses.
    scopes: Vec<(usize, Scope, Slot)>,
}

impl Group {
    /// Returns the scope with the most addresses, other than the one at `except`.
    fn largest(&mut self, except: Slot) -> Option<&mut (usize, Scope, Slot)> {
        self.scopes.iter_mut().filter(|(.., place)| *place != except).max()
    }
}

impl Learned {
    /// Returns the groups that have more than their share while seven eighths of all addresses or
    /// more are in use, `None` with fewer. Cost: the number of scopes times its logarithm.
    #[must_use]
    pub fn crowding(&self) -> Option<Crowding> {
        let (addresses, limit) = (self.shared.expiries.len(), self.settings.limits.addresses);
        if self.places.is_empty() || addresses < limit - limit / 8 {
            return None;
        }
        let all = self.groups();
        let share = limit / all.len();
        let over = all.into_iter().filter(|(_, group)| group.addresses > share);
        let mut groups: Vec<_> = over.map(|(name, group)| (name, group.addresses)).collect();
        groups.sort_by(|(a, more), (b, less)| less.cmp(more).then_with(|| a.cmp(b)));
        Some(Crowding { addresses, limit, share, groups })
    }

    fn groups(&self) -> BTreeMap<Arc<str>, Group> {
        let mut groups: BTreeMap<Arc<str>, Group> = BTreeMap::new();
        for (place, endpoint) in self.endpoints.iter() {
            let group = groups.entry(Arc::clone(&endpoint.group)).or_default();
            group.addresses += endpoint.names.addresses();
            group.scopes.push((endpoint.names.addresses(), endpoint.scope, place));
        }
        groups
    }

    /// Makes room for an answer with a number of pairs within the shares of the scope at `place`,
    /// by evicting addresses of other scopes beyond their shares. Returns the number of these.
    pub(super) fn claim_share(&mut self, place: Slot, pairs: usize) -> usize {
        let (all, limit) = (self.shared.expiries.len(), self.settings.limits.addresses);
        if all + pairs <= limit {
            return 0;
        }
        let mut groups = self.groups();
        let share = limit / groups.len();
        let (own, scope) = (Arc::clone(&self.endpoints.at(place).group), self.endpoints.at(place).names.addresses());
        let Some(mut group) = groups.remove(&own) else { return 0 };
        let most = pairs + EVICTIONS;
        // The first part of the pairs fits into the share of the group.
        let free = share.saturating_sub(group.addresses).min(pairs);
        let mut victims = Vec::new();
        let mut rest = if free == 0 { 0 } else { (all + free).saturating_sub(limit).min(most) };
        while rest > 0 {
            let Some(largest) = groups.values_mut().max_by_key(|group| group.addresses) else { break };
            let within = share / largest.scopes.len();
            let excess = largest.addresses.saturating_sub(share).min(rest);
            let Some(number) = largest.largest(place).and_then(|victim| take(victim, within, excess, &mut victims))
            else {
                break;
            };
            largest.addresses -= number;
            rest -= number;
        }
        let evicted: usize = victims.iter().map(|(_, number)| number).sum();
        // The others fit into the share of the scope within the group.
        let within = share / group.scopes.len();
        let free = within.saturating_sub(scope).min(pairs);
        let mut rest = if free == 0 { 0 } else { (all - evicted + free).saturating_sub(limit).min(most - evicted) };
        while rest > 0 {
            let Some(number) = group.largest(place).and_then(|victim| take(victim, within, rest, &mut victims)) else {
                break;
            };
            rest -= number;
        }
        victims.iter().for_each(|(victim, number)| {
            self.with(*victim, |endpoint, context| endpoint.give_way(context, *number));
        });
        victims.into_iter().map(|(_, number)| number).sum()
    }
}

/// Takes up to `most` addresses of a scope beyond its share; `None` if it has no such ones.
fn take(
    (addresses, _, place): &mut (usize, Scope, Slot),
    share: usize,
    most: usize,
    victims: &mut Vec<(Slot, usize)>,
) -> Option<usize> {
    let number = addresses.saturating_sub(share).min(most);
    *addresses -= number;
    victims.push((*place, number));
    (number > 0).then_some(number)
}
