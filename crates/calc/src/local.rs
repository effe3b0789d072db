//! This node's endpoints.

use std::fmt;
use std::sync::Arc;

use tortie_model::{HostEndpoint, HostEndpointName, ProfileName, WorkloadEndpoint, WorkloadEndpointKey};

/// An endpoint of this node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum EndpointId {
    Workload(WorkloadEndpointKey),
    Host(HostEndpointName),
}

impl EndpointId {
    pub(crate) fn workload(&self) -> Option<&WorkloadEndpointKey> {
        match self {
            Self::Workload(key) => Some(key),
            Self::Host(_) => None,
        }
    }
}

impl fmt::Display for EndpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Workload(key) => write!(f, "{key}"),
            Self::Host(name) => write!(f, "{name}"),
        }
    }
}

/// An endpoint of this node, as in the datastore.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Endpoint {
    Workload(Arc<WorkloadEndpoint>),
    Host(Arc<HostEndpoint>),
}

impl Endpoint {
    pub(crate) fn profiles(&self) -> &Arc<[ProfileName]> {
        match self {
            Self::Workload(endpoint) => &endpoint.profiles,
            Self::Host(endpoint) => &endpoint.profiles,
        }
    }

    pub(crate) fn labels(&self) -> &tortie_model::Labels {
        match self {
            Self::Workload(endpoint) => &endpoint.labels,
            Self::Host(endpoint) => &endpoint.labels,
        }
    }
}
