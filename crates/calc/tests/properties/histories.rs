//! The properties.

use proptest::prelude::*;
use tortie_calc::{Graph, GraphConfig, Overlap};
use tortie_model::desired::DesiredUpdate;
use tortie_model::{Hostname, Key, SyncStatus, Update};
use tortie_testkit::mock::MockDataplane;

use crate::generate::{HOST, update};
use crate::oracle::{Datastore, expected};

#[derive(Clone, Debug)]
enum Step {
    Update(Update),
    /// The update that came so many steps before, once more, though another may have followed.
    Stale(usize),
    /// The current value of some object, once more.
    Duplicate(usize),
    /// A deletion of some object, and its value again.
    Blink(usize),
    Flush,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        14 => update().prop_map(Step::Update),
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
    overlap: Overlap,
    is_in_sync: bool,
}

impl Node {
    fn new(overlap: Overlap) -> Self {
        let graph = Graph::new(&GraphConfig { overlap, ..GraphConfig::new(Hostname::new(HOST)) });
        Self { graph, dataplane: MockDataplane::default(), overlap, is_in_sync: false }
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
                    DesiredUpdate::WorkloadEndpoint(..) | DesiredUpdate::HostEndpoint(..) | DesiredUpdate::InSync
                )
            };
            assert!(out.iter().all(withheld), "endpoint before in sync");
        }
        let messages = out.len();
        self.dataplane.apply_batch(out);
        messages
    }

    /// Compares what was replayed with the oracle.
    fn check(&self, datastore: &Datastore) {
        let mut expected = expected(datastore, self.overlap == Overlap::Suppress);
        if !self.is_in_sync {
            expected.workload_endpoints.clear();
            expected.host_endpoints.clear();
        }
        let dataplane = &self.dataplane;
        assert_eq!(dataplane.ip_sets, expected.ip_sets);
        assert_eq!(dataplane.policies, expected.policies);
        assert_eq!(dataplane.profiles, expected.profiles);
        assert_eq!(dataplane.workload_endpoints, expected.workload_endpoints);
        assert_eq!(dataplane.host_endpoints, expected.host_endpoints);
    }
}

fn store(datastore: &mut Datastore, update: &Update) {
    match &update.value {
        Some(value) => datastore.insert(update.key.clone(), value.clone()),
        None => datastore.remove(&update.key),
    };
}

fn run(steps: &[Step], in_sync_at: usize, overlap: Overlap) -> (Node, Datastore) {
    let mut node = Node::new(overlap);
    let mut datastore = Datastore::new();
    let mut history: Vec<Update> = Vec::new();
    for (i, step) in steps.iter().enumerate() {
        if i == in_sync_at {
            node.in_sync();
        }
        let pick = |n: usize| -> Option<Update> {
            let (key, value) = datastore.iter().nth(n % datastore.len().max(1))?;
            Some(Update::set(key.clone(), value.clone()))
        };
        let updates = match step {
            Step::Update(update) => vec![update.clone()],
            Step::Stale(back) => history.len().checked_sub(*back).map(|n| history[n].clone()).into_iter().collect(),
            Step::Duplicate(n) => pick(*n).into_iter().collect(),
            Step::Blink(n) => pick(*n).map(|u| [Update::delete(u.key.clone()), u]).into_iter().flatten().collect(),
            Step::Flush => {
                node.flush();
                node.check(&datastore);
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Any history ends where the oracle and a fresh graph say, duplicates change nothing, and deleting everything
    /// leaves nothing.
    #[test]
    fn the_state_alone_decides(
        steps in steps(),
        in_sync_at in 0usize..70,
        suppress in any::<bool>(),
        delete_backwards in any::<bool>(),
        flush_every in 1usize..8,
    ) {
        let overlap = if suppress { Overlap::Suppress } else { Overlap::Keep };
        let (mut node, datastore) = run(&steps, in_sync_at, overlap);
        node.check(&datastore);

        let mut fresh = Node::new(overlap);
        fresh.in_sync();
        for (key, value) in &datastore {
            fresh.graph.on_update(Update::set(key.clone(), value.clone()));
        }
        fresh.flush();
        prop_assert_eq!(&fresh.dataplane, &node.dataplane);
        prop_assert_eq!(
            fresh.graph.problems().map(|p| p.to_string()).collect::<Vec<_>>(),
            node.graph.problems().map(|p| p.to_string()).collect::<Vec<_>>()
        );

        for (key, value) in &datastore {
            node.graph.on_update(Update::set(key.clone(), value.clone()));
        }
        prop_assert_eq!(node.flush(), 0, "a repeated snapshot is news");

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
                node.check(&left);
            }
        }
        node.flush();
        node.check(&left);
        prop_assert!(node.graph.is_empty(), "{:#?}", node.graph);
    }
}
