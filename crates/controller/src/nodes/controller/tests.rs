//! Random histories of Kubernetes, of the datastore and of the controller end with the state of
//! Kubernetes in the datastore.
#![allow(clippy::disallowed_methods, reason = "the time of a test has to begin somewhere")]

use proptest::prelude::*;
use serde_json::json;
use tortie_datastore::store::{Fault, MemoryStore, ResourceStore, StoreError};

use std::time::UNIX_EPOCH;

use super::*;
use crate::access::{Access, LiveError, LiveObjects};

const KINDS: [ResourceKind; 3] =
    [ResourceKind::Node, ResourceKind::HostEndpoint, ResourceKind::KubeControllersConfiguration];

/// Objects of the API server.
#[derive(Default)]
struct Kubernetes(std::sync::Mutex<BTreeMap<String, Value>>);

impl LiveObjects for Kubernetes {
    fn get(&self, _kind: LiveKind, _namespace: &str, name: &str) -> Result<Option<Value>, LiveError> {
        Ok(self.0.lock().expect("no panic").get(name).cloned())
    }
}

struct World {
    kubernetes: Kubernetes,
    store: MemoryStore,
    controller: NodeController,
    now: Instant,
    working: Vec<Job>,
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            kubernetes: Kubernetes::default(),
            store: MemoryStore::default(),
            controller: NodeController::new(Overrides::default()),
            now: Instant::now(),
            working: Vec::new(),
        };
        world.restart();
        world
    }

    fn restart(&mut self) {
        self.restart_with(Overrides::default());
    }

    fn restart_with(&mut self, overrides: Overrides) {
        self.working.clear();
        self.controller = NodeController::new(overrides);
        self.controller.lead();
        self.controller.observe(LiveKind::Pods, Observed::ListBegins);
        self.controller.observe(LiveKind::Pods, Observed::ListEnds);
        self.list_nodes();
        self.list_stored();
    }

    fn list_nodes(&mut self) {
        self.controller.observe(LiveKind::Nodes, Observed::ListBegins);
        for object in self.kubernetes.0.lock().expect("no panic").values() {
            self.controller.observe(LiveKind::Nodes, Observed::Listed(&object.to_string()));
        }
        self.controller.observe(LiveKind::Nodes, Observed::ListEnds);
    }

    fn list_stored(&mut self) {
        self.store.set_down(false);
        let listings: Result<Vec<_>, _> = KINDS.iter().map(|kind| self.store.list(*kind, None)).collect();
        let Ok(listings) = listings else { return };
        self.controller.observe_stored(StoredEvent::ListBegins);
        for stored in listings.iter().flat_map(|listing| &listing.resources) {
            let (path, text) = (stored.key.path(), stored.object.to_string());
            self.controller.observe_stored(StoredEvent::Text { path: &path, text: &text, revision: stored.revision });
        }
        self.controller.observe_stored(StoredEvent::ListEnds);
    }

    fn run(&mut self, job: Job) {
        let result =
            job.run(Access { resources: &self.store, texts: &self.store, live: &self.kubernetes, time: UNIX_EPOCH });
        self.controller.done(job, result, self.now);
    }

    /// Delivers all events and runs all jobs for this long.
    fn drain(&mut self, time: Duration) {
        let until = self.now + time;
        for job in std::mem::take(&mut self.working) {
            self.run(job);
        }
        loop {
            self.list_stored();
            match self.controller.next(self.now) {
                Next::Job(job) => self.run(job),
                Next::Wait(Some(at)) if at <= until => self.now = at,
                Next::Wait(_) => break,
            }
        }
        self.now = until;
    }

    /// Writes like another process, with a limited number of retries. Reports success.
    fn put(&self, kind: ResourceKind, name: &str, object: &Value) -> bool {
        let key = ResourceKey::new(kind, "", name).expect("a key");
        (0..100).any(|_| self.store.put(&key, object.clone()).is_ok())
    }

    fn get(&self, kind: ResourceKind, name: &str) -> Option<Value> {
        match self.store.get(&ResourceKey::new(kind, "", name).expect("a key")) {
            Ok(stored) => Some(stored.object),
            Err(StoreError::NotFound(_)) => None,
            Err(error) => panic!("{error}"),
        }
    }
}

fn kubernetes_node(name: &str, variant: u8) -> Value {
    json!({"metadata": {"name": name, "labels": {"v": variant.to_string(), format!("only{variant}"): ""}}})
}

fn calico_node(kubernetes: &str, variant: u8) -> Value {
    json!({"metadata": {"labels": {"user": "kept"}},
           "spec": {"orchRefs": [{"orchestrator": "k8s", "nodeName": kubernetes}],
                    "bgp": {"ipv4Address": format!("192.0.2.{variant}/24")}}})
}

fn configuration(variant: u8) -> Value {
    let section = match variant {
        0 => json!({"autoCreate": "Disabled"}),
        1 => json!({"autoCreate": "Enabled"}),
        2 => json!({"autoCreate": "Enabled", "createDefaultHostEndpoint": "Disabled",
                    "templates": [{"generateName": "t", "interfaceCIDRs": ["192.0.2.0/24"], "nodeSelector": "v == '1'"}]}),
        _ => json!({"autoCreate": "Enabled", "templates": [{"generateName": "t", "nodeSelector": "v =="}]}),
    };
    json!({"spec": {"controllers": {"node": {"hostEndpoint": section}}}})
}

#[derive(Clone, Debug)]
enum Step {
    Kubernetes(u8, Option<u8>, bool),
    Calico(u8, Option<u8>),
    Configure(Option<u8>),
    /// Another process changes or deletes a resource of the controller.
    Tamper(usize, bool),
    /// A user writes a resource, perhaps with a name of the controller.
    User(u8),
    Fail(Fault),
    Down(bool),
    Take,
    Finish(usize),
    ListStored,
    ObserveNodes,
    Pass(u64),
    Restart,
    Follow,
    Lead,
}

fn step() -> impl Strategy<Value = Step> {
    let fault =
        prop_oneof![Just(Fault::Unavailable), Just(Fault::LostAnswer), Just(Fault::Refused), Just(Fault::Overtaken)];
    prop_oneof![
        5 => (0..3u8, prop::option::weighted(0.7, 0..3u8), any::<bool>()).prop_map(|(n, v, h)| Step::Kubernetes(n, v, h)),
        5 => (0..3u8, prop::option::weighted(0.8, 0..3u8)).prop_map(|(n, v)| Step::Calico(n, v)),
        2 => prop::option::weighted(0.9, 0..4u8).prop_map(Step::Configure),
        2 => (any::<usize>(), any::<bool>()).prop_map(|(which, keep)| Step::Tamper(which, keep)),
        1 => (0..3u8).prop_map(Step::User),
        3 => fault.prop_map(Step::Fail),
        1 => any::<bool>().prop_map(Step::Down),
        8 => Just(Step::Take),
        8 => any::<usize>().prop_map(Step::Finish),
        6 => Just(Step::ListStored),
        2 => Just(Step::ObserveNodes),
        2 => (0..400_000u64).prop_map(Step::Pass),
        1 => Just(Step::Restart),
        1 => Just(Step::Follow),
        1 => Just(Step::Lead),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn nodes_converge_to_kubernetes(steps in prop::collection::vec(step(), 0..60)) {
        let mut world = World::new();
        let mut users: BTreeSet<String> = BTreeSet::new();
        let mut faults = 0;
        for step in steps {
            match step {
                Step::Kubernetes(name, variant, observed) => {
                    let name = format!("k{name}");
                    let mut nodes = world.kubernetes.0.lock().expect("no panic");
                    if let Some(variant) = variant {
                        let object = kubernetes_node(&name, variant);
                        if observed {
                            world.controller.observe(LiveKind::Nodes, Observed::Changed(&object.to_string()));
                        }
                        nodes.insert(name, object);
                    } else {
                        nodes.remove(&name);
                        if observed {
                            world.controller.observe(LiveKind::Nodes, Observed::Deleted { namespace: "", name: &name });
                        }
                    }
                }
                Step::Calico(name, Some(variant)) => {
                    let _maybe_down = world.put(ResourceKind::Node, &format!("n{name}"), &calico_node(&format!("k{name}"), variant));
                }
                Step::Calico(name, None) => {
                    let key = ResourceKey::new(ResourceKind::Node, "", format!("n{name}")).expect("a key");
                    let _maybe_down = world.store.delete(&key, None);
                }
                Step::Configure(Some(variant)) => {
                    let _maybe_down = world.put(ResourceKind::KubeControllersConfiguration, "default", &configuration(variant));
                }
                Step::Configure(None) => {
                    let key = configuration_key().expect("a key");
                    let _maybe_down = world.store.delete(&key, None);
                }
                Step::Tamper(which, keep) => {
                    let keys: Vec<_> = world.store.keys().into_iter().filter(|key| {
                        key.kind() == ResourceKind::HostEndpoint && !users.contains(key.name())
                    }).collect();
                    if let Some(key) = (!keys.is_empty()).then(|| &keys[which % keys.len()]) {
                        let _maybe_down = if keep {
                            let labels = json!({"projectcalico.org/created-by": "calico-kube-controllers"});
                            let object = json!({"metadata": {"labels": labels}, "spec": {"node": "n0"}});
                            world.store.put(key, object).map(drop)
                        } else {
                            world.store.delete(key, None)
                        };
                    }
                }
                Step::User(name) => {
                    let name = format!("user-{name}");
                    let object = json!({"spec": {"node": "n0", "interfaceName": "*"}});
                    if world.put(ResourceKind::HostEndpoint, &name, &object) {
                        users.insert(name);
                    }
                }
                Step::Fail(fault) => {
                    faults += 1;
                    world.store.fail_next(fault);
                }
                Step::Down(down) => world.store.set_down(down),
                Step::Take => {
                    if let Next::Job(job) = world.controller.next(world.now) {
                        world.working.push(job);
                    }
                }
                Step::Finish(index) => {
                    let count = world.working.len();
                    if count > 0 {
                        let job = world.working.swap_remove(index % count);
                        world.run(job);
                    }
                }
                Step::ListStored => world.list_stored(),
                Step::ObserveNodes => world.list_nodes(),
                Step::Pass(ms) => world.now += Duration::from_millis(ms),
                Step::Restart => world.restart(),
                Step::Follow => world.controller.follow(),
                Step::Lead => world.controller.lead(),
            }
        }
        world.store.set_down(false);
        for _ in 0..faults {
            let _used_up = world.store.list(ResourceKind::Tier, None);
        }
        world.controller.lead();
        world.list_nodes();
        world.drain(PERIOD);
        world.drain(PERIOD);
        check(&world, &users);

        // Resources in sync are not written again after another list or a restart.
        let writes = world.store.writes();
        world.list_nodes();
        world.drain(2 * PERIOD);
        world.restart();
        world.drain(PERIOD);
        prop_assert_eq!(world.store.writes(), writes);
    }
}

#[test]
fn the_configuration_is_left_to_another_controller() {
    let mut world = World::new();
    world.store = MemoryStore::default();
    world.restart_with(Overrides { leaves_status: true, ..Overrides::default() });
    world.drain(PERIOD);
    assert!(world.controller.in_sync() && world.controller.waiting() == 0);
    assert!(world.get(ResourceKind::KubeControllersConfiguration, "default").is_none());
    assert_eq!(world.store.writes(), 0);
}

fn check(world: &World, users: &BTreeSet<String>) {
    let resource = world.get(ResourceKind::KubeControllersConfiguration, "default").expect("it is made");
    let (config, _) = NodeConfig::read(&resource, &Overrides::default());
    assert!(same(&resource["status"], &config.status(&Overrides::default())), "{}", resource["status"]);
    if !config.enabled {
        // The competing writer has left an empty configuration, which disables everything.
        return;
    }
    let foreign = |object: &Value| object["metadata"].get("labels").is_none();
    let all = world.store.list(ResourceKind::HostEndpoint, None).expect("it is up").resources;
    if all.iter().any(|stored| foreign(&stored.object) && !users.contains(stored.key.name())) {
        // The competing writer has created an endpoint with a name of the controller, which the
        // controller does not touch.
        return;
    }
    assert!(world.controller.in_sync() && world.controller.waiting() == 0);
    let mut expected: BTreeSet<String> = users.clone();
    let kubernetes = world.kubernetes.0.lock().expect("no panic");
    for stored in world.store.list(ResourceKind::Node, None).expect("it is up").resources {
        let name = stored.key.name();
        let Some(kubernetes_name) = kubernetes_name(&stored.object) else { continue };
        let node = kubernetes.get(kubernetes_name).unwrap_or_else(|| panic!("{name} should be gone"));
        for (label, value) in node["metadata"]["labels"].as_object().expect("labels") {
            assert_eq!(&stored.object["metadata"]["labels"][label], value, "{name}");
        }
        assert_eq!(stored.object["metadata"]["labels"]["user"], "kept");
        assert_eq!(stored.object["metadata"]["labels"].as_object().expect("labels").len(), 3);
    }
    for stored in world.store.list(ResourceKind::Node, None).expect("it is up").resources {
        for (wanted, object) in host_endpoints::wanted(stored.key.name(), &stored.object, &config.host_endpoints) {
            let stored =
                world.get(ResourceKind::HostEndpoint, &wanted).unwrap_or_else(|| panic!("{wanted} is missing"));
            assert!(same(&stored["spec"], &object["spec"]), "{stored}");
            assert_eq!(stored["metadata"]["labels"], object["metadata"]["labels"]);
            expected.insert(wanted);
        }
    }
    if !config.host_endpoints.is_incomplete {
        let all = world.store.list(ResourceKind::HostEndpoint, None).expect("it is up").resources;
        let all: BTreeSet<String> = all.iter().map(|stored| stored.key.name().to_owned()).collect();
        assert_eq!(all, expected);
    }
}

fn converged() -> World {
    let mut world = World::new();
    world.kubernetes.0.lock().expect("no panic").insert("k0".into(), kubernetes_node("k0", 1));
    world.put(ResourceKind::Node, "n0", &calico_node("k0", 1));
    world.put(ResourceKind::KubeControllersConfiguration, "default", &configuration(1));
    world.list_nodes();
    world.drain(PERIOD);
    check(&world, &BTreeSet::new());
    world
}

#[test]
fn an_endpoint_of_a_user_with_the_name_of_ours_stays() {
    let mut world = converged();
    let user = json!({"metadata": {"labels": {"mine": "yes"}}, "spec": {"node": "n0", "interfaceName": "eth0"}});
    world.put(ResourceKind::HostEndpoint, "n0-auto-hep", &user);
    world.drain(PERIOD);
    let stored = world.get(ResourceKind::HostEndpoint, "n0-auto-hep").expect("it is there");
    assert_eq!(stored["spec"]["interfaceName"], "eth0");
    assert!(world.controller.problems().iter().any(|problem| problem.contains("not made by this controller")));
    world
        .store
        .delete(&ResourceKey::new(ResourceKind::HostEndpoint, "", "n0-auto-hep").expect("a key"), None)
        .expect("up");
    world.drain(PERIOD);
    check(&world, &BTreeSet::new());
}

#[test]
fn unreadable_objects_delete_nothing() {
    let mut world = converged();
    let endpoint = |world: &World| world.get(ResourceKind::HostEndpoint, "n0-auto-hep").is_some();
    let observe = |world: &mut World, path: &str| {
        world.controller.observe_stored(StoredEvent::Text { path, text: "{", revision: Revision(99) });
        while let Next::Job(job) = world.controller.next(world.now) {
            world.run(job);
        }
    };
    observe(&mut world, "/calico/resources/v3/projectcalico.org/nodes/n0");
    assert!(endpoint(&world));
    observe(&mut world, "/calico/resources/v3/projectcalico.org/kubecontrollersconfigurations/default");
    assert!(endpoint(&world) && !world.controller.problems().is_empty());
    // The same holds after a restart.
    world.controller = NodeController::new(Overrides::default());
    world.controller.lead();
    world.list_nodes();
    let stored = world.store.list(ResourceKind::HostEndpoint, None).expect("up").resources;
    world.controller.observe_stored(StoredEvent::ListBegins);
    for stored in &stored {
        let (path, text) = (stored.key.path(), stored.object.to_string());
        world.controller.observe_stored(StoredEvent::Text { path: &path, text: &text, revision: stored.revision });
    }
    let node = world.get(ResourceKind::Node, "n0").expect("it is there").to_string();
    let path = "/calico/resources/v3/projectcalico.org/nodes/n0";
    world.controller.observe_stored(StoredEvent::Text { path, text: &node, revision: Revision(1) });
    observe(&mut world, "/calico/resources/v3/projectcalico.org/kubecontrollersconfigurations/default");
    world.controller.observe_stored(StoredEvent::ListEnds);
    while let Next::Job(job) = world.controller.next(world.now) {
        world.run(job);
    }
    assert!(endpoint(&world));
    // A Kubernetes node with an unreadable name does not count as gone.
    world.list_stored();
    world.controller.observe(LiveKind::Nodes, Observed::ListBegins);
    world.controller.observe(LiveKind::Nodes, Observed::Listed("{}"));
    world.controller.observe(LiveKind::Nodes, Observed::ListEnds);
    world.drain(PERIOD);
    assert!(endpoint(&world) && world.get(ResourceKind::Node, "n0").is_some());
}

#[test]
fn a_node_that_is_back_is_not_deleted() {
    let mut world = converged();
    world.controller.observe(LiveKind::Nodes, Observed::Deleted { namespace: "", name: "k0" });
    while let Next::Job(job) = world.controller.next(world.now) {
        world.run(job);
    }
    assert!(world.get(ResourceKind::Node, "n0").is_some());
    world.kubernetes.0.lock().expect("no panic").clear();
    world.drain(PERIOD);
    assert!(
        world.get(ResourceKind::Node, "n0").is_none() && world.get(ResourceKind::HostEndpoint, "n0-auto-hep").is_none()
    );
}
