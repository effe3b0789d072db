use serde_json::json;

use super::*;

fn key(kind: ResourceKind, name: &str) -> ResourceKey {
    ResourceKey::new(kind, if kind.is_namespaced() { "shop" } else { "" }, name).unwrap()
}

#[test]
fn objects_of_controllers_are_recognised() {
    for (kind, name) in [
        (ResourceKind::NetworkPolicy, "knp.default.web"),
        (ResourceKind::NetworkPolicy, "ossg.default.1"),
        (ResourceKind::Profile, "kns.shop"),
        (ResourceKind::Profile, "ksa.shop.default"),
        (ResourceKind::Profile, "projectcalico-default-allow"),
        (ResourceKind::WorkloadEndpoint, "n1-k8s-web-eth0"),
        (ResourceKind::ClusterInformation, "default"),
        (ResourceKind::BlockAffinity, "n1-10-0-0-0-26"),
    ] {
        assert_eq!(resource_path(&key(kind, name)), None, "{kind} {name}");
    }
    let endpoint = key(ResourceKind::HostEndpoint, "n1");
    assert!(resource_path(&endpoint).is_some());
    let labelled =
        |label: &str| json!({"metadata": {"labels": {label: "calico-kube-controllers"}}, "spec": {"node": "n1"}});
    assert_eq!(resource_text(&endpoint, labelled("projectcalico.org/created-by")), Ok(None));
    assert!(matches!(resource_text(&endpoint, labelled("by")), Ok(Some(_))));
    assert!(matches!(resource_text(&endpoint, json!({"spec": {"node": "n1"}})), Ok(Some(_))));
    assert!(resource_text(&endpoint, json!([])).is_err());
}

/// A resource that was read yields the same text again, whatever metadata the datastore adds.
#[test]
fn texts_are_the_same_for_the_same_meaning() {
    let annotated = |metadata: Value| {
        let object = json!({"metadata": metadata, "spec": {}});
        resource_text(&key(ResourceKind::NetworkSet, "a"), object).unwrap()
    };
    let (labels, annotations) = (json!({"a": "1"}), json!({"b": "2"}));
    assert_eq!(
        annotated(json!({"labels": labels, "annotations": annotations})),
        annotated(json!({"annotations": annotations, "labels": labels}))
    );
    let policy = key(ResourceKind::NetworkPolicy, "web");
    let written = json!({"spec": {"selector": "all()", "ingress": [{"action": "Allow", "source": {}}], "order": 5.0}});
    let returned = json!({
        "kind": "NetworkPolicy",
        "apiVersion": "projectcalico.org/v3",
        "status": {"x": 1},
        "metadata": {"resourceVersion": "7", "uid": "1", "generation": 2, "name": "other", "annotations": {}},
        "spec": {"order": 5, "selector": "all()", "types": ["Ingress"], "ingress": [{"action": "Allow"}], "tier": "default"},
    });
    let (first, second) = (resource_text(&policy, written).unwrap(), resource_text(&policy, returned).unwrap());
    let sorted = |text: &Option<String>| {
        let mut lines: Vec<String> = text.as_ref().unwrap().lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&first), sorted(&second));
    assert!(first.unwrap().contains("\n  name: web\n  namespace: shop\n"));
}

#[test]
fn every_name_has_a_file() {
    let long = key(ResourceKind::Tier, &"a".repeat(1_000));
    let (path, other) =
        (resource_path(&long).unwrap(), resource_path(&key(ResourceKind::Tier, &"a".repeat(999))).unwrap());
    assert!(path.len() < 200 && path != other, "{path}");
    assert_eq!(resource_path(&key(ResourceKind::Tier, "..")).as_deref(), Some("Tier/%2E..yaml"));
    assert_eq!(resource_path(&key(ResourceKind::Tier, "ä%")).as_deref(), Some("Tier/%C3%A4%25.yaml"));
}
