use tortie_model::with_causes;

use super::*;
use crate::store::{Fault, MemoryStore};

fn key(kind: ResourceKind, name: &str) -> ResourceKey {
    ResourceKey::new(kind, if kind.is_namespaced() { "shop" } else { "" }, name).expect("a key")
}

fn ready() -> MemoryStore {
    let store = MemoryStore::default();
    initialise(&store).expect("initialised");
    store
}

fn object(spec: Value) -> Value {
    Value::Object([("spec".to_owned(), spec)].into_iter().collect())
}

#[test]
fn every_datastore_has_its_tiers_and_is_ready() {
    let store = ready();
    let info = key(ResourceKind::ClusterInformation, "default");
    let spec = store.get(&info).expect("there").object["spec"].clone();
    assert_eq!(spec["datastoreReady"], true);
    assert_eq!(spec["clusterGUID"].as_str().map(str::len), Some(32));
    assert_eq!(store.get(&key(ResourceKind::Tier, "kube-admin")).expect("there").object["spec"]["order"], 1000.0);
    let writes = store.writes();
    initialise(&store).expect("initialised");
    assert_eq!(store.writes(), writes);

    // Values that were set stay.
    let there = store.get(&info).expect("there");
    store.update(&info, object(json!({"datastoreReady": false, "extra": 1})), there.revision).expect("updated");
    store.fail_next(Fault::Overtaken);
    initialise(&store).expect("initialised");
    let spec = store.get(&info).expect("there").object["spec"].clone();
    assert_eq!((&spec["datastoreReady"], &spec["extra"]), (&json!(false), &json!(1)));
    assert!(spec["clusterGUID"].is_string());
}

#[test]
fn applying_twice_changes_nothing() {
    let store = ready();
    let policy = key(ResourceKind::NetworkPolicy, "web");
    let mut written = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"selector": "all()", "unknown": [1]}});
    assert_eq!(apply(&store, &policy, &written), Ok(Applied::Created));
    assert_eq!(apply(&store, &policy, &written), Ok(Applied::Unchanged));
    let first = store.get(&policy).expect("there").object;
    assert_eq!(first["spec"]["unknown"], json!([1]));
    // An object that was read can be applied again.
    assert_eq!(apply(&store, &policy, &first), Ok(Applied::Unchanged));
    written["spec"]["selector"] = "has(x)".into();
    written["metadata"] = json!({"annotations": {"mine": "x"}});
    assert_eq!(apply(&store, &policy, &written), Ok(Applied::Updated));
    let second = store.get(&policy).expect("there").object;
    assert_eq!(second["metadata"]["uid"], first["metadata"]["uid"]);
    assert_eq!(second["metadata"]["labels"], json!({"projectcalico.org/tier": "default"}));
    assert_eq!(second["metadata"]["annotations"], json!({"mine": "x"}));
    // The first version is gone.
    let conflict = apply(&store, &policy, &first);
    assert!(matches!(conflict, Err(ApplyError::Store(StoreError::Conflict { .. }))), "{conflict:?}");
    let odd = json!({"metadata": {"resourceVersion": "x"}});
    assert!(matches!(apply(&store, &policy, &odd), Err(ApplyError::Object { .. })));
}

#[test]
fn an_overtaken_write_is_retried() {
    let store = ready();
    let set = key(ResourceKind::NetworkSet, "a");
    let nets = |net: &str| object(json!({"nets": [net]}));
    for written in [nets("10.0.0.0/8"), nets("10.0.0.0/16")] {
        // Between reading and writing: the first call is the read.
        store.fail_next(Fault::None);
        store.fail_next(Fault::Overtaken);
        let applied = apply(&store, &set, &written).expect("applied in the end");
        assert_eq!(applied, Applied::Updated);
        assert_eq!(store.get(&set).expect("there").object["spec"], written["spec"]);
    }
    store.fail_next(Fault::Unavailable);
    assert!(matches!(apply(&store, &set, &nets("::/0")), Err(ApplyError::Store(StoreError::Unavailable(_)))));
}

#[test]
fn a_deleted_object_is_not_recreated_from_its_version() {
    let store = ready();
    let set = key(ResourceKind::NetworkSet, "a");
    apply(&store, &set, &object(json!({"nets": ["10.0.0.0/8"]}))).expect("applied");
    let there = store.get(&set).expect("there");
    let mut edited = there.object.clone();
    edited["spec"]["nets"] = json!(["10.0.0.0/16"]);
    delete(&store, &set, None).expect("deleted");
    let gone = ApplyError::Gone { key: set.clone(), expected: there.revision };
    for write in [apply, replace] {
        assert_eq!(write(&store, &set, &edited), Err(gone.clone()));
    }
    assert!(gone.to_string().starts_with("NetworkSet/shop/a does not exist any more, and version "), "{gone}");
    assert_eq!(store.get(&set), Err(StoreError::NotFound(set.clone())));
    // Without a version it can be created.
    edited["metadata"].as_object_mut().expect("a mapping").shift_remove("resourceVersion");
    assert_eq!(replace(&store, &set, &edited), Err(StoreError::NotFound(set.clone()).into()));
    assert_eq!(apply(&store, &set, &edited), Ok(Applied::Created));
}

#[test]
fn existing_objects_are_replaced_and_absent_ones_created() {
    let store = ready();
    let set = key(ResourceKind::NetworkSet, "a");
    let nets = |net: &str| object(json!({"nets": [net]}));
    assert_eq!(replace(&store, &set, &nets("10.0.0.0/8")), Err(StoreError::NotFound(set.clone()).into()));
    assert_eq!(create(&store, &set, &nets("10.0.0.0/8")), Ok(()));
    assert_eq!(create(&store, &set, &nets("10.0.0.0/16")), Err(StoreError::AlreadyExists(set.clone()).into()));
    let shown = store.get(&set).expect("there").object;
    assert_eq!(shown["spec"], nets("10.0.0.0/8")["spec"]);
    assert_eq!(replace(&store, &set, &nets("10.0.0.0/16")), Ok(Applied::Updated));
    assert_eq!(replace(&store, &set, &nets("10.0.0.0/16")), Ok(Applied::Unchanged));
    let stale = replace(&store, &set, &shown);
    assert!(matches!(stale, Err(ApplyError::Store(StoreError::Conflict { .. }))), "{stale:?}");
    let versioned = create(&store, &key(ResourceKind::NetworkSet, "b"), &shown);
    assert!(matches!(versioned, Err(ApplyError::Refused { .. })), "{versioned:?}");
    // The rules are the same.
    let policy = key(ResourceKind::GlobalNetworkPolicy, "a");
    let nowhere = object(json!({"tier": "nowhere"}));
    assert!(matches!(create(&store, &policy, &nowhere), Err(ApplyError::Refused { .. })));
    assert!(matches!(replace(&store, &policy, &nowhere), Err(ApplyError::Refused { .. })));
}

fn why(result: Result<Applied, ApplyError>) -> String {
    match result {
        Err(error @ ApplyError::Refused { .. }) => with_causes(&error),
        other => panic!("{other:?}"),
    }
}

#[test]
fn tiers_have_rules() {
    let store = ready();
    let policy = key(ResourceKind::GlobalNetworkPolicy, "a");
    let in_platform = object(json!({"tier": "platform"}));
    assert_eq!(
        why(apply(&store, &policy, &in_platform)),
        "GlobalNetworkPolicy/a: spec.tier: there is no tier `platform`"
    );
    let platform = key(ResourceKind::Tier, "platform");
    assert_eq!(apply(&store, &platform, &object(json!({"order": 5}))), Ok(Applied::Created));
    assert_eq!(apply(&store, &policy, &in_platform), Ok(Applied::Created));
    assert_eq!(
        with_causes(&delete(&store, &platform, None).expect_err("not empty")),
        "Tier/platform: is not empty: GlobalNetworkPolicy/a is in it"
    );
    assert_eq!(delete(&store, &policy, None), Ok(()));
    assert_eq!(delete(&store, &platform, None), Ok(()));
    assert_eq!(delete(&store, &platform, None), Err(StoreError::NotFound(platform).into()));

    let default = key(ResourceKind::Tier, "default");
    assert!(matches!(delete(&store, &default, None), Err(ApplyError::Refused { .. })));
    assert_eq!(
        why(apply(&store, &default, &object(json!({"order": 1})))),
        "Tier/default: spec.order: must be 1000000 for the tier default"
    );
    assert_eq!(apply(&store, &default, &object(json!({}))), Ok(Applied::Unchanged));
}

#[test]
fn objects_of_the_system_are_read_only() {
    let store = ready();
    for key in
        [key(ResourceKind::ClusterInformation, "default"), key(ResourceKind::Profile, "projectcalico-default-allow")]
    {
        why(apply(&store, &key, &object(json!({}))));
        assert!(matches!(delete(&store, &key, None), Err(ApplyError::Refused { .. })));
    }
}

#[test]
fn pools_have_rules() {
    let store = ready();
    let pool = |cidr: &str| object(json!({"cidr": cidr}));
    let (a, b) = (key(ResourceKind::IpPool, "a"), key(ResourceKind::IpPool, "b"));
    assert_eq!(apply(&store, &a, &pool("10.0.0.0/16")), Ok(Applied::Created));
    for inside in ["10.0.4.0/24", "10.0.0.0/8"] {
        assert!(why(apply(&store, &b, &pool(inside))).contains("overlaps with 10.0.0.0/16 of IPPool/a"));
    }
    assert_eq!(apply(&store, &b, &pool("10.1.0.0/16")), Ok(Applied::Created));
    assert!(why(apply(&store, &b, &pool("10.2.0.0/16"))).contains("spec.cidr: cannot be changed"));
    let blocks = object(json!({"cidr": "10.1.0.0/16", "blockSize": 28}));
    assert!(why(apply(&store, &b, &blocks)).contains("spec.blockSize: cannot be changed"));
    let off = object(json!({"cidr": "10.1.0.0/16", "disabled": true}));
    assert_eq!(apply(&store, &b, &off), Ok(Applied::Updated));
}

#[test]
fn created_objects_have_the_metadata_of_the_user() {
    let store = ready();
    let set = key(ResourceKind::NetworkSet, "a");
    let metadata = json!({"uid": "mine", "finalizers": ["x"], "labels": {"a": "b"}, "annotations": {"c": "d"}});
    assert_eq!(apply(&store, &set, &json!({"metadata": metadata})), Ok(Applied::Created));
    let there = store.get(&set).expect("there").object["metadata"].clone();
    assert_eq!((&there["labels"], &there["annotations"]), (&json!({"a": "b"}), &json!({"c": "d"})));
    assert_eq!(there.get("finalizers"), None);
    assert_ne!(there["uid"], "mine");
}

#[test]
fn names_of_endpoints_match_their_fields() {
    let store = ready();
    let spec = |node: &str| object(json!({"orchestrator": "k8s", "node": node, "pod": "web-0", "endpoint": "eth0"}));
    let endpoint = key(ResourceKind::WorkloadEndpoint, "n1-k8s-web--0-eth0");
    assert_eq!(apply(&store, &endpoint, &spec("n1")), Ok(Applied::Created));
    let labels = json!({"projectcalico.org/namespace": "shop", "projectcalico.org/orchestrator": "k8s"});
    assert_eq!(store.get(&endpoint).expect("there").object["metadata"]["labels"], labels);
    assert!(why(apply(&store, &endpoint, &spec("n2"))).contains("metadata.name: must be n2-k8s-web--0-eth0"));
    assert!(why(apply(&store, &endpoint, &spec(""))).contains("spec.node: ``"));
    let cni = key(ResourceKind::WorkloadEndpoint, "n1-cni-c1-eth0");
    let spec = json!({"orchestrator": "cni", "node": "n1", "containerID": "c1", "endpoint": "eth0"});
    assert_eq!(apply(&store, &cni, &object(spec)), Ok(Applied::Created));
}

#[test]
fn routing_has_rules() {
    let store = ready();
    let (all, one) = (key(ResourceKind::BgpConfiguration, "default"), key(ResourceKind::BgpConfiguration, "node.n1"));
    let numbered = object(json!({"asNumber": 64512, "serviceClusterIPs": []}));
    assert_eq!(apply(&store, &all, &numbered), Ok(Applied::Created));
    assert!(why(apply(&store, &one, &numbered)).contains("spec.asNumber: can be given for all nodes only"));
    assert_eq!(apply(&store, &one, &object(json!({"serviceClusterIPs": []}))), Ok(Applied::Created));

    let peer = key(ResourceKind::BgpPeer, "a");
    let filtered = object(json!({"peerIP": "10.0.0.1", "filters": ["f"]}));
    assert!(why(apply(&store, &peer, &filtered)).contains("spec.filters: there is no BGPFilter `f`"));
    assert_eq!(apply(&store, &key(ResourceKind::BgpFilter, "f"), &object(json!({}))), Ok(Applied::Created));
    assert_eq!(apply(&store, &peer, &filtered), Ok(Applied::Created));

    let pool = key(ResourceKind::IpPool, "lb");
    let of_use = |of_use: &str| object(json!({"cidr": "10.9.0.0/16", "allowedUses": [of_use]}));
    assert_eq!(apply(&store, &pool, &of_use("LoadBalancer")), Ok(Applied::Created));
    assert!(why(apply(&store, &pool, &of_use("Workload"))).contains("spec.allowedUses"));
    assert!(why(apply(&store, &key(ResourceKind::IpamConfiguration, "a"), &object(json!({})))).contains("`default`"));
}
