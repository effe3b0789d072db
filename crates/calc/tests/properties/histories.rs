//! The properties.

use proptest::prelude::*;
use proptest::sample::select;
use tortie_calc::{AddressClaims, Demand, Graph, GraphConfig, Overlap, ReadyFlag, RouteSource};
use tortie_model::desired::DesiredUpdate;
use tortie_model::{Hostname, Key, SyncStatus, Update};
use tortie_testkit::mock::MockDataplane;
use tortie_testkit::oracle::{Datastore, expected_within};

use crate::generate::{HOST, overlay_update, update};
use crate::overlay_oracle::{self, Overlay};

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Update(Update),
    /// Repeats the update from so many steps before, though a newer one may have followed.
    Stale(usize),
    /// Repeats the current value of some object.
    Duplicate(usize),
    /// Deletes some object, and adds it again.
    Blink(usize),
    Flush,
}

pub(crate) fn steps(update: impl Strategy<Value = Update>) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        14 => update.prop_map(Step::Update),
        1 => (1usize..10).prop_map(Step::Stale),
        1 => any::<usize>().prop_map(Step::Duplicate),
        1 => any::<usize>().prop_map(Step::Blink),
        3 => Just(Step::Flush),
    ];
    prop::collection::vec(step, 1..70)
}

struct Node {
    graph: Graph,
    dataplane: MockDataplane,
    config: GraphConfig,
    is_in_sync: bool,
    /// Whether the last configuration came without `DatastoreNotReady`.
    is_ready: bool,
}

impl Node {
    fn new(config: GraphConfig) -> Self {
        // The oracle does not validate claims; `tests/claims.rs` has one that does.
        let graph = Graph::new(&GraphConfig { address_claims: AddressClaims::Any, ..config.clone() });
        Self { graph, dataplane: MockDataplane::default(), config, is_in_sync: false, is_ready: false }
    }

    /// Returns a node that gets all updates at once.
    fn fresh(config: GraphConfig, datastore: &Datastore) -> Self {
        let mut fresh = Self::new(config);
        fresh.in_sync();
        for update in datastore.values() {
            fresh.graph.on_update(update.clone());
        }
        fresh.flush();
        fresh
    }

    fn in_sync(&mut self) {
        self.graph.on_status(SyncStatus::InSync);
        self.is_in_sync = true;
    }

    fn flush(&mut self) -> usize {
        let mut out = Vec::new();
        self.graph.flush(&mut out);
        if !self.is_in_sync {
            let withheld = |u: &DesiredUpdate| {
                !matches!(
                    u,
                    DesiredUpdate::WorkloadEndpoint(..)
                        | DesiredUpdate::HostEndpoint(..)
                        | DesiredUpdate::Config(_)
                        | DesiredUpdate::InSync
                )
            };
            assert!(out.iter().all(withheld), "endpoint before in sync");
        }
        if out.iter().any(|update| matches!(update, DesiredUpdate::Config(_))) {
            self.is_ready = !out.contains(&DesiredUpdate::DatastoreNotReady);
        }
        let changes = out.iter().filter(|update| !is_passed_on_again(update)).count();
        self.dataplane.apply_batch(out);
        // A missing BGP configuration counts as an empty one.
        self.dataplane.bgp.get_or_insert_default();
        changes
    }

    /// Compares the replayed state with the oracle.
    fn check(&self, datastore: &Datastore) {
        let suppress = self.config.overlap == Overlap::Suppress;
        let mut expected =
            expected_within(datastore, suppress, self.config.istio_ambient_mode, self.config.policy_members);
        let dataplane = &self.dataplane;
        self.check_routes(datastore);
        if self.is_in_sync {
            assert_eq!(self.is_ready, datastore.get(&Key::Ready) == Some(&Update::Ready(Some(true))));
        } else {
            expected.workload_endpoints.clear();
            expected.host_endpoints.clear();
            (expected.config, expected.encapsulation) = (None, None);
        }
        assert_eq!(dataplane.ip_sets, expected.ip_sets);
        assert_eq!(dataplane.policies, expected.policies);
        assert_eq!(dataplane.profiles, expected.profiles);
        assert_eq!(dataplane.workload_endpoints, expected.workload_endpoints);
        assert_eq!(dataplane.host_endpoints, expected.host_endpoints);
        // Their labels are compared with the fresh graph only.
        assert!(dataplane.namespaces.keys().eq(expected.namespaces.keys()));
        assert_eq!(dataplane.hosts, expected.hosts);
        assert_eq!(dataplane.ip_pools, expected.ip_pools);
        assert_eq!(dataplane.encapsulation, expected.encapsulation);
        assert_eq!(dataplane.config, expected.config);
        assert_eq!(dataplane.wireguard, expected.wireguard);
        assert_eq!(dataplane.wireguard_v6, expected.wireguard_v6);
        assert_eq!(dataplane.services, expected.services);
        assert_eq!(dataplane.bgp, expected.bgp);
    }

    /// Compares routes, and all else with a fresh graph.
    fn check_routes(&self, datastore: &Datastore) {
        let Overlay { routes, vteps, encapsulation } = overlay_oracle::expected(datastore, &self.config);
        let dataplane = &self.dataplane;
        assert_eq!(dataplane.routes, routes);
        assert_eq!(dataplane.vteps, vteps);
        if self.is_in_sync {
            assert_eq!(dataplane.encapsulation, Some(encapsulation));
            assert_eq!(*dataplane, Self::fresh(self.config.clone(), datastore).dataplane);
        }
    }
}

/// Comparison of a node with an oracle.
type Check = fn(&Node, &Datastore);

/// Reports whether an object is sent again when its update is repeated: the graph only passes it
/// on.
fn is_passed_on_again(update: &DesiredUpdate) -> bool {
    matches!(
        update,
        DesiredUpdate::Namespace(..)
            | DesiredUpdate::IpPool(_)
            | DesiredUpdate::Wireguard(..)
            | DesiredUpdate::WireguardV6(..)
            | DesiredUpdate::Service(..)
            | DesiredUpdate::BgpConfiguration(_)
    )
}

fn store(datastore: &mut Datastore, update: &Update) {
    let key = update.key();
    if update.exists() {
        datastore.insert(key, update.clone())
    } else {
        datastore.remove(&key)
    };
}

fn run(steps: &[Step], in_sync_at: usize, config: GraphConfig, check: Check) -> (Node, Datastore) {
    let mut node = Node::new(config);
    let mut datastore = Datastore::new();
    let mut history: Vec<Update> = Vec::new();
    for (i, step) in steps.iter().enumerate() {
        if i == in_sync_at {
            node.in_sync();
        }
        let pick = |n: usize| -> Option<Update> { datastore.values().nth(n % datastore.len().max(1)).cloned() };
        let updates = match step {
            Step::Update(update) => vec![update.clone()],
            Step::Stale(back) => history.len().checked_sub(*back).map(|n| history[n].clone()).into_iter().collect(),
            Step::Duplicate(n) => pick(*n).into_iter().collect(),
            Step::Blink(n) => pick(*n).map(|u| [Update::delete(u.key()), u]).into_iter().flatten().collect(),
            Step::Flush => {
                node.flush();
                check(&node, &datastore);
                continue;
            }
        };
        for update in updates {
            store(&mut datastore, &update);
            history.push(update.clone());
            node.graph.on_update(update);
        }
    }
    node.in_sync();
    node.flush();
    (node, datastore)
}

/// Asserts that any history ends in the state of the oracle and of a fresh graph, that duplicates
/// change nothing, and that no state is left after all objects are deleted.
fn check_history(
    (steps, in_sync_at): (&[Step], usize),
    config: GraphConfig,
    check: Check,
    delete_backwards: bool,
    flush_every: usize,
) {
    let (mut node, datastore) = run(steps, in_sync_at, config.clone(), check);
    check(&node, &datastore);

    let fresh = Node::fresh(config, &datastore);
    assert_eq!(&fresh.dataplane, &node.dataplane);
    assert_eq!(
        fresh.graph.problems().map(|p| p.to_string()).collect::<Vec<_>>(),
        node.graph.problems().map(|p| p.to_string()).collect::<Vec<_>>()
    );

    for update in datastore.values() {
        node.graph.on_update(update.clone());
    }
    assert_eq!(node.flush(), 0, "a repeated snapshot is news");

    let mut keys: Vec<Key> = datastore.keys().cloned().collect();
    if delete_backwards {
        keys.reverse();
    }
    let mut left = datastore;
    for (i, key) in keys.into_iter().enumerate() {
        left.remove(&key);
        node.graph.on_update(Update::delete(key));
        if i % flush_every == 0 {
            node.flush();
            check(&node, &left);
        }
    }
    node.flush();
    check(&node, &left);
    assert!(node.graph.is_empty(), "{:#?}", node.graph);
}

fn route_config() -> impl Strategy<Value = GraphConfig> {
    let demand = || select(vec![Demand::Pools, Demand::Pools, Demand::Always]);
    let source = select(vec![RouteSource::CalicoIpam, RouteSource::CalicoIpam, RouteSource::WorkloadIps]);
    let switch = || select(vec![None, None, Some(false), Some(true)]);
    (demand(), demand(), source, (switch(), switch()), any::<(bool, bool)>()).prop_map(
        |(routes, vteps, route_source, (ipip_enabled, vxlan_enabled), programmed)| GraphConfig {
            routes,
            vteps,
            route_source,
            ipip_enabled,
            vxlan_enabled,
            program_ipip_routes: programmed.0,
            program_no_encap_routes: programmed.1,
            ready_flag: ReadyFlag::Required,
            ..GraphConfig::new(Hostname::new(HOST))
        },
    )
}

proptest! {
    #[test]
    fn messages_depend_on_the_state_alone(
        steps in steps(update()),
        in_sync_at in 0usize..70,
        (suppress, istio_ambient_mode) in any::<(bool, bool)>(),
        policy_members in prop_oneof![Just(GraphConfig::POLICY_MEMBERS), 0..12u64],
        delete_backwards in any::<bool>(),
        flush_every in 1usize..8,
    ) {
        let overlap = if suppress { Overlap::Suppress } else { Overlap::Keep };
        let config =
            GraphConfig { overlap, istio_ambient_mode, policy_members, ready_flag: ReadyFlag::Required, ..GraphConfig::new(Hostname::new(HOST)) };
        check_history((&steps, in_sync_at), config, Node::check, delete_backwards, flush_every);
    }

    #[test]
    fn routes_depend_on_the_state_alone(
        steps in steps(overlay_update()),
        in_sync_at in 0usize..30,
        config in route_config(),
        delete_backwards in any::<bool>(),
        flush_every in 1usize..8,
    ) {
        check_history((&steps, in_sync_at), config, Node::check_routes, delete_backwards, flush_every);
    }
}
