//! Both indexes by brute force: every settle and every flush evaluates everything.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hash;
use std::sync::Arc;

use tortie_model::desired::{IpPortMember, IpSetDelta, IpSetType, IpSetUpdate, Members};
use tortie_model::{Cidr, EndpointPort, IpSetId, Labels, ProfileName};
use tortie_selector::{LabelSource, Selector};

use crate::types::{MatchSetId, Overlap, SetChange, SetDefinition, Settled, Stats};

/// An item's labels and those of its parents.
struct Effective<'a> {
    own: &'a Labels,
    parents: &'a [ProfileName],
    known: &'a BTreeMap<ProfileName, Labels>,
}

impl LabelSource for Effective<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.own.get(key).or_else(|| self.parents.iter().find_map(|p| self.known.get(p)?.get(key)))
    }
}

type Labelled = (Labels, Arc<[ProfileName]>);

/// Items with inherited labels against keyed selectors.
#[derive(Clone, Debug)]
pub struct MatchIndex<I, S> {
    items: BTreeMap<I, Labelled>,
    parents: BTreeMap<ProfileName, Labels>,
    selectors: BTreeMap<S, Selector>,
    settled: BTreeMap<I, MatchSetId>,
    active: BTreeSet<S>,
    ids: BTreeMap<Vec<S>, MatchSetId>,
    sets: BTreeMap<MatchSetId, Vec<S>>,
    next_id: u32,
    evaluations: u64,
}

impl<I, S> Default for MatchIndex<I, S> {
    fn default() -> Self {
        Self {
            items: BTreeMap::new(),
            parents: BTreeMap::new(),
            selectors: BTreeMap::new(),
            settled: BTreeMap::new(),
            active: BTreeSet::new(),
            ids: BTreeMap::new(),
            sets: BTreeMap::new(),
            next_id: 0,
            evaluations: 0,
        }
    }
}

impl<I: Clone + Eq + Hash + Ord, S: Clone + Eq + Hash + Ord> MatchIndex<I, S> {
    /// An empty index.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds or replaces an item: its own labels, and its parents from the most to the least specific.
    pub fn set_item(&mut self, key: &I, labels: &Labels, parents: &Arc<[ProfileName]>) {
        self.items.insert(key.clone(), (labels.clone(), Arc::clone(parents)));
    }

    /// Removes an item; does nothing if it is unknown.
    pub fn remove_item(&mut self, key: &I) {
        self.items.remove(key);
    }

    /// Says which labels a parent hands down; `None` if the parent is gone.
    pub fn set_parent(&mut self, name: &ProfileName, labels: Option<&Labels>) {
        match labels {
            Some(labels) => self.parents.insert(name.clone(), labels.clone()),
            None => self.parents.remove(name),
        };
    }

    /// Adds a selector or replaces the one with this key. Many keys may have the same selector.
    pub fn set_selector(&mut self, key: &S, selector: &Selector) {
        self.selectors.insert(key.clone(), selector.clone());
    }

    /// Removes a selector; does nothing if it is unknown.
    pub fn remove_selector(&mut self, key: &S) {
        self.selectors.remove(key);
    }

    /// Matches everything that was added or changed since the previous settle.
    pub fn settle(&mut self) -> Settled<I, S> {
        let mut out = Settled::default();
        let mut active = BTreeSet::new();
        let mut settled = BTreeMap::new();
        for (key, (own, parents)) in &self.items {
            let labels = Effective { own, parents, known: &self.parents };
            self.evaluations += self.selectors.len() as u64;
            let matches: Vec<S> =
                self.selectors.iter().filter(|(_, s)| s.matches(&labels)).map(|(k, _)| k.clone()).collect();
            active.extend(matches.iter().cloned());
            let id = match self.ids.get(&matches) {
                Some(&id) => id,
                None => {
                    let id = MatchSetId(self.next_id);
                    self.next_id += 1;
                    self.ids.insert(matches.clone(), id);
                    self.sets.insert(id, matches);
                    id
                }
            };
            if self.settled.get(key) != Some(&id) {
                out.changed_items.push(key.clone());
            }
            settled.insert(key.clone(), id);
        }
        out.activated.extend(active.difference(&self.active).cloned());
        out.deactivated.extend(self.active.difference(&active).cloned());
        let used: BTreeSet<MatchSetId> = settled.values().copied().collect();
        self.ids.retain(|_, id| used.contains(id));
        self.sets.retain(|id, _| used.contains(id));
        self.active = active;
        self.settled = settled;
        out
    }

    /// The selectors that an item matches, as of the last settle; `None` for an item that was not there then or has
    /// been removed since.
    #[must_use]
    pub fn match_set(&self, key: &I) -> Option<MatchSetId> {
        self.items.get(key)?;
        self.settled.get(key).copied()
    }

    /// The keys of the selectors in a match set, sorted; none for an id that was given out before the last settle and
    /// is not in use any more.
    pub fn matches(&self, set: MatchSetId) -> impl Iterator<Item = &S> {
        self.sets.get(&set).into_iter().flatten()
    }

    /// The match sets that contain a selector, as of the last settle, sorted.
    pub fn match_sets_with(&self, key: &S) -> impl Iterator<Item = MatchSetId> {
        self.sets.iter().filter(move |(_, keys)| keys.contains(key)).map(|(id, _)| *id)
    }

    /// The items that match a selector, as of the last settle, in no particular order.
    pub fn items_matching<'a>(&'a self, key: &'a S) -> impl Iterator<Item = &'a I> {
        self.settled.iter().filter(move |(_, id)| self.sets[*id].contains(key)).map(|(item, _)| item)
    }

    /// Whether nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
            && self.parents.is_empty()
            && self.selectors.is_empty()
            && self.settled.is_empty()
            && self.active.is_empty()
    }

    /// Sizes and effort.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            items: self.items.len(),
            groups: self.items.len(),
            selectors: self.selectors.len(),
            parents: self.parents.len(),
            evaluations: self.evaluations,
        }
    }
}

#[derive(Clone, Debug)]
struct Item {
    labelled: Labelled,
    nets: Vec<Cidr>,
    ports: Vec<EndpointPort>,
}

/// The members of IP sets: items with inherited labels against set definitions.
#[derive(Clone, Debug)]
pub struct MemberIndex<I> {
    overlap: Overlap,
    items: BTreeMap<I, Item>,
    parents: BTreeMap<ProfileName, Labels>,
    sets: BTreeMap<IpSetId, SetDefinition>,
    /// Sets that were added since the previous flush.
    new: BTreeSet<IpSetId>,
    emitted: BTreeMap<IpSetId, Contents>,
    evaluations: u64,
}

#[derive(Clone, Debug, PartialEq)]
enum Contents {
    Nets(BTreeSet<Cidr>),
    IpPorts(BTreeSet<IpPortMember>),
}

impl<I: Clone + Eq + Hash + Ord> MemberIndex<I> {
    /// An empty index.
    #[must_use]
    pub fn new(overlap: Overlap) -> Self {
        Self {
            overlap,
            items: BTreeMap::new(),
            parents: BTreeMap::new(),
            sets: BTreeMap::new(),
            new: BTreeSet::new(),
            emitted: BTreeMap::new(),
            evaluations: 0,
        }
    }

    /// Adds or replaces an item: its own labels, its parents from the most to the least specific, the networks and the
    /// named ports that it contributes. Host bits are cleared and a zero-length prefix becomes its two halves; an
    /// endpoint, whose prefix lengths do not count, must be given with single addresses ([`Cidr::to_host`]).
    pub fn set_item(
        &mut self,
        key: &I,
        labels: &Labels,
        parents: &Arc<[ProfileName]>,
        nets: impl IntoIterator<Item = Cidr>,
        ports: &[EndpointPort],
    ) {
        let nets = nets.into_iter().flat_map(|n| n.masked().split_default_route()).collect();
        let item = Item { labelled: (labels.clone(), Arc::clone(parents)), nets, ports: ports.to_vec() };
        self.items.insert(key.clone(), item);
    }

    /// Removes an item; does nothing if it is unknown.
    pub fn remove_item(&mut self, key: &I) {
        self.items.remove(key);
    }

    /// Says which labels a parent hands down; `None` if the parent is gone.
    pub fn set_parent(&mut self, name: &ProfileName, labels: Option<&Labels>) {
        match labels {
            Some(labels) => self.parents.insert(name.clone(), labels.clone()),
            None => self.parents.remove(name),
        };
    }

    /// Adds a set, or gives it another definition, upon which it is emitted in full.
    pub fn add_set(&mut self, id: &IpSetId, definition: SetDefinition) {
        if self.sets.get(id) != Some(&definition) {
            self.sets.insert(id.clone(), definition);
            self.new.insert(id.clone());
        }
    }

    /// Removes a set; does nothing if it is unknown.
    pub fn remove_set(&mut self, id: &IpSetId) {
        self.sets.remove(id);
        self.new.remove(id);
    }

    /// Appends what changed since the previous flush: new sets in full, for other sets what joined or left, both sorted
    /// by id, then the removed sets, sorted by id. A set that was removed and added again is a new one.
    pub fn flush(&mut self, out: &mut Vec<SetChange>) {
        let gone: Vec<IpSetId> = self.emitted.keys().filter(|id| !self.sets.contains_key(*id)).cloned().collect();
        let new = std::mem::take(&mut self.new);
        let ids: Vec<IpSetId> = self.sets.keys().cloned().collect();
        for id in ids {
            let now = self.contents(&id);
            match self.emitted.get(&id) {
                Some(before) if !new.contains(&id) => out.extend(delta(&id, before, &now).map(SetChange::Delta)),
                _ => out.push(SetChange::Full(full(&id, &now))),
            }
            self.emitted.insert(id, now);
        }
        for id in gone {
            self.emitted.remove(&id);
            out.push(SetChange::Remove(id));
        }
    }

    fn contents(&mut self, id: &IpSetId) -> Contents {
        let definition = &self.sets[id];
        self.evaluations += self.items.len() as u64;
        let matching = self.items.values().filter(|item| {
            let (own, parents) = &item.labelled;
            definition.selector.matches(&Effective { own, parents, known: &self.parents })
        });
        let Some(named) = &definition.named_port else {
            let mut nets: BTreeSet<Cidr> = matching.flat_map(|item| item.nets.iter().copied()).collect();
            if self.overlap == Overlap::Suppress {
                let all = nets.clone();
                nets.retain(|net| {
                    !all.iter().any(|other| other.prefix_len() < net.prefix_len() && other.contains(net.address()))
                });
            }
            return Contents::Nets(nets);
        };
        let mut members = BTreeSet::new();
        for item in matching {
            for port in &item.ports {
                if let Some(protocol) = named.member_protocol(port) {
                    members.extend(item.nets.iter().map(|n| IpPortMember::new(n.address(), protocol, port.port)));
                }
            }
        }
        Contents::IpPorts(members)
    }

    /// Whether nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty() && self.parents.is_empty() && self.sets.is_empty() && self.emitted.is_empty()
    }

    /// Sizes and effort.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            items: self.items.len(),
            groups: self.items.len(),
            selectors: self.sets.len(),
            parents: self.parents.len(),
            evaluations: self.evaluations,
        }
    }
}

fn full(id: &IpSetId, contents: &Contents) -> IpSetUpdate {
    let (set_type, members) = match contents {
        Contents::Nets(nets) => (IpSetType::Net, Members::Nets(nets.iter().copied().collect())),
        Contents::IpPorts(members) => (IpSetType::IpAndPort, Members::IpPorts(members.iter().copied().collect())),
    };
    IpSetUpdate { id: id.clone(), set_type, members }
}

fn delta(id: &IpSetId, before: &Contents, now: &Contents) -> Option<IpSetDelta> {
    let (added, removed) = match (before, now) {
        (Contents::Nets(before), Contents::Nets(now)) => (
            Members::Nets(now.difference(before).copied().collect()),
            Members::Nets(before.difference(now).copied().collect()),
        ),
        (Contents::IpPorts(before), Contents::IpPorts(now)) => (
            Members::IpPorts(now.difference(before).copied().collect()),
            Members::IpPorts(before.difference(now).copied().collect()),
        ),
        _ => return None,
    };
    (!added.is_empty() || !removed.is_empty()).then(|| IpSetDelta { id: id.clone(), added, removed })
}
