use serde_json::json;

use super::*;
use crate::stored::ResourceKind;

fn key() -> ResourceKey {
    ResourceKey::new(ResourceKind::HostEndpoint, "", "h").expect("a key")
}

/// As the original writes and reads it.
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
fn what_has_been_written_past_calico_is_read() {
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

/// With the numbers of the original: `host[:252-len(block)-13]`, and 11 digits of the hash.
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
