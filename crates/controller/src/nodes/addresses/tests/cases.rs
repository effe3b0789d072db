//! Single cases, driven by events alone.
#![allow(clippy::disallowed_methods, reason = "the time of a test has to begin somewhere")]

use std::time::{Duration, Instant, UNIX_EPOCH};

use serde_json::{Value, json};
use tortie_datastore::store::{MemoryStore, ResourceStore, TextChange, TextStore};
use tortie_resources::stored::{ResourceKey, ResourceKind};

use crate::nodes::{Access, Job, LiveError, LiveKind, LiveObjects, Next, NodeController, Overrides, StoredEvent};
use crate::{MetricFamily, Observed};

const GRACE: Duration = Duration::from_secs(900);
const V4: &str = "/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-30";
const V6: &str = "/calico/ipam/v2/assignment/ipv6/block/fd00::-126";
const RESOURCES: &str = "/calico/resources/v3/projectcalico.org/";

/// API server with these objects and no others.
#[derive(Default)]
struct Live(Vec<Value>);

impl LiveObjects for Live {
    fn get(&self, _kind: LiveKind, _namespace: &str, name: &str) -> Result<Option<Value>, LiveError> {
        Ok(self.0.iter().find(|object| object["metadata"]["name"] == name).cloned())
    }
}

struct Case {
    store: MemoryStore,
    live: Live,
    controller: NodeController,
    now: Instant,
}

impl Case {
    /// Returns a case with the node `n1`, whose Kubernetes node is `k1`, without pods.
    fn new() -> Self {
        let mut controller = NodeController::new(Overrides::default());
        controller.lead();
        let node = json!({"metadata": {"name": "k1"}});
        let mut case =
            Self { store: MemoryStore::default(), live: Live(vec![node.clone()]), controller, now: Instant::now() };
        case.put(ResourceKind::Node, "n1", json!({"spec": {"orchRefs": [{"orchestrator": "k8s", "nodeName": "k1"}]}}));
        for (kind, objects) in [(LiveKind::Nodes, vec![node]), (LiveKind::Pods, Vec::new())] {
            case.list(kind, &objects);
        }
        case
    }

    fn list(&mut self, kind: LiveKind, objects: &[Value]) {
        self.controller.observe(kind, Observed::ListBegins);
        for object in objects {
            self.controller.observe(kind, Observed::Listed(&object.to_string()));
        }
        self.controller.observe(kind, Observed::ListEnds);
    }

    fn put(&mut self, kind: ResourceKind, name: &str, object: Value) {
        self.store.put(&ResourceKey::new(kind, "", name).expect("a key"), object).expect("up");
    }

    fn write(&self, path: &str, value: &Value) {
        let expected = self.store.text(path).expect("up").map(|stored| stored.revision);
        let change = TextChange { path: path.into(), expected, text: Some(value.to_string()) };
        assert!(self.store.commit(&[change]).expect("up").is_some());
    }

    fn observe(&mut self) {
        self.controller.observe_stored(StoredEvent::ListBegins);
        for kind in [
            ResourceKind::Node,
            ResourceKind::KubeControllersConfiguration,
            ResourceKind::ClusterInformation,
            ResourceKind::IpPool,
            ResourceKind::IpReservation,
        ] {
            for stored in self.store.list(kind, None).expect("up").resources {
                let (path, text) = (stored.key.path(), stored.object.to_string());
                assert!(path.starts_with(RESOURCES));
                self.controller.observe_stored(StoredEvent::Text {
                    path: &path,
                    text: &text,
                    revision: stored.revision,
                });
            }
        }
        for stored in self.store.texts("/calico/ipam/v2/").expect("up") {
            let (path, text, revision) = (&*stored.path, &*stored.text, stored.revision);
            self.controller.observe_stored(StoredEvent::Text { path, text, revision });
        }
        self.controller.observe_stored(StoredEvent::ListEnds);
    }

    fn run(&mut self, job: Job) {
        let time = UNIX_EPOCH + Duration::from_secs(1_893_456_000);
        let access = Access { resources: &self.store, texts: &self.store, live: &self.live, time };
        let result = job.run(access);
        self.controller.done(job, result, self.now);
    }

    /// Runs all jobs for this long.
    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        for round in 0.. {
            assert!(round < 1000, "it comes to no end");
            self.observe();
            match self.controller.next(self.now) {
                Next::Job(job) => self.run(job),
                Next::Wait(Some(at)) if at <= until => self.now = at,
                Next::Wait(_) => break,
            }
        }
        self.now = until;
    }

    /// Returns the ordinals of the allocated addresses of a block.
    fn used(&self, path: &str) -> Vec<u64> {
        let Some(stored) = self.store.text(path).expect("up") else { return Vec::new() };
        let block: Value = serde_json::from_str(&stored.text).expect("JSON");
        let allocations = block["allocations"].as_array().expect("a list");
        (0..).zip(allocations).filter(|(_, index)| !index.is_null()).map(|(ordinal, _)| ordinal).collect()
    }

    fn sample(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let families: Vec<MetricFamily> = self.controller.address_metrics();
        let family = families.iter().find(|family| family.name == name).expect("a metric of this name");
        let is_this = |found: &[(&str, String)]| {
            found.len() == labels.len() && found.iter().zip(labels).all(|(a, b)| a.0 == b.0 && a.1 == b.1)
        };
        family.samples.iter().find(|(found, _)| is_this(found)).map(|(_, value)| *value)
    }
}

/// Returns a block of four addresses; the first ones have these attributes.
fn block(cidr: &str, node: Option<&str>, attributes: &[Value]) -> Value {
    let allocations: Vec<Value> = (0..4).map(|n| if n < attributes.len() { n.into() } else { Value::Null }).collect();
    let free: Vec<usize> = (attributes.len()..4).collect();
    json!({"cidr": cidr, "affinity": node.map(|node| format!("host:{node}")), "allocations": allocations,
        "unallocated": free, "attributes": attributes, "sequenceNumber": 9, "deleted": false,
        "sequenceNumberForAllocation": {"0": 1, "1": 2, "2": 3, "3": 4}})
}

fn of_pod(handle: &str, pod: &str, node: &str) -> Value {
    json!({"handle_id": handle, "secondary": {"pod": pod, "namespace": "s", "node": node}})
}

fn pod(name: &str, addresses: &[&str]) -> Value {
    let listed: Vec<Value> = addresses.iter().map(|address| json!({"ip": address})).collect();
    json!({"metadata": {"namespace": "s", "name": name}, "spec": {"nodeName": "k1"},
        "status": {"podIP": addresses.first(), "podIPs": listed}})
}

#[test]
fn allocations_of_a_handle_are_released_together_or_not_at_all() {
    let mut case = Case::new();
    case.write(V4, &block("10.0.0.0/30", Some("n1"), &[of_pod("a", "a", "n1"), of_pod("b", "b", "n1")]));
    case.write(V6, &block("fd00::/126", Some("n1"), &[of_pod("a", "a", "n1"), of_pod("b", "b", "n1")]));
    for handle in ["a", "b"] {
        let counts = json!({"block": {"10.0.0.0/30": 1, "fd00::/126": 1}, "deleted": false});
        case.write(&format!("/calico/ipam/v2/handle/{handle}"), &counts);
    }
    // The pod `a` has only the IPv6 address, and the pod `b` does not exist.
    case.live.0.push(pod("a", &["fd00::"]));
    let pods = [pod("a", &["fd00::"])];
    case.list(LiveKind::Pods, &pods);
    case.pass(GRACE - Duration::from_secs(1));
    assert_eq!((case.used(V4), case.used(V6)), (vec![0, 1], vec![0, 1]));
    let writes = case.store.writes();
    case.pass(Duration::from_secs(2));
    assert_eq!((case.used(V4), case.used(V6)), (vec![0], vec![0]));
    assert_eq!(case.store.writes() - writes, 3, "two blocks and a handle, each once");
    assert!(case.store.text("/calico/ipam/v2/handle/b").expect("up").is_none());
    // Once the other address has leaked as well, both are released.
    case.live.0.pop();
    case.list(LiveKind::Pods, &[]);
    case.pass(GRACE + Duration::from_secs(1));
    assert_eq!((case.used(V4), case.used(V6)), (vec![], vec![]));
    assert!(case.store.texts("/calico/ipam/v2/handle/").expect("up").is_empty());
}

#[test]
fn a_leaked_address_is_released_after_the_grace_period() {
    let mut case = Case::new();
    let soon = json!({"spec": {"controllers": {"node": {"leakGracePeriod": "1m40s"}}}});
    case.put(ResourceKind::KubeControllersConfiguration, "default", soon);
    case.write(V4, &block("10.0.0.0/30", Some("n1"), &[of_pod("h", "p", "n1")]));
    case.write(V6, &block("fd00::/126", Some("n1"), &[]));
    case.pass(Duration::from_secs(99));
    assert_eq!(case.used(V4), [0]);
    assert!(case.store.text(V6).expect("up").is_some());
    case.pass(Duration::from_secs(1));
    assert_eq!(case.used(V4), [] as [u64; 0]);
    assert!(case.store.text(V6).expect("up").is_none());
}

#[test]
fn a_deleted_node_keeps_its_tunnel_addresses_while_in_use() {
    let mut case = Case::new();
    let tunnel = json!({"handle_id": "t", "secondary": {"node": "gone", "type": "ipipTunnelAddress"}});
    let other = json!({"handle_id": "u", "secondary": {"node": "gone"}});
    case.write(V4, &block("10.0.0.0/30", Some("gone"), &[tunnel.clone(), of_pod("h", "p", "gone"), other]));
    case.pass(Duration::from_secs(1));
    assert_eq!(case.used(V4), [0, 2]);
    case.write(V4, &block("10.0.0.0/30", Some("gone"), &[tunnel]));
    case.pass(Duration::from_secs(1));
    assert!(case.store.text(V4).expect("up").is_none());
}

#[test]
fn of_several_empty_blocks_one_stays() {
    let mut case = Case::new();
    case.write(V4, &block("10.0.0.0/30", Some("n1"), &[]));
    case.write(V6, &block("fd00::/126", Some("n1"), &[]));
    case.pass(GRACE - Duration::from_secs(1));
    case.now += Duration::from_secs(1);
    // Two workers run at the same time.
    let jobs: Vec<_> = std::iter::from_fn(|| match case.controller.next(case.now) {
        Next::Job(job) => Some(job),
        Next::Wait(_) => None,
    })
    .collect();
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    for job in jobs {
        case.run(job);
    }
    case.pass(2 * GRACE);
    assert_eq!(case.store.texts("/calico/ipam/v2/assignment/").expect("up").len(), 1);
}

#[test]
fn a_doubtful_allocation_is_in_use() {
    let machine = json!({"handle_id": "m", "secondary": {"pod": "m", "namespace": "s", "node": "n1", "vmi-name": "m"}});
    let nobody = json!({"handle_id": "u", "secondary": {"node": "n1"}});
    for (why, attributes) in [
        ("a virtual machine", machine),
        ("no known owner", nobody),
        ("no handle", json!({"secondary": {"pod": "p", "namespace": "s", "node": "n1"}})),
        ("no node", json!({"handle_id": "n", "secondary": {"pod": "p", "namespace": "s"}})),
        ("a node that is none of Kubernetes", of_pod("f", "p", "foreign")),
    ] {
        let mut case = Case::new();
        case.put(ResourceKind::Node, "foreign", json!({"spec": {"bgp": {"ipv4Address": "192.0.2.1/24"}}}));
        case.write(V4, &block("10.0.0.0/30", Some("n1"), &[attributes]));
        case.pass(3 * GRACE);
        assert_eq!(case.used(V4), [0], "{why}");
    }
    // A pod without a name may be any pod.
    let mut case = Case::new();
    case.write(V4, &block("10.0.0.0/30", Some("n1"), &[of_pod("h", "p", "n1")]));
    case.list(LiveKind::Pods, &[json!({})]);
    case.pass(3 * GRACE);
    assert_eq!(case.used(V4), [0]);
    case.list(LiveKind::Pods, &[]);
    case.pass(3 * GRACE);
    assert_eq!(case.used(V4), [] as [u64; 0]);
}

#[test]
fn nothing_is_released_while_the_datastore_is_not_ready() {
    let mut case = Case::new();
    case.write(V4, &block("10.0.0.0/30", Some("n1"), &[of_pod("h", "p", "n1")]));
    case.put(ResourceKind::ClusterInformation, "default", json!({"spec": {"datastoreReady": false}}));
    case.pass(3 * GRACE);
    assert_eq!(case.used(V4), [0]);
    case.put(ResourceKind::ClusterInformation, "default", json!({"spec": {"datastoreReady": true}}));
    case.pass(3 * GRACE);
    assert_eq!(case.used(V4), [] as [u64; 0]);
}

#[test]
fn without_grace_nothing_is_released_while_the_node_exists() {
    let mut case = Case::new();
    case.write(V4, &block("10.0.0.0/30", Some("n1"), &[of_pod("h", "p", "n1")]));
    case.write(V6, &block("fd00::/126", Some("n1"), &[]));
    let off = json!({"spec": {"controllers": {"node": {"leakGracePeriod": "0s"}}}});
    case.put(ResourceKind::KubeControllersConfiguration, "default", off);
    case.pass(3 * GRACE);
    assert_eq!(case.used(V4), [0]);
    assert!(case.store.text(V6).expect("up").is_some());
    assert_eq!(case.sample("ipam_allocations_gc_candidates", &[("ippool", "no_ippool"), ("node", "n1")]), Some(1.0));
    // The node goes away and is deleted with all its addresses and blocks.
    case.live.0.clear();
    case.list(LiveKind::Nodes, &[]);
    case.pass(Duration::from_secs(1));
    assert!(case.store.texts("/calico/ipam/v2/").expect("up").is_empty());
}

#[test]
fn a_block_that_cannot_be_read_stays() {
    let mut case = Case::new();
    let broken = json!({"cidr": "10.0.0.0/30", "affinity": "host:n1", "allocations": [7]});
    case.write(V4, &block("10.0.0.0/30", Some("n1"), &[of_pod("h", "p", "n1")]));
    case.pass(GRACE / 2);
    case.write(V4, &broken);
    case.pass(3 * GRACE);
    let problems = case.controller.problems();
    assert!(problems.iter().any(|problem| problem.contains("10.0.0.0/30: allocations")), "{problems:?}");
    assert_eq!(case.store.text(V4).expect("up").map(|stored| stored.text), Some(broken.to_string()));
    // Allocations known from before do not count as leaked for the unreadable time.
    case.write(V4, &block("10.0.0.0/30", Some("n1"), &[of_pod("h", "p", "n1")]));
    case.pass(GRACE / 2);
    assert_eq!(case.used(V4), [0]);
    case.pass(GRACE);
    assert_eq!(case.used(V4), [] as [u64; 0]);
}

#[test]
fn metrics() {
    let mut case = Case::new();
    case.put(ResourceKind::Node, "n2", json!({"spec": {"orchRefs": [{"orchestrator": "k8s", "nodeName": "k1"}]}}));
    case.put(ResourceKind::IpPool, "p4", json!({"spec": {"cidr": "10.0.0.0/24"}}));
    case.put(
        ResourceKind::IpReservation,
        "r",
        json!({"spec": {"reservedCIDRs": ["10.0.0.8/30", "10.0.0.9", "10.1.0.0/16"]}}),
    );
    let attributes = [of_pod("a", "a", "n1"), of_pod("b", "b", "n2"), json!({"handle_id": "c"})];
    case.write(V4, &block("10.0.0.0/30", Some("n1"), &attributes));
    case.write(V6, &block("fd00::/126", None, &[of_pod("d", "a", "n1")]));
    case.live.0.push(pod("a", &["10.0.0.0", "fd00::"]));
    let pods = [pod("a", &["10.0.0.0", "fd00::"])];
    case.list(LiveKind::Pods, &pods);
    case.pass(Duration::from_secs(1));
    for (name, labels, value) in [
        ("ipam_allocations_in_use", &[("ippool", "p4"), ("node", "n1")][..], 1.0),
        ("ipam_allocations_in_use", &[("ippool", "p4"), ("node", "n2")], 1.0),
        ("ipam_allocations_in_use", &[("ippool", "p4"), ("node", "unknown_node")], 1.0),
        ("ipam_allocations_in_use", &[("ippool", "no_ippool"), ("node", "n1")], 1.0),
        ("ipam_allocations_borrowed", &[("ippool", "p4"), ("node", "n1")], 0.0),
        ("ipam_allocations_borrowed", &[("ippool", "p4"), ("node", "n2")], 1.0),
        ("ipam_allocations_borrowed", &[("ippool", "no_ippool"), ("node", "n1")], 1.0),
        ("ipam_allocations_gc_candidates", &[("ippool", "p4"), ("node", "n1")], 0.0),
        ("ipam_allocations_gc_candidates", &[("ippool", "p4"), ("node", "n2")], 1.0),
        ("ipam_blocks", &[("ippool", "p4"), ("node", "n1")], 1.0),
        ("ipam_blocks", &[("ippool", "no_ippool"), ("node", "no_affinity")], 1.0),
        ("ipam_ippool_size", &[("ippool", "p4")], 256.0),
        ("ipam_ippool_reserved", &[("ippool", "p4")], 4.0),
        ("ipam_allocations_per_node", &[("node", "n1")], 2.0),
        ("ipam_allocations_per_node", &[("node", "n2")], 1.0),
        ("ipam_allocations_borrowed_per_node", &[("node", "n1")], 1.0),
        ("ipam_blocks_per_node", &[("node", "no_affinity")], 1.0),
    ] {
        assert_eq!(case.sample(name, labels), Some(value), "{name} {labels:?}");
    }
    let reclaimed = |case: &Case| case.sample("ipam_allocations_gc_reclamations", &[("ippool", "p4"), ("node", "n2")]);
    assert_eq!(reclaimed(&case), None);
    case.pass(GRACE);
    assert_eq!(reclaimed(&case), Some(1.0));
    assert_eq!(case.sample("ipam_allocations_in_use", &[("ippool", "p4"), ("node", "n2")]), Some(0.0));
    assert_eq!(case.sample("ipam_allocations_gc_candidates", &[("ippool", "p4"), ("node", "n2")]), Some(0.0));
    assert_eq!(case.controller.totals().released, 1);
    // No metrics exist before the initial sync.
    assert_eq!(NodeController::new(Overrides::default()).address_metrics(), []);
}
