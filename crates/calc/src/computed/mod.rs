//! What workload endpoints of this node have besides policies: roles in live migrations, membership in a mesh in ambient
//! mode, BGP peers.

mod bgp_peers;
mod fields;
pub(crate) mod istio;
mod live_migrations;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tortie_labelindex::MatchIndex;
use tortie_model::desired::LiveMigrationRole;
use tortie_model::{
    BgpPeer, Hostname, Labels, LiveMigration, NamespacedName, Node, ProfileName, WorkloadEndpoint, WorkloadEndpointKey,
};

use bgp_peers::BgpPeers;
pub(crate) use fields::fields;
use live_migrations::LiveMigrations;

/// Whose selector it is that endpoints are matched against.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Criterion {
    Mesh,
    Migration(NamespacedName),
    Peer(Arc<str>),
}

/// What is calculated for one endpoint.
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
    /// The endpoints against the selectors of migrations, active peers and the mesh.
    matches: MatchIndex<WorkloadEndpointKey, Criterion>,
    endpoints: BTreeSet<WorkloadEndpointKey>,
    migrations: LiveMigrations,
    peers: BgpPeers,
    has_mesh: bool,
    /// What the endpoints have for which anything is calculated, as of the last flush.
    computed: BTreeMap<WorkloadEndpointKey, Computed>,
    /// Endpoints to be looked at in the next flush, whether or not they match other selectors than before.
    stale: BTreeSet<WorkloadEndpointKey>,
    /// Migrations that may give those whom their selectors pick another UID.
    revalued: BTreeSet<NamespacedName>,
}

impl ComputedData {
    /// Knows nothing yet of what the datastore holds; with a mesh it knows what is in it.
    pub(crate) fn new(hostname: Hostname, has_mesh: bool) -> Self {
        let mut matches = MatchIndex::new();
        if has_mesh {
            matches.set_selector(&Criterion::Mesh, &istio::workloads());
        }
        Self {
            matches,
            endpoints: BTreeSet::new(),
            migrations: LiveMigrations::new(hostname.clone()),
            peers: BgpPeers::new(hostname),
            has_mesh,
            computed: BTreeMap::new(),
            stale: BTreeSet::new(),
            revalued: BTreeSet::new(),
        }
    }

    /// An endpoint of this node has this value, or is gone.
    pub(crate) fn on_endpoint(&mut self, key: &WorkloadEndpointKey, value: Option<&WorkloadEndpoint>) {
        match value {
            Some(endpoint) => {
                self.matches.set_item(key, &endpoint.labels, &endpoint.profiles);
                if self.endpoints.insert(key.clone()) {
                    self.stale.insert(key.clone());
                }
            }
            None => {
                self.matches.remove_item(key);
                self.endpoints.remove(key);
                self.stale.remove(key);
                self.computed.remove(key);
            }
        }
    }

    /// A profile hands down these labels.
    pub(crate) fn on_profile(&mut self, name: &ProfileName, labels: Option<&Labels>) {
        self.matches.set_parent(name, labels);
    }

    /// A node, perhaps this one.
    pub(crate) fn on_node(&mut self, name: &Hostname, node: Option<&Node>) {
        for (peer, selector) in self.peers.on_node(name, node) {
            let criterion = Criterion::Peer(peer);
            match selector {
                Some(selector) => self.matches.set_selector(&criterion, &selector),
                None => self.matches.remove_selector(&criterion),
            }
        }
    }

    /// A BGP peer has this value, or is gone.
    pub(crate) fn on_peer(&mut self, name: &Arc<str>, peer: Option<Arc<BgpPeer>>) {
        let criterion = Criterion::Peer(Arc::clone(name));
        match self.peers.on_peer(name, peer) {
            Some(selector) => self.matches.set_selector(&criterion, &selector),
            None => self.matches.remove_selector(&criterion),
        }
    }

    /// A migration has this value, or is gone.
    pub(crate) fn on_migration(&mut self, name: &NamespacedName, migration: Option<Arc<LiveMigration>>) {
        let criterion = Criterion::Migration(name.clone());
        self.revalued.insert(name.clone());
        match migration.as_ref().and_then(|migration| migration.target_selector.as_ref()) {
            Some(selector) => self.matches.set_selector(&criterion, selector),
            None => self.matches.remove_selector(&criterion),
        }
        let (migrations, endpoints) = (&mut self.migrations, &self.endpoints);
        let named = migrations.on_migration(name, migration);
        self.stale.extend(endpoints.iter().filter(|key| named.iter().any(|party| party.is(key))).cloned());
    }

    /// Calculates what has waited. Gives back the endpoints for which the result differs.
    pub(crate) fn flush(&mut self) -> Vec<WorkloadEndpointKey> {
        let mut stale = std::mem::take(&mut self.stale);
        stale.extend(self.matches.settle().changed_items);
        for name in std::mem::take(&mut self.revalued) {
            stale.extend(self.matches.items_matching(&Criterion::Migration(name)).cloned());
        }
        stale.retain(|key| {
            let now = self.compute(key);
            let was = if now == Computed::default() {
                self.computed.remove(key)
            } else {
                self.computed.insert(key.clone(), now.clone())
            };
            was.unwrap_or_default() != now
        });
        stale.into_iter().collect()
    }

    fn compute(&self, key: &WorkloadEndpointKey) -> Computed {
        let mut computed = Computed::default();
        let mut selecting = Vec::new();
        for criterion in self.matches.match_set(key).into_iter().flat_map(|set| self.matches.matches(set)) {
            match criterion {
                Criterion::Mesh => computed.in_mesh = true,
                Criterion::Migration(name) => selecting.push(name),
                Criterion::Peer(name) if computed.peer.as_ref().is_some_and(|first| first <= name) => {}
                Criterion::Peer(name) => computed.peer = Some(Arc::clone(name)),
            }
        }
        computed.role = self.migrations.role(key, &selecting);
        computed
    }

    /// What was calculated for an endpoint, if anything, as of the last flush.
    pub(crate) fn of(&self, key: &WorkloadEndpointKey) -> Option<&Computed> {
        self.computed.get(key)
    }

    pub(crate) fn has_mesh(&self) -> bool {
        self.has_mesh
    }

    pub(crate) fn evaluations(&self) -> u64 {
        self.matches.stats().evaluations
    }

    /// Whether nothing is held that the datastore told of.
    pub(crate) fn is_empty(&self) -> bool {
        self.endpoints.is_empty()
            && self.migrations.is_empty()
            && self.peers.is_empty()
            && self.computed.is_empty()
            && self.stale.is_empty()
            && self.revalued.is_empty()
            && self.matches.stats().items == 0
            && self.matches_nothing()
    }

    fn matches_nothing(&self) -> bool {
        if !self.has_mesh {
            return self.matches.is_empty();
        }
        let mut rest = self.matches.clone();
        rest.remove_selector(&Criterion::Mesh);
        let _ = rest.settle();
        rest.is_empty()
    }
}
