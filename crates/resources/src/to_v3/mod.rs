//! Kubernetes objects as resources of `projectcalico.org/v3`, for a separate Calico datastore.
//!
//! Such a resource, read back, has the same meaning as the Kubernetes object read directly
//! (`libcalico-go/lib/backend/k8s/conversion`, `kube-controllers/pkg/converter`):
//!
//! | Kubernetes | resource | name |
//! |---|---|---|
//! | `NetworkPolicy` | `NetworkPolicy` of tier `default`, order 1000 | `knp.default.NAME` |
//! | `Namespace` | `Profile` that allows everything | `kns.NAME` |
//! | `ServiceAccount` | `Profile` without rules | `ksa.NAMESPACE.NAME` |
//! | `Pod` | `WorkloadEndpoint` | `NODE-k8s-POD-eth0`, hyphens of the parts doubled |
//!
//! Metadata is limited to name and namespace: UIDs, versions and times belong to the datastore.
//!
//! ```
//! use serde_json::json;
//! use tortie_resources::to_v3::{self, Conversion};
//!
//! let namespace = json!({"metadata": {"name": "shop", "labels": {"team": "a"}}});
//! let Conversion::Resource(profile) = to_v3::namespace(&namespace).outcome else { panic!("it is sound") };
//! assert_eq!(profile["metadata"]["name"], "kns.shop");
//! assert_eq!(profile["spec"]["labelsToApply"]["pcns.team"], "a");
//! ```

mod endpoint;
mod policy;
mod profile;

use serde_json::{Map as JsonMap, Value as Json};
use tortie_model::Interner;

use crate::FieldProblem;
use crate::object::{Kind, Object, Options, with_object};
use crate::tree::{Cursor, Node, Sink, UnknownField};

pub use endpoint::{EndpointFacts, endpoint_facts, workload_endpoint_name};
pub use policy::{DENY_ACTION, POLICY_PREFIX, policy_name};
pub use profile::{ACCOUNT_PREFIX, NAMESPACE_PREFIX, account_profile_name, namespace_profile_name};

/// Result of a conversion.
#[derive(Clone, Debug, PartialEq)]
pub struct Converted {
    /// The resource, or the reason for its absence.
    pub outcome: Conversion,
    /// Problems of the object, in the order of reading. The resource may exist in spite of
    /// problems: the affected parts are missing from it, so it allows less.
    pub problems: Vec<FieldProblem>,
}

/// Resource from an object, or the action without one.
#[derive(Clone, Debug, PartialEq)]
pub enum Conversion {
    /// The resource that the datastore should contain.
    Resource(Json),
    /// The object is valid, but yields no resource, such as a pod without an address.
    Nothing,
    /// The meaning of the object is unknown. The last valid version is better than the substitute,
    /// which is better than nothing.
    Unusable {
        /// For a policy with a readable selector, a policy that allows nothing.
        substitute: Option<Json>,
    },
}

impl Converted {
    fn unusable(problems: Vec<FieldProblem>) -> Self {
        Self { outcome: Conversion::Unusable { substitute: None }, problems }
    }
}

/// Converts a `NetworkPolicy` of `networking.k8s.io/v1`.
///
/// An invalid rule is left out and reported; the policy keeps its valid rules. (Calico intends
/// that, but drops the policy.) Such policies can only allow, so a missing rule denies.
///
/// A policy whose name is too long with its prefix is named by a part of the name and a hash
/// ([`policy_name`]).
#[must_use]
pub fn network_policy(object: &Json) -> Converted {
    convert(object, Kind::KubernetesNetworkPolicy, &Options::default(), policy::network_policy)
}

/// Converts a `Namespace`.
#[must_use]
pub fn namespace(object: &Json) -> Converted {
    convert(object, Kind::Namespace, &Options::default(), profile::namespace)
}

/// Converts a `ServiceAccount`.
#[must_use]
pub fn service_account(object: &Json) -> Converted {
    convert(object, Kind::ServiceAccount, &Options::default(), profile::service_account)
}

/// Converts a `Pod`. The result is [`Conversion::Nothing`] if the pod is not scheduled, uses the
/// host network, has finished, or has no address yet. Host ports are left out; they concern only
/// the CNI plugin that maps them.
#[must_use]
pub fn pod(object: &Json, options: &Options) -> Converted {
    convert(object, Kind::Pod, options, |object, sink| endpoint::workload_endpoint(object, &mut Interner::new(), sink))
}

fn convert(
    object: &Json,
    kind: Kind,
    options: &Options,
    convert: impl FnOnce(&Object<'_, '_>, &mut Sink) -> Conversion,
) -> Converted {
    let node = Node::from(object);
    let unknown_fields = if kind.is_policy() { UnknownField::Warning } else { UnknownField::Ignored };
    let mut sink = Sink { unknown_fields, ..Sink::default() };
    let outcome = with_object(Cursor::root(&node), kind, options, &mut sink, convert);
    match outcome {
        Some(outcome) => Converted { outcome, problems: sink.problems.into_list() },
        None => Converted::unusable(sink.problems.into_list()),
    }
}

/// Returns the metadata of a resource.
fn metadata(namespace: &str, name: &str) -> JsonMap<String, Json> {
    let mut metadata = JsonMap::new();
    metadata.insert("name".into(), name.into());
    if !namespace.is_empty() {
        metadata.insert("namespace".into(), namespace.into());
    }
    metadata
}

/// Returns a resource of this kind.
fn resource(kind: Kind, metadata: JsonMap<String, Json>, spec: JsonMap<String, Json>) -> Json {
    let mut resource = JsonMap::new();
    resource.insert("apiVersion".into(), "projectcalico.org/v3".into());
    resource.insert("kind".into(), kind.as_str().into());
    resource.insert("metadata".into(), metadata.into());
    resource.insert("spec".into(), spec.into());
    resource.into()
}

#[cfg(test)]
mod tests;
