//! Lists that stay up to date, whatever the server does.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tortie_datastore::kubernetes::{ApiError, ApiResource, Event, ListWatch, Received, Reflector, Timing};
use tortie_lab::apiserver::{ApiServer, Fault, On};

use super::{client, timing};

fn pod(name: &str, generation: u32) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"g": generation.to_string()}}})
}

/// State of a consumer.
#[derive(Default)]
struct Copy {
    pods: BTreeMap<String, String>,
    /// Seen since the list began.
    seen: Vec<String>,
    listing: bool,
    complete: u32,
    available: bool,
    refused: Vec<ApiError>,
    not_installed: u32,
    deleted: u32,
}

impl Copy {
    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Begin => {
                self.seen.clear();
                self.listing = true;
            }
            Event::Item(object) | Event::Changed(object) => {
                let object: Value = serde_json::from_str(&object).expect("JSON");
                assert_eq!((&object["apiVersion"], &object["kind"]), (&json!("v1"), &json!("Pod")));
                let name = object["metadata"]["name"].as_str().expect("a name").to_owned();
                self.seen.push(name.clone());
                self.pods.insert(name, object["metadata"]["labels"]["g"].as_str().unwrap_or_default().to_owned());
            }
            Event::End => {
                assert!(self.listing, "the end of no list");
                self.listing = false;
                self.complete += 1;
                let seen = std::mem::take(&mut self.seen);
                self.pods.retain(|name, _| seen.contains(name));
            }
            Event::Deleted(meta) => {
                self.deleted += 1;
                self.pods.remove(&meta.name);
            }
            Event::NotInstalled => self.not_installed += 1,
            Event::Unavailable(error) => {
                self.available = false;
                self.refused.push(error);
            }
            Event::Available => self.available = true,
        }
    }
}

struct Scene {
    server: ApiServer,
    reflector: Reflector,
    copy: Copy,
}

impl Scene {
    fn new(server: ApiServer, timing: Timing) -> Self {
        let mut reflector = Reflector::with_timing(&client(&server), timing);
        reflector.add(ListWatch::all(ApiResource::PODS));
        Self { server, reflector, copy: Copy { available: true, ..Copy::default() } }
    }

    /// Returns a server with this number of pods, which have been listed already.
    fn with_pods(count: u32, timing: Timing) -> Self {
        let server = ApiServer::start().expect("a port");
        for number in 0..count {
            server.apply(pod(&format!("p{number:03}"), 0));
        }
        let mut scene = Self::new(server, timing);
        scene.until("the first list", |copy| copy.complete == 1);
        assert_eq!(scene.copy.pods.len(), count as usize);
        scene.watches();
        scene
    }

    fn until(&mut self, description: &str, done: impl Fn(&Copy) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !done(&self.copy) {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{description} did not come: {:?} {:?}", self.copy.pods, self.copy.refused);
            if let Received::Event(_, event) = self.reflector.recv(Some(left)) {
                self.copy.handle_event(event);
            }
        }
    }

    /// Waits until the server has answered a watch.
    fn watches(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.server.watches() == 0 {
            assert!(Instant::now() < deadline, "no client watches");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Changes a pod, and waits until the change is received.
    fn is_alive(&mut self, generation: u32) {
        self.server.apply(pod("alive", generation));
        let expected = generation.to_string();
        self.until("a change", |copy| copy.pods.get("alive") == Some(&expected));
    }
}

#[test]
fn pages_and_changes() {
    let mut scene = Scene::with_pods(40, timing());
    assert_eq!(scene.server.requests("GET /api/v1/pods"), 6, "40 pods, 7 at a time");
    scene.is_alive(1);
    scene.is_alive(2);
    scene.server.delete("v1", "Pod", "default", "p007");
    scene.until("a deletion", |copy| copy.deleted == 1);
    assert_eq!(scene.copy.pods.len(), 40);
    assert_eq!((scene.copy.complete, scene.copy.refused.len()), (1, 0));
    assert_eq!(scene.server.requests("WATCH /api/v1/pods"), 1);
}

#[test]
fn selectors_restrict_lists_and_watches() {
    let server = ApiServer::start().unwrap();
    for (name, namespace, labels) in [("a", "x", "1"), ("b", "x", "2"), ("c", "y", "1")] {
        let mut pod = pod(name, 0);
        pod["metadata"]["namespace"] = json!(namespace);
        pod["metadata"]["labels"]["g"] = json!(labels);
        server.apply(pod);
    }
    let mut reflector = Reflector::with_timing(&client(&server), timing());
    let list = ListWatch { namespace: "x".into(), labels: "g in (1,3)".into(), ..ListWatch::all(ApiResource::PODS) };
    assert_eq!(reflector.add(list), 0);
    let mut scene = Scene { server, reflector, copy: Copy::default() };
    scene.until("the list", |copy| copy.complete == 1);
    assert_eq!(scene.copy.pods.keys().collect::<Vec<_>>(), ["a"]);
    let mut changed = pod("a", 2);
    changed["metadata"]["namespace"] = json!("x");
    scene.server.apply(changed);
    scene.until("the deletion of an object that no longer matches", |copy| copy.deleted == 1);
}

#[test]
fn a_version_that_has_expired_means_a_new_list() {
    for fault in [Fault::Gone, Fault::ErrorEvent(410)] {
        let mut scene = Scene::with_pods(3, timing());
        scene.server.fail(On::Watch, "pods", fault, 1);
        scene.server.cut();
        scene.until("another list", |copy| copy.complete == 2);
        scene.is_alive(1);
        assert_eq!(scene.copy.deleted, 0);
    }
}

#[test]
fn a_restart_with_nothing_remembered_loses_nothing_and_invents_nothing() {
    let mut scene = Scene::with_pods(20, timing());
    scene.server.partition();
    scene.server.delete("v1", "Pod", "default", "p003");
    scene.server.apply(pod("p004", 9));
    scene.until("the loss of the server", |copy| !copy.available);
    assert_eq!(scene.copy.pods.len(), 20, "objects stay until their deletion is known");
    scene.server.compact();
    scene.server.heal();
    scene.until("the return of the server", |copy| copy.available && copy.complete == 2);
    assert!(!scene.copy.pods.contains_key("p003") && scene.copy.pods["p004"] == "9");
    assert_eq!(scene.copy.pods.len(), 19);
    scene.is_alive(1);
}

#[test]
fn a_partition_is_bridged_by_the_history_if_there_is_one() {
    let mut scene = Scene::with_pods(20, timing());
    scene.server.partition();
    scene.server.delete("v1", "Pod", "default", "p003");
    scene.until("the loss of the server", |copy| !copy.available);
    scene.server.heal();
    scene.until("the deletion", |copy| copy.deleted == 1 && copy.available);
    assert_eq!(scene.copy.complete, 1, "no list was needed");
}

#[test]
fn pages_that_expire_are_begun_again() {
    let server = ApiServer::start().unwrap();
    for number in 0..30 {
        server.apply(pod(&format!("p{number:03}"), 0));
    }
    server.fail(On::Continue, "pods", Fault::Gone, 3);
    let mut scene = Scene::new(server, timing());
    scene.until("the list", |copy| copy.complete == 1);
    assert_eq!(scene.copy.pods.len(), 30);
    assert_eq!(scene.server.faults_left(), 1, "the third time it was asked for in one piece");
    assert_eq!(scene.copy.refused, []);
}

#[test]
fn lists_that_fail_are_repeated() {
    for on in [On::List, On::Continue] {
        for fault in [
            Fault::TooManyRequests(0),
            Fault::Unauthorized,
            Fault::Forbidden,
            Fault::Internal,
            Fault::Hangup,
            Fault::DropInside,
            Fault::Truncate,
            Fault::Slow(Duration::from_millis(30)),
        ] {
            let server = ApiServer::start().unwrap();
            for number in 0..20 {
                server.apply(pod(&format!("p{number:03}"), 0));
            }
            server.fail(on, "pods", fault, if matches!(fault, Fault::Slow(_)) { 1 } else { 2 });
            let mut scene = Scene::new(server, timing());
            scene.until("the list", |copy| copy.complete == 1);
            assert_eq!(scene.copy.pods.len(), 20, "{on:?} {fault:?}");
            scene.is_alive(1);
            assert_eq!((scene.copy.available, scene.server.faults_left()), (true, 0), "{on:?} {fault:?}");
            if fault == Fault::Forbidden {
                assert!(scene.copy.refused.iter().all(ApiError::is_forbidden) && !scene.copy.refused.is_empty());
            }
        }
    }
}

#[test]
fn watches_that_fail_are_repeated() {
    for fault in [
        Fault::TooManyRequests(0),
        Fault::Unauthorized,
        Fault::Forbidden,
        Fault::NotFound,
        Fault::Internal,
        Fault::Hangup,
        Fault::DropInside,
        Fault::Truncate,
        Fault::Nonsense,
        Fault::ErrorEvent(500),
        Fault::Slow(Duration::from_millis(30)),
    ] {
        let mut scene = Scene::with_pods(5, timing());
        scene.is_alive(1);
        scene.server.fail(On::Watch, "pods", fault, 2);
        scene.server.cut();
        scene.is_alive(2);
        scene.is_alive(3);
        assert_eq!(scene.copy.pods.len(), 6, "{fault:?}");
        assert_eq!(scene.copy.deleted, 0, "{fault:?}");
    }
}

#[test]
fn a_watch_that_goes_silent_is_left() {
    let idle = Duration::from_millis(200);
    let mut scene = Scene::with_pods(2, Timing { idle, ..timing() });
    scene.server.fail(On::Watch, "pods", Fault::Stall(Duration::from_secs(60)), 1);
    scene.server.cut();
    scene.is_alive(1);
    // Bookmarks are signs of life.
    scene.server.bookmark_every(Duration::from_millis(50));
    scene.server.cut();
    scene.is_alive(2);
    let before = scene.server.requests("WATCH /api/v1/pods");
    std::thread::sleep(idle * 3);
    assert_eq!(scene.server.requests("WATCH /api/v1/pods"), before);
}

#[test]
fn a_server_that_was_restored_from_a_backup_is_listed_again() {
    let mut scene = Scene::with_pods(2, Timing { idle: Duration::from_millis(200), ..timing() });
    scene.server.bookmark_every(Duration::from_millis(50));
    let backup = scene.server.backup();
    for generation in 1..20 {
        scene.is_alive(generation);
    }
    scene.server.delete("v1", "Pod", "default", "p001");
    scene.until("a deletion", |copy| copy.deleted == 1);
    scene.server.restore(backup);
    // The server sends nothing for versions that it has not reached, so a watch from there stays
    // silent.
    scene.until("the restored objects", |copy| copy.complete == 2);
    assert_eq!(scene.copy.pods.keys().collect::<Vec<_>>(), ["p000", "p001"]);
    scene.is_alive(1);
}

#[test]
fn bookmarks_outlive_compaction() {
    let mut scene = Scene::with_pods(2, timing());
    scene.server.bookmark_every(Duration::from_millis(20));
    scene.server.cut();
    scene.is_alive(0);
    scene.watches();
    // Changes of other kinds increase the version.
    for number in 0..50 {
        scene.server.apply(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("n{number}")}}));
    }
    std::thread::sleep(Duration::from_millis(200));
    scene.server.compact();
    scene.server.cut();
    scene.is_alive(1);
    assert_eq!(scene.copy.complete, 1, "no list was needed");
}

#[test]
fn a_kind_that_comes_later_and_goes_away() {
    let server = ApiServer::start().unwrap();
    server.uninstall("", "pods");
    let mut scene = Scene::new(server, timing());
    scene.until("the missing kind", |copy| copy.not_installed == 1);
    std::thread::sleep(Duration::from_millis(300));
    scene.server.install("", "v1", "pods", "Pod", true);
    scene.is_alive(1);
    scene.until("the end of the list", |copy| copy.complete == 1);
    assert_eq!(scene.copy.not_installed, 1, "reported once");
    scene.server.uninstall("", "pods");
    scene.until("the missing kind", |copy| copy.not_installed == 2);
    assert_eq!(scene.copy.pods.len(), 1, "servers that start forget kinds for a while");
    scene.server.install("", "v1", "pods", "Pod", true);
    scene.until("the list", |copy| copy.complete == 2);
    assert_eq!(scene.copy.pods.len(), 0);
}

#[test]
fn a_token_that_is_replaced_while_watching() {
    let mut scene = Scene::with_pods(2, timing());
    scene.server.rotate_token("another").unwrap();
    scene.server.cut();
    scene.is_alive(1);
    scene.server.expire_token();
    scene.server.cut();
    scene.until("the refusal", |copy| copy.refused.iter().any(|error| error.code() == Some(401)));
    scene.server.rotate_token("a third one").unwrap();
    scene.is_alive(2);
}

#[test]
fn a_consumer_that_does_not_read_is_waited_for() {
    let server = ApiServer::start().unwrap();
    let filler = "x".repeat(1 << 20);
    for number in 0..40 {
        let mut pod = pod(&format!("p{number}"), 0);
        pod["metadata"]["annotations"] = json!({"filler": filler});
        server.apply(pod);
    }
    let mut scene = Scene::new(server, timing());
    std::thread::sleep(Duration::from_millis(500));
    assert!(scene.server.requests("GET /api/v1/pods") < 6, "it was not read to the end");
    scene.until("the list", |copy| copy.complete == 1);
    assert_eq!(scene.copy.pods.len(), 40);
}

#[test]
fn another_thread_can_wake_the_receiver() {
    let server = ApiServer::start().unwrap();
    let reflector = Reflector::new(&client(&server));
    let waker = reflector.waker();
    let thread = std::thread::spawn(move || waker.wake());
    assert_eq!(reflector.recv(None), Received::Woken);
    assert_eq!(reflector.recv(Some(Duration::ZERO)), Received::TimedOut);
    thread.join().unwrap();
}

/// Its objects exist and are not enforced, which must not pass for their absence.
#[test]
fn a_kind_in_another_version_is_not_absent() {
    const GROUP: &str = "policy.networking.k8s.io";
    let server = ApiServer::start().expect("a port");
    server.install(GROUP, "v1alpha1", "adminnetworkpolicies", "AdminNetworkPolicy", false);
    let read = |plural| ListWatch::all(ApiResource::new(GROUP, "v1alpha2", plural));
    let mut reflector = Reflector::with_timing(&client(&server), timing());
    reflector.add(read("clusternetworkpolicies"));
    let next = |reflector: &Reflector| match reflector.recv(Some(Duration::from_secs(60))) {
        Received::Event(_, event) => event,
        other => panic!("{other:?}"),
    };
    assert_eq!(next(&reflector), Event::NotInstalled);
    for version in ["v1beta1", "v1"] {
        server.install(GROUP, version, "clusternetworkpolicies", "ClusterNetworkPolicy", false);
    }
    let mut error = next(&reflector);
    // The first version may have been seen alone.
    if !format!("{error:?}").contains("\"v1\"") {
        error = next(&reflector);
    }
    let Event::Unavailable(error) = error else { panic!("{error:?}") };
    assert_eq!(
        error.to_string(),
        "the API server has clusternetworkpolicies.policy.networking.k8s.io in version v1beta1, v1 only; version v1alpha2 is \
         supported"
    );
    server.install(GROUP, "v1alpha2", "clusternetworkpolicies", "ClusterNetworkPolicy", false);
    assert_eq!(next(&reflector), Event::Available);
}
