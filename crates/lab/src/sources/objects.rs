//! The objects that the suite writes. All sources have these kinds.

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

/// A global network set of one network, which shows the version.
pub(super) fn set(name: &str, version: u16) -> Edit {
    let [high, low] = version.to_be_bytes();
    put(Kind::GlobalNetworkSet, name, &json!({"nets": [format!("10.1.{high}.{low}/32")]}))
}

/// The same, not valid.
pub(super) fn bad_set(name: &str) -> Edit {
    put(Kind::GlobalNetworkSet, name, &json!({"nets": ["300.0.0.0/8"]}))
}

/// A network set of a namespace.
pub(super) fn namespaced_set(name: &str, version: u16) -> Edit {
    let [high, low] = version.to_be_bytes();
    put(Kind::NetworkSet, name, &json!({"nets": [format!("10.2.{high}.{low}/32")]}))
}

/// A policy whose order shows the version.
pub(super) fn policy(name: &str, version: u16) -> Edit {
    let rule = json!({"action": "Allow", "protocol": "TCP", "destination": {"ports": [80]}});
    put(
        Kind::GlobalNetworkPolicy,
        name,
        &json!({"selector": "has(a)", "order": version, "types": ["Ingress"], "ingress": [rule]}),
    )
}

/// The same, not valid, so that what it selects is denied.
pub(super) fn bad_policy(name: &str) -> Edit {
    put(Kind::GlobalNetworkPolicy, name, &json!({"selector": "has(a)", "ingress": [{"action": "Perhaps"}]}))
}

/// A policy of a namespace.
pub(super) fn namespaced_policy(name: &str, version: u16) -> Edit {
    put(Kind::NetworkPolicy, name, &json!({"selector": "has(a)", "order": version, "types": ["Ingress"]}))
}

/// A tier.
pub(super) fn tier(name: &str, version: u16) -> Edit {
    put(Kind::Tier, name, &json!({"order": version}))
}

/// A pool; those of the same number stand for the same.
pub(super) fn pool(name: &str, number: u8, nat: bool) -> Edit {
    put(Kind::IpPool, name, &json!({"cidr": format!("10.{number}.0.0/16"), "natOutgoing": nat}))
}

/// An object of any kind, by number.
pub(super) fn any(number: usize, version: u16) -> Edit {
    let name = format!("o{}", number / 6);
    match number % 6 {
        0 => set(&name, version),
        1 => namespaced_set(&name, version),
        2 => policy(&name, version),
        3 => namespaced_policy(&name, version),
        4 => tier(&name, version),
        // Some contend for the same network.
        _ => pool(&name, u8::try_from(100 + number / 6 % 4).unwrap_or_default(), version.is_multiple_of(2)),
    }
}
