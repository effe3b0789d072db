//! Objects that the suite writes. All sources support these kinds.

use serde_json::{Value, json};
use tortie_resources::manifest::{Kind, ObjectId};

use super::Edit;

pub(super) fn id(kind: Kind, name: &str) -> ObjectId {
    let namespace = if kind.is_namespaced() { "shop" } else { "" };
    ObjectId { kind, namespace: namespace.into(), name: name.into() }
}

fn put(kind: Kind, name: &str, spec: &Value) -> Edit {
    let id = id(kind, name);
    let mut metadata = json!({"name": name});
    if kind.is_namespaced() {
        metadata["namespace"] = json!("shop");
    }
    let object =
        json!({"apiVersion": "projectcalico.org/v3", "kind": kind.as_str(), "metadata": metadata, "spec": spec});
    Edit::Put(id, object)
}

pub(super) fn delete(kind: Kind, name: &str) -> Edit {
    Edit::Delete(id(kind, name))
}

/// Returns a global network set with one network, derived from the version.
pub(super) fn set(name: &str, version: u16) -> Edit {
    let [high, low] = version.to_be_bytes();
    put(Kind::GlobalNetworkSet, name, &json!({"nets": [format!("10.1.{high}.{low}/32")]}))
}

/// Returns an invalid global network set.
pub(super) fn bad_set(name: &str) -> Edit {
    put(Kind::GlobalNetworkSet, name, &json!({"nets": ["300.0.0.0/8"]}))
}

/// Returns a network set of a namespace.
pub(super) fn namespaced_set(name: &str, version: u16) -> Edit {
    let [high, low] = version.to_be_bytes();
    put(Kind::NetworkSet, name, &json!({"nets": [format!("10.2.{high}.{low}/32")]}))
}

/// Returns a policy with the version as its order.
pub(super) fn policy(name: &str, version: u16) -> Edit {
    let rule = json!({"action": "Allow", "protocol": "TCP", "destination": {"ports": [80]}});
    put(
        Kind::GlobalNetworkPolicy,
        name,
        &json!({"selector": "has(a)", "order": version, "types": ["Ingress"], "ingress": [rule]}),
    )
}

/// Returns an invalid policy, so that the selected endpoints fail closed.
pub(super) fn bad_policy(name: &str) -> Edit {
    put(Kind::GlobalNetworkPolicy, name, &json!({"selector": "has(a)", "ingress": [{"action": "Perhaps"}]}))
}

/// Returns a policy of a namespace.
pub(super) fn namespaced_policy(name: &str, version: u16) -> Edit {
    put(Kind::NetworkPolicy, name, &json!({"selector": "has(a)", "order": version, "types": ["Ingress"]}))
}

pub(super) fn tier(name: &str, version: u16) -> Edit {
    put(Kind::Tier, name, &json!({"order": version}))
}

/// Returns a pool. Pools of the same number have the same network.
pub(super) fn pool(name: &str, number: u8, nat: bool) -> Edit {
    put(Kind::IpPool, name, &json!({"cidr": format!("10.{number}.0.0/16"), "natOutgoing": nat}))
}

/// Returns an object of a kind chosen by number.
pub(super) fn any(number: usize, version: u16) -> Edit {
    let name = format!("o{}", number / 6);
    match number % 6 {
        0 => set(&name, version),
        1 => namespaced_set(&name, version),
        2 => policy(&name, version),
        3 => namespaced_policy(&name, version),
        4 => tier(&name, version),
        // Some pools share a network.
        _ => pool(&name, u8::try_from(100 + number / 6 % 4).unwrap_or_default(), version.is_multiple_of(2)),
    }
}
