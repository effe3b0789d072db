use serde_json::json;

use super::*;
use crate::stored::ResourceKind;

fn key() -> ResourceKey {
    ResourceKey::new(ResourceKind::HostEndpoint, "", "h").expect("a key")
}

/// The form is that of Calico.
#[test]
fn metadata_is_kept_in_an_annotation() {
    let endpoint = json!({
        "metadata": {"name": "h", "uid": "7", "creationTimestamp": "2020-01-01T00:00:00Z",
            "labels": {"projectcalico.org/created-by": "calico-kube-controllers", "rack": "a"},
            "annotations": {"note": "b", "operator.tigera.io/x": "y"}},
        "spec": {"node": "n1", "interfaceName": "*"},
    });
    let before = json!({"metadata": {"name": "h", "uid": "30316465-6365-4463-ad63-3564622d3638", "resourceVersion": "12",
        "labels": {"foreign": "gone"}, "finalizers": ["f"]}});
    let object = to_custom(&key(), endpoint.clone(), Some(&before)).expect("a resource");
    assert_eq!(object["apiVersion"], API_VERSION);
    let metadata = &object["metadata"];
    assert_eq!(metadata["labels"], json!({"projectcalico.org/created-by": "calico-kube-controllers"}));
    assert_eq!((&metadata["uid"], &metadata["resourceVersion"]), (&before["metadata"]["uid"], &json!("12")));
    assert_eq!(metadata["finalizers"], json!(["f"]));
    assert_eq!(metadata["annotations"]["operator.tigera.io/x"], "y");
    let kept: Value =
        serde_json::from_str(metadata["annotations"][STORED_METADATA].as_str().expect("text")).expect("JSON");
    let expected = json!({"creationTimestamp": "2020-01-01T00:00:00Z", "labels": endpoint["metadata"]["labels"],
        "annotations": endpoint["metadata"]["annotations"]});
    assert_eq!(kept, expected);

    let read = from_custom(&key(), object.clone()).expect("a resource");
    assert_eq!(read["apiVersion"], stored::API_VERSION);
    for part in ["labels", "annotations", "creationTimestamp"] {
        assert_eq!(read["metadata"][part], endpoint["metadata"][part], "{part}");
    }
    assert_eq!(read["spec"], object["spec"]);
    assert_eq!(read["metadata"]["uid"], "0c8c26a6-c6a6-44c6-adc6-ac2646b46c1c");
    let again = to_custom(&key(), read.clone(), Some(&before)).expect("a resource");
    assert_eq!(from_custom(&key(), again), Ok(read));
}

#[test]
fn objects_written_without_calico_are_read() {
    let object = json!({"apiVersion": API_VERSION, "kind": "HostEndpoint", "spec": {},
        "metadata": {"name": "h", "creationTimestamp": "t", "labels": {"a": "1", "b": "1"}, "managedFields": [{}],
            "annotations": {STORED_METADATA: r#"{"creationTimestamp":null,"name":"other","labels":{"b":"2"}}"#}}});
    let read = from_custom(&key(), object).expect("a resource");
    let expected = json!({"name": "h", "creationTimestamp": "t", "labels": {"a": "1", "b": "2"}});
    assert_eq!(read["metadata"], expected);
    let plain = json!({"metadata": {"name": "h", "labels": {"a": "1"}}, "spec": {"node": "n"}});
    assert_eq!(from_custom(&key(), plain).expect("a resource")["metadata"]["labels"], json!({"a": "1"}));
    for broken in [json!({"metadata": {"annotations": {STORED_METADATA: "{"}}}), json!({"metadata": []}), json!(7)] {
        assert!(from_custom(&key(), broken).is_err());
    }
}

#[test]
fn policies_keep_their_display_names() {
    let key = ResourceKey::new(ResourceKind::NetworkPolicy, "shop", "web").expect("a key");
    let policy = json!({"metadata": {"name": "web", "annotations": {"note": "n"}, "labels": {"a": "1"}},
        "spec": {"selector": "all()"}});
    let made = to_custom(&key, policy.clone(), None).expect("a resource");
    assert_eq!((&made["metadata"]["name"], policy_name(&made).as_str()), (&json!("web"), "web"));
    let kept = made["metadata"]["annotations"][STORED_METADATA].as_str().expect("text");
    let kept: Value = serde_json::from_str(kept).expect("JSON");
    let annotations = json!({"note": "n"});
    assert_eq!((&kept["name"], &kept["annotations"]), (&json!("web"), &annotations), "nothing is kept twice");
    let read = from_custom(&key, made).expect("a resource");
    assert_eq!((&read["metadata"]["name"], &read["metadata"]["annotations"]), (&json!("web"), &annotations));

    // An older object keeps its name, and labels and annotations of other writers that still hold.
    let before = json!({"metadata": {"name": "default.web", "uid": "1", "resourceVersion": "3",
        "labels": {"a": "1", "b": "2"}, "annotations": {STORED_METADATA: "{}", "note": "other"}}, "spec": {}});
    assert_eq!(policy_name(&before), "web");
    let changed = to_custom(&key, policy, Some(&before)).expect("a resource");
    assert_eq!(changed["metadata"]["name"], "default.web");
    let labels = json!({"a": "1", "projectcalico.org/tier": "default"});
    assert_eq!((&changed["metadata"]["labels"], &changed["metadata"]["annotations"].get("note")), (&labels, &None));
    assert_eq!(from_custom(&key, changed).expect("a resource")["metadata"]["name"], "web");
    let object = |name: &str, tier: &str, kept: Option<&str>| {
        let annotations = kept.map_or_else(|| json!({}), |kept| json!({ STORED_METADATA: kept }));
        json!({"metadata": {"name": name, "annotations": annotations}, "spec": {"tier": tier}})
    };
    for (object, expected) in [
        (object("db", "", None), "db"),
        (object("default.db", "", None), "default.db"),
        (object("default.db", "default", Some("{}")), "db"),
        (object("ops.db", "ops", Some("{}")), "ops.db"),
        (object("ops.db", "ops", Some(r#"{"name": "db"}"#)), "db"),
        (object("db", "", Some("no JSON")), "db"),
    ] {
        assert_eq!(policy_name(&object), expected, "{object}");
    }
}

#[test]
fn plain_objects_have_their_own_metadata() {
    for kind in [ResourceKind::KubernetesNetworkPolicy, ResourceKind::NetworkPolicy] {
        let key = ResourceKey::new(kind, "shop", "web").expect("a key");
        let policy =
            json!({"metadata": {"labels": {"a": "1"}, "annotations": {"n": "1"}, "uid": "theirs"}, "spec": {}});
        let before = json!({"metadata": {"uid": "7", "resourceVersion": "3", "finalizers": ["f"]}});
        let made = to_plain(&key, policy, Some(&before)).expect("a resource");
        assert_eq!(made["apiVersion"], kind.api_version());
        let metadata = &made["metadata"];
        assert_eq!((&metadata["uid"], &metadata["resourceVersion"]), (&json!("7"), &json!("3")));
        assert_eq!((&metadata["annotations"], &metadata["labels"]["a"]), (&json!({"n": "1"}), &json!("1")));
        let mut observed = made.clone();
        observed["metadata"]["generation"] = json!(4);
        observed["metadata"]["managedFields"] = json!([{}]);
        assert_eq!(from_plain(&key, observed), Ok(made));
        assert!(from_plain(&key, json!({"metadata": 7})).is_err() && to_plain(&key, json!([]), None).is_err());
    }
}

fn named(name: &str, spec: &Value) -> Value {
    json!({"metadata": {"name": name}, "spec": spec})
}

#[test]
fn paths_and_names() {
    for (kind, name, spec, path) in [
        (
            AddressKind::Block,
            "10-0-0-64-26",
            json!({"cidr": "10.0.0.64/26"}),
            "/calico/ipam/v2/assignment/ipv4/block/10.0.0.64-26",
        ),
        (
            AddressKind::Block,
            "fd00--40-122",
            json!({"cidr": "fd00::40/122"}),
            "/calico/ipam/v2/assignment/ipv6/block/fd00::40-122",
        ),
        (
            AddressKind::Affinity,
            "n-1-10-0-0-64-26",
            json!({"cidr": "10.0.0.64/26", "node": "n-1", "state": "confirmed"}),
            "/calico/ipam/v2/host/n-1/ipv4/block/10.0.0.64-26",
        ),
        (
            AddressKind::Handle,
            "k8s-pod-network.ab",
            json!({"handleID": "k8s-pod-network.AB"}),
            "/calico/ipam/v2/handle/k8s-pod-network.AB",
        ),
        (AddressKind::Config, "default", json!({}), "/calico/ipam/v2/config"),
    ] {
        assert_eq!(kind.path(&named(name, &spec)), Ok(Some(path.into())));
        assert_eq!(AddressKind::at(path), Some((kind, name.into())));
        if kind != AddressKind::Config {
            assert_eq!(kind.path(&named("odd", &spec)), Err(AddressError::Name(name.into())));
            assert!(matches!(kind.path(&named(name, &json!({}))), Err(AddressError::Field(_))));
        }
    }
    let of_service = json!({"cidr": "10.0.0.64/26", "node": "n", "type": "virtual"});
    assert_eq!(AddressKind::Affinity.path(&named("n-10-0-0-64-26", &of_service)), Ok(None));
    assert_eq!(AddressKind::Config.path(&named("other", &json!({}))), Ok(None));
    for path in ["/calico/ipam/v2/assignment/ipv6/block/10.0.0.64-26", "/calico/ipam/v2/host/n1", "/calico/x"] {
        assert_eq!(AddressKind::at(path), None);
    }
}

/// The lengths are those of Calico: `host[:252-len(block)-13]`, and 11 digits of the hash.
#[test]
fn names_that_are_too_long_are_hashed() {
    let name = |node: &str| {
        AddressKind::at(&format!("/calico/ipam/v2/host/{node}/ipv4/block/10.0.0.64-26")).expect("a path").1
    };
    let (most, long) = ("n".repeat(239), "n".repeat(240));
    assert_eq!(name(&most), format!("{most}-10-0-0-64-26"));
    let hashed = name(&long);
    assert_eq!(hashed, format!("{}-10-0-0-64-26-{}", "n".repeat(227), &hashed[241..]));
    assert_eq!(hashed.len(), 252);
    assert_ne!(name(&"n".repeat(241)), hashed);
}
