//! Members of IP sets.

use tortie_labelindex::MemberIndex;
use tortie_model::{HostEndpointKey, NetworkSetName, WorkloadEndpointKey};

/// Possible members of IP sets, on any node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum ItemId {
    Workload(WorkloadEndpointKey),
    /// Boxed: these are few, and must not make the many larger.
    Other(Box<OtherItem>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum OtherItem {
    Host(HostEndpointKey),
    NetworkSet(NetworkSetName),
}

impl ItemId {
    pub(crate) fn workload(&self) -> Option<&WorkloadEndpointKey> {
        match self {
            Self::Workload(key) => Some(key),
            Self::Other(_) => None,
        }
    }
}

/// Endpoints and network sets of the cluster against the IP sets of this node's rules.
pub(crate) type Members = MemberIndex<ItemId>;
