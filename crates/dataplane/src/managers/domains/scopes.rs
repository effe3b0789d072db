//! The endpoints that learn, with their numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tortie_dns::Scope;
use tortie_iptables::InterfaceName;
use tortie_model::{IpSetId, WorkloadEndpoint, WorkloadEndpointId};
use tortie_netfilter::Shard;
use twox_hash::XxHash3_64;

use crate::links::Link;

/// The holder of a scope, and the sets of its policies; without sets, it does not learn.
#[derive(Debug, Default)]
pub(super) struct WantedScope {
    /// `None` without an endpoint.
    owner: Option<u64>,
    /// Empty for the host.
    namespace: Arc<str>,
    sets: BTreeSet<IpSetId>,
}

/// Returns the number of the holder of an interface with this index, which holders of the interface
/// at other times do not have: of an endpoint with its addresses. The same endpoint has the same
/// number in each process, as stored addresses need it.
#[must_use]
pub fn learner_number(id: &WorkloadEndpointId, endpoint: &WorkloadEndpoint, index: Option<u32>) -> u64 {
    let mut text = format!("{id}\n{:?}\n{index:?}", endpoint.mac);
    for net in endpoint.nets() {
        text.push('\n');
        text += &net.to_string();
    }
    XxHash3_64::oneshot(text.as_bytes())
}

impl WantedScope {
    pub(super) fn of_workload(
        id: &WorkloadEndpointId,
        endpoint: &WorkloadEndpoint,
        link: Option<Link>,
        sets: BTreeSet<IpSetId>,
    ) -> Self {
        let namespace = id.workload.split_once('/').map_or(&*id.workload, |(namespace, _)| namespace).into();
        Self { owner: Some(learner_number(id, endpoint, link.map(|link| link.index))), namespace, sets }
    }

    pub(super) fn of_host(sets: BTreeSet<IpSetId>) -> Self {
        Self { owner: Some(0), sets, ..Self::default() }
    }
}

/// A learning endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LearningScope {
    pub(super) owner: u64,
    pub(super) namespace: Arc<str>,
    pub(super) shard: Shard,
    pub(super) sets: BTreeSet<IpSetId>,
}

/// All learning endpoints.
#[derive(Debug)]
pub(super) struct Scopes {
    has_shards: bool,
    learning: BTreeMap<Scope, LearningScope>,
    /// Interfaces by their numbers. A new interface gets the lowest free one.
    numbers: BTreeMap<usize, InterfaceName>,
    /// Former learners whose endpoint is still the same.
    ending: BTreeMap<Scope, u64>,
}

impl Scopes {
    pub(super) fn new(has_shards: bool) -> Self {
        Self { has_shards, learning: BTreeMap::new(), numbers: BTreeMap::new(), ending: BTreeMap::new() }
    }

    pub(super) fn set(&mut self, scope: Scope, wanted: WantedScope) {
        let WantedScope { owner, namespace, sets } = wanted;
        let Some(owner) = owner.filter(|_| !sets.is_empty()) else {
            if let Some(before) = self.learning.remove(&scope) {
                self.numbers.retain(|_, interface| Scope::Interface(*interface) != scope);
                self.ending.insert(scope, before.owner);
            }
            if self.ending.get(&scope).copied() != owner {
                self.ending.remove(&scope);
            }
            return;
        };
        self.ending.remove(&scope);
        let shard = match (self.learning.get(&scope), scope) {
            (Some(known), _) => known.shard,
            (None, Scope::Interface(interface)) => self.number(interface),
            (None, Scope::Host) => Shard::default(),
        };
        self.learning.insert(scope, LearningScope { owner, namespace, shard, sets });
    }

    fn number(&mut self, interface: InterfaceName) -> Shard {
        let used = self.numbers.keys().zip(0..).take_while(|(used, expected)| *used == expected).count();
        self.numbers.insert(used, interface);
        self.shard_of(used)
    }

    fn shard_of(&self, number: usize) -> Shard {
        let shard = if self.has_shards { number / Shard::MAX_INTERFACES } else { 0 };
        // A node has fewer than 2^22 interfaces.
        Shard(u16::try_from(shard).unwrap_or(u16::MAX))
    }

    /// Returns the number of shards in use, without gaps between them.
    pub(super) fn shards(&self) -> u16 {
        self.numbers.last_key_value().map_or(0, |(number, _)| self.shard_of(*number).0.saturating_add(1))
    }

    pub(super) fn has(&self, scope: Scope) -> bool {
        self.learning.contains_key(&scope)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.learning.is_empty()
    }

    /// Returns the learning interfaces.
    pub(super) fn interfaces(&self) -> impl Iterator<Item = InterfaceName> {
        self.learning.keys().filter_map(|scope| match scope {
            Scope::Interface(interface) => Some(*interface),
            Scope::Host => None,
        })
    }

    pub(super) fn get(&self, scope: Scope) -> Option<&LearningScope> {
        self.learning.get(&scope)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Scope, &LearningScope)> {
        self.learning.iter().map(|(scope, learning)| (*scope, learning))
    }

    /// Reports whether a scope no longer learns, and still has the endpoint that learned.
    pub(super) fn is_ending(&self, scope: Scope, owner: u64) -> bool {
        self.ending.get(&scope) == Some(&owner)
    }
}
