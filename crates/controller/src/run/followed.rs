//! Followed kinds of Kubernetes objects, and the listeners for them.

use crate::Watched;
use crate::nodes::{CustomForm, CustomKind};
use tortie_datastore::kubernetes::{ApiResource, CalicoApi};

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
    Custom(CustomKind, CustomForm),
}

/// Followed kinds if Calico uses etcd.
pub const FOLLOWED: [(Listener, ApiResource); 5] = [
    (Listener::Policies(Watched::NetworkPolicies), ApiResource::NETWORK_POLICIES),
    (Listener::Policies(Watched::Namespaces), ApiResource::NAMESPACES),
    (Listener::Policies(Watched::ServiceAccounts), ApiResource::SERVICE_ACCOUNTS),
    (Listener::Pods, ApiResource::PODS),
    (Listener::Nodes, ApiResource::NODES),
];

/// Followed kinds of Kubernetes if it is the datastore.
pub const FOLLOWED_IN_KUBERNETES: [(Listener, ApiResource); 2] =
    [(Listener::Pods, ApiResource::PODS), (Listener::Nodes, ApiResource::NODES)];

/// Returns the followed custom resources of Calico by an API.
pub fn followed_custom(api: CalicoApi) -> impl Iterator<Item = (Listener, ApiResource)> {
    let form = match api {
        CalicoApi::CrdV1 => CustomForm::V1,
        CalicoApi::V3 => CustomForm::V3,
    };
    CustomKind::ALL.into_iter().map(move |kind| {
        let resource = match kind {
            CustomKind::Addresses(kind) => api.address_resource(kind),
            CustomKind::Resources(kind) => api.resource(kind.plural()),
        };
        (Listener::Custom(kind, form), resource)
    })
}
