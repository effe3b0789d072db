//! Labels that only the platform sets.

use tortie_model::NODE_LABEL_PREFIX;

use crate::object::Kind;

pub(crate) const NAMESPACE_LABEL: &str = "projectcalico.org/namespace";
pub(crate) const SERVICE_ACCOUNT_LABEL: &str = "projectcalico.org/serviceaccount";
pub(crate) const ORCHESTRATOR_LABEL: &str = "projectcalico.org/orchestrator";
pub(crate) const NAME_LABEL: &str = "projectcalico.org/name";
pub(crate) const NAMESPACE_PREFIX: &str = "pcns.";
pub(crate) const SERVICE_ACCOUNT_PREFIX: &str = "pcsa.";
/// Prefix of labels that have a meaning of Calico's own.
const PLATFORM_PREFIX: &str = "projectcalico.org/";
/// Labels that the conversion derives from the namespace, the orchestrator and the service account
/// of an endpoint.
pub(crate) const PLATFORM_LABELS: [&str; 3] = [NAMESPACE_LABEL, ORCHESTRATOR_LABEL, SERVICE_ACCOUNT_LABEL];

/// Returns whether selectors of policies match labels of this kind of object.
pub(crate) fn is_labelled_by_users(kind: Kind) -> bool {
    matches!(kind, Kind::Pod | Kind::NetworkSet | Kind::WorkloadEndpoint | Kind::GlobalNetworkSet | Kind::HostEndpoint)
}

/// Returns whether only the platform sets this label on objects of this kind: an object of one
/// namespace must not match selectors for pods of another one. Cluster administrators and
/// orchestrators may set other labels with Calico's prefix, such as `projectcalico.org/created-by`
/// on host endpoints.
pub(crate) fn is_reserved(kind: Kind, label: &str) -> bool {
    let is_of_namespace = matches!(kind, Kind::Pod | Kind::NetworkSet);
    is_inherited(label) || PLATFORM_LABELS.contains(&label) || is_of_namespace && label.starts_with(PLATFORM_PREFIX)
}

/// Returns whether this label is never an endpoint's own: it comes from its namespace or service
/// account, or nodes alone have it.
pub(crate) fn is_inherited(label: &str) -> bool {
    [NAMESPACE_PREFIX, SERVICE_ACCOUNT_PREFIX, NODE_LABEL_PREFIX].iter().any(|prefix| label.starts_with(prefix))
}
