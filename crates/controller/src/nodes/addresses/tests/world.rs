//! A cluster with an address allocator.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Mutex;
use std::time::{Duration, Instant, UNIX_EPOCH};

use serde_json::{Value, json};
use tortie_datastore::store::{Fault, MemoryStore, ResourceStore, StoreError, StoredText, TextChange, TextStore};
use tortie_net::Cidr;
use tortie_resources::stored::{ResourceKey, ResourceKind, Revision};

use crate::Observed;
use crate::nodes::{Access, Job, LiveError, LiveKind, LiveObjects, Next, NodeController, Overrides, StoredEvent};

const KINDS: [ResourceKind; 3] =
    [ResourceKind::Node, ResourceKind::HostEndpoint, ResourceKind::KubeControllersConfiguration];

/// True state of the cluster.
#[derive(Default)]
pub(super) struct Truth {
    pub(super) nodes: BTreeSet<u8>,
    pub(super) pods: BTreeMap<String, Pod>,
    /// Time of deletion of the pod of a handle.
    pub(super) died: BTreeMap<String, (Instant, Pod)>,
    next: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Pod {
    pub(super) node: u8,
    pub(super) handle: Option<String>,
    address: Option<IpAddr>,
    is_reported: bool,
    /// The controller has received an event of it.
    is_observed: bool,
}

#[derive(Default)]
pub(super) struct Kubernetes(pub(super) Mutex<Truth>);

impl Kubernetes {
    pub(super) fn names(&self) -> Vec<String> {
        self.0.lock().expect("no panic").pods.keys().cloned().collect()
    }

    fn pods(&self) -> Vec<Value> {
        let truth = self.0.lock().expect("no panic");
        truth.pods.iter().map(|(name, pod)| object(name, pod)).collect()
    }
}

fn object(name: &str, pod: &Pod) -> Value {
    let status = match pod.address.filter(|_| pod.is_reported) {
        Some(address) => json!({"podIP": address, "podIPs": [{"ip": address}]}),
        None => json!({}),
    };
    json!({"metadata": {"namespace": "s", "name": name}, "spec": {"nodeName": format!("k{}", pod.node)}, "status": status})
}

impl LiveObjects for Kubernetes {
    fn get(&self, kind: LiveKind, namespace: &str, name: &str) -> Result<Option<Value>, LiveError> {
        let truth = self.0.lock().expect("no panic");
        Ok(match kind {
            LiveKind::Nodes => {
                let number = name.strip_prefix('k').and_then(|number| number.parse().ok()).expect("a node");
                truth.nodes.contains(&number).then(|| json!({"metadata": {"name": name}}))
            }
            LiveKind::Pods => {
                assert_eq!(namespace, "s");
                truth.pods.get(name).map(|pod| object(name, pod))
            }
        })
    }
}

/// Allocated address: block, ordinal, handle and sequence number.
pub(super) type HeldAddress = (Cidr, usize, String, u64);

/// Action of another process between the reads and the writes of a worker.
#[derive(Clone, Copy, Debug)]
pub(super) enum Race {
    /// A new pod gets an address of the block.
    Allocate,
    /// The CNI plugin releases the address, and a new pod gets it.
    Reallocate,
}

/// A store in which another process overtakes the worker once.
struct Racing<'w> {
    store: &'w MemoryStore,
    is_transactional: bool,
    kubernetes: &'w Kubernetes,
    race: Mutex<Option<Race>>,
    written: &'w Mutex<Vec<TextChange>>,
    calls_left: &'w Mutex<Option<usize>>,
    /// Addresses that other processes released.
    lost: Mutex<BTreeSet<HeldAddress>>,
}

impl Racing<'_> {
    /// Fails once the worker has been killed.
    fn live(&self) -> Result<(), StoreError> {
        match &mut *self.calls_left.lock().expect("no panic") {
            Some(0) => Err(StoreError::Unavailable("it was killed".into())),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl TextStore for Racing<'_> {
    fn is_transactional(&self) -> bool {
        self.is_transactional
    }

    fn text(&self, path: &str) -> Result<Option<StoredText>, StoreError> {
        self.live()?;
        self.store.text(path)
    }

    fn commit(&self, changes: &[TextChange]) -> Result<Option<Revision>, StoreError> {
        assert!(self.is_transactional || changes.len() == 1, "{changes:?}");
        self.live()?;
        if let Some(race) = self.race.lock().expect("no panic").take()
            && let Some(cidr) = changes.iter().find_map(|change| super::block_at(&change.path))
            && let Some(block) = read(self.store, cidr)
        {
            if let Race::Reallocate = race {
                let before = held_in(cidr, &block);
                let truth = self.kubernetes.0.lock().expect("no panic");
                let dead = before.iter().find(|held| truth.died.contains_key(&held.2)).map(|held| held.2.clone());
                drop(truth);
                if let Some(handle) = dead {
                    free(self.store, &handle);
                    self.lost.lock().expect("no panic").extend(before.into_iter().filter(|held| held.2 == handle));
                }
            }
            let mut truth = self.kubernetes.0.lock().expect("no panic");
            let node = truth.nodes.first().copied().unwrap_or_default();
            truth.next += 1;
            let (name, handle) = (format!("racer{}", truth.next), format!("h{}", truth.next));
            let owner = json!({"pod": name, "namespace": "s", "node": format!("n{node}")});
            if let Some(address) = allocate(self.store, cidr, &handle, &owner) {
                let pod =
                    Pod { node, handle: Some(handle), address: Some(address), is_reported: false, is_observed: false };
                truth.pods.insert(name, pod);
            }
        }
        let committed = self.store.commit(changes);
        if matches!(committed, Ok(Some(_))) {
            self.written.lock().expect("no panic").extend_from_slice(changes);
        }
        committed
    }
}

/// Writes like another process, which retries.
fn write(store: &MemoryStore, changes: &[TextChange]) {
    // A conflict means that an earlier attempt succeeded and its answer was lost.
    assert!((0..100).any(|_| store.commit(changes).is_ok()), "it never works");
}

fn path(cidr: Cidr) -> String {
    format!("/calico/ipam/v2/assignment/ipv4/block/{}", cidr.to_string().replace('/', "-"))
}

fn text(store: &MemoryStore, path: &str) -> Option<StoredText> {
    (0..100).find_map(|_| store.text(path).ok()).expect("it works at last")
}

pub(super) fn texts(store: &MemoryStore, prefix: &str) -> Vec<StoredText> {
    (0..100).find_map(|_| store.texts(prefix).ok()).expect("it works at last")
}

pub(super) fn json_of(text: &StoredText) -> Value {
    serde_json::from_str(&text.text).expect("JSON")
}

fn read(store: &MemoryStore, cidr: Cidr) -> Option<Value> {
    text(store, &path(cidr)).map(|text| json_of(&text))
}

/// Returns the addresses of a block that are allocated to handles.
pub(super) fn held_in(cidr: Cidr, block: &Value) -> Vec<HeldAddress> {
    let allocations = block["allocations"].as_array().expect("a list");
    let held = allocations.iter().enumerate().filter_map(|(ordinal, index)| {
        let index = usize::try_from(index.as_u64()?).expect("a number");
        let handle = block["attributes"][index]["handle_id"].as_str()?.to_owned();
        let sequence = block["sequenceNumberForAllocation"][ordinal.to_string()].as_u64().expect("a number");
        Some((cidr, ordinal, handle, sequence))
    });
    held.collect()
}

/// Allocates an address of a block like libcalico-go, in one transaction with the handle.
fn allocate(store: &MemoryStore, cidr: Cidr, handle: &str, owner: &Value) -> Option<IpAddr> {
    let stored = text(store, &path(cidr))?;
    let mut block = json_of(&stored);
    let free = block["unallocated"].as_array_mut().expect("a list");
    if free.is_empty() {
        return None;
    }
    let ordinal = usize::try_from(free.remove(0).as_u64().expect("a number")).expect("a number");
    let attributes = block["attributes"].as_array_mut().expect("a list");
    attributes.push(json!({"handle_id": handle, "secondary": owner}));
    let index = attributes.len() - 1;
    block["allocations"][ordinal] = index.into();
    let sequence = block["sequenceNumber"].as_u64().expect("a number");
    block["sequenceNumberForAllocation"][ordinal.to_string()] = sequence.into();
    block["sequenceNumber"] = (sequence + 1).into();
    let of_handle = text(store, &handle_path(handle));
    let mut counts = of_handle.as_ref().map_or_else(|| json!({"block": {}, "deleted": false}), json_of);
    let count = counts["block"][cidr.to_string()].as_u64().unwrap_or_default() + 1;
    counts["block"][cidr.to_string()] = count.into();
    let change = |path: String, expected: Option<Revision>, value: &Value| TextChange {
        path,
        expected,
        text: Some(value.to_string()),
    };
    write(
        store,
        &[
            change(path(cidr), Some(stored.revision), &block),
            change(handle_path(handle), of_handle.map(|of_handle| of_handle.revision), &counts),
        ],
    );
    let IpAddr::V4(first) = cidr.address() else { panic!("IPv4") };
    Some(Ipv4Addr::from(u32::from(first) + u32::try_from(ordinal).expect("small")).into())
}

fn handle_path(handle: &str) -> String {
    format!("/calico/ipam/v2/handle/{handle}")
}

/// Releases all addresses of a handle like the CNI plugin.
fn free(store: &MemoryStore, handle: &str) {
    for stored in texts(store, "/calico/ipam/v2/assignment/") {
        let mut block = json_of(&stored);
        let cidr = super::block_at(&stored.path).expect("a block");
        let held: Vec<HeldAddress> = held_in(cidr, &block).into_iter().filter(|held| held.2 == handle).collect();
        for (_, ordinal, ..) in &held {
            block["allocations"][*ordinal] = Value::Null;
            block["unallocated"].as_array_mut().expect("a list").insert(0, (*ordinal).into());
            block["sequenceNumberForAllocation"].as_object_mut().expect("a mapping").remove(&ordinal.to_string());
        }
        if !held.is_empty() {
            block["sequenceNumber"] = (block["sequenceNumber"].as_u64().expect("a number") + 1).into();
            write(
                store,
                &[TextChange { path: stored.path, expected: Some(stored.revision), text: Some(block.to_string()) }],
            );
        }
    }
    if let Some(stored) = text(store, &handle_path(handle)) {
        write(store, &[TextChange { path: stored.path, expected: Some(stored.revision), text: None }]);
    }
}

pub(super) struct World {
    pub(super) kubernetes: Kubernetes,
    pub(super) store: MemoryStore,
    pub(super) controller: NodeController,
    /// Whether the datastore has transactions.
    pub(super) is_transactional: bool,
    /// Writes of the workers, in order.
    pub(super) written: Mutex<Vec<TextChange>>,
    /// Number of reads and writes before the workers are killed; `None`: never.
    pub(super) calls_left: Mutex<Option<usize>>,
    began: Instant,
    pub(super) now: Instant,
    pub(super) working: Vec<Job>,
}

impl World {
    pub(super) fn new(is_transactional: bool, now: Instant) -> Self {
        let mut world = Self {
            kubernetes: Kubernetes::default(),
            store: MemoryStore::default(),
            controller: NodeController::new(Overrides::default()),
            is_transactional,
            written: Mutex::default(),
            calls_left: Mutex::default(),
            began: now,
            now,
            working: Vec::new(),
        };
        world.restart();
        world
    }

    pub(super) fn restart(&mut self) {
        self.working.clear();
        self.controller = NodeController::new(Overrides::default());
        self.controller.lead();
        self.observe_all();
    }

    pub(super) fn observe_all(&mut self) {
        self.observe_stored();
        self.observe_nodes();
        self.observe_pods();
    }

    pub(super) fn observe_nodes(&mut self) {
        self.controller.observe(LiveKind::Nodes, Observed::ListBegins);
        for node in &self.kubernetes.0.lock().expect("no panic").nodes {
            let node = json!({"metadata": {"name": format!("k{node}")}}).to_string();
            self.controller.observe(LiveKind::Nodes, Observed::Listed(&node));
        }
        self.controller.observe(LiveKind::Nodes, Observed::ListEnds);
    }

    pub(super) fn observe_pods(&mut self) {
        self.controller.observe(LiveKind::Pods, Observed::ListBegins);
        for pod in self.kubernetes.pods() {
            self.controller.observe(LiveKind::Pods, Observed::Listed(&pod.to_string()));
        }
        for pod in self.kubernetes.0.lock().expect("no panic").pods.values_mut() {
            pod.is_observed = true;
        }
        self.controller.observe(LiveKind::Pods, Observed::ListEnds);
    }

    pub(super) fn observe_stored(&mut self) {
        self.controller.observe_stored(StoredEvent::ListBegins);
        for kind in KINDS {
            let listing = (0..100).find_map(|_| self.store.list(kind, None).ok()).expect("it works at last");
            for stored in listing.resources {
                let (path, text) = (stored.key.path(), stored.object.to_string());
                self.controller.observe_stored(StoredEvent::Text {
                    path: &path,
                    text: &text,
                    revision: stored.revision,
                });
            }
        }
        for prefix in ["/calico/ipam/v2/assignment/", "/calico/ipam/v2/config", "/calico/ipam/v2/host/"] {
            for StoredText { path, text, revision } in texts(&self.store, prefix) {
                self.controller.observe_stored(StoredEvent::Text { path: &path, text: &text, revision });
            }
        }
        self.controller.observe_stored(StoredEvent::ListEnds);
    }

    pub(super) fn set_cooldown(&self, seconds: u32) {
        let (path, text) = ("/calico/ipam/v2/config", json!({"ipCooldownSeconds": seconds}).to_string());
        let expected = text_revision(&self.store, path);
        write(&self.store, &[TextChange { path: path.into(), expected, text: Some(text) }]);
    }

    /// Returns all addresses that are allocated to handles.
    pub(super) fn held(&self) -> BTreeSet<HeldAddress> {
        let blocks = texts(&self.store, "/calico/ipam/v2/assignment/");
        blocks
            .iter()
            .flat_map(|stored| held_in(super::block_at(&stored.path).expect("a block"), &json_of(stored)))
            .collect()
    }

    /// Returns the nodes that have a block.
    fn nodes_with_blocks(&self) -> BTreeSet<u8> {
        let blocks = texts(&self.store, "/calico/ipam/v2/assignment/");
        blocks
            .iter()
            .filter_map(|stored| json_of(stored)["affinity"].as_str()?.strip_prefix("host:n")?.parse().ok())
            .collect()
    }

    pub(super) fn node_exists(&self, node: u8) -> bool {
        let key = ResourceKey::new(ResourceKind::Node, "", format!("n{node}")).expect("a key");
        (0..100).find_map(|_| match self.store.get(&key) {
            Ok(_) => Some(true),
            Err(StoreError::NotFound(_)) => Some(false),
            Err(_) => None,
        }) == Some(true)
    }

    pub(super) fn node_up(&self, node: u8) {
        self.kubernetes.0.lock().expect("no panic").nodes.insert(node);
        let key = ResourceKey::new(ResourceKind::Node, "", format!("n{node}")).expect("a key");
        let references = json!([{"orchestrator": "k8s", "nodeName": format!("k{node}")}]);
        let object = json!({"spec": {"orchRefs": references}});
        assert!((0..100).any(|_| self.store.put(&key, object.clone()).is_ok()));
        let handle = format!("tunnel{node}");
        if text(&self.store, &handle_path(&handle)).is_none() {
            let owner = json!({"node": format!("n{node}"), "type": "vxlanTunnelAddress"});
            self.allocate_on(node, &handle, &owner);
        }
    }

    /// Claims a block for a node; `None` if the pool has none left.
    pub(super) fn claim(&self, node: u8) -> Option<Cidr> {
        let cidrs =
            (0..64u32).map(|n| Cidr::new(Ipv4Addr::new(10, 0, 0, u8::try_from(n * 4).expect("small")).into(), 30));
        let cidr = cidrs.flatten().find(|cidr| read(&self.store, *cidr).is_none())?;
        let elapsed = u64::try_from(self.now.duration_since(self.began).as_nanos()).expect("soon");
        let block = json!({"cidr": cidr.to_string(), "affinity": format!("host:n{node}"), "deleted": false,
            "allocations": [null, null, null, null], "unallocated": [0, 1, 2, 3], "attributes": [],
            "sequenceNumber": elapsed + 1, "sequenceNumberForAllocation": {}});
        let affinity = format!("/calico/ipam/v2/host/n{node}/ipv4/block/{}", cidr.to_string().replace('/', "-"));
        let expected = text_revision(&self.store, &affinity);
        let confirmed = json!({"state": "confirmed", "deleted": false}).to_string();
        write(
            &self.store,
            &[
                TextChange { path: path(cidr), expected: None, text: Some(block.to_string()) },
                TextChange { path: affinity, expected, text: Some(confirmed) },
            ],
        );
        Some(cidr)
    }

    /// Allocates an address from a block of the node, from a new block, or from a borrowed one.
    fn allocate_on(&self, node: u8, handle: &str, owner: &Value) -> Option<IpAddr> {
        let blocks = texts(&self.store, "/calico/ipam/v2/assignment/");
        let is_own = |stored: &&StoredText| json_of(stored)["affinity"] == format!("host:n{node}");
        let own = blocks.iter().filter(is_own).filter_map(|stored| super::block_at(&stored.path));
        let any = blocks.iter().filter_map(|stored| super::block_at(&stored.path));
        own.filter_map(|cidr| allocate(&self.store, cidr, handle, owner))
            .next()
            .or_else(|| allocate(&self.store, self.claim(node)?, handle, owner))
            .or_else(|| any.filter_map(|cidr| allocate(&self.store, cidr, handle, owner)).next())
    }

    pub(super) fn pod_start(&self, name: &str, node: u8) {
        let mut truth = self.kubernetes.0.lock().expect("no panic");
        if truth.nodes.contains(&node) {
            let pod = Pod { node, handle: None, address: None, is_reported: false, is_observed: false };
            truth.pods.entry(name.to_owned()).or_insert(pod);
        }
    }

    /// The CNI plugin gives a pod one or two addresses, from a block of another node if `borrow` is
    /// set.
    pub(super) fn pod_add(&self, name: &str, borrow: bool) {
        let mut truth = self.kubernetes.0.lock().expect("no panic");
        truth.next += 1;
        let handle = format!("h{}", truth.next);
        let Some(pod) = truth.pods.get_mut(name).filter(|pod| pod.handle.is_none()) else { return };
        let owner = json!({"pod": name, "namespace": "s", "node": format!("n{}", pod.node)});
        let other = texts(&self.store, "/calico/ipam/v2/assignment/").into_iter().next_back().filter(|_| borrow);
        let other = other.and_then(|stored| super::block_at(&stored.path));
        pod.address = other
            .and_then(|cidr| allocate(&self.store, cidr, &handle, &owner))
            .or_else(|| self.allocate_on(pod.node, &handle, &owner));
        pod.handle = pod.address.map(|_| handle);
    }

    pub(super) fn pod_reported(&self, name: &str) {
        if let Some(pod) = self.kubernetes.0.lock().expect("no panic").pods.get_mut(name) {
            pod.is_reported = true;
        }
    }

    /// A pod is deleted; its addresses are released if `is_clean`.
    pub(super) fn pod_deleted(&self, name: &str, is_clean: bool) {
        let mut truth = self.kubernetes.0.lock().expect("no panic");
        let Some(pod) = truth.pods.remove(name) else { return };
        let Some(handle) = pod.handle.clone() else { return };
        truth.died.insert(handle.clone(), (self.now, pod));
        drop(truth);
        if is_clean {
            free(&self.store, &handle);
        }
    }

    /// Runs a job and checks that it releases no address that is in use or was in use too recently.
    pub(super) fn run(&mut self, job: Job, race: Option<Race>, grace: Duration) {
        let before = self.held();
        let had_blocks = self.nodes_with_blocks();
        let racing = Racing {
            store: &self.store,
            is_transactional: self.is_transactional,
            kubernetes: &self.kubernetes,
            race: Mutex::new(race),
            written: &self.written,
            calls_left: &self.calls_left,
            lost: Mutex::default(),
        };
        let time = UNIX_EPOCH + Duration::from_secs(1_893_456_000) + self.now.duration_since(self.began);
        let access = Access { resources: &self.store, texts: &racing, live: &self.kubernetes, time };
        let result = job.run(access);
        let lost = racing.lost.into_inner().expect("no panic");
        self.controller.done(job, result, self.now);
        let after = self.held();
        let truth = self.kubernetes.0.lock().expect("no panic");
        for node in had_blocks.difference(&self.nodes_with_blocks()) {
            assert!(!truth.nodes.contains(node), "the last block of {node} was released");
        }
        for held in before.difference(&after).filter(|held| !lost.contains(*held)) {
            let handle = &held.2;
            if let Some(node) = handle.strip_prefix("tunnel") {
                let node = node.parse().expect("a number");
                assert!(!self.node_exists(node), "{handle} was released while the node is there");
                continue;
            }
            let user = truth.pods.iter().find(|(_, pod)| pod.handle.as_ref() == Some(handle));
            assert!(user.is_none(), "{held:?} was released and is used by {user:?}");
            let (died, pod) = truth.died.get(handle).unwrap_or_else(|| panic!("{handle} never was"));
            let age = self.now.duration_since(*died);
            // The controller does not know the time of deletion of a pod without events.
            let is_young = age < grace && pod.is_observed && truth.nodes.contains(&pod.node);
            assert!(!is_young, "{held:?} was released after {age:?}");
        }
    }

    /// Delivers all events and runs all jobs for this long.
    pub(super) fn drain(&mut self, time: Duration, grace: Duration) {
        let until = self.now + time;
        for job in std::mem::take(&mut self.working) {
            self.run(job, None, grace);
        }
        for round in 0.. {
            assert!(round < 1000, "it comes to no end: {:?}", self.controller.next(self.now));
            self.observe_all();
            match self.controller.next(self.now) {
                Next::Job(job) => self.run(job, None, grace),
                Next::Wait(Some(at)) if at <= until => self.now = at,
                Next::Wait(_) => break,
            }
        }
        self.now = until;
    }

    /// Makes one of the next calls fail.
    pub(super) fn fail(&self, fault: Fault) {
        self.store.fail_next(fault);
    }
}

fn text_revision(store: &MemoryStore, path: &str) -> Option<Revision> {
    text(store, path).map(|text| text.revision)
}
