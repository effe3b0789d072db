//! The API by which Calico's kinds are read.

use super::*;

const V1: &str = "crd.projectcalico.org/v1";
const V3: &str = "projectcalico.org/v3";

fn install(server: &ApiServer, api: &str) {
    let (group, version) = api.split_once('/').unwrap();
    server.install_calico(group, version);
}

/// Sets `datastoreReady`, as Calico's migration does.
fn set_ready(server: &ApiServer, api: &str, ready: bool) {
    let metadata = json!({"name": "default"});
    server.apply(
        json!({"apiVersion": api, "kind": "ClusterInformation", "metadata": metadata, "spec": {"datastoreReady": ready}}),
    );
}

fn apply(server: &ApiServer, api: &str, kind: &str, name: &str) {
    // In v1, an annotation has the name that the author gave a policy.
    let own = name
        .strip_prefix("default.")
        .map(|own| json!({"projectcalico.org/metadata": json!({"name": own}).to_string()}));
    let metadata = json!({"name": name, "annotations": own});
    server.apply(json!({"apiVersion": api, "kind": kind, "metadata": metadata, "spec": {}}));
}

/// Returns a cluster with both APIs and the same objects in each; v1 is in use.
fn before_migration() -> ApiServer {
    let server = Scene::shop();
    for (api, policy) in [(V1, "default.guard"), (V3, "guard")] {
        install(&server, api);
        set_ready(&server, api, api == V1);
        apply(&server, api, "GlobalNetworkPolicy", policy);
        apply(&server, api, "GlobalNetworkSet", "outside");
    }
    server
}

fn lists(scene: &Scene, api: &str) -> usize {
    scene.server.requests(&format!("GET /apis/{api}/tiers"))
}

fn is_ready(scene: &Scene, ready: bool) -> bool {
    scene.state.get(&Key::Ready) == Some(&Update::Ready(Some(ready)))
}

#[test]
fn a_migration_is_followed_without_a_deletion() {
    let mut scene = Scene::in_sync(before_migration());
    assert!(is_ready(&scene, true) && lists(&scene, V3) == 0);
    set_ready(&scene.server, V1, false);
    scene.until("the lock", |scene| is_ready(scene, false));
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(lists(&scene, V3), 0, "v3 is not complete yet");
    let before = scene.state.clone();
    set_ready(&scene.server, V3, true);
    scene.until("the switch", |scene| is_ready(scene, true));
    let rest = |state: &BTreeMap<Key, Update>| {
        let mut rest = state.clone();
        rest.remove(&Key::Ready);
        rest
    };
    assert_eq!((rest(&scene.state), scene.deleted), (rest(&before), 0));
    // A lock of v3 is no migration back.
    let lists_of_v1 = lists(&scene, V1);
    set_ready(&scene.server, V3, false);
    scene.until("the lock of v3", |scene| is_ready(scene, false));
    std::thread::sleep(Duration::from_millis(300));
    set_ready(&scene.server, V3, true);
    scene.until("the unlock of v3", |scene| is_ready(scene, true));
    assert_eq!(lists(&scene, V1), lists_of_v1);
    // v1 does not count any more, and may go.
    apply(&scene.server, V1, "GlobalNetworkSet", "late-in-v1");
    for kind in ["clusterinformations", "globalnetworkpolicies", "globalnetworksets"] {
        scene.server.uninstall("crd.projectcalico.org", kind);
    }
    apply(&scene.server, V3, "GlobalNetworkSet", "late-in-v3");
    scene.until_has("late-in-v3");
    assert!(!scene.has("late-in-v1") && scene.has("guard"));
    assert_eq!((scene.deleted, &scene.problems[..]), (0, &[][..]));
    scene.server.delete(V3, "GlobalNetworkPolicy", "", "guard");
    scene.until_gone("guard");
    assert_eq!(scene.statuses.len(), 3, "the source stayed in sync");
}

#[test]
fn definitions_that_are_replaced_are_followed() {
    let server = Scene::shop();
    install(&server, V1);
    apply(&server, V1, "GlobalNetworkSet", "outside");
    let mut scene = Scene::in_sync(server);
    install(&scene.server, V3);
    apply(&scene.server, V3, "GlobalNetworkSet", "outside");
    apply(&scene.server, V3, "GlobalNetworkSet", "new");
    for list in KubernetesSource::reads(&Options::default()).filter(|list| list.group == "crd.projectcalico.org") {
        scene.server.uninstall(list.group, list.plural);
    }
    for plural in ["ipamconfigs", "ipamhandles", "ipamblocks", "ipreservations", "blockaffinities", "bgppeers"] {
        scene.server.uninstall("crd.projectcalico.org", plural);
    }
    scene.server.uninstall("crd.projectcalico.org", "kubecontrollersconfigurations");
    scene.until_has("new");
    assert_eq!(scene.deleted, 0);
}

#[test]
fn the_previous_api_counts_until_the_next_one_is_listed_completely() {
    let mut scene = Scene::in_sync(before_migration());
    let before = scene.state.len();
    scene.server.fail(On::List, "globalnetworksets", Fault::Forbidden, usize::MAX);
    set_ready(&scene.server, V3, true);
    set_ready(&scene.server, V1, false);
    scene.until("the problem", |scene| !scene.problems.is_empty());
    apply(&scene.server, V1, "GlobalNetworkSet", "late-in-v1");
    scene.until_has("late-in-v1");
    assert_eq!((scene.state.len(), scene.deleted), (before + 1, 0));
    scene.server.behave();
    scene.until("the switch", |scene| is_ready(scene, true) && !scene.has("late-in-v1"));
    scene.until("no more problems", |scene| scene.problems.is_empty());
}

/// Calico's API server makes v3 of v1, with the same lock.
#[test]
fn a_locked_datastore_is_not_migrated_by_that() {
    let server = before_migration();
    set_ready(&server, V1, false);
    let mut scene = Scene::in_sync(server);
    assert!(is_ready(&scene, false));
    set_ready(&scene.server, V1, true);
    scene.until("unlocked", |scene| is_ready(scene, true));
    assert_eq!(lists(&scene, V3), 0);
}

#[test]
fn the_configured_api_takes_precedence() {
    for (group, read, other) in [("ProjectCalico.org/V3", V3, V1), (V1, V1, V3), ("", V1, V3)] {
        let server = before_migration();
        let config = KubeConfig::file(server.kubeconfig()).with_api_group(group);
        let source = KubernetesSource::new(config, Options::default()).with_timing(timing());
        let mut scene = Scene::of(source, server);
        scene.until("in sync", |scene| scene.statuses.last() == Some(&SyncStatus::InSync));
        assert!(lists(&scene, read) > 0 && lists(&scene, other) == 0, "{group}");
    }
    // An API that is not installed is waited for, and not replaced.
    let server = Scene::shop();
    install(&server, V1);
    let config = KubeConfig::file(server.kubeconfig()).with_api_group(V3);
    let source = KubernetesSource::new(config, Options::default()).with_timing(timing());
    let mut scene = Scene::of(source, server);
    scene.until("in sync", |scene| scene.statuses.last() == Some(&SyncStatus::InSync));
    install(&scene.server, V3);
    apply(&scene.server, V3, "GlobalNetworkSet", "outside");
    scene.until_has("outside");
    assert_eq!(lists(&scene, V1), 0);
}

/// A starting server may list only one of two APIs.
#[test]
fn an_api_stays_in_use_while_a_server_that_is_not_ready_lists_only_the_other() {
    let scene = Scene::in_sync(before_migration());
    scene.server.deny("get", "readyz");
    for list in KubernetesSource::reads(&Options::default()).filter(|list| list.group == "crd.projectcalico.org") {
        scene.server.uninstall(list.group, list.plural);
    }
    for plural in ["ipamconfigs", "ipamhandles", "ipamblocks", "ipreservations", "blockaffinities", "bgppeers"] {
        scene.server.uninstall("crd.projectcalico.org", plural);
    }
    scene.server.uninstall("crd.projectcalico.org", "kubecontrollersconfigurations");
    scene.server.delete(V3, "GlobalNetworkPolicy", "", "guard");
    let until = Instant::now() + Duration::from_secs(1);
    while Instant::now() < until {
        if let Some(event) = scene.watching.events.recv_timeout(Duration::from_millis(50)) {
            assert!(!matches!(event, Event::Updates { .. }), "{event:?}");
        }
    }
    assert_eq!(lists(&scene, V3), 0);
}

/// Only a ready server has read all definitions.
#[test]
fn missing_definitions_are_waited_for_only_while_the_server_is_not_ready() {
    let patient = Timing { missing: (Duration::from_hours(1), Duration::from_hours(1)), ..timing() };
    Scene::in_sync_with(Scene::shop(), patient);
    let server = Scene::shop();
    server.deny("get", "readyz");
    let mut scene = Scene::with_timing(server, patient);
    scene.until_has("shop/web");
    while let Some(event) = scene.watching.events.recv_timeout(Duration::from_millis(500)) {
        assert!(!matches!(event, Event::Status(SyncStatus::InSync)));
    }
    // Without the right to read this, the second answer counts.
    let server = Scene::shop();
    server.deny("get", "readyz");
    Scene::in_sync(server);
}
