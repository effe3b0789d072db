//! Domains of network sets, joined by the selectors of egress rules that allow.
//!
//! Nothing is matched until a network set with domains appears. Then each flush joins again only
//! the domains of selectors for which the picked network sets, or their lists, have changed.

use std::collections::BTreeSet;
use std::sync::Arc;

use ahash::AHashMap;
use tortie_labelindex::{MatchEvent, MatchIndex, ParentLabels};
use tortie_model::{DomainPattern, IpSetId, Labels, NetworkSet, NetworkSetName, ProfileName};
use tortie_selector::{Selector, unique_id};

use crate::slot_table::Slot;

/// Bound of the domains that a selector joins from several network sets: 400 KiB. The first list
/// counts at any length, since it is shared by all selectors.
const MOST_JOINED: usize = 1 << 14;

/// Effect of a flush.
#[derive(Debug, Default)]
pub(crate) struct DomainChanges {
    /// Policies with a selector that has its first domains, or no more.
    pub(crate) users: BTreeSet<Slot>,
    /// Sets with other domains than before.
    pub(crate) sets: BTreeSet<IpSetId>,
}

/// A selector of active policies.
#[derive(Debug)]
struct Watched {
    users: BTreeSet<Slot>,
    /// Domains of the network sets that it picks, as of the last flush; sorted, each once.
    patterns: Arc<[DomainPattern]>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct DomainSets {
    matches: MatchIndex<NetworkSetName, IpSetId>,
    /// Network sets with domains.
    lists: AHashMap<NetworkSetName, Arc<[DomainPattern]>>,
    watched: AHashMap<IpSetId, Watched>,
    /// Network sets with another list than at the last flush.
    changed: BTreeSet<NetworkSetName>,
    /// Whether a network set has had domains. It stays, so that a tenant cannot make a node compile
    /// all policies again and again.
    is_needed: bool,
    /// Whether `is_needed` is newly set.
    has_begun: bool,
}

/// Returns the id of the set of a selector's domains.
pub(crate) fn set_id(selector: &Selector) -> IpSetId {
    // No pattern contains a colon, so that the id differs from those of lists of domains.
    IpSetId::new(unique_id("d", selector.id().as_str()))
}

/// Reports whether a network set belongs to a namespace: its name is `NAMESPACE/NAME`.
fn is_of_namespace(name: &NetworkSetName) -> bool {
    name.as_str().contains('/')
}

impl DomainSets {
    pub(crate) fn on_network_set(
        &mut self,
        name: &NetworkSetName,
        set: Option<&NetworkSet>,
        known: &impl ParentLabels,
    ) {
        match set.filter(|set| !set.domains.is_empty()) {
            Some(set) => {
                self.has_begun |= !self.is_needed;
                self.is_needed = true;
                self.matches.set_item_with_parents(name, &set.labels, &set.profiles, known);
                if self.lists.get(name).is_none_or(|list| **list != *set.domains) {
                    self.lists.insert(name.clone(), set.domains[..].into());
                    self.changed.insert(name.clone());
                }
            }
            None => {
                self.matches.remove_item(name);
                self.lists.remove(name);
            }
        }
    }

    pub(crate) fn on_profile(&mut self, name: &ProfileName, labels: Option<&Labels>) {
        self.matches.set_parent(name, labels);
    }

    /// Reports once whether policies from before the first domains must be watched.
    pub(crate) fn take_begun(&mut self) -> bool {
        std::mem::take(&mut self.has_begun)
    }

    /// Watches the selectors of a policy instead of those `before`. Returns the ids of their sets.
    pub(crate) fn watch(
        &mut self,
        user: Slot,
        before: &[IpSetId],
        selectors: impl Iterator<Item = Selector>,
    ) -> Box<[IpSetId]> {
        let mut ids = BTreeSet::new();
        for selector in selectors.take_while(|_| self.is_needed) {
            let id = set_id(&selector);
            if !ids.insert(id.clone()) {
                continue;
            }
            let matches = &mut self.matches;
            let watched = self.watched.entry(id.clone()).or_insert_with(|| {
                matches.set_selector(&id, &selector);
                Watched { users: BTreeSet::new(), patterns: [].into() }
            });
            watched.users.insert(user);
        }
        for id in before.iter().filter(|id| !ids.contains(*id)) {
            let Some(watched) = self.watched.get_mut(id) else { continue };
            watched.users.remove(&user);
            if watched.users.is_empty() {
                self.watched.remove(id);
                self.matches.remove_selector(id);
            }
        }
        ids.into_iter().collect()
    }

    /// Returns the domains of a set, as of the last flush; empty for an unknown set.
    pub(crate) fn patterns(&self, id: &IpSetId) -> Arc<[DomainPattern]> {
        self.watched.get(id).map_or_else(|| [].into(), |watched| Arc::clone(&watched.patterns))
    }

    /// Reports whether any network set has domains.
    pub(crate) fn has_lists(&self) -> bool {
        !self.lists.is_empty()
    }

    /// Reports whether a selector has domains, as of the last flush.
    pub(crate) fn is_active(&self, selector: &Selector) -> bool {
        !self.patterns(&set_id(selector)).is_empty()
    }

    pub(crate) fn flush(&mut self) -> DomainChanges {
        let mut changes = DomainChanges::default();
        if !self.is_needed {
            return changes;
        }
        let events = self.matches.flush_events().into_iter();
        let mut affected: BTreeSet<IpSetId> = events
            .map(|event| match event {
                MatchEvent::Started { selector, .. } | MatchEvent::Stopped { selector, .. } => selector,
            })
            .collect();
        for name in std::mem::take(&mut self.changed) {
            let selectors = self.matches.match_set(&name).into_iter().flat_map(|set| self.matches.matches(set));
            affected.extend(selectors.cloned());
        }
        for id in affected {
            let joined = self.join(&id);
            let Some(watched) = self.watched.get_mut(&id) else { continue };
            let before = std::mem::replace(&mut watched.patterns, joined);
            if before.is_empty() != watched.patterns.is_empty() {
                changes.users.extend(&watched.users);
            } else if before != watched.patterns {
                changes.sets.insert(id);
            }
        }
        changes
    }

    /// Joins the domains of the network sets that a selector picks. Lists that do not fit are left
    /// out: first those of the cluster, then the shorter ones have room, so that a tenant cannot
    /// displace the cluster's own with a network set.
    fn join(&self, id: &IpSetId) -> Arc<[DomainPattern]> {
        let names = self.matches.items_matching(id);
        let mut lists: Vec<_> = names.filter_map(|name| Some((name, self.lists.get(name)?))).collect();
        if let [(_, only)] = &lists[..] {
            return Arc::clone(only);
        }
        lists.sort_unstable_by_key(|(name, list)| (is_of_namespace(name), list.len(), *name));
        let mut count = 0;
        let mut fits = |list: &Arc<[DomainPattern]>| {
            let is_first = count == 0;
            count += list.len();
            is_first || count <= MOST_JOINED
        };
        let fitting = lists.iter().take_while(|(_, list)| fits(list)).count();
        let (joined, left_out) = lists.split_at(fitting);
        if let Some((first, _)) = left_out.first() {
            let (network_set, count) = (first.as_str(), left_out.len());
            tracing::warn!(
                network_set,
                count,
                limit = MOST_JOINED,
                "a selector joins too many domains; those of network sets are left out"
            );
        }
        if let [(_, only)] = joined {
            return Arc::clone(only);
        }
        let joined: BTreeSet<&DomainPattern> = joined.iter().flat_map(|(_, list)| list.iter()).collect();
        joined.into_iter().cloned().collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.matches.is_empty() && self.lists.is_empty() && self.watched.is_empty() && self.changed.is_empty()
    }
}
