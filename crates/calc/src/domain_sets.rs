//! Domains of network sets, joined by the selectors of egress rules that allow.
//!
//! Nothing is matched until a network set with domains appears. Then each flush joins again only
//! the domains of selectors for which the picked network sets, or their lists, have changed. Each
//! policy has a budget for the domains of all its selectors, which are charged before they are
//! joined: first those of the cluster, so that no network set of a tenant displaces them. A
//! selector without room has none, or those of the cluster only, which allows less.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ahash::AHashMap;
use tortie_labelindex::{MatchEvent, MatchIndex, ParentLabels};
use tortie_model::{DomainPattern, IpSetId, Labels, NetworkSet, NetworkSetName, ProfileName};
use tortie_selector::{Selector, unique_id};

use crate::problem::Reason;
use crate::slot_table::Slot;

/// Bound of the domains that a selector joins from several network sets: 400 KiB. The first list
/// counts at any length, since it is shared by all selectors.
const MOST_JOINED: usize = 1 << 14;

/// Bound of the domains of all selectors of a policy, each as often as network sets have it: 3 MiB
/// of joined lists, and as many patterns in the reader of DNS answers.
const MOST_OF_POLICY: usize = 1 << 17;

/// Effect of a flush.
#[derive(Debug, Default)]
pub(crate) struct DomainChanges {
    /// Policies with a selector that has its first domains, or no more.
    pub(crate) users: BTreeSet<Slot>,
    /// Sets with other domains than before.
    pub(crate) sets: BTreeSet<IpSetId>,
}

/// A selector of active policies, as of the last flush.
#[derive(Debug)]
struct Watched {
    users: BTreeSet<Slot>,
    extent: Extent,
    /// Domains of the network sets that it picks; sorted, each once. Empty while no user has room
    /// for them.
    patterns: Arc<[DomainPattern]>,
}

/// Domains that a selector picks, before they are joined.
#[derive(Debug, Default, PartialEq, Eq)]
struct Extent {
    /// Their number, each as often as network sets have it.
    count: usize,
    /// The number of those from network sets of the cluster.
    of_cluster: usize,
    /// The first network set whose domains are left out, and the number of such network sets.
    left_out: Option<(NetworkSetName, usize)>,
}

/// Domains of a selector for which a policy has room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Admitted {
    /// Those of network sets of the cluster, which are some.
    OfCluster,
    All,
}

/// An active policy with selectors of domains.
#[derive(Debug)]
struct User {
    /// Sets of its selectors, in the order of the rules.
    ids: Vec<IpSetId>,
    /// Those with domains for which there is room.
    admitted: BTreeMap<IpSetId, Admitted>,
    flaw: Option<Reason>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct DomainSets {
    matches: MatchIndex<NetworkSetName, IpSetId>,
    /// Network sets with domains.
    lists: AHashMap<NetworkSetName, Arc<[DomainPattern]>>,
    watched: AHashMap<IpSetId, Watched>,
    users: AHashMap<Slot, User>,
    /// Users whose flaw has changed.
    new_flaws: BTreeSet<Slot>,
    /// Network sets with another list than at the last flush.
    changed: BTreeSet<NetworkSetName>,
    /// Sets of which a user admits other domains than at the last flush.
    unjoined: BTreeSet<IpSetId>,
    /// Whether a network set has had domains. It stays, so that a tenant cannot make a node compile
    /// all policies again and again.
    is_needed: bool,
    /// Whether `is_needed` is newly set.
    has_begun: bool,
}

/// A network set and its domains.
type PickedList<'a> = (&'a NetworkSetName, &'a Arc<[DomainPattern]>);

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

    /// Watches the selectors of a policy, in the order of its rules, instead of those before.
    pub(crate) fn watch(&mut self, user: Slot, selectors: impl Iterator<Item = Selector>) {
        let mut ids = Vec::new();
        let mut known = BTreeSet::new();
        for selector in selectors.take_while(|_| self.is_needed) {
            let id = set_id(&selector);
            if !known.insert(id.clone()) {
                continue;
            }
            let matches = &mut self.matches;
            let watched = self.watched.entry(id.clone()).or_insert_with(|| {
                matches.set_selector(&id, &selector);
                Watched { users: BTreeSet::new(), extent: Extent::default(), patterns: [].into() }
            });
            watched.users.insert(user);
            ids.push(id);
        }
        let before = self.users.remove(&user);
        for id in before.iter().flat_map(|before| &before.ids).filter(|id| !known.contains(*id)) {
            let Some(watched) = self.watched.get_mut(id) else { continue };
            watched.users.remove(&user);
            if watched.users.is_empty() {
                self.watched.remove(id);
                self.matches.remove_selector(id);
            }
        }
        let (admitted, flaw) = before.map(|before| (before.admitted, before.flaw)).unwrap_or_default();
        self.users.insert(user, User { ids, admitted, flaw });
        self.admit(user);
        if known.is_empty() {
            self.users.remove(&user);
        }
    }

    /// Returns the domains of a set, as of the last flush; empty for an unknown set.
    pub(crate) fn patterns(&self, id: &IpSetId) -> Arc<[DomainPattern]> {
        self.watched.get(id).map_or_else(|| [].into(), |watched| Arc::clone(&watched.patterns))
    }

    /// Returns the sets of a policy that have domains, as of the last flush, and room in its
    /// budget.
    pub(crate) fn admitted(&self, user: Slot) -> Option<&BTreeMap<IpSetId, Admitted>> {
        self.users.get(&user).map(|user| &user.admitted).filter(|admitted| !admitted.is_empty())
    }

    /// Returns the policies that lack domains, and the reasons.
    pub(crate) fn flaws(&self) -> impl Iterator<Item = (Slot, &Reason)> {
        self.users.iter().filter_map(|(user, state)| Some((*user, state.flaw.as_ref()?)))
    }

    /// Returns the policies that newly lack domains, or for another reason, since the last call.
    pub(crate) fn take_new_flaws(&mut self) -> impl Iterator<Item = (Slot, &Reason)> {
        let users = &self.users;
        std::mem::take(&mut self.new_flaws)
            .into_iter()
            .filter_map(|user| Some((user, users.get(&user)?.flaw.as_ref()?)))
    }

    pub(crate) fn flush(&mut self) -> DomainChanges {
        let mut changes = DomainChanges::default();
        if !self.is_needed {
            return changes;
        }
        let mut affected = self.take_affected();
        let mut users = BTreeSet::new();
        for id in &affected {
            let extent = self.extent(id);
            let Some(watched) = self.watched.get_mut(id) else { continue };
            if watched.extent != extent {
                watched.extent = extent;
                users.extend(&watched.users);
            }
        }
        changes.users = users.into_iter().filter(|user| self.admit(*user)).collect();
        affected.append(&mut self.unjoined);
        for id in affected {
            let joined = self.join(&id);
            let Some(watched) = self.watched.get_mut(&id) else { continue };
            let before = std::mem::replace(&mut watched.patterns, joined);
            // Of the first domains, and the last ones, the policies are told.
            let is_other = !Arc::ptr_eq(&before, &watched.patterns) && before != watched.patterns;
            if is_other && !before.is_empty() && !watched.patterns.is_empty() {
                changes.sets.insert(id);
            }
        }
        changes
    }

    /// Returns the selectors for which network sets, or their domains, have changed.
    fn take_affected(&mut self) -> BTreeSet<IpSetId> {
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
        affected
    }

    /// Decides for which domains a policy has room: first those of the cluster, then those of
    /// namespaces, both in the order of the rules. Returns whether other selectors have domains.
    fn admit(&mut self, slot: Slot) -> bool {
        let Some(user) = self.users.get_mut(&slot) else { return false };
        let picks = user.ids.iter().filter_map(|id| Some((id, &self.watched.get(id)?.extent)));
        let picks: Vec<(&IpSetId, &Extent)> = picks.filter(|(_, extent)| extent.count > 0).collect();
        let (mut room, mut admitted) = (MOST_OF_POLICY, BTreeMap::new());
        let mut charge = |count: usize| room.checked_sub(count).map(|rest| room = rest).is_some();
        for (id, extent) in &picks {
            if extent.of_cluster > 0 && charge(extent.of_cluster) {
                admitted.insert(IpSetId::clone(id), Admitted::OfCluster);
            }
        }
        for (id, extent) in &picks {
            let has_those_of_cluster = extent.of_cluster == 0 || admitted.contains_key(*id);
            if has_those_of_cluster && charge(extent.count - extent.of_cluster) {
                admitted.insert(IpSetId::clone(id), Admitted::All);
            }
        }
        let selectors = picks.iter().filter(|(id, _)| admitted.get(*id) != Some(&Admitted::All)).count();
        let flaw = match picks.iter().find_map(|(_, extent)| extent.left_out.as_ref()) {
            _ if selectors > 0 => Some(Reason::PolicyDomains { selectors, limit: MOST_OF_POLICY }),
            Some((network_set, count)) => {
                Some(Reason::JoinedDomains { network_set: network_set.clone(), count: *count, limit: MOST_JOINED })
            }
            None => None,
        };
        if user.flaw != flaw {
            user.flaw = flaw;
            self.new_flaws.insert(slot);
        }
        let before = std::mem::replace(&mut user.admitted, admitted);
        let is_same = |(id, part): &(&IpSetId, &Admitted)| {
            before.get(*id) == Some(*part) && user.admitted.get(*id) == Some(*part)
        };
        let differing = before.iter().chain(&user.admitted).filter(|entry| !is_same(entry));
        self.unjoined.extend(differing.map(|(id, _)| id.clone()));
        !before.keys().eq(user.admitted.keys())
    }

    /// Returns the domains of a selector for which one of its policies has room.
    fn part_admitted(&self, id: &IpSetId) -> Option<Admitted> {
        let users = self.watched.get(id).into_iter().flat_map(|watched| &watched.users);
        users.filter_map(|user| self.users.get(user)?.admitted.get(id).copied()).max()
    }

    /// Returns the lists that a selector picks, those that are joined first, and the number of
    /// these. Lists that do not fit are left out: first those of the cluster, then the shorter ones
    /// have room, so that a tenant cannot displace the cluster's own with a network set.
    fn picked(&self, id: &IpSetId) -> (Vec<PickedList<'_>>, usize) {
        let names = self.matches.items_matching(id);
        let mut lists: Vec<_> = names.filter_map(|name| Some((name, self.lists.get(name)?))).collect();
        lists.sort_unstable_by_key(|(name, list)| (is_of_namespace(name), list.len(), *name));
        let mut count = 0;
        let mut fits = |list: &Arc<[DomainPattern]>| {
            let is_first = count == 0;
            count += list.len();
            is_first || count <= MOST_JOINED
        };
        let fitting = lists.iter().take_while(|(_, list)| fits(list)).count();
        (lists, fitting)
    }

    fn extent(&self, id: &IpSetId) -> Extent {
        let (lists, fitting) = self.picked(id);
        let (joined, left_out) = lists.split_at(fitting);
        Extent {
            count: joined.iter().map(|(_, list)| list.len()).sum(),
            of_cluster: joined.iter().filter(|(name, _)| !is_of_namespace(name)).map(|(_, list)| list.len()).sum(),
            left_out: left_out.first().map(|(first, _)| (NetworkSetName::clone(first), left_out.len())),
        }
    }

    /// Joins the domains that a selector picks, and for which a policy has room.
    fn join(&self, id: &IpSetId) -> Arc<[DomainPattern]> {
        let Some(part) = self.part_admitted(id) else { return [].into() };
        let (mut lists, fitting) = self.picked(id);
        lists.truncate(fitting);
        if part == Admitted::OfCluster {
            lists.retain(|(name, _)| !is_of_namespace(name));
        }
        if let [(_, only)] = &lists[..] {
            return Arc::clone(only);
        }
        let joined: BTreeSet<&DomainPattern> = lists.iter().flat_map(|(_, list)| list.iter()).collect();
        joined.into_iter().cloned().collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.matches.is_empty()
            && self.lists.is_empty()
            && self.watched.is_empty()
            && self.users.is_empty()
            && self.changed.is_empty()
            && self.unjoined.is_empty()
    }
}
