//! Brute-force versions of both indexes: every flush evaluates everything.
//!
//! The methods correspond to those of the indexes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tortie_model::desired::{IpPortMember, IpSetDelta, IpSetType, IpSetUpdate, Members};
use tortie_model::{Cidr, EndpointPort, IpSetId, Labels, ProfileName};
use tortie_selector::{LabelSource, Selector};

use tortie_labelindex::{MatchChanges, Overlap, SetChange, SetDefinition};

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

/// Oracle of [`tortie_labelindex::MatchIndex`].
pub(crate) struct MatchIndex<I, S> {
    items: BTreeMap<I, Labelled>,
    parents: BTreeMap<ProfileName, Labels>,
    selectors: BTreeMap<S, Selector>,
    flushed: BTreeMap<I, Vec<S>>,
    active: BTreeSet<S>,
}

impl<I: Clone + Ord, S: Clone + Ord> MatchIndex<I, S> {
    pub(crate) fn new() -> Self {
        Self {
            items: BTreeMap::new(),
            parents: BTreeMap::new(),
            selectors: BTreeMap::new(),
            flushed: BTreeMap::new(),
            active: BTreeSet::new(),
        }
    }

    pub(crate) fn set_item(&mut self, key: &I, labels: &Labels, parents: &Arc<[ProfileName]>) {
        self.items.insert(key.clone(), (labels.clone(), Arc::clone(parents)));
    }

    pub(crate) fn remove_item(&mut self, key: &I) {
        self.items.remove(key);
        self.flushed.remove(key);
    }

    pub(crate) fn set_parent(&mut self, name: &ProfileName, labels: Option<&Labels>) {
        set_parent(&mut self.parents, name, labels);
    }

    pub(crate) fn set_selector(&mut self, key: &S, selector: &Selector) {
        self.selectors.insert(key.clone(), selector.clone());
    }

    pub(crate) fn remove_selector(&mut self, key: &S) {
        self.selectors.remove(key);
    }

    pub(crate) fn flush(&mut self) -> MatchChanges<I, S> {
        let mut flushed = BTreeMap::new();
        for (key, (own, parents)) in &self.items {
            let labels = Effective { own, parents, known: &self.parents };
            let matches = self.selectors.iter().filter(|(_, s)| s.matches(&labels)).map(|(k, _)| k.clone());
            flushed.insert(key.clone(), matches.collect::<Vec<S>>());
        }
        let active: BTreeSet<S> = flushed.values().flatten().cloned().collect();
        let changed = flushed.iter().filter(|&(key, matches)| self.flushed.get(key) != Some(matches));
        let out = MatchChanges {
            activated: active.difference(&self.active).cloned().collect(),
            deactivated: self.active.difference(&active).cloned().collect(),
            changed_items: changed.map(|(key, _)| key.clone()).collect(),
        };
        self.active = active;
        self.flushed = flushed;
        out
    }

    pub(crate) fn match_set(&self, key: &I) -> Option<&Vec<S>> {
        self.flushed.get(key)
    }

    pub(crate) fn items_matching(&self, key: &S) -> Vec<I> {
        self.flushed.iter().filter(|(_, matches)| matches.contains(key)).map(|(item, _)| item.clone()).collect()
    }
}

fn set_parent(parents: &mut BTreeMap<ProfileName, Labels>, name: &ProfileName, labels: Option<&Labels>) {
    match labels {
        Some(labels) => parents.insert(name.clone(), labels.clone()),
        None => parents.remove(name),
    };
}

#[derive(Clone, Debug)]
struct Item {
    labelled: Labelled,
    nets: Vec<Cidr>,
    ports: Vec<EndpointPort>,
}

/// Oracle of [`tortie_labelindex::MemberIndex`].
#[derive(Clone, Debug)]
pub(crate) struct MemberIndex<I> {
    overlap: Overlap,
    items: BTreeMap<I, Item>,
    parents: BTreeMap<ProfileName, Labels>,
    sets: BTreeMap<IpSetId, SetDefinition>,
    /// Sets that were added since the previous flush.
    new: BTreeSet<IpSetId>,
    emitted: BTreeMap<IpSetId, Contents>,
}

#[derive(Clone, Debug, PartialEq)]
enum Contents {
    Nets(BTreeSet<Cidr>),
    IpPorts(BTreeSet<IpPortMember>),
}

impl<I: Clone + Ord> MemberIndex<I> {
    /// Returns an empty index.
    pub(crate) fn new(overlap: Overlap) -> Self {
        Self {
            overlap,
            items: BTreeMap::new(),
            parents: BTreeMap::new(),
            sets: BTreeMap::new(),
            new: BTreeSet::new(),
            emitted: BTreeMap::new(),
        }
    }

    /// Adds or replaces an item. `parents` are in descending precedence. Host bits of the networks
    /// are cleared, and a zero-length prefix becomes its two halves. The prefix lengths of an
    /// endpoint do not count, so the caller must pass single addresses ([`Cidr::to_host`]). Returns
    /// the former networks.
    pub(crate) fn set_item(
        &mut self,
        key: &I,
        labels: &Labels,
        parents: &Arc<[ProfileName]>,
        nets: impl IntoIterator<Item = Cidr>,
        ports: &[EndpointPort],
    ) -> Option<BTreeSet<Cidr>> {
        let nets = nets.into_iter().flat_map(|n| n.masked().split_default_route()).collect();
        let item = Item { labelled: (labels.clone(), Arc::clone(parents)), nets, ports: ports.to_vec() };
        self.items.insert(key.clone(), item).map(|item| item.nets.into_iter().collect())
    }

    /// Removes an item. Returns its networks.
    pub(crate) fn remove_item(&mut self, key: &I) -> Option<BTreeSet<Cidr>> {
        self.items.remove(key).map(|item| item.nets.into_iter().collect())
    }

    /// Sets the labels that items inherit from a parent; `None` if the parent is removed.
    pub(crate) fn set_parent(&mut self, name: &ProfileName, labels: Option<&Labels>) {
        set_parent(&mut self.parents, name, labels);
    }

    /// Adds a set or changes its definition. After a change, the next flush emits the set in full.
    pub(crate) fn add_set(&mut self, id: &IpSetId, definition: SetDefinition) {
        if self.sets.get(id) != Some(&definition) {
            self.sets.insert(id.clone(), definition);
            self.new.insert(id.clone());
        }
    }

    /// Removes a set; does nothing if it is unknown.
    pub(crate) fn remove_set(&mut self, id: &IpSetId) {
        self.sets.remove(id);
        self.new.remove(id);
    }

    /// Appends the changes since the previous flush: new sets in full and the joined and departed
    /// members of other sets, sorted by id, then the removed sets, sorted by id. A set that was
    /// removed and added again is a new one.
    pub(crate) fn flush(&mut self, out: &mut Vec<SetChange>) {
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

    /// Returns the number of networks of the matching items.
    pub(crate) fn count(&self, selector: &Selector) -> u64 {
        self.matching(selector).map(|item| item.nets.iter().collect::<BTreeSet<_>>().len() as u64).sum()
    }

    fn matching(&self, selector: &Selector) -> impl Iterator<Item = &Item> {
        self.items.values().filter(move |item| {
            let (own, parents) = &item.labelled;
            selector.matches(&Effective { own, parents, known: &self.parents })
        })
    }

    fn contents(&self, id: &IpSetId) -> Contents {
        let definition = &self.sets[id];
        let matching = self.matching(&definition.selector);
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
