//! Calico's resources and addresses, one by one.

use std::time::Duration;

use serde_json::{Value, json};
use tortie_datastore::kubernetes::{Client, KubeConfig, KubernetesStore};
use tortie_datastore::store::{ResourceStore, StoreError, TextChange, TextStore, Verb};
use tortie_lab::apiserver::{ApiServer, Fault, On};
use tortie_model::with_causes;
use tortie_resources::stored::{ResourceKey, ResourceKind, Revision};

use super::client;

const CRD: &str = "crd.projectcalico.org/v1";
const BLOCK: &str = "/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-26";

const FORMS: [&str; 2] = [CRD, "projectcalico.org/v3"];

fn world() -> (ApiServer, KubernetesStore) {
    world_by(CRD)
}

fn world_by(form: &str) -> (ApiServer, KubernetesStore) {
    let (server, (group, version)) = (ApiServer::start().unwrap(), form.split_once('/').unwrap());
    server.install_calico(group, version);
    let store = KubernetesStore::discover(client(&server)).unwrap();
    (server, store)
}

fn key(kind: ResourceKind, name: &str) -> ResourceKey {
    ResourceKey::new(kind, "", name).unwrap()
}

fn apply(server: &ApiServer, form: &str, kind: &str, name: &str, spec: &Value) {
    let metadata = json!({"name": name, "labels": {"theirs": "1"}});
    server.apply(json!({"apiVersion": form, "kind": kind, "metadata": metadata, "spec": spec}));
}

fn change(path: &str, expected: Revision, text: Option<&Value>) -> [TextChange; 1] {
    [TextChange { path: path.into(), expected: Some(expected), text: text.map(ToString::to_string) }]
}

#[test]
fn the_life_of_a_resource() {
    let (server, store) = world();
    let key = key(ResourceKind::HostEndpoint, "h");
    assert_eq!(store.get(&key), Err(StoreError::NotFound(key.clone())));
    let endpoint = json!({"metadata": {"labels": {"rack": "a"}}, "spec": {"node": "n1", "interfaceName": "*"}});
    let created = store.create(&key, endpoint.clone()).unwrap();
    assert_eq!(created.object["metadata"]["labels"], json!({"rack": "a"}));
    assert_eq!(store.create(&key, endpoint.clone()), Err(StoreError::AlreadyExists(key.clone())));
    assert_eq!(store.get(&key), Ok(created.clone()));
    let kept = server.get(CRD, "HostEndpoint", "", "h").unwrap();
    assert_eq!(kept["metadata"]["annotations"]["projectcalico.org/metadata"], r#"{"labels":{"rack":"a"}}"#);
    let mut edited = created.object.clone();
    edited["spec"]["node"] = "n2".into();
    let updated = store.update(&key, edited.clone(), created.revision).unwrap();
    assert_eq!(updated.object["metadata"]["uid"], created.object["metadata"]["uid"]);
    let conflict = StoreError::Conflict { key: key.clone(), expected: created.revision, found: updated.revision };
    assert_eq!(store.update(&key, edited, created.revision), Err(conflict.clone()));
    assert_eq!(store.delete(&key, Some(created.revision)), Err(conflict));
    let put = store.put(&key, endpoint.clone()).unwrap();
    assert_eq!(store.list(ResourceKind::HostEndpoint, None).unwrap().resources, std::slice::from_ref(&put));
    store.delete(&key, Some(put.revision)).unwrap();
    assert_eq!(store.delete(&key, None), Err(StoreError::NotFound(key.clone())));
    store.put(&key, endpoint).unwrap();
    store.delete(&key, None).unwrap();
    // A resource of an uninstalled kind is not reported as missing.
    server.uninstall("crd.projectcalico.org", "hostendpoints");
    let missing = StoreError::NoKind(key.kind());
    assert_eq!(missing.to_string(), "the datastore has no hostendpoints: their definition is not installed");
    assert_eq!(store.create(&key, json!({"spec": {}})), Err(missing.clone()));
    assert_eq!(store.list(key.kind(), None), Err(missing));
}

#[test]
fn defaults_of_the_server_cause_no_write() {
    for form in FORMS {
        let (_server, store) = world_by(form);
        let tier = ResourceKey::new(ResourceKind::Tier, "", "platform").unwrap();
        let made = store.create(&tier, json!({"spec": {"order": 5}})).unwrap();
        assert_eq!(made.object["spec"], json!({"order": 5, "defaultAction": "Deny"}));
        // As `apply` does: with the metadata that was read.
        let again = json!({"metadata": made.object["metadata"], "spec": {"order": 5}});
        assert_eq!(store.update(&tier, again, made.revision).unwrap().revision, made.revision, "{form}");
    }
}

#[test]
fn the_configuration_of_addresses_has_a_kind_of_its_own_in_the_older_form() {
    for (form, kind) in [(CRD, "IPAMConfig"), ("projectcalico.org/v3", "IPAMConfiguration")] {
        let (server, store) = world_by(form);
        let key = ResourceKey::new(ResourceKind::IpamConfiguration, "", "default").unwrap();
        let made = store.create(&key, json!({"spec": {"strictAffinity": true}})).unwrap();
        assert_eq!(made.object["kind"], "IPAMConfiguration");
        assert_eq!(server.get(form, kind, "", "default").unwrap()["spec"]["strictAffinity"], true, "{form}");
        assert_eq!(store.list(key.kind(), None).unwrap().resources, std::slice::from_ref(&made));
        store.delete(&key, Some(made.revision)).unwrap();
    }
}

#[test]
fn policies_are_written_by_either_api_and_tried_out_first() {
    for form in FORMS {
        let (server, store) = world_by(form);
        let calico = ResourceKey::new(ResourceKind::NetworkPolicy, "shop", "web").unwrap();
        let own = ResourceKey::new(ResourceKind::KubernetesNetworkPolicy, "shop", "web").unwrap();
        let rules = json!({"spec": {"podSelector": {}, "ingress": [{"ports": [{"port": 80}]}]}});
        for (key, object) in [(&calico, json!({"spec": {"selector": "all()", "order": 1}})), (&own, rules)] {
            let planned = store.dry_run(key, Some(&object), None).unwrap().unwrap();
            assert!(matches!(store.get(key), Err(StoreError::NotFound(_))), "nothing is written");
            assert_eq!(planned["metadata"].get("resourceVersion"), None, "a planned object has no version");
            let made = store.create(key, object.clone()).unwrap();
            assert_eq!((&made.object["spec"], made.object["metadata"].get("generation")), (&planned["spec"], None));
            assert!(matches!(store.dry_run(key, Some(&object), None), Err(StoreError::AlreadyExists(_))));
            let stale = Some(Revision(made.revision.0 + 7));
            for wanted in [Some(&object), None] {
                assert!(matches!(store.dry_run(key, wanted, stale), Err(StoreError::Conflict { .. })));
            }
            assert_eq!(store.dry_run(key, None, Some(made.revision)), Ok(None));
            assert_eq!(store.get(key).unwrap(), made);
            // Writing the existing object is no change.
            assert_eq!(store.update(key, object.clone(), made.revision).unwrap().revision, made.revision);
            for (fault, is_final) in [(Fault::Invalid, true), (Fault::NoNamespace, true), (Fault::Internal, false)] {
                server.fail(On::Write, "networkpolicies", fault, 1);
                let other = ResourceKey::new(key.kind(), "shop", "other").unwrap();
                let refused = store.create(&other, object.clone());
                assert_eq!(matches!(refused, Err(StoreError::NotAccepted { .. })), is_final, "{refused:?}");
            }
        }
        let own = server.get("networking.k8s.io/v1", "NetworkPolicy", "shop", "web").unwrap();
        assert_eq!(own["spec"]["ingress"][0]["ports"][0], json!({"port": 80, "protocol": "TCP"}));
        // In pages.
        for number in 0..1_203 {
            let metadata = json!({"name": format!("p{number}"), "namespace": "many"});
            server.apply(json!({"apiVersion": form, "kind": "NetworkPolicy", "metadata": metadata, "spec": {}}));
        }
        let before = server.requests(&format!("GET /apis/{form}/namespaces/many/networkpolicies"));
        assert_eq!(store.list(ResourceKind::NetworkPolicy, Some("many")).unwrap().resources.len(), 1_203);
        server.fail(On::Continue, "networkpolicies", Fault::Gone, 1);
        assert_eq!(store.list(ResourceKind::NetworkPolicy, None).unwrap().resources.len(), 1_204, "it is begun again");
        assert_eq!(server.requests(&format!("GET /apis/{form}/namespaces/many/networkpolicies")) - before, 3);
        // Kinds of Kubernetes that are not installed have no objects.
        assert_eq!(store.list(ResourceKind::KubernetesAdminNetworkPolicy, None).unwrap().resources, []);
    }
}

#[test]
fn a_status_is_written_alone() {
    let (server, store) = world();
    let key = key(ResourceKind::KubeControllersConfiguration, "default");
    let created = store.create(&key, json!({"spec": {"logSeverityScreen": "Info"}, "status": {"a": 1}})).unwrap();
    assert_eq!(created.object.get("status"), None);
    let mut object = created.object.clone();
    object["status"] = json!({"environmentVars": {"DATASTORE_TYPE": "kubernetes"}});
    object["spec"] = json!({"logSeverityScreen": "Debug"});
    let updated = store.update_status(&key, object.clone(), created.revision).unwrap();
    assert_eq!(updated.object["status"], object["status"]);
    assert_eq!(updated.object["spec"]["logSeverityScreen"], "Info");
    assert!(matches!(store.update_status(&key, object.clone(), created.revision), Err(StoreError::Conflict { .. })));
    object["status"] = Value::Null;
    let spec = store.update(&key, object, updated.revision).unwrap();
    assert_eq!(
        (&spec.object["status"], &spec.object["spec"]["logSeverityScreen"]),
        (&updated.object["status"], &json!("Debug"))
    );
    server.fail(On::Object, "", Fault::Forbidden, 1);
    assert!(matches!(store.get(&key), Err(StoreError::Refused(_))));
}

#[test]
fn nodes_are_those_of_kubernetes() {
    let (server, store) = world();
    server.apply(json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n1", "labels": {"rack": "a"}, "annotations": {"projectcalico.org/IPv4Address": "192.0.2.1/24"}}}));
    let node = store.get(&key(ResourceKind::Node, "n1")).unwrap();
    assert_eq!(node.object["spec"]["orchRefs"], json!([{"nodeName": "n1", "orchestrator": "k8s"}]));
    assert_eq!(node.object["spec"]["bgp"], json!({"ipv4Address": "192.0.2.1/24"}));
    assert_eq!(node.object["metadata"]["labels"], json!({"rack": "a"}));
    for kind in [ResourceKind::Node, ResourceKind::Profile] {
        assert!(matches!(store.delete(&key(kind, "n1"), None), Err(StoreError::Refused(_))));
    }
}

#[test]
fn texts_are_changed_one_by_one() {
    FORMS.into_iter().for_each(change_texts_one_by_one);
}

fn change_texts_one_by_one(form: &str) {
    let (server, store) = world_by(form);
    let spec = json!({"cidr": "10.0.0.0/26", "sequenceNumber": 1, "deleted": false});
    apply(&server, form, "IPAMBlock", "10-0-0-0-26", &spec);
    let kept = store.text(BLOCK).unwrap().unwrap();
    assert_eq!((&*kept.path, serde_json::from_str::<Value>(&kept.text).unwrap()), (BLOCK, spec));
    let next = json!({"cidr": "10.0.0.0/26", "sequenceNumber": 2, "deleted": false});
    let revision = store.commit(&change(BLOCK, kept.revision, Some(&next))).unwrap().unwrap();
    // Another client has changed it, which fails both operations.
    for text in [Some(&next), None] {
        assert_eq!(store.commit(&change(BLOCK, kept.revision, text)), Ok(None));
    }
    let object = server.get(form, "IPAMBlock", "", "10-0-0-0-26").unwrap();
    assert_eq!((&object["spec"], &object["metadata"]["labels"]), (&next, &json!({"theirs": "1"})));
    assert!(!store.is_transactional());
    let both = [change(BLOCK, revision, None), change(BLOCK, revision, None)].concat();
    for refused in [&both[..], &change("/calico/v1/x", revision, None), &[]] {
        assert!(matches!(store.commit(refused), Err(StoreError::Refused(_))));
    }
    assert_eq!(store.text("/calico/v1/x"), Ok(None));
}

#[test]
fn deleted_objects_are_marked_first() {
    // Only the older form has the mark of affinities as a string.
    for (form, deleted) in FORMS.into_iter().zip([json!("true"), json!(true)]) {
        delete_marked_objects(form, &deleted);
    }
}

fn delete_marked_objects(form: &str, deleted: &Value) {
    let (server, store) = world_by(form);
    apply(&server, form, "IPAMBlock", "10-0-0-0-26", &json!({"cidr": "10.0.0.0/26", "deleted": false}));
    let kept = store.text(BLOCK).unwrap().unwrap();
    // It is read and marked, and that is all.
    server.fail(On::Object, "ipamblocks", Fault::Slow(Duration::ZERO), 2);
    server.fail(On::Object, "ipamblocks", Fault::Internal, 1);
    assert!(matches!(store.commit(&change(BLOCK, kept.revision, None)), Err(StoreError::Unavailable(_))));
    let marked = store.text(BLOCK).unwrap().unwrap();
    assert!(marked.text.contains(r#""deleted":true"#) && marked.revision > kept.revision, "{marked:?}");
    // Marking a marked block changes nothing, so the deletion does not conflict with it.
    assert!(store.commit(&change(BLOCK, marked.revision, None)).unwrap().is_some());
    assert_eq!(server.get(form, "IPAMBlock", "", "10-0-0-0-26"), None);
    assert_eq!(store.commit(&change(BLOCK, marked.revision, None)), Ok(None));

    let affinity = "/calico/ipam/v2/host/n1/ipv4/block/10.0.0.0-26";
    let spec = json!({"cidr": "10.0.0.0/26", "node": "n1", "state": "confirmed"});
    apply(&server, form, "BlockAffinity", "n1-10-0-0-0-26", &spec);
    let kept = store.text(affinity).unwrap().unwrap();
    server.fail(On::Object, "blockaffinities", Fault::Slow(Duration::ZERO), 2);
    server.fail(On::Object, "blockaffinities", Fault::Internal, 1);
    assert!(store.commit(&change(affinity, kept.revision, None)).is_err());
    let object = server.get(form, "BlockAffinity", "", "n1-10-0-0-0-26").unwrap();
    assert_eq!(object["spec"]["deleted"], *deleted);
}

#[test]
fn handles_have_names_in_lower_case() {
    let (server, store) = world();
    apply(
        &server,
        CRD,
        "IPAMHandle",
        "a.b",
        &json!({"handleID": "A.b", "block": {"10.0.0.0/26": 1}, "deleted": false}),
    );
    assert!(store.text("/calico/ipam/v2/handle/A.b").unwrap().is_some());
    assert_eq!(store.text("/calico/ipam/v2/handle/a.b"), Ok(None));
    assert_eq!(store.text("/calico/ipam/v2/handle/c"), Ok(None));
}

#[test]
fn texts_are_listed_by_the_prefix_of_their_paths() {
    for form in FORMS {
        let (server, store) = world_by(form);
        for (name, cidr) in
            [("10-0-0-64-26", "10.0.0.64/26"), ("10-0-0-0-26", "10.0.0.0/26"), ("misnamed", "10.0.0.128/26")]
        {
            apply(&server, form, "IPAMBlock", name, &json!({"cidr": cidr, "deleted": false}));
        }
        apply(&server, form, "BlockAffinity", "n1-10-0-0-0-26", &json!({"cidr": "10.0.0.0/26", "node": "n1"}));
        let paths = |prefix: &str| store.texts(prefix).unwrap().into_iter().map(|text| text.path).collect::<Vec<_>>();
        let second = "/calico/ipam/v2/assignment/ipv4/block/10.0.0.64-26";
        let blocks = [BLOCK, second, "/calico/ipam/v2/assignment/misnamed"];
        assert_eq!(paths("/calico/ipam/v2/assignment/"), blocks, "{form}");
        let all = [&blocks[..], &["/calico/ipam/v2/host/n1/ipv4/block/10.0.0.0-26"]].concat();
        assert_eq!(paths("/calico/ipam/v2/"), all);
        assert_eq!(store.texts(second).unwrap(), [store.text(second).unwrap().unwrap()]);
        server.uninstall(form.split_once('/').unwrap().0, "ipamblocks");
        assert!(matches!(store.texts(BLOCK), Err(StoreError::Refused(_))));
    }
}

#[test]
fn a_migrated_datastore_is_written_by_its_new_api() {
    let server = ApiServer::start().unwrap();
    for (form, ready) in [(CRD, false), ("projectcalico.org/v3", true)] {
        let (group, version) = form.split_once('/').unwrap();
        server.install_calico(group, version);
        let metadata = json!({"name": "default"});
        let spec = json!({"datastoreReady": ready});
        server.apply(json!({"apiVersion": form, "kind": "ClusterInformation", "metadata": metadata, "spec": spec}));
    }
    let write = |config: KubeConfig, name: &str| {
        let store = KubernetesStore::discover(Client::new(config).unwrap()).unwrap();
        store.create(&key(ResourceKind::GlobalNetworkSet, name), json!({"spec": {}})).unwrap();
        [CRD, "projectcalico.org/v3"].map(|form| server.get(form, "GlobalNetworkSet", "", name).is_some())
    };
    let config = || KubeConfig::file(server.kubeconfig());
    assert_eq!(write(config(), "a"), [false, true]);
    assert_eq!(write(config().with_api_group(CRD), "b"), [true, false]);
}

#[test]
fn rights_are_asked_for_before_they_are_needed() {
    for form in FORMS {
        let (server, store) = world_by(form);
        let pool = key(ResourceKind::IpPool, "p");
        assert_eq!(store.is_allowed(Verb::Delete, &pool), Ok(true));
        server.deny("delete", "ippools");
        assert_eq!(store.is_allowed(Verb::Delete, &pool), Ok(false));
        assert_eq!(store.is_allowed(Verb::Create, &pool), Ok(true));
        assert_eq!(store.is_allowed(Verb::Delete, &key(ResourceKind::Tier, "t")), Ok(true));
        store.create(&pool, json!({"spec": {"cidr": "10.0.0.0/16"}})).unwrap();
        assert!(matches!(store.delete(&pool, None), Err(StoreError::Refused(_))), "the server means it");
        server.partition();
        assert!(matches!(store.is_allowed(Verb::Delete, &pool), Err(StoreError::Unavailable(_))));
    }
}

#[test]
fn nodes_of_kubernetes_are_listed_as_those_of_calico() {
    let (server, store) = world();
    let addresses = json!([{"type": "InternalIP", "address": "192.0.2.1"}]);
    for name in ["n1", "n2"] {
        let metadata = json!({"name": name, "labels": {"rack": "a"}});
        server.apply(
            json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": {"addresses": addresses}}),
        );
    }
    let listing = store.list(ResourceKind::Node, None).unwrap();
    assert_eq!(listing.resources[0], store.get(&key(ResourceKind::Node, "n1")).unwrap());
    assert_eq!((listing.resources.len(), listing.revision), (2, listing.resources[1].revision));
    let refused = store.list(ResourceKind::Profile, None);
    assert!(matches!(refused, Err(StoreError::Refused(_))), "{refused:?}");
}

/// Writes to a server with both APIs, each of which is ready, locked, or has a lock that the client
/// may not read (`None`).
fn write_beside_locks(v1: Option<bool>, v3: Option<bool>) -> Result<[bool; 2], StoreError> {
    let server = ApiServer::start().unwrap();
    for (form, ready) in FORMS.into_iter().zip([v1, v3]) {
        let (group, version) = form.split_once('/').unwrap();
        server.install_calico(group, version);
        if ready.is_none() {
            server.deny("list", &format!("clusterinformations.{group}"));
        }
        // An unreadable lock may be open.
        let spec = json!({"datastoreReady": ready.unwrap_or(true)});
        let metadata = json!({"name": "default"});
        server.apply(json!({"apiVersion": form, "kind": "ClusterInformation", "metadata": metadata, "spec": spec}));
    }
    let store = KubernetesStore::discover(client(&server))?;
    store.create(&key(ResourceKind::GlobalNetworkSet, "a"), json!({"spec": {}}))?;
    Ok(FORMS.map(|form| server.get(form, "GlobalNetworkSet", "", "a").is_some()))
}

#[test]
fn a_client_that_cannot_read_the_lock_of_v1_uses_v3_if_that_is_ready() {
    assert_eq!(write_beside_locks(None, Some(true)), Ok([false, true]));
    assert_eq!(write_beside_locks(Some(true), None), Ok([true, false]));
}

#[test]
fn a_missing_right_that_leaves_the_api_open_is_an_error() {
    for (v1, v3, missing) in [
        (None, None, "clusterinformations.crd.projectcalico.org"),
        (None, Some(false), "clusterinformations.crd.projectcalico.org"),
        (Some(false), None, "clusterinformations.projectcalico.org"),
    ] {
        let error = write_beside_locks(v1, v3).unwrap_err();
        assert!(matches!(error, StoreError::Refused(_)));
        let text = with_causes(&error);
        assert!(text.contains(&format!("without the right to list {missing} it is unclear")), "{text}");
        assert!(text.contains("set CALICO_API_GROUP"), "{text}");
    }
}
