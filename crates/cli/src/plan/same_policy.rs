//! One policy under two names: if the datastore is etcd, Calico's policy controller writes
//! Kubernetes' policies to it as policies of Calico, named `knp.default.NAME`. Manifests have the
//! Kubernetes name.

use std::collections::{BTreeMap, BTreeSet};

use tortie_model::{PolicyId, PolicyKind, Update};
use tortie_resources::to_v3::policy_name;

/// Renames policies in `updates` to the names that they have in `known`. Returns the old names with
/// the new ones.
pub(super) fn unify(known: &[Update], updates: &mut [Update]) -> BTreeMap<PolicyId, PolicyId> {
    let named: BTreeSet<PolicyId> = known.iter().filter_map(policy).cloned().collect();
    let own: BTreeSet<PolicyId> = updates.iter().filter_map(policy).cloned().collect();
    let of_kubernetes = named.iter().filter_map(|id| Some((as_written_to_etcd(id)?, id)));
    let of_kubernetes: BTreeMap<PolicyId, &PolicyId> = of_kubernetes.collect();
    let mut replaced = BTreeMap::new();
    for update in updates {
        let Update::Policy(id, _) = update else { continue };
        if named.contains(id) {
            continue;
        }
        let in_etcd = as_written_to_etcd(id).filter(|other| named.contains(other));
        let other = in_etcd.or_else(|| of_kubernetes.get(id).map(|other| PolicyId::clone(other)));
        if let Some(other) = other.filter(|other| !own.contains(other)) {
            replaced.insert(id.clone(), other.clone());
            *id = other;
        }
    }
    replaced
}

fn policy(update: &Update) -> Option<&PolicyId> {
    match update {
        Update::Policy(id, _) => Some(id),
        _ => None,
    }
}

fn as_written_to_etcd(id: &PolicyId) -> Option<PolicyId> {
    let is_its = id.kind == PolicyKind::KubernetesNetworkPolicy;
    is_its.then(|| PolicyId::new(PolicyKind::NetworkPolicy, &*id.namespace, policy_name(&id.name)))
}
