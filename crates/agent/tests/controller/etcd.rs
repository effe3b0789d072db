//! The controller between an API server and a real etcd.

use std::process::Command;
use std::time::Instant;

use serde_json::{Value, json};
use tortie_controller::run::FOLLOWED;
use tortie_datastore::store::etcd::EtcdStore;
use tortie_datastore::store::{ResourceStore, StoreError, TextChange, TextStore};
use tortie_lab::apiserver::ApiServer;
use tortie_lab::etcd::{Etcd, EtcdOptions};
use tortie_resources::stored::{ResourceKey, ResourceKind};

use super::{Controller, PATIENCE, eventually, rules};

fn key(kind: ResourceKind, namespace: &str, name: &str) -> ResourceKey {
    ResourceKey::new(kind, namespace, name).unwrap()
}

fn policy_key(name: &str) -> ResourceKey {
    key(ResourceKind::NetworkPolicy, "shop", name)
}

fn spec(store: &EtcdStore, key: &ResourceKey) -> Option<Value> {
    match store.get(key) {
        Ok(stored) => Some(stored.object["spec"].clone()),
        Err(StoreError::NotFound(_)) => None,
        Err(error) => panic!("{error}"),
    }
}

fn names(store: &EtcdStore, kind: ResourceKind) -> Vec<String> {
    store.list(kind, None).unwrap().resources.iter().map(|stored| stored.key.to_string()).collect()
}

fn namespace(label: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop", "labels": {"team": label}}})
}

fn policy(name: &str, ports: &Value) -> Value {
    let ingress: Vec<Value> = ports.as_array().unwrap().iter().map(|port| json!({"ports": [{"port": port}]})).collect();
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name, "namespace": "shop"},
           "spec": {"podSelector": {}, "ingress": ingress}})
}

fn pod(label: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "shop", "labels": {"app": label}},
           "spec": {"nodeName": "n1", "serviceAccountName": "web"}, "status": {"podIP": "10.0.0.1"}})
}

fn world() -> (ApiServer, Etcd, EtcdStore) {
    let (api, etcd) = (ApiServer::start().unwrap(), Etcd::start(EtcdOptions::default()).unwrap());
    let store = EtcdStore::new(etcd.url().parse().unwrap()).unwrap();
    api.apply(namespace("a"));
    api.apply(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "web", "namespace": "shop"}}));
    (api, etcd, store)
}

#[test]
fn without_a_kubeconfig_that_can_be_used_it_ends() {
    let folder = tempfile::TempDir::new().unwrap();
    let run = |kubeconfig: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_tortie"))
            .args(["controller", "--datastore", "etcd://127.0.0.1:1"])
            .args(kubeconfig)
            .env("HOME", folder.path())
            .env_remove("KUBECONFIG")
            .env_remove("KUBERNETES_SERVICE_HOST")
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for (kubeconfig, expected) in [
        (&[][..], "no kubeconfig: $KUBECONFIG is not set"),
        (&["--kubeconfig", "/nowhere/admin.conf"], "/nowhere/admin.conf"),
    ] {
        let (code, printed) = run(kubeconfig);
        assert_eq!(code, Some(1), "{printed}");
        assert!(printed.contains("Kubernetes cannot be followed") && printed.contains(expected), "{printed}");
    }
}

#[test]
fn the_datastore_follows_kubernetes() {
    let (api, etcd, store) = world();
    api.apply(policy("half-bad", &json!([80, "no such port"])));
    api.apply(pod("old"));
    // A leftover policy of the controller, a user's policy, and the endpoint of an earlier state of
    // the pod, as a CNI plugin writes it.
    store.create(&policy_key("knp.default.gone"), json!({"spec": {"selector": "all()"}})).unwrap();
    let mine = store.create(&policy_key("mine"), json!({"spec": {"selector": "all()"}})).unwrap();
    let endpoint = key(ResourceKind::WorkloadEndpoint, "shop", "n1-k8s-web-eth0");
    let made = json!({"metadata": {"labels": {"app": "older"}}, "spec": {"orchestrator": "k8s", "pod": "web", "node": "n1",
        "endpoint": "eth0", "interfaceName": "cali1", "ipNetworks": ["10.0.0.1/32"]}});
    store.create(&endpoint, made).unwrap();

    let controller = Controller::start(&api, &etcd.url(), &[]);
    eventually("ready", || controller.is_ready());
    eventually("written", || controller.metric("tortie_controller_waiting") == 0.0);
    assert_eq!(names(&store, ResourceKind::Profile), ["Profile/kns.shop", "Profile/ksa.shop.web"]);
    assert_eq!(
        names(&store, ResourceKind::NetworkPolicy),
        ["NetworkPolicy/shop/knp.default.half-bad", "NetworkPolicy/shop/mine"]
    );
    let half = spec(&store, &policy_key("knp.default.half-bad")).unwrap();
    assert_eq!(half["ingress"], json!([{"action": "Allow", "protocol": "TCP", "destination": {"ports": [80]}}]));
    assert!(controller.ask("/readiness").contains("knp.default.half-bad: spec.ingress[1].ports[0].port"));
    let labels = |store: &EtcdStore| store.get(&endpoint).unwrap().object["metadata"]["labels"]["app"].clone();
    assert_eq!(labels(&store), "old");

    // Changes while the watch is cut and the history is lost.
    api.apply(pod("new"));
    eventually("labels", || labels(&store) == "new");
    assert_eq!(store.get(&endpoint).unwrap().object["spec"]["interfaceName"], "cali1");
    api.partition();
    api.delete("networking.k8s.io/v1", "NetworkPolicy", "shop", "half-bad");
    api.apply(namespace("b"));
    api.compact();
    api.heal();
    eventually("deleted", || spec(&store, &policy_key("knp.default.half-bad")).is_none());
    let profile = key(ResourceKind::Profile, "", "kns.shop");
    eventually("relabelled", || spec(&store, &profile).unwrap()["labelsToApply"]["pcns.team"] == "b");
    let written = ["created", "updated", "deleted"].map(|n| controller.metric(&format!("tortie_controller_{n}")));
    assert_eq!(written, [3.0, 3.0, 2.0], "created, changed and deleted, each once");
    controller.stop();

    // Changes while no controller runs.
    api.apply(policy("late", &json!([443])));
    store.delete(&profile, None).unwrap();
    let revision = etcd.revision().unwrap();
    let controller = Controller::start(&api, &etcd.url(), &[]);
    eventually("caught up", || {
        controller.is_ready()
            && spec(&store, &policy_key("knp.default.late")).is_some()
            && spec(&store, &profile).is_some()
    });
    eventually("at rest", || controller.metric("tortie_controller_waiting") == 0.0);
    assert_eq!(etcd.revision().unwrap(), revision + 2, "nothing else is written");
    assert_eq!(store.get(&mine.key).unwrap(), mine);
    controller.stop();
}

#[test]
fn one_of_several_acts_and_another_takes_over() {
    let (api, etcd, store) = world();
    let quick = ["--leader-elect", "--lease-duration", "3", "--lease", "kube-system/test"];
    let first = Controller::start(&api, &etcd.url(), &quick);
    eventually("the first leads", || first.leads() && first.is_ready());
    let second = Controller::start(&api, &etcd.url(), &quick);
    eventually("the second knows Kubernetes", || second.is_ready());
    assert!(!second.leads());
    let holder = || {
        let lease = api.get("coordination.k8s.io/v1", "Lease", "kube-system", "test").unwrap();
        lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
    };
    let was = holder();
    api.apply(policy("one", &json!([1])));
    eventually("written", || spec(&store, &policy_key("knp.default.one")).is_some());
    assert_eq!(second.metric("tortie_controller_created"), 0.0);

    // The leader is killed; changes made meanwhile are not lost.
    drop(first);
    api.apply(policy("two", &json!([2])));
    api.delete("networking.k8s.io/v1", "NetworkPolicy", "shop", "one");
    eventually("the second takes over", || second.leads());
    assert_ne!(holder(), was);
    eventually("caught up", || {
        spec(&store, &policy_key("knp.default.two")).is_some() && spec(&store, &policy_key("knp.default.one")).is_none()
    });

    // A leader that cannot renew its lease stops in time, and competes again later.
    let third = Controller::start(&api, &etcd.url(), &quick);
    eventually("the third knows Kubernetes", || third.is_ready());
    api.partition();
    eventually("no controller leads", || !second.leads() && !third.leads());
    api.heal();
    eventually("one leads", || second.leads() != third.leads());

    // A leader that ends releases the lease at once.
    let (leader, other) = if second.leads() { (second, third) } else { (third, second) };
    leader.stop();
    eventually("the other takes over", || other.leads());
    api.apply(policy("three", &json!([3])));
    eventually("written", || spec(&store, &policy_key("knp.default.three")).is_some());
    other.stop();
    assert_eq!(holder(), "");
}

fn node(label: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "k1", "labels": {"rack": label}}})
}

#[test]
fn nodes_follow_kubernetes() {
    let (api, etcd, store) = world();
    api.apply(node("a"));
    let calico = |address: &str| {
        json!({"metadata": {"labels": {"user": "kept"}}, "spec": {"orchRefs": [{"orchestrator": "k8s", "nodeName": "k1"}],
            "bgp": {"ipv4Address": address}}})
    };
    let node_key = key(ResourceKind::Node, "", "n1");
    store.create(&node_key, calico("192.0.2.1/24")).unwrap();
    // A node that is none of Kubernetes, and the leftover endpoint of a node that is gone.
    let other = key(ResourceKind::Node, "", "other");
    store.create(&other, json!({"spec": {"bgp": {"ipv4Address": "192.0.2.9/24"}}})).unwrap();
    let stale = key(ResourceKind::HostEndpoint, "", "gone-auto-hep");
    let ours = json!({"projectcalico.org/created-by": "calico-kube-controllers"});
    store
        .create(&stale, json!({"metadata": {"labels": ours}, "spec": {"node": "gone", "interfaceName": "*"}}))
        .unwrap();
    let configuration = key(ResourceKind::KubeControllersConfiguration, "", "default");
    let section = |auto: &str| json!({"spec": {"controllers": {"node": {"hostEndpoint": {"autoCreate": auto}}}}});

    let controller = Controller::start(&api, &etcd.url(), &[]);
    let labels = |store: &EtcdStore| store.get(&node_key).unwrap().object["metadata"]["labels"].clone();
    eventually("labels", || labels(&store) == json!({"user": "kept", "rack": "a"}));
    eventually("the configuration is made", || spec(&store, &configuration).is_some());
    eventually("the leftovers of a node are deleted", || spec(&store, &stale).is_none());
    let made = store.get(&configuration).unwrap();
    assert_eq!(made.object["spec"]["controllers"]["node"]["leakGracePeriod"], "15m0s");
    assert_eq!(made.object["status"]["runningConfig"]["controllers"]["node"]["syncLabels"], "Enabled");

    // The feature is enabled while the controller runs, and changes by others to its endpoints are
    // reverted.
    store.put(&configuration, section("Enabled")).unwrap();
    let endpoint = key(ResourceKind::HostEndpoint, "", "n1-auto-hep");
    let addresses = |store: &EtcdStore| spec(store, &endpoint).map(|spec| spec["expectedIPs"].clone());
    eventually("an endpoint", || addresses(&store) == Some(json!(["192.0.2.1"])));
    eventually("one for the other", || names(&store, ResourceKind::HostEndpoint).len() == 2);
    let revision = store.get(&node_key).unwrap().revision;
    let mut readdressed = calico("192.0.2.2/24");
    readdressed["metadata"] = store.get(&node_key).unwrap().object["metadata"].clone();
    store.update(&node_key, readdressed, revision).unwrap();
    eventually("readdressed", || addresses(&store) == Some(json!(["192.0.2.2"])));
    store.delete(&endpoint, None).unwrap();
    eventually("made again", || addresses(&store) == Some(json!(["192.0.2.2"])));
    etcd.compact().unwrap();

    // The controller is killed, and the node deleted meanwhile.
    drop(controller);
    api.delete("v1", "Node", "", "k1");
    let controller = Controller::start(&api, &etcd.url(), &[]);
    eventually("the node is deleted", || spec(&store, &node_key).is_none());
    eventually("its endpoint is deleted", || spec(&store, &endpoint).is_none());
    eventually("at rest", || controller.is_ready() && controller.metric("tortie_controller_waiting") == 0.0);
    assert!(spec(&store, &other).is_some());
    store.put(&configuration, section("Disabled")).unwrap();
    eventually("no endpoint is left", || names(&store, ResourceKind::HostEndpoint).is_empty());
    controller.stop();
}

/// Changes the value of a path; retries after concurrent writes.
fn edit(store: &EtcdStore, path: &str, edit: impl Fn(Option<Value>) -> Value) {
    let until = Instant::now() + PATIENCE;
    loop {
        let kept = store.text(path).unwrap();
        let value = kept.as_ref().map(|kept| serde_json::from_str(&kept.text).unwrap());
        let (expected, text) = (kept.map(|kept| kept.revision), Some(edit(value).to_string()));
        if store.commit(&[TextChange { path: path.into(), expected, text }]).unwrap().is_some() {
            return;
        }
        assert!(Instant::now() < until, "others are always faster");
    }
}

fn user(name: &str, address: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "shop"}, "spec": {"nodeName": "k1"},
           "status": {"podIP": address, "podIPs": [{"ip": address}]}})
}

#[test]
fn addresses_that_have_leaked_are_released() {
    let (api, etcd, store) = world();
    api.apply(node("a"));
    let references = json!({"spec": {"orchRefs": [{"orchestrator": "k8s", "nodeName": "k1"}]}});
    store.create(&key(ResourceKind::Node, "", "n1"), references).unwrap();
    store.create(&key(ResourceKind::IpPool, "", "pool"), json!({"spec": {"cidr": "10.9.0.0/16"}})).unwrap();
    let configuration = key(ResourceKind::KubeControllersConfiguration, "", "default");
    let grace = |grace: &str| json!({"spec": {"controllers": {"node": {"leakGracePeriod": grace}}}});
    store.create(&configuration, grace("0s")).unwrap();
    // The addresses of an existing pod, of many missing pods, and of a tunnel of the node; and an
    // empty block.
    let used = "/calico/ipam/v2/assignment/ipv4/block/10.9.0.0-26";
    let empty = "/calico/ipam/v2/assignment/ipv4/block/10.9.0.64-26";
    api.apply(user("alive", "10.9.0.0"));
    let owner = |n: usize| match n {
        0 => json!({"handle_id": "h0", "secondary": {"pod": "alive", "namespace": "shop", "node": "n1"}}),
        1 => json!({"handle_id": "h1", "secondary": {"node": "n1", "type": "vxlanTunnelAddress"}}),
        n => {
            json!({"handle_id": format!("h{n}"), "secondary": {"pod": format!("gone-{n}"), "namespace": "shop", "node": "n1"}})
        }
    };
    let block = |cidr: &str, allocated: usize| {
        let allocations: Vec<Value> = (0..64).map(|n| if n < allocated { n.into() } else { Value::Null }).collect();
        let sequences: serde_json::Map<String, Value> = (0..allocated).map(|n| (n.to_string(), n.into())).collect();
        json!({"cidr": cidr, "affinity": "host:n1", "allocations": allocations, "deleted": false,
            "unallocated": (allocated..64).collect::<Vec<_>>(), "attributes": (0..allocated).map(owner).collect::<Vec<_>>(),
            "sequenceNumber": allocated, "sequenceNumberForAllocation": sequences})
    };
    edit(&store, used, |_| block("10.9.0.0/26", 60));
    edit(&store, empty, |_| block("10.9.0.64/26", 0));
    for cidr in ["10.9.0.0-26", "10.9.0.64-26"] {
        let confirmed = |_| json!({"state": "confirmed", "deleted": false});
        edit(&store, &format!("/calico/ipam/v2/host/n1/ipv4/block/{cidr}"), confirmed);
    }
    for n in 0..60 {
        let one = |_| json!({"block": {"10.9.0.0/26": 1}, "deleted": false});
        edit(&store, &format!("/calico/ipam/v2/handle/h{n}"), one);
    }

    let controller = Controller::start(&api, &etcd.url(), &[]);
    let metric = |name: &str, node: &str| controller.sample(&format!("{name}{{ippool=\"pool\",node=\"{node}\"}}"));
    eventually("ready", || controller.is_ready());
    eventually("suspected", || metric("ipam_allocations_gc_candidates", "n1") == Some(58.0));
    assert_eq!(metric("ipam_allocations_in_use", "n1"), Some(60.0));
    assert_eq!(controller.metric("ipam_ippool_size{ippool=\"pool\"}"), 65536.0);

    // While addresses are released, a plugin allocates free addresses, and some of the released
    // ones.
    store.put(&configuration, grace("1s")).unwrap();
    for n in 0..8 {
        api.apply(user(&format!("new-{n}"), &format!("10.9.0.{}", 60 + n % 4)));
    }
    for n in 0..200 {
        edit(&store, used, |kept| {
            let mut block = kept.unwrap();
            let attributes =
                json!({"handle_id": "plugin", "secondary": {"pod": "new-0", "namespace": "shop", "node": "n1"}});
            let place = 60 + n % 4;
            let list = block["attributes"].as_array_mut().unwrap();
            let index = list.iter().position(|found| *found == attributes).unwrap_or_else(|| {
                list.push(attributes.clone());
                list.len() - 1
            });
            let sequence = block["sequenceNumber"].as_u64().unwrap();
            // The plugin releases its address again.
            for other in 60..64 {
                block["allocations"][other] = if other == place { index.into() } else { Value::Null };
            }
            block["sequenceNumberForAllocation"][place.to_string()] = sequence.into();
            block["sequenceNumber"] = (sequence + 1).into();
            block
        });
    }
    let allocated = || {
        let block: Value = serde_json::from_str(&store.text(used).unwrap().unwrap().text).unwrap();
        let allocations = block["allocations"].as_array().unwrap().clone();
        (0..64).filter(|n| !allocations[*n].is_null()).collect::<Vec<usize>>()
    };
    eventually("released", || allocated().into_iter().filter(|n| *n < 60).eq([0, 1]));
    eventually("the empty block is released", || store.text(empty).unwrap().is_none());
    let handles = || store.texts("/calico/ipam/v2/handle/").unwrap().len();
    assert_eq!(handles(), 2);
    eventually("counted", || metric("ipam_allocations_gc_reclamations", "n1") == Some(58.0));
    assert!(metric("ipam_allocations_gc_candidates", "n1") <= Some(1.0));

    // The node is deleted, and then its pods.
    api.delete("v1", "Node", "", "k1");
    eventually("the node is deleted", || spec(&store, &key(ResourceKind::Node, "", "n1")).is_none());
    assert!(allocated().starts_with(&[0, 1]));
    api.delete("v1", "Pod", "shop", "alive");
    for n in 0..8 {
        api.delete("v1", "Pod", "shop", &format!("new-{n}"));
    }
    eventually("nothing is left", || store.texts("/calico/ipam/v2/").unwrap().is_empty());
    eventually("at rest", || controller.metric("tortie_controller_waiting") == 0.0);
    controller.stop();
}

/// The roles in `deploy/controller.yaml` allow the controller's requests, and nothing else.
#[test]
fn roles_allow_exactly_the_performed_requests() {
    let mut followed: Vec<String> = FOLLOWED
        .iter()
        .flat_map(|(_, of)| ["list", "watch"].map(|verb| format!("{verb} {}/{} null", of.group, of.plural)))
        .chain(["get /nodes null", "get /pods null"].map(str::to_owned))
        .collect();
    followed.sort();
    assert_eq!(rules("controller.yaml", "ClusterRole"), followed);
    let lease = |verb: &str, names: &str| format!("{verb} coordination.k8s.io/leases {names}");
    let named = "[\"tortie-controller\"]";
    let election = [lease("create", "null"), lease("get", named), lease("update", named)];
    assert_eq!(rules("controller.yaml", "Role"), election);
}
