//! Calculated properties of this node's workload endpoints besides policies: roles in live
//! migrations, membership in a mesh in ambient mode, BGP peers.

mod bgp_peers;
mod fields;
pub(crate) mod istio;
mod live_migrations;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ahash::AHashMap;
use tortie_labelindex::MatchSetId;
use tortie_model::desired::LiveMigrationRole;
use tortie_model::{BgpPeer, Hostname, LiveMigration, NamespacedName, Node, WorkloadEndpointKey};

use crate::local::EndpointId;
use crate::policies::{Criterion, LocalMatches, OtherCriterion};
use bgp_peers::BgpPeers;
pub(crate) use fields::fields;
use live_migrations::LiveMigrations;

/// Calculated properties of one endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Computed {
    peer: Option<Arc<str>>,
    in_mesh: bool,
    /// The role, and the UID of the migration that gives it.
    role: Option<(LiveMigrationRole, Arc<str>)>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct ComputedData {
    endpoints: BTreeSet<WorkloadEndpointKey>,
    migrations: LiveMigrations,
    peers: BgpPeers,
    /// Endpoints with calculated properties, as of the last flush.
    computed: BTreeMap<WorkloadEndpointKey, Computed>,
    /// Endpoints to recompute in the next flush, whether or not they match other selectors than
    /// before.
    stale: BTreeSet<WorkloadEndpointKey>,
    /// Migrations whose selected endpoints may get another UID.
    revalued: BTreeSet<NamespacedName>,
}

impl ComputedData {
    pub(crate) fn new(hostname: Hostname) -> Self {
        Self {
            endpoints: BTreeSet::new(),
            migrations: LiveMigrations::new(hostname.clone()),
            peers: BgpPeers::new(hostname),
            computed: BTreeMap::new(),
            stale: BTreeSet::new(),
            revalued: BTreeSet::new(),
        }
    }

    /// Records whether an endpoint of this node exists.
    pub(crate) fn on_endpoint(&mut self, key: &WorkloadEndpointKey, exists: bool) {
        if !exists {
            self.endpoints.remove(key);
            self.stale.remove(key);
            self.computed.remove(key);
        } else if self.endpoints.insert(key.clone()) {
            self.stale.insert(key.clone());
        }
    }

    /// Records a node, perhaps this one; `None` removes it.
    pub(crate) fn on_node(&mut self, name: &Hostname, node: Option<&Node>, matches: &mut LocalMatches) {
        for (peer, selector) in self.peers.on_node(name, node) {
            let criterion = OtherCriterion::Peer(peer).into();
            match selector {
                Some(selector) => matches.set_selector(&criterion, &selector),
                None => matches.remove_selector(&criterion),
            }
        }
    }

    /// Records a BGP peer; `None` removes it.
    pub(crate) fn on_peer(&mut self, name: &Arc<str>, peer: Option<Arc<BgpPeer>>, matches: &mut LocalMatches) {
        let criterion = OtherCriterion::Peer(Arc::clone(name)).into();
        match self.peers.on_peer(name, peer) {
            Some(selector) => matches.set_selector(&criterion, &selector),
            None => matches.remove_selector(&criterion),
        }
    }

    /// Records a migration; `None` removes it.
    pub(crate) fn on_migration(
        &mut self,
        name: &NamespacedName,
        migration: Option<Arc<LiveMigration>>,
        matches: &mut LocalMatches,
    ) {
        let criterion = OtherCriterion::Migration(name.clone()).into();
        self.revalued.insert(name.clone());
        match migration.as_ref().and_then(|migration| migration.target_selector.as_ref()) {
            Some(selector) => matches.set_selector(&criterion, selector),
            None => matches.remove_selector(&criterion),
        }
        let (migrations, endpoints) = (&mut self.migrations, &self.endpoints);
        let named = migrations.on_migration(name, migration);
        self.stale.extend(endpoints.iter().filter(|key| named.iter().any(|party| party.is(key))).cloned());
    }

    /// Marks endpoints that match other selectors than before.
    pub(crate) fn on_matches_changed(&mut self, ids: &[EndpointId]) {
        let workloads = ids.iter().filter_map(EndpointId::workload);
        self.stale.extend(workloads.filter(|key| self.endpoints.contains(*key)).cloned());
    }

    /// Recomputes stale endpoints. Returns the endpoints whose properties changed.
    pub(crate) fn flush(&mut self, matches: &LocalMatches) -> Vec<WorkloadEndpointKey> {
        let mut stale = std::mem::take(&mut self.stale);
        for name in std::mem::take(&mut self.revalued) {
            let criterion = OtherCriterion::Migration(name).into();
            let selected = matches.items_matching(&criterion);
            stale.extend(selected.filter_map(EndpointId::workload).cloned());
        }
        // The policies of an endpoint may be very many, but its criteria are the same for all that
        // match the same.
        let mut criteria: AHashMap<MatchSetId, Vec<&OtherCriterion>> = AHashMap::new();
        stale.retain(|key| {
            let criteria = matches.match_set(&EndpointId::Workload(key.clone())).map(|set| {
                &**criteria.entry(set).or_insert_with(|| matches.matches(set).filter_map(Criterion::other).collect())
            });
            let now = self.compute(key, criteria.unwrap_or_default());
            let was = if now == Computed::default() {
                self.computed.remove(key)
            } else {
                self.computed.insert(key.clone(), now.clone())
            };
            was.unwrap_or_default() != now
        });
        stale.into_iter().collect()
    }

    fn compute(&self, key: &WorkloadEndpointKey, criteria: &[&OtherCriterion]) -> Computed {
        let mut computed = Computed::default();
        let mut selecting = Vec::new();
        for criterion in criteria {
            match criterion {
                OtherCriterion::Mesh => computed.in_mesh = true,
                OtherCriterion::Migration(name) => selecting.push(name),
                OtherCriterion::Peer(name) if computed.peer.as_ref().is_some_and(|first| first <= name) => {}
                OtherCriterion::Peer(name) => computed.peer = Some(Arc::clone(name)),
            }
        }
        computed.role = self.migrations.role(key, &selecting);
        computed
    }

    /// Returns the calculated properties of an endpoint, if any, as of the last flush.
    pub(crate) fn of(&self, key: &WorkloadEndpointKey) -> Option<&Computed> {
        self.computed.get(key)
    }

    /// Reports whether no data of the datastore is held.
    pub(crate) fn is_empty(&self) -> bool {
        self.endpoints.is_empty()
            && self.migrations.is_empty()
            && self.peers.is_empty()
            && self.computed.is_empty()
            && self.stale.is_empty()
            && self.revalued.is_empty()
    }
}
