//! Objects of the datastore that follow Kubernetes objects.

use std::fmt;

use tortie_resources::stored::ResourceKey;

/// An object that the controller keeps in sync with Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Item {
    /// A resource derived from a Kubernetes object.
    Resource(ResourceKey),
    /// The workload endpoints of a pod.
    Pod {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
}

impl fmt::Display for Item {
    /// Writes `Kind/namespace/name`, or `Kind/name` for a cluster-scoped resource.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resource(key) => key.fmt(f),
            Self::Pod { namespace, name } => write!(f, "Pod/{namespace}/{name}"),
        }
    }
}
