//! One policy under two names.
//!
//! Where Calico has an etcd of its own, the policy controller writes Kubernetes' policies there as policies of Calico, called
//! `knp.default.NAME`. Manifests call them what Kubernetes does.

use std::collections::{BTreeMap, BTreeSet};

use tortie_model::{PolicyId, PolicyKind, Update};
use tortie_resources::to_v3::policy_name;

/// Has policies of Kubernetes that are to change, or to be compared, called what they are called where they are already. Gives the
/// names that were replaced, with what replaces them.
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

/// What the controller calls a policy of Kubernetes.
fn as_written_to_etcd(id: &PolicyId) -> Option<PolicyId> {
    let is_its = id.kind == PolicyKind::KubernetesNetworkPolicy;
    is_its.then(|| PolicyId::new(PolicyKind::NetworkPolicy, &*id.namespace, policy_name(&id.name)))
}
