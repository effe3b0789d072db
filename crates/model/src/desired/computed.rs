//! Fields that a calculation adds to workload endpoints besides policies.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::{InterfaceName, WorkloadEndpointId};

/// Computed fields that few workload endpoints have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct ComputedFields {
    /// Name of the `BGPPeer` that the workload is for this node.
    pub local_bgp_peer: Option<Arc<str>>,
    /// Directions in which traffic must not bypass the host's stack.
    pub skip_redirect: Option<SkipRedirect>,
    /// DSCP values that another calculation than Tortie's requests instead of the endpoint's own
    /// value; empty otherwise.
    pub qos_policies: Box<[QosPolicy]>,
    /// Whether the workload is in an Istio mesh in ambient mode.
    pub is_istio_ambient: bool,
    /// Its part in a live migration.
    pub live_migration_role: Option<LiveMigrationRole>,
    /// The UID of the migration; empty if there is none.
    pub live_migration_uid: Arc<str>,
    /// The name of the virtual machine in the workload; empty if there is none.
    pub live_migration_vmi_name: Arc<str>,
    /// Claim of another endpoint because of which this one is denied
    /// ([`AdminState::Inactive`](crate::AdminState)).
    pub contest: Option<Contest>,
}

/// An interface or address that another endpoint of the node claims as well.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct Contest {
    /// The interface or address.
    pub object: Contested,
    /// The smallest id of the other claimants.
    pub rival: WorkloadEndpointId,
}

/// The object of a [`Contest`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Contested {
    /// The host-side interface.
    Interface(InterfaceName),
    /// An address.
    Address(#[cfg_attr(feature = "serde", serde(deserialize_with = "crate::serde_forms::canonical"))] IpAddr),
}

impl fmt::Display for Contest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.object {
            Contested::Interface(name) => write!(f, "contested: interface {name}")?,
            Contested::Address(address) => write!(f, "contested: address {address}")?,
        }
        write!(f, " is also claimed by {}", self.rival.workload)
    }
}

/// The directions in which an eBPF dataplane must not redirect packets around the host's stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct SkipRedirect {
    /// From the workload.
    pub egress: bool,
    /// To the workload.
    pub ingress: bool,
}

/// The part of a workload in a live migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum LiveMigrationRole {
    /// The virtual machine leaves it.
    Source,
    /// The virtual machine moves to it.
    Target,
}

/// A DSCP value for packets to some destination.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct QosPolicy {
    /// Destination of the packets; empty for all that leave the cluster.
    pub destination: Arc<str>,
    /// The value.
    pub dscp: i32,
}
