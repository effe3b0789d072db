//! Checks of a resource before it is written (`libcalico-go/lib/clientv3`).

use serde_json::{Map, Value};
use tortie_model::{Cause, Cidr};
use tortie_resources::stored::{
    DEFAULT_ALLOW_PROFILE, ResourceKey, ResourceKind, built_in_tier, check_endpoint, check_tier, tier_of,
};

use super::{ApplyError, refused};
use crate::store::{ResourceStore, StoreError};

/// Fields of a `BGPConfiguration` that are permitted only for all nodes.
const FOR_ALL_NODES: [&str; 7] = [
    "asNumber",
    "nodeMeshMaxRestartTime",
    "nodeMeshPassword",
    "nodeToNodeMeshEnabled",
    "serviceClusterIPs",
    "serviceExternalIPs",
    "serviceLoadBalancerIPs",
];

/// Checks the rules that hold for new and existing resources.
pub(super) fn check(store: &dyn ResourceStore, key: &ResourceKey, object: &Value) -> Result<(), ApplyError> {
    check_writable(key)?;
    let empty = Map::new();
    let spec = object.get("spec").and_then(Value::as_object).unwrap_or(&empty);
    match key.kind() {
        ResourceKind::Tier => check_tier(key.name(), spec).map_err(|error| refused(key, Cause::new(error)))?,
        ResourceKind::WorkloadEndpoint => {
            check_endpoint(key.name(), spec).map_err(|error| refused(key, Cause::new(error)))?;
        }
        ResourceKind::BgpConfiguration if key.name() != "default" => {
            let is_given = |name: &&&str| spec.get(**name).is_some_and(|value| !is_empty(value));
            if let Some(name) = FOR_ALL_NODES.iter().find(is_given) {
                return Err(refused(
                    key,
                    format!("spec.{name}: can be given for all nodes only, by the name `default`"),
                ));
            }
        }
        ResourceKind::BgpPeer => check_filters(store, key, spec)?,
        ResourceKind::KubeControllersConfiguration | ResourceKind::IpamConfiguration if key.name() != "default" => {
            return Err(refused(key, "metadata.name: must be `default`"));
        }
        _ => {}
    }
    if key.kind().has_tier() {
        let name = tier_of(spec);
        let tier = ResourceKey::new(ResourceKind::Tier, "", name)
            .map_err(|_| refused(key, format!("spec.tier: `{name}` is not the name of a tier")))?;
        // Every cluster has the built-in tiers, also before they are stored.
        if built_in_tier(name).is_none() && !exists(store, &tier)? {
            return Err(refused(key, format!("spec.tier: there is no tier `{name}`")));
        }
    }
    Ok(())
}

/// Reports whether a resource exists, readable or not.
fn exists(store: &dyn ResourceStore, key: &ResourceKey) -> Result<bool, StoreError> {
    match store.get(key) {
        Ok(_) | Err(StoreError::Unreadable { .. }) => Ok(true),
        Err(StoreError::NotFound(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(Vec::is_empty)
}

/// Checks that the filters of a peer exist.
fn check_filters(store: &dyn ResourceStore, key: &ResourceKey, spec: &Map<String, Value>) -> Result<(), ApplyError> {
    for filter in spec.get("filters").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
        let missing = || refused(key, format!("spec.filters: there is no BGPFilter `{filter}`"));
        let filter = ResourceKey::new(ResourceKind::BgpFilter, "", filter).map_err(|_| missing())?;
        if !exists(store, &filter)? {
            return Err(missing());
        }
    }
    Ok(())
}

pub(super) fn check_writable(key: &ResourceKey) -> Result<(), ApplyError> {
    match key.kind() {
        ResourceKind::ClusterInformation => Err(refused(key, "is kept by the cluster itself and cannot be written")),
        ResourceKind::Profile if key.name() == DEFAULT_ALLOW_PROFILE => {
            Err(refused(key, "is part of every cluster and cannot be written"))
        }
        _ => Ok(()),
    }
}

fn cidr_of(object: &Value) -> Option<Cidr> {
    object.pointer("/spec/cidr")?.as_str()?.parse().ok()
}

/// Checks that a new pool does not overlap with another one.
pub(super) fn check_new_pool(store: &dyn ResourceStore, key: &ResourceKey, object: &Value) -> Result<(), ApplyError> {
    if key.kind() != ResourceKind::IpPool {
        return Ok(());
    }
    let Some(cidr) = cidr_of(object) else { return Ok(()) };
    for other in store.list(ResourceKind::IpPool, None)?.resources {
        // A pool without a network, or of the other family, does not overlap.
        let Some(others) = cidr_of(&other.object).filter(|others| others.family() == cidr.family()) else { continue };
        if other.key != *key
            && (others.masked().contains(cidr.masked().address()) || cidr.masked().contains(others.masked().address()))
        {
            return Err(refused(key, format!("spec.cidr: overlaps with {others} of {}", other.key)));
        }
    }
    Ok(())
}

/// Checks that network and block size of a pool stay, because its addresses may be in use already,
/// in blocks of this size.
pub(super) fn check_same_pool(key: &ResourceKey, before: &Value, next: &Value) -> Result<(), ApplyError> {
    if key.kind() != ResourceKind::IpPool {
        return Ok(());
    }
    if cidr_of(before).is_some_and(|before| cidr_of(next).is_none_or(|next| next.masked() != before.masked())) {
        return Err(refused(key, "spec.cidr: cannot be changed"));
    }
    let balances = |object: &Value| {
        let uses = object.pointer("/spec/allowedUses").and_then(Value::as_array);
        uses.is_some_and(|uses| uses.iter().any(|one| one == "LoadBalancer"))
    };
    if balances(before) && !balances(next) {
        return Err(refused(key, "spec.allowedUses: must stay LoadBalancer"));
    }
    if before.pointer("/spec/blockSize") != next.pointer("/spec/blockSize") {
        return Err(refused(key, "spec.blockSize: cannot be changed"));
    }
    Ok(())
}
