//! Followed kinds of Kubernetes objects, and the listeners for them.

use crate::Watched;
use crate::nodes::CustomKind;
use tortie_datastore::kubernetes::ApiResource;

/// Purpose for which a kind is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listener {
    /// Policies and labels.
    Policies(Watched),
    /// Labels, and addresses in use.
    Pods,
    /// Nodes.
    Nodes,
    /// Calico's custom resources.
    Custom(CustomKind),
}

/// Followed kinds if Calico uses etcd.
pub const FOLLOWED: [(Listener, ApiResource); 5] = [
    (Listener::Policies(Watched::NetworkPolicies), ApiResource::NETWORK_POLICIES),
    (Listener::Policies(Watched::Namespaces), ApiResource::NAMESPACES),
    (Listener::Policies(Watched::ServiceAccounts), ApiResource::SERVICE_ACCOUNTS),
    (Listener::Pods, ApiResource::PODS),
    (Listener::Nodes, ApiResource::NODES),
];

/// Returns the followed kinds if Kubernetes is the datastore.
pub fn followed_in_kubernetes() -> impl Iterator<Item = (Listener, ApiResource)> {
    let own = [(Listener::Pods, ApiResource::PODS), (Listener::Nodes, ApiResource::NODES)];
    let custom = CustomKind::ALL
        .into_iter()
        .map(|kind| (Listener::Custom(kind), ApiResource::new("crd.projectcalico.org", "v1", kind.plural())));
    own.into_iter().chain(custom)
}
