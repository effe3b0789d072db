//! Random histories of Kubernetes, of the datastore and of the controller end with the state of
//! Kubernetes in the datastore.
#![allow(clippy::disallowed_methods, reason = "the time of a test has to begin somewhere")]

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value as Json, json};
use tortie_datastore::store::{Fault, MemoryStore, ResourceStore, StoreError};
use tortie_resources::stored::{self, ResourceKey, ResourceKind};
use tortie_resources::to_v3;

use super::*;

const PERIOD: Duration = Duration::from_secs(300);

/// Objects of the API server.
#[derive(Default)]
struct Kubernetes(BTreeMap<(Watched, String, String), Json>);

impl Kubernetes {
    fn list(&self, controller: &mut Controller, kind: Watched, now: Instant) {
        controller.observe(kind, Observed::ListBegins, now);
        for (_, object) in self.0.iter().filter(|((of, ..), _)| *of == kind) {
            controller.observe(kind, Observed::Listed(&object.to_string()), now);
        }
        controller.observe(kind, Observed::ListEnds, now);
    }
}

struct World {
    kubernetes: Kubernetes,
    store: MemoryStore,
    controller: Controller,
    /// Jobs in progress, with the result if it exists already.
    working: Vec<(Job, Option<Result<Done, JobError>>)>,
    now: Instant,
}

impl World {
    fn new() -> Self {
        let controller = Controller::new(PERIOD);
        let (kubernetes, store) = (Kubernetes::default(), MemoryStore::default());
        let mut world = Self { kubernetes, store, controller, working: Vec::new(), now: Instant::now() };
        world.restart();
        world
    }

    fn restart(&mut self) {
        self.working.clear();
        self.controller = Controller::new(PERIOD);
        self.controller.lead(self.now);
        self.list_all();
    }

    fn list_all(&mut self) {
        for kind in Watched::ALL {
            self.kubernetes.list(&mut self.controller, kind, self.now);
        }
    }

    fn set(&mut self, kind: Watched, namespace: &str, name: &str, object: Json, observed: bool) {
        if observed {
            self.controller.observe(kind, Observed::Changed(&object.to_string()), self.now);
        }
        self.kubernetes.0.insert((kind, namespace.into(), name.into()), object);
    }

    fn delete(&mut self, kind: Watched, namespace: &str, name: &str, observed: bool) {
        if self.kubernetes.0.remove(&(kind, namespace.into(), name.into())).is_some() && observed {
            self.controller.observe(kind, Observed::Deleted { namespace, name }, self.now);
        }
    }

    fn finish(&mut self, index: usize) {
        let (job, result) = self.working.swap_remove(index);
        let result = result.unwrap_or_else(|| job.run(&self.store));
        self.controller.done(job, result, self.now);
    }

    /// Runs the jobs for this long; time passes only when no job is ready.
    fn drain(&mut self, time: Duration) {
        let until = self.now + time;
        while !self.working.is_empty() {
            self.finish(0);
        }
        loop {
            match self.controller.next(self.now) {
                Next::Job(job) => {
                    let result = job.run(&self.store);
                    self.controller.done(job, result, self.now);
                }
                Next::Wait(Some(at)) if at <= until => self.now = at,
                Next::Wait(_) => break,
            }
        }
        self.now = until;
    }

    fn key(kind: ResourceKind, namespace: &str, name: &str) -> ResourceKey {
        ResourceKey::new(kind, namespace, name).expect("a key")
    }

    fn spec(&self, key: &ResourceKey) -> Option<Json> {
        self.store.get(key).ok().map(|stored| stored.object["spec"].clone())
    }
}

fn policy(name: &str, variant: u8) -> Json {
    let spec = match variant {
        0 => json!({"podSelector": {}}),
        1 => json!({"podSelector": {"matchLabels": {"a": "b"}}, "ingress": [{"ports": [{"port": 80}]}]}),
        2 => json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"ports": [{"port": "bad port"}]}, {}]}),
        3 => json!({"podSelector": {}, "policyTypes": ["Sideways"]}),
        _ => json!({"podSelector": {"matchLabels": {"a": 5}}}),
    };
    json!({"metadata": {"name": name, "namespace": "n0"}, "spec": spec})
}

fn labelled(namespace: &str, name: &str, variant: u8) -> Json {
    json!({"metadata": {"name": name, "namespace": namespace, "labels": {"v": variant.to_string()}},
           "spec": {"nodeName": "node", "serviceAccountName": format!("sa{}", variant % 2)}})
}

#[derive(Clone, Copy, Debug)]
enum Edit {
    Policy(u8, u8),
    Namespace(u8, u8),
    Account(u8, u8),
    Pod(u8, u8),
    Delete(usize, u8),
    /// The CNI plugin makes or deletes the endpoint of a pod.
    Endpoint(u8, bool),
    /// Another process changes or deletes a resource of the controller.
    Tamper(usize, bool),
    /// A resource with a name of the controller appears that no Kubernetes object causes.
    Stray(u8),
    /// A user writes.
    User(u8, u8),
}

#[derive(Clone, Debug)]
enum Step {
    /// Whether the watch reports the edit, or loses it until the next list.
    Edit(Edit, bool),
    Fail(Fault),
    Down(bool),
    Take {
        run: bool,
    },
    Finish(usize),
    Pass(u64),
    List(usize),
    Restart,
    Follow,
    Lead,
}

fn edit() -> impl Strategy<Value = Edit> {
    prop_oneof![
        4 => (0..3u8, 0..5u8).prop_map(|(name, variant)| Edit::Policy(name, variant)),
        2 => (0..2u8, 0..3u8).prop_map(|(name, variant)| Edit::Namespace(name, variant)),
        2 => (0..2u8, 0..3u8).prop_map(|(name, variant)| Edit::Account(name, variant)),
        2 => (0..2u8, 0..3u8).prop_map(|(name, variant)| Edit::Pod(name, variant)),
        3 => (0..4usize, 0..3u8).prop_map(|(kind, name)| Edit::Delete(kind, name)),
        2 => (0..2u8, any::<bool>()).prop_map(|(name, present)| Edit::Endpoint(name, present)),
        2 => (any::<usize>(), any::<bool>()).prop_map(|(which, present)| Edit::Tamper(which, present)),
        1 => (0..3u8).prop_map(Edit::Stray),
        1 => (0..3u8, 0..3u8).prop_map(|(which, variant)| Edit::User(which, variant)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let fault =
        prop_oneof![Just(Fault::Unavailable), Just(Fault::LostAnswer), Just(Fault::Refused), Just(Fault::Overtaken)];
    prop_oneof![
        8 => (edit(), prop::bool::weighted(0.8)).prop_map(|(edit, observed)| Step::Edit(edit, observed)),
        3 => fault.prop_map(Step::Fail),
        1 => any::<bool>().prop_map(Step::Down),
        6 => any::<bool>().prop_map(|run| Step::Take { run }),
        6 => any::<usize>().prop_map(Step::Finish),
        3 => prop_oneof![0..100u64, 0..400_000u64].prop_map(Step::Pass),
        1 => (0..4usize).prop_map(Step::List),
        1 => Just(Step::Restart),
        1 => Just(Step::Follow),
        1 => Just(Step::Lead),
    ]
}

fn user_object(which: u8, variant: u8) -> (ResourceKey, Json) {
    match which {
        0 => (World::key(ResourceKind::NetworkPolicy, "n0", "p0"), json!({"spec": {"order": variant}})),
        1 => (
            World::key(ResourceKind::Profile, "", "mine"),
            json!({"spec": {"labelsToApply": {"v": variant.to_string()}}}),
        ),
        _ => (World::key(ResourceKind::GlobalNetworkPolicy, "", "knp.default.p0"), json!({"spec": {"order": variant}})),
    }
}

impl World {
    fn edit(&mut self, edit: Edit, observed: bool, users: &mut BTreeMap<ResourceKey, Json>) {
        match edit {
            Edit::Policy(name, variant) => {
                let name = format!("p{name}");
                self.set(Watched::NetworkPolicies, "n0", &name, policy(&name, variant), observed);
            }
            Edit::Namespace(name, variant) => {
                let name = format!("n{name}");
                self.set(Watched::Namespaces, "", &name, labelled("", &name, variant), observed);
            }
            Edit::Account(name, variant) => {
                let name = format!("sa{name}");
                self.set(Watched::ServiceAccounts, "n0", &name, labelled("n0", &name, variant), observed);
            }
            Edit::Pod(name, variant) => {
                let name = format!("pod{name}");
                self.set(Watched::Pods, "n0", &name, labelled("n0", &name, variant), observed);
            }
            Edit::Delete(kind, name) => {
                let kind = Watched::ALL[kind];
                let (namespace, prefix) = match kind {
                    Watched::NetworkPolicies => ("n0", "p"),
                    Watched::Namespaces => ("", "n"),
                    Watched::ServiceAccounts => ("n0", "sa"),
                    Watched::Pods => ("n0", "pod"),
                };
                self.delete(kind, namespace, &format!("{prefix}{name}"), observed);
            }
            Edit::Endpoint(name, present) => {
                // The second pod has an endpoint with another name than the usual one.
                let key = Self::key(ResourceKind::WorkloadEndpoint, "n0", &format!("node-k8s-pod{name}-eth{name}"));
                if present {
                    let spec =
                        json!({"orchestrator": "k8s", "pod": format!("pod{name}"), "node": "node", "mac": "kept"});
                    let _down = self.store.put(&key, json!({"spec": spec}));
                } else {
                    let _down = self.store.delete(&key, None);
                }
            }
            Edit::Tamper(which, present) => {
                let keys = self.store.keys();
                let ours: Vec<_> = keys.iter().filter(|key| Watched::ALL.iter().any(|kind| kind.owns(key))).collect();
                if !ours.is_empty() {
                    let key = ours[which % ours.len()];
                    let _down = if present {
                        self.store.put(key, json!({"spec": {"order": 5}})).map(drop)
                    } else {
                        self.store.delete(key, None)
                    };
                }
            }
            Edit::Stray(name) => {
                let name = format!("knp.default.stray{name}");
                let key = Self::key(ResourceKind::NetworkPolicy, "gone", &name);
                let _down = self.store.put(&key, json!({"spec": {}}));
            }
            Edit::User(which, variant) => {
                let (key, object) = user_object(which, variant);
                // A user retries, with a limit.
                if let Some(stored) = (0..100).find_map(|_| self.store.put(&key, object.clone()).ok()) {
                    users.insert(key, stored.object["spec"].clone());
                }
            }
        }
    }

    /// Returns the differences between the datastore and the state of Kubernetes.
    fn wrong(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut ours = Vec::new();
        for ((kind, namespace, name), object) in &self.kubernetes.0 {
            let (key, converted) = match kind {
                Watched::NetworkPolicies => (
                    Self::key(ResourceKind::NetworkPolicy, namespace, &format!("knp.default.{name}")),
                    to_v3::network_policy(object),
                ),
                Watched::Namespaces => {
                    (Self::key(ResourceKind::Profile, "", &format!("kns.{name}")), to_v3::namespace(object))
                }
                Watched::ServiceAccounts => (
                    Self::key(ResourceKind::Profile, "", &format!("ksa.{namespace}.{name}")),
                    to_v3::service_account(object),
                ),
                Watched::Pods => {
                    let facts = to_v3::endpoint_facts(object).expect("it is sound").expect("it has endpoints");
                    let number = &name[3..];
                    let name = format!("node-k8s-pod{number}-eth{number}");
                    let key = Self::key(ResourceKind::WorkloadEndpoint, namespace, &name);
                    if let Ok(stored) = self.store.get(&key)
                        && stored.object["spec"].get("pod").is_some()
                        && (!follows(&stored.object, &facts) || stored.object["spec"]["mac"] != "kept")
                    {
                        wrong.push(format!("{key}: {}", stored.object));
                    }
                    continue;
                }
            };
            match (converted.outcome, self.spec(&key)) {
                (to_v3::Conversion::Resource(resource), Some(spec))
                    if spec == as_stored(&key, resource.clone())["spec"] => {}
                (to_v3::Conversion::Unusable { substitute: Some(_) }, Some(_))
                | (to_v3::Conversion::Unusable { substitute: None }, _) => {}
                (outcome, spec) => wrong.push(format!("{key}: is {spec:?}, should be {outcome:?}")),
            }
            ours.push(key);
        }
        let owned = |key: &ResourceKey| Watched::ALL.iter().any(|kind| kind.owns(key));
        let stray = self.store.keys().into_iter().filter(|key| owned(key) && !ours.contains(key));
        wrong.extend(stray.map(|key| format!("{key}: should not be")));
        wrong
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_datastore_converges_to_kubernetes(steps in prop::collection::vec(step(), 0..80)) {
        let mut world = World::new();
        let mut users = BTreeMap::new();
        let mut faults = 0;
        for step in steps {
            match step {
                Step::Edit(edit, observed) => world.edit(edit, observed, &mut users),
                Step::Fail(fault) => {
                    faults += 1;
                    world.store.fail_next(fault);
                }
                Step::Down(down) => world.store.set_down(down),
                Step::Take { run } => {
                    if let Next::Job(job) = world.controller.next(world.now) {
                        let result = run.then(|| job.run(&world.store));
                        world.working.push((job, result));
                    }
                }
                Step::Finish(index) => {
                    if !world.working.is_empty() {
                        world.finish(index % world.working.len());
                    }
                }
                Step::Pass(ms) => world.now += Duration::from_millis(ms),
                Step::List(kind) => world.kubernetes.list(&mut world.controller, Watched::ALL[kind], world.now),
                Step::Restart => world.restart(),
                Step::Follow => world.controller.follow(),
                Step::Lead => world.controller.lead(world.now),
            }
        }
        world.store.set_down(false);
        for _ in 0..faults {
            let _used_up = world.store.list(ResourceKind::Tier, None);
        }
        world.controller.lead(world.now);
        world.list_all();
        world.drain(PERIOD);
        world.drain(PERIOD);
        prop_assert_eq!(world.wrong(), Vec::<String>::new());
        for (key, spec) in &users {
            let found = world.spec(key);
            prop_assert_eq!(found.as_ref(), Some(spec), "{}", key);
        }
        let status = world.controller.status();
        prop_assert!(status.in_sync && status.waiting == 0, "{:?}", status);

        // Resources in sync are not written again after another list, comparison or restart.
        let writes = world.store.writes();
        world.list_all();
        world.drain(2 * PERIOD);
        world.restart();
        world.drain(PERIOD);
        prop_assert_eq!(world.store.writes(), writes);
    }
}

/// Returns a resource as the datastore stores it.
fn as_stored(key: &ResourceKey, mut resource: Json) -> Json {
    stored::to_stored(key, &mut resource).expect("to be stored");
    resource
}

fn converged() -> World {
    let mut world = World::new();
    world.set(Watched::NetworkPolicies, "n0", "p0", policy("p0", 1), true);
    world.drain(Duration::from_secs(1));
    assert_eq!(world.wrong(), Vec::<String>::new());
    world
}

#[test]
fn an_object_that_becomes_unreadable_stays_as_it_was() {
    let mut world = converged();
    let key = World::key(ResourceKind::NetworkPolicy, "n0", "knp.default.p0");
    let before = world.spec(&key);
    world.set(Watched::NetworkPolicies, "n0", "p0", policy("p0", 4), true);
    world.drain(PERIOD);
    assert_eq!(world.spec(&key), before);
    assert_eq!(world.controller.problems().len(), 1);
    // A policy that was never valid, but has a valid selector, allows nothing.
    world.set(Watched::NetworkPolicies, "n0", "p1", policy("p1", 3), true);
    world.drain(PERIOD);
    let closed = world.spec(&World::key(ResourceKind::NetworkPolicy, "n0", "knp.default.p1")).expect("a substitute");
    assert_eq!((closed.get("ingress"), &closed["types"]), (None, &json!(["Ingress", "Egress"])));
    world.delete(Watched::NetworkPolicies, "n0", "p0", true);
    world.delete(Watched::NetworkPolicies, "n0", "p1", true);
    world.drain(Duration::from_secs(1));
    assert_eq!(world.store.keys(), []);
    assert_eq!(world.controller.problems(), Vec::<String>::new());
}

#[test]
fn an_object_without_a_name_means_that_nothing_is_missing() {
    let mut world = converged();
    for nonsense in ["{", "{}", r#"{"metadata": {"name": ""}}"#] {
        world.controller.observe(Watched::NetworkPolicies, Observed::ListBegins, world.now);
        world.controller.observe(Watched::NetworkPolicies, Observed::Listed(nonsense), world.now);
        world.controller.observe(Watched::NetworkPolicies, Observed::ListEnds, world.now);
        world.drain(2 * PERIOD);
        assert_eq!(world.wrong(), Vec::<String>::new(), "{nonsense}");
        assert_eq!(world.controller.problems().len(), 1, "{nonsense}");
    }
    // After a restart the result is the same.
    world.controller = Controller::new(PERIOD);
    world.controller.lead(world.now);
    world.controller.observe(Watched::NetworkPolicies, Observed::ListBegins, world.now);
    world.controller.observe(Watched::NetworkPolicies, Observed::Listed("{}"), world.now);
    world.controller.observe(Watched::NetworkPolicies, Observed::ListEnds, world.now);
    world.drain(2 * PERIOD);
    assert_eq!(world.store.keys().len(), 1);
}

#[test]
fn nothing_is_written_without_the_lead_nor_before_a_list_is_complete() {
    let mut world = converged();
    world.set(Watched::Namespaces, "", "n0", labelled("", "n0", 0), false);
    let writes = world.store.writes();
    world.controller = Controller::new(PERIOD);
    world.list_all();
    world.drain(2 * PERIOD);
    world.controller = Controller::new(PERIOD);
    world.controller.lead(world.now);
    for kind in Watched::ALL {
        world.controller.observe(kind, Observed::ListBegins, world.now);
    }
    world.controller.observe(Watched::Namespaces, Observed::Listed(r#"{"metadata": {"name": "n0"}}"#), world.now);
    world.drain(2 * PERIOD);
    assert_eq!(world.store.writes(), writes);
    // A kind whose list is complete does not wait for the other kinds.
    world.controller.observe(Watched::Namespaces, Observed::ListEnds, world.now);
    world.drain(Duration::from_secs(1));
    assert_eq!(world.store.writes(), writes + 1);
    assert!(!world.controller.status().in_sync);
}

#[test]
fn a_datastore_that_comes_back_is_not_waited_for_until_the_next_period() {
    let mut world = converged();
    world.store.set_down(true);
    world.set(Watched::NetworkPolicies, "n0", "p0", policy("p0", 2), true);
    world.drain(Duration::from_secs(1));
    let status = world.controller.status();
    assert_eq!((status.retries, status.given_up), (5, 1));
    assert!(world.controller.problems().iter().any(|problem| problem.contains("not available")));
    world.drain(Duration::from_secs(20));
    world.store.set_down(false);
    world.drain(Duration::from_secs(33));
    assert_eq!(world.wrong(), Vec::<String>::new());
    let left: Vec<String> = world.controller.problems().into_iter().filter(|p| p.contains("available")).collect();
    assert_eq!(left, Vec::<String>::new());
}

#[test]
fn fields_of_others_beside_the_specification_stay() {
    let mut world = converged();
    let key = World::key(ResourceKind::NetworkPolicy, "n0", "knp.default.p0");
    let mut object = world.store.get(&key).expect("it is there").object;
    // The policy in Kubernetes has no action, so that this one is not the user's to give.
    object["metadata"]["annotations"] = json!({"note": "kept", to_v3::DENY_ACTION: "Reject"});
    object["spec"]["order"] = 7.into();
    world.store.put(&key, object).expect("it can be written");
    world.drain(PERIOD);
    let object = world.store.get(&key).expect("it is there").object;
    assert_eq!(
        (&object["metadata"]["annotations"], &object["spec"]["order"]),
        (&json!({"note": "kept"}), &json!(1000))
    );
    assert!(matches!(
        world.store.get(&World::key(ResourceKind::NetworkPolicy, "n0", "p0")),
        Err(StoreError::NotFound(_))
    ));
}
