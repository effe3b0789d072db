use serde_json::{Value, json};
use tortie_model::with_causes;

use super::*;
use crate::object::Kind;

fn key(kind: ResourceKind, namespace: &str, name: &str) -> ResourceKey {
    ResourceKey::new(kind, namespace, name).expect("a key")
}

#[test]
fn rows_are_in_the_order_of_the_enum() {
    let kinds: Vec<ResourceKind> = ResourceKind::all().collect();
    assert!(kinds.is_sorted());
    for kind in kinds {
        assert_eq!(ResourceKind::from_name(kind.as_str()), Some(kind));
        assert_eq!(ResourceKind::from_plural(kind.plural()), Some(kind));
        // calicoctl means another kind by this name.
        let meant = if kind == ResourceKind::IpamConfig { ResourceKind::IpamConfiguration } else { kind };
        assert_eq!(kind.as_str().parse(), Ok(meant));
        assert_eq!(kind.plural().parse(), Ok(meant));
        if let Some(understood) = kind.understood() {
            assert_eq!(understood.as_str(), kind.as_str());
            assert_eq!(understood.is_namespaced(), kind.is_namespaced());
            assert_eq!(ResourceKind::of(understood), Some(kind));
        }
    }
    assert_eq!(ResourceKind::of(Kind::Pod), None);
    assert_eq!(ResourceKind::of(Kind::KubernetesNetworkPolicy), None);
}

/// The names are Calico's (`libcalico-go/lib/backend/model/resource.go`).
#[test]
fn kinds_of_kubernetes_are_kept_by_kubernetes_alone() {
    let kinds: Vec<ResourceKind> = ResourceKind::of_kubernetes().collect();
    assert_eq!(kinds.len(), 4);
    for kind in kinds {
        assert!(kind.is_of_kubernetes() && ResourceKind::all().all(|other| other != kind));
        assert_eq!((ResourceKind::from_name(kind.as_str()), kind.understood(), kind.read_as()), (None, None, None));
        let namespace = if kind.is_namespaced() { "shop" } else { "" };
        let key = key(kind, namespace, "web");
        assert_eq!(ResourceKey::from_path(&key.path()), Some(key.clone()));
        assert_eq!(kind.as_str().parse(), Ok(kind));
        let mut object = json!({"spec": {"x": null}, "metadata": {"resourceVersion": "7"}});
        to_stored(&key, &mut object).expect("an object");
        assert_eq!((&object["apiVersion"], &object["kind"]), (&json!(kind.api_version()), &json!(kind.written())));
        assert_eq!(object["spec"], json!({"x": null}), "it is the server's in every detail");
        assert_eq!(key_in_kubernetes(&object, ""), Ok(key));
        assert!(matches!(key_of(&object, ""), Err(ObjectError::Kind { .. })));
    }
    let policy = json!({"apiVersion": API_VERSION, "kind": "NetworkPolicy", "metadata": {"name": "web"}});
    let calico = key(ResourceKind::NetworkPolicy, "shop", "web");
    assert_eq!(key_in_kubernetes(&policy, "shop"), Ok(calico));
    assert_eq!(ResourceKind::in_kubernetes(Kind::KubernetesNetworkPolicy), Some(ResourceKind::KubernetesNetworkPolicy));
    assert_eq!(ResourceKind::in_kubernetes(Kind::Tier), Some(ResourceKind::Tier));
    assert_eq!(ResourceKind::in_kubernetes(Kind::Pod), None);
    for wrong in [json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}), json!(7)] {
        assert!(key_in_kubernetes(&wrong, "shop").is_err());
    }
}

#[test]
fn kinds_have_the_short_names_of_calicoctl() {
    for (word, kind) in [
        ("np", ResourceKind::NetworkPolicy),
        ("Policies", ResourceKind::NetworkPolicy),
        ("GNP", ResourceKind::GlobalNetworkPolicy),
        ("hep", ResourceKind::HostEndpoint),
        ("weps", ResourceKind::WorkloadEndpoint),
        ("pool", ResourceKind::IpPool),
        ("ipamconfig", ResourceKind::IpamConfiguration),
        ("clusterinfo", ResourceKind::ClusterInformation),
        ("networkpolicies.projectcalico.org", ResourceKind::NetworkPolicy),
        ("Tier.crd.projectcalico.org", ResourceKind::Tier),
        ("networkpolicies.networking.k8s.io", ResourceKind::KubernetesNetworkPolicy),
        ("clusternetworkpolicy.policy.networking.k8s.io", ResourceKind::KubernetesClusterNetworkPolicy),
    ] {
        assert_eq!(word.parse(), Ok(kind));
    }
    assert_eq!("pod".parse::<ResourceKind>(), Err(UnknownKind("pod".into())));
    assert!("np.projectcalico.org".parse::<ResourceKind>().is_err(), "short names are unique without a group");
    for kind in ResourceKind::all().chain(ResourceKind::of_kubernetes()) {
        assert_eq!(kind.qualified().parse(), Ok(kind));
        assert!(kind.short_names().iter().all(|name| name.parse() == Ok(kind)), "{kind}");
    }
}

#[test]
fn a_misspelt_kind_is_guessed() {
    for (word, suggestion) in [
        ("networkpolicys", "; is `NetworkPolicy` meant?"),
        ("gnpp", "; is `gnp` meant?"),
        ("HostEndpoit", "; is `HostEndpoint` meant?"),
        ("foo", ""),
    ] {
        let expected = format!("`{word}` is not a kind of resource that the datastore keeps{suggestion}");
        assert_eq!(word.parse::<ResourceKind>().unwrap_err().to_string(), expected);
    }
}

#[test]
fn paths_round_trip() {
    for (key, path) in [
        (key(ResourceKind::Tier, "", "default"), "tiers/default"),
        (key(ResourceKind::NetworkPolicy, "shop", "knp.default.web"), "networkpolicies/shop/knp.default.web"),
    ] {
        assert_eq!(key.path(), format!("{PREFIX}{path}"));
        assert_eq!(ResourceKey::from_path(&key.path()), Some(key));
    }
    for other in [
        "/calico/v1/Ready",
        "/calico/resources/v3/projectcalico.org/tiers",
        "/calico/resources/v3/projectcalico.org/tiers/",
        "/calico/resources/v3/projectcalico.org/tiers/a/b",
        "/calico/resources/v3/projectcalico.org/networkpolicies/web",
        "/calico/resources/v3/projectcalico.org/networkpolicies//web",
        "/calico/resources/v3/projectcalico.org/gadgets/a",
        "",
    ] {
        assert_eq!(ResourceKey::from_path(other), None, "{other}");
    }
    assert!(ResourceKey::new(ResourceKind::Tier, "shop", "a").is_err());
    assert!(ResourceKey::new(ResourceKind::NetworkSet, "", "a").is_err());
}

#[test]
fn keys_of_objects() {
    let policy = json!({"apiVersion": API_VERSION, "kind": "NetworkPolicy", "metadata": {"name": "web"}});
    assert_eq!(key_of(&policy, "shop"), Ok(key(ResourceKind::NetworkPolicy, "shop", "web")));
    let tier = json!({"apiVersion": API_VERSION, "kind": "Tier", "metadata": {"name": "web", "namespace": "x"}});
    assert_eq!(key_of(&tier, "shop"), Ok(key(ResourceKind::Tier, "", "web")));
    let endpoint = |metadata: Value, pod: &str| {
        let spec = json!({"node": "n1", "orchestrator": "k8s", "pod": pod, "endpoint": "eth0"});
        json!({"apiVersion": API_VERSION, "kind": "WorkloadEndpoint", "metadata": metadata, "spec": spec})
    };
    let named = key(ResourceKind::WorkloadEndpoint, "shop", "n1-k8s-web--1-eth0");
    assert_eq!(key_of(&endpoint(json!({"name": ""}), "web-1"), "shop"), Ok(named));
    let named = key(ResourceKind::WorkloadEndpoint, "shop", "other");
    assert_eq!(key_of(&endpoint(json!({"name": "other"}), "web-1"), "shop"), Ok(named));
    for (object, error) in [
        (endpoint(json!({}), "web-"), "spec.pod: `web-` cannot be a part of the name of a workload endpoint"),
        (json!([]), "object: must be a mapping"),
        (json!({"apiVersion": "v1", "kind": "Pod"}), "kind: Pod of v1 is not kept in this datastore"),
        (json!({"apiVersion": "v1", "kind": "Node"}), "kind: Node of v1 is not kept in this datastore"),
        (json!({"apiVersion": API_VERSION, "kind": 1}), "kind: must be text"),
        (json!({"apiVersion": API_VERSION, "kind": "Tier"}), "metadata: Tier: `` is not a name"),
    ] {
        assert_eq!(key_of(&object, "shop").map_err(|e| with_causes(&e)), Err(error.into()));
    }
}

fn stored(kind: ResourceKind, namespace: &str, spec: &Value) -> Value {
    let mut object = json!({"metadata": {"name": "ignored", "resourceVersion": "3", "custom": 1}, "spec": spec});
    to_stored(&key(kind, namespace, "a"), &mut object).expect("to be stored");
    object
}

#[test]
fn policies_get_types_and_a_label() {
    let rule = || json!([{"action": "Allow"}]);
    for (spec, types) in [
        (json!({}), json!(["Ingress"])),
        (json!({"ingress": rule()}), json!(["Ingress"])),
        (json!({"egress": rule(), "ingress": []}), json!(["Egress"])),
        (json!({"egress": rule(), "ingress": rule(), "types": null}), json!(["Ingress", "Egress"])),
        (json!({"egress": rule(), "types": ["Ingress"]}), json!(["Ingress"])),
    ] {
        assert_eq!(stored(ResourceKind::GlobalNetworkPolicy, "", &spec)["spec"]["types"], types);
    }
    let policy = stored(ResourceKind::NetworkPolicy, "shop", &json!({"tier": "platform", "unknown": {"x": [1]}}));
    assert_eq!(
        policy,
        json!({
            "apiVersion": API_VERSION,
            "kind": "NetworkPolicy",
            "metadata": {
                "name": "a",
                "namespace": "shop",
                "custom": 1,
                "annotations": {"projectcalico.org/metadata": "{\"name\":\"a\"}"},
                "labels": {"projectcalico.org/tier": "platform"},
            },
            "spec": {"tier": "platform", "unknown": {"x": [1]}, "types": ["Ingress"]},
        })
    );
    // Staged Kubernetes policies have neither the label nor the annotation.
    let policy = stored(ResourceKind::StagedKubernetesNetworkPolicy, "shop", &json!({}));
    assert_eq!(policy["metadata"].get("labels"), None);
}

#[test]
fn tiers_get_an_order_and_an_action() {
    let tier = stored(ResourceKind::Tier, "", &json!({}));
    assert_eq!(tier["spec"], json!({"order": 1_000_000, "defaultAction": "Deny"}));
    let tier = stored(ResourceKind::Tier, "", &json!({"order": 5, "defaultAction": "Pass"}));
    assert_eq!(tier["spec"], json!({"order": 5, "defaultAction": "Pass"}));
}

#[test]
fn built_in_tiers_are_immutable() {
    for tier in built_in_tiers() {
        let object = tier.object();
        assert_eq!(check_tier(tier.name, object["spec"].as_object().expect("a spec")), Ok(()));
    }
    let spec = |value: Value| value.as_object().expect("a spec").clone();
    assert_eq!(check_tier("default", &spec(json!({}))), Ok(()));
    assert_eq!(check_tier("custom", &spec(json!({"order": 3}))), Ok(()));
    for (name, value, field) in [
        ("default", json!({"order": 3}), "spec.order"),
        ("default", json!({"defaultAction": "Pass"}), "spec.defaultAction"),
        ("kube-admin", json!({}), "spec.order"),
        ("kube-baseline", json!({"order": 10_000_000, "defaultAction": "Deny"}), "spec.defaultAction"),
    ] {
        let refusal = check_tier(name, &spec(value)).expect_err(name).to_string();
        assert!(refusal.starts_with(&format!("{field}: must be ")), "{refusal}");
    }
}

#[test]
fn an_endpoint_name_must_match_its_spec() {
    let spec = |value: Value| value.as_object().expect("a spec").clone();
    let of = |node: &str, pod: &str| {
        spec(json!({"node": node, "orchestrator": "k8s", "pod": pod, "endpoint": "eth0", "workload": "other"}))
    };
    assert_eq!(check_endpoint("n1-k8s-web--1-eth0", &of("n1", "web-1")), Ok(()));
    let refusal = check_endpoint("n1-k8s-web-1-eth0", &of("n1", "web-1")).expect_err("another name");
    assert_eq!(refusal, EndpointError::Name { must: "n1-k8s-web--1-eth0".into() });
    assert_eq!(refusal.to_string(), "metadata.name: must be n1-k8s-web--1-eth0, as node, workload and endpoint say");
    for (node, pod, field, part) in [("", "web", "spec.node", ""), ("n1", "web-", "spec.pod", "web-")] {
        let error = EndpointNameError { part: part.into() };
        let refusal = check_endpoint("any", &of(node, pod)).expect_err(field);
        assert_eq!(refusal, EndpointError::Part { field, error });
        assert_eq!(
            with_causes(&refusal),
            format!("{field}: `{part}` cannot be a part of the name of a workload endpoint")
        );
    }
}

#[test]
fn stored_objects_are_read_again() {
    let key = key(ResourceKind::NetworkPolicy, "shop", "default.a");
    let mut object = json!({"metadata": {"annotations": {"mine": "x"}}, "spec": {}});
    to_stored(&key, &mut object).expect("to be stored");
    let read = from_stored(&key, object, Revision(12)).expect("to be read");
    assert_eq!(read["metadata"]["annotations"], json!({"mine": "x"}));
    assert_eq!(read["metadata"]["name"], "default.a");
    assert_eq!(revision_of(&read), Ok(Some(Revision(12))));
    assert_eq!(revision_of(&json!({"metadata": {"resourceVersion": "x"}})), Err(ObjectError::Revision("x".into())));
    assert_eq!(revision_of(&json!({})), Ok(None));
    assert!(from_stored(&key, json!([1]), Revision(1)).is_err());
}

#[test]
fn invalid_shapes_are_refused() {
    let key = key(ResourceKind::NetworkPolicy, "shop", "a");
    for mut object in [
        json!(1),
        json!({"metadata": []}),
        json!({"metadata": {"labels": 1}}),
        json!({"metadata": {"annotations": "x"}}),
        json!({"spec": true}),
    ] {
        assert!(matches!(to_stored(&key, &mut object), Err(ObjectError::Shape { .. })), "{object}");
    }
}

#[test]
fn legacy_policies_show_their_tier() {
    let mut object = json!({"metadata": {"name": "a"}});
    labelled(ResourceKind::GlobalNetworkPolicy, &mut object);
    assert_eq!(object["metadata"]["labels"], json!({"projectcalico.org/tier": "default"}));
    labelled(ResourceKind::NetworkSet, &mut object);
}

#[test]
fn pools_get_their_uses() {
    let pool = stored(ResourceKind::IpPool, "", &json!({"cidr": "10.0.0.0/16", "blockSize": 0, "vxlanMode": "Always"}));
    assert_eq!(
        pool["spec"],
        json!({
            "cidr": "10.0.0.0/16",
            "blockSize": 26,
            "vxlanMode": "Always",
            "nodeSelector": "all()",
            "allowedUses": ["Workload", "Tunnel"],
            "assignmentMode": "Automatic",
            "ipipMode": "Never",
        })
    );
    assert_eq!(stored(ResourceKind::IpPool, "", &json!({"cidr": "fd00::/48"}))["spec"]["blockSize"], 122);
}
