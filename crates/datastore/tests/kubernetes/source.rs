//! The source of updates.

mod calico_api;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};
use tortie_datastore::kubernetes::{ApiResource, Client, KubeConfig, KubernetesSource, Timing};
use tortie_datastore::{Event, InputProblem, Watching, watch};
use tortie_lab::apiserver::{ApiServer, Fault, On};
use tortie_model::{Key, SyncStatus, Update};
use tortie_resources::manifest::{BlockSource, Options};
use tortie_resources::path;

use super::timing;

pub(crate) fn pod(namespace: &str, name: &str, node: &str, ip: &str) -> Json {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "labels": {"app": name}},
        "spec": {"nodeName": node, "serviceAccountName": "default", "containers": [{"name": "c", "image": "i"}]},
        "status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]},
    })
}

fn namespace(name: &str) -> Json {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"name": name}}})
}

fn policy(name: &str, selector: &Json) -> Json {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"namespace": "shop", "name": name},
        "spec": {"podSelector": selector, "policyTypes": ["Ingress"]},
    })
}

/// A consumer and its state.
struct Scene {
    server: ApiServer,
    watching: Watching,
    state: BTreeMap<Key, Update>,
    statuses: Vec<SyncStatus>,
    problems: Vec<InputProblem>,
    unavailable: Vec<String>,
    deleted: usize,
}

impl Scene {
    fn new(server: ApiServer) -> Self {
        Self::with_timing(server, timing())
    }

    fn with_timing(server: ApiServer, timing: Timing) -> Self {
        let config = KubeConfig::file(server.kubeconfig());
        let source = KubernetesSource::new(config, Options::default()).for_node("n1").with_timing(timing);
        Self::of(source, server)
    }

    fn of(source: KubernetesSource, server: ApiServer) -> Self {
        Self {
            server,
            watching: watch(source).expect("a thread"),
            state: BTreeMap::new(),
            statuses: Vec::new(),
            problems: Vec::new(),
            unavailable: Vec::new(),
            deleted: 0,
        }
    }

    /// Returns a server with a namespace, two pods, one of them on this node, and a policy.
    fn shop() -> ApiServer {
        let server = ApiServer::start().expect("a port");
        server.apply(namespace("shop"));
        server.apply(pod("shop", "web", "n1", "10.0.0.1"));
        server.apply(pod("shop", "db", "n2", "10.0.0.2"));
        server.apply(policy("web", &json!({"matchLabels": {"app": "web"}})));
        server
    }

    fn in_sync(server: ApiServer) -> Self {
        Self::in_sync_with(server, timing())
    }

    fn in_sync_with(server: ApiServer, timing: Timing) -> Self {
        let mut scene = Self::with_timing(server, timing);
        scene.until("in sync", |scene| scene.statuses.last() == Some(&SyncStatus::InSync));
        scene
    }

    fn until(&mut self, description: &str, done: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !done(self) {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{description} did not come: {:?} {:?}", self.state.keys(), self.unavailable);
            match self.watching.events.recv_timeout(left) {
                Some(Event::Status(status)) => self.statuses.push(status),
                Some(Event::Updates { updates, .. }) => {
                    for update in updates {
                        self.deleted += usize::from(!update.exists());
                        update.apply_to(&mut self.state);
                    }
                }
                Some(Event::Problems(problems)) => self.problems = problems,
                Some(Event::Unavailable { why, .. }) => self.unavailable.push(why),
                Some(Event::Available | Event::Versions(_)) | None => {}
            }
        }
    }

    fn has(&self, key: &str) -> bool {
        self.state.keys().any(|have| format!("{have:?}").contains(key))
    }

    fn until_has(&mut self, key: &str) {
        self.until(key, |scene| scene.has(key));
    }

    fn until_gone(&mut self, key: &str) {
        self.until(key, |scene| !scene.has(key));
    }
}

fn block(api_version: &str, name: &str, cidr: &str) -> Json {
    json!({
        "apiVersion": api_version, "kind": "IPAMBlock", "metadata": {"name": name},
        "spec": {"cidr": cidr, "affinity": "host:n1", "allocations": [null], "unallocated": [0], "attributes": [],
            "sequenceNumber": 1, "sequenceNumberForAllocation": {}, "deleted": false, "strictAffinity": false},
    })
}

/// Returns a cluster with IPAM blocks, a BGP peer, and a migrating virtual machine.
fn routed(group: &str, version: &str) -> ApiServer {
    let server = Scene::shop();
    server.install_calico(group, version);
    server.install("kubevirt.io", "v1", "virtualmachineinstancemigrations", "VirtualMachineInstanceMigration", true);
    let api_version = format!("{group}/{version}");
    server.apply(block(&api_version, "10-65-0-0-26", "10.65.0.0/26"));
    server.apply(block(&api_version, "10-65-0-64-26", "10.65.0.64/26"));
    server.apply(json!({"apiVersion": api_version, "kind": "BGPPeer", "metadata": {"name": "rack"}, "spec": {}}));
    server.apply(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
        "metadata": {"namespace": "shop", "name": "m", "uid": "u"},
        "spec": {"vmiName": "vm"}, "status": {"phase": "Running"},
    }));
    server
}

fn passthrough(scene: &Scene) -> BTreeMap<String, String> {
    let text = |(key, update): (&Key, &Update)| {
        Some((path::to_path(key).expect("a path"), update.passthrough_text()?.to_string()))
    };
    scene.state.iter().filter_map(text).collect()
}

fn with_blocks(server: ApiServer, block_source: BlockSource) -> Scene {
    let options = Options { block_source, ..Options::default() };
    let source = KubernetesSource::new(KubeConfig::file(server.kubeconfig()), options).with_timing(timing());
    let mut scene = Scene::of(source, server);
    scene.until("in sync", |scene| scene.statuses.last() == Some(&SyncStatus::InSync));
    scene
}

const PEER: &str = "/calico/resources/v3/projectcalico.org/bgppeers/rack";
const MIGRATION: &str = "/calico/resources/v3/projectcalico.org/livemigrations/shop/m";

/// As the server has it, and after it has forgotten its history.
#[test]
fn passthrough_objects() {
    for (group, version) in [("crd.projectcalico.org", "v1"), ("projectcalico.org", "v3")] {
        let api_version = format!("{group}/{version}");
        let of_block = |last: u8| format!("/calico/ipam/v2/assignment/ipv4/block/10.65.0.{last}-26");
        let mut scene = with_blocks(routed(group, version), BlockSource::IpamBlocks);
        let objects = passthrough(&scene);
        assert_eq!(objects.keys().collect::<Vec<_>>(), [&of_block(0), &of_block(64), PEER, MIGRATION]);
        assert_eq!(
            objects[&of_block(0)],
            concat!(
                r#"{"cidr":"10.65.0.0/26","affinity":"host:n1","allocations":[null],"unallocated":[0],"attributes":[],"#,
                r#""sequenceNumber":1,"sequenceNumberForAllocation":{},"deleted":false}"#
            )
        );
        scene.server.delete(&api_version, "IPAMBlock", "", "10-65-0-0-26");
        scene.until("a block goes", |scene| !passthrough(scene).contains_key(&of_block(0)));
        scene.server.partition();
        scene.server.delete(&api_version, "IPAMBlock", "", "10-65-0-64-26");
        scene.server.delete("kubevirt.io/v1", "VirtualMachineInstanceMigration", "shop", "m");
        scene.server.apply(block(&api_version, "10-65-0-128-26", "10.65.0.128/26"));
        scene.server.restart();
        scene.until("listed again", |scene| passthrough(scene).keys().eq([&of_block(128), PEER]));
        assert_eq!(scene.problems, []);
    }
}

#[test]
fn blocks_are_not_asked_for_where_they_are_not_wanted() {
    let group = "/apis/crd.projectcalico.org/v1";
    let blocks = format!("GET {group}/ipamblocks");
    for block_source in [BlockSource::Omitted, BlockSource::PodCidrs] {
        let scene = with_blocks(routed("crd.projectcalico.org", "v1"), block_source);
        assert_eq!(passthrough(&scene).keys().collect::<Vec<_>>(), [PEER, MIGRATION], "{block_source:?}");
        assert_eq!(scene.server.requests(&blocks), 0);
    }
    assert!(with_blocks(routed("crd.projectcalico.org", "v1"), BlockSource::IpamBlocks).server.requests(&blocks) > 0);
    // Without KubeVirt and Calico's kinds, there is nothing to pass on, and no problem.
    let scene = with_blocks(Scene::shop(), BlockSource::IpamBlocks);
    assert_eq!((passthrough(&scene).len(), &scene.problems[..]), (0, &[][..]));
}

#[test]
fn objects_of_a_cluster_are_read() {
    let server = Scene::shop();
    server.install_calico("crd.projectcalico.org", "v1");
    server.apply(json!({
        "apiVersion": "crd.projectcalico.org/v1", "kind": "GlobalNetworkSet",
        "metadata": {"name": "outside", "annotations": {"projectcalico.org/metadata": "{\"labels\":{\"role\":\"out\"}}"}},
        "spec": {"nets": ["192.0.2.0/24"]},
    }));
    server.apply(json!({
        "apiVersion": "crd.projectcalico.org/v1", "kind": "FelixConfiguration",
        "metadata": {"name": "default"}, "spec": {"logSeverityScreen": "Debug"},
    }));
    server.apply(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"},
        "status": {"addresses": [{"type": "InternalIP", "address": "172.16.0.1"}]}}));
    let mut scene = Scene::in_sync(server);
    assert_eq!(scene.statuses, [SyncStatus::WaitForDatastore, SyncStatus::Resync, SyncStatus::InSync]);
    for key in ["kns.shop", "shop/web", "shop/db", "outside", "LogSeverityScreen", "Node(\"n1\")", "default-allow"] {
        assert!(scene.has(key), "{key}: {:?}", scene.state.keys());
    }
    assert_eq!((&scene.problems[..], scene.unavailable.len()), (&[][..], 0));
    let iface = |name: &str| {
        let found = scene.state.iter().find(|(key, _)| format!("{key:?}").contains(name)).expect("an endpoint");
        let Update::WorkloadEndpoint(_, Some(endpoint)) = found.1 else { panic!("{found:?}") };
        endpoint.iface.expect("an interface")
    };
    assert!(iface("shop/web").as_str().starts_with("cali"));
    assert_eq!(iface("shop/db").as_str(), "remote", "endpoints of other nodes have only the fields that policies need");
    scene.server.delete("v1", "Pod", "shop", "db");
    scene.until_gone("shop/db");
    scene.server.apply(pod("shop", "cache", "n1", "10.0.0.3"));
    scene.until_has("shop/cache");
    let mut done = pod("shop", "cache", "n1", "10.0.0.3");
    done["status"]["phase"] = json!("Succeeded");
    scene.server.apply(done);
    scene.until_gone("shop/cache");
    assert_eq!(scene.statuses.len(), 3);
}

#[test]
fn every_update_carries_its_version() {
    let server = Scene::shop();
    server.apply(policy("web", &json!({"matchLabels": {"app": "db"}})));
    let config = || KubeConfig::file(server.kubeconfig());
    let read = |source: KubernetesSource| {
        let source = source.with_timing(timing());
        let everything = tortie_datastore::read(source, Duration::from_secs(60), |_| {}).expect("everything");
        everything.versions.into_iter().map(|(policy, version)| (policy.to_string(), version.to_string()))
    };
    assert_eq!(read(KubernetesSource::new(config(), Options::default())).count(), 0);
    let source = KubernetesSource::new(config(), Options::default()).with_versions();
    let versions: Vec<(String, String)> = read(source).collect();
    let client = Client::new(config()).expect("a client");
    for (kind, namespace, name, key) in [
        (ApiResource::NETWORK_POLICIES, "shop", "web", "policy KubernetesNetworkPolicy/shop/web"),
        (ApiResource::NAMESPACES, "", "shop", "rules of profile kns.shop"),
    ] {
        let object = client.get(kind, namespace, name).expect("it is there");
        let version = object["metadata"]["resourceVersion"].as_str().expect("a version").to_owned();
        assert!(versions.contains(&(key.to_owned(), version.clone())), "{key} {version}: {versions:?}");
    }
    assert!(versions.iter().any(|(key, _)| key.starts_with("workload endpoint ")), "{versions:?}");
}

#[test]
fn one_api_of_calico_is_read_never_both() {
    for (groups, read) in [
        (&[("projectcalico.org", "v3")][..], "/apis/projectcalico.org/v3/tiers"),
        (&[("projectcalico.org", "v3"), ("crd.projectcalico.org", "v1")], "/apis/crd.projectcalico.org/v1/tiers"),
    ] {
        let server = ApiServer::start().unwrap();
        for (group, version) in groups {
            server.install_calico(group, version);
        }
        let scene = Scene::in_sync(server);
        let requests = ["/apis/projectcalico.org/v3/tiers", "/apis/crd.projectcalico.org/v1/tiers"]
            .map(|path| scene.server.requests(&format!("GET {path}")) > 0);
        assert_eq!(requests, [read.contains("v3"), read.contains("v1/")]);
    }
}

#[test]
fn cluster_network_policies() {
    let server = Scene::shop();
    server.install_admin();
    server.apply(json!({"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": {"name": "guard"}, "spec": {"tier": "Admin", "priority": 1, "subject": {"namespaces": {}},
        "ingress": [{"action": "Deny", "from": [{"namespaces": {}}], "protocols": [{"icmp": {}}]}]}}));
    let mut scene = Scene::in_sync(server);
    let found = scene.state.iter().find(|(key, _)| format!("{key:?}").contains("guard")).expect("the policy");
    let Update::Policy(_, Some(policy)) = found.1 else { panic!("{found:?}") };
    assert_eq!(policy.inbound.len(), 1, "a rule that is not understood denies");
    scene.until("the warning", |scene| !scene.problems.is_empty());
    for (kind, name) in [
        ("AdminNetworkPolicy", "kanp.adminnetworkpolicy.a"),
        ("BaselineAdminNetworkPolicy", "kbanp.baselineadminnetworkpolicy.a"),
    ] {
        scene.server.apply(json!({"apiVersion": "policy.networking.k8s.io/v1alpha1", "kind": kind,
            "metadata": {"name": "a"}, "spec": {"priority": 1, "subject": {"namespaces": {}}}}));
        scene.until_has(name);
    }
}

#[test]
fn calico_that_is_installed_later() {
    let mut scene = Scene::in_sync(Scene::shop());
    scene.server.install_calico("crd.projectcalico.org", "v1");
    scene.server.apply(json!({"apiVersion": "crd.projectcalico.org/v1", "kind": "GlobalNetworkPolicy",
        "metadata": {"name": "default.late"}, "spec": {"selector": "all()"}}));
    scene.until_has("late");
}

#[test]
fn nothing_is_deleted_while_the_server_is_away() {
    let server = Scene::shop();
    let mut scene = Scene::in_sync(server);
    let before = scene.state.clone();
    scene.server.partition();
    scene.until("the loss of the server", |scene| !scene.unavailable.is_empty());
    std::thread::sleep(Duration::from_millis(300));
    scene.server.delete("v1", "Pod", "shop", "db");
    scene.server.apply(pod("shop", "cache", "n1", "10.0.0.3"));
    assert_eq!((&scene.state, scene.deleted), (&before, 0));
    // Everything that was seen is too old.
    scene.server.restart();
    scene.until_has("shop/cache");
    scene.until_gone("shop/db");
    assert_eq!((scene.deleted, scene.state.len()), (1, before.len()));
    assert_eq!(scene.statuses.len(), 3);
}

#[test]
fn a_forbidden_kind_is_a_problem_and_not_fatal() {
    let server = Scene::shop();
    server.fail(On::Any, "networkpolicies", Fault::Forbidden, usize::MAX);
    let mut scene = Scene::new(server);
    scene.until("the problem", |scene| !scene.problems.is_empty());
    assert_eq!(scene.problems[0].subject, "networkpolicies.networking.k8s.io");
    scene.until_has("shop/web");
    assert!(!scene.statuses.contains(&SyncStatus::InSync), "without the policies, the source is not in sync");
    scene.server.behave();
    scene.until("in sync", |scene| scene.statuses.last() == Some(&SyncStatus::InSync));
    scene.until("no more problems", |scene| scene.problems.is_empty());
    assert!(scene.has("KubernetesNetworkPolicy"));
}

#[test]
fn a_policy_that_becomes_invalid_keeps_its_last_good_version() {
    let mut scene = Scene::in_sync(Scene::shop());
    let good = scene.state.clone();
    scene.server.apply(policy("web", &json!({"matchLabels": {"app": "no value for a label!"}})));
    scene.until("the problem", |scene| !scene.problems.is_empty());
    assert_eq!(scene.state, good);
    // A list does not make it forgotten.
    scene.server.restart();
    scene.server.apply(pod("shop", "cache", "n1", "10.0.0.3"));
    scene.until_has("shop/cache");
    assert!(scene.has("KubernetesNetworkPolicy"));
    scene.server.delete("networking.k8s.io/v1", "NetworkPolicy", "shop", "web");
    scene.until_gone("KubernetesNetworkPolicy");
    scene.until("no more problems", |scene| scene.problems.is_empty());
}

#[test]
fn a_restarted_consumer_receives_everything() {
    let mut scene = Scene::in_sync(Scene::shop());
    let before = std::mem::take(&mut scene.state);
    scene.statuses.clear();
    scene.watching.resend.ask();
    scene.until("in sync", |scene| scene.statuses.last() == Some(&SyncStatus::InSync));
    assert_eq!((scene.state.clone(), scene.deleted), (before, 0));
    // Also while the server is unreachable.
    scene.server.partition();
    let before = std::mem::take(&mut scene.state);
    scene.statuses.clear();
    scene.watching.resend.ask();
    scene.until("in sync", |scene| scene.statuses.last() == Some(&SyncStatus::InSync));
    assert_eq!(scene.state, before);
}

#[test]
fn a_server_that_is_not_there_yet() {
    let server = Scene::shop();
    server.partition();
    let mut scene = Scene::new(server);
    scene.until("the loss of the server", |scene| !scene.unavailable.is_empty());
    assert_eq!(scene.statuses, [SyncStatus::WaitForDatastore]);
    scene.server.heal();
    scene.until("in sync", |scene| scene.statuses.last() == Some(&SyncStatus::InSync));
    assert!(scene.has("shop/web"));
}

/// Each pod has a realistic size, and most of its data is not needed here.
#[test]
fn thousands_of_pods_come_in_pages() {
    const PODS: usize = 3_000;
    let server = Scene::shop();
    let managed = "x".repeat(3000);
    for number in 0..PODS {
        let ip = format!("10.1.{}.{}", number >> 8, number & 255);
        let mut pod = pod("shop", &format!("web-{number}"), "n2", &ip);
        pod["metadata"]["managedFields"] = json!([{"manager": "kubelet", "fieldsV1": {"f:status": {"f:x": managed}}}]);
        server.apply(pod);
    }
    let begin = Instant::now();
    let scene = Scene::in_sync_with(server, Timing { page: 500, ..timing() });
    println!("{PODS} pods in {:?}", begin.elapsed());
    let endpoints = scene.state.keys().filter(|key| matches!(key, Key::WorkloadEndpoint(_))).count();
    assert_eq!(endpoints, PODS + 2);
    assert_eq!(scene.server.requests("GET /api/v1/pods"), PODS / 500 + 1);
}
