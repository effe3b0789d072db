//! Objects that follow objects of Kubernetes.

use std::fmt;

use tortie_resources::stored::ResourceKey;

/// An object that the controller keeps in step with Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Item {
    /// A resource that comes from an object of Kubernetes.
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
    /// `Kind/namespace/name`, or `Kind/name` for a resource of the whole cluster.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resource(key) => key.fmt(f),
            Self::Pod { namespace, name } => write!(f, "Pod/{namespace}/{name}"),
        }
    }
}
