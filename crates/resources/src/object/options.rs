//! Parameters of the conversion of objects.

use std::fmt;
use std::str::FromStr;

use super::Kind;
use crate::tree::ParameterCheck;

/// Parameters of the conversion of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Prefix of the names of workload interfaces: the first entry of Felix's `InterfacePrefix`;
    /// `cali` by default.
    pub interface_prefix: String,
    /// Treatment of unknown fields; they are refused by default.
    pub unknown_fields: UnknownFields,
    /// Name of a policy without an annotation for it.
    pub policy_names: PolicyNames,
    /// Source of IPAM blocks. Blocks from elsewhere count as objects of unknown kind.
    pub block_source: BlockSource,
    /// Client of the objects, which decides on their kinds and their form.
    pub syncer: SyncerType,
    /// Check of parameters in a `FelixConfiguration`; none by default.
    pub parameters: ParameterCheck,
    /// Whether valid but unusual fields cause warnings ([`Lint`](crate::Lint)).
    pub lints: bool,
    /// Whether the objects are to be written to a datastore. Then a field, value or name that
    /// calicoctl refuses makes an object of Calico's API invalid, also one of a kind for other
    /// programs.
    pub for_writing: bool,
}

/// Meaning of the prefix `default.` of a stored policy name, if no annotation has the name.
///
/// Older releases put the prefix before all such names, without an annotation into etcd
/// (`libcalico-go/lib/backend/model/keys.go`), with one that has no name into the API server
/// (`libcalico-go/lib/backend/k8s/resources/resources.go`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PolicyNames {
    /// In files: part of the name in `projectcalico.org/v3`, a prefix in
    /// `crd.projectcalico.org/v1`.
    #[default]
    Written,
    /// In etcd: a prefix.
    Prefixed,
    /// The name as it is: in the API server, where `x` and `default.x` are two policies.
    Plain,
}

/// Treatment of unknown fields.
///
/// A misspelt field in a file is an error of its author. A datastore or API server has accepted its
/// objects, and newer versions may have more fields; one more field must not take an object out of
/// force. The match of a rule (peers, ports and selectors) and a label selector are an exception,
/// whatever the source: an unknown field may narrow them, and a policy without it may allow more
/// than was meant. Such a policy is invalid, and fails closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum UnknownFields {
    /// For files: the object is invalid.
    #[default]
    Refuse,
    /// For datastores: a warning if the object is a policy, nothing otherwise.
    Ignore,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            interface_prefix: "cali".into(),
            unknown_fields: UnknownFields::Refuse,
            policy_names: PolicyNames::Written,
            block_source: BlockSource::Omitted,
            syncer: SyncerType::Felix,
            parameters: ParameterCheck::default(),
            lints: false,
            for_writing: false,
        }
    }
}

impl Options {
    /// Reports whether objects of this kind are read.
    #[must_use]
    pub fn takes(&self, kind: Kind) -> bool {
        self.syncer.takes(kind, self.block_source)
    }
}

/// Source of IPAM blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BlockSource {
    /// No blocks: only the calculation of routes needs them.
    #[default]
    Omitted,
    /// The blocks of Calico's IPAM.
    IpamBlocks,
    /// One block for each pod network of a node, for clusters that assign addresses by `host-local`
    /// (`USE_POD_CIDR` in Calico).
    PodCidrs,
}

impl BlockSource {
    /// Reports whether objects of this kind are read.
    #[must_use]
    pub fn takes(self, kind: Kind) -> bool {
        match self {
            Self::IpamBlocks => true,
            Self::Omitted | Self::PodCidrs => kind != Kind::IpamBlock,
        }
    }
}

/// Kind of client that objects are read for (`typha/pkg/syncproto`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SyncerType {
    /// Felix, and agents like it.
    #[default]
    Felix,
    /// Confd, which configures a node's BGP daemon.
    Bgp,
    /// The allocator of tunnel addresses.
    TunnelIpAllocation,
    /// The reporter of node status.
    NodeStatus,
}

impl SyncerType {
    /// All of them, in Typha's order.
    pub const ALL: [Self; 4] = [Self::Felix, Self::Bgp, Self::TunnelIpAllocation, Self::NodeStatus];

    /// Its name in Typha's protocol and in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Felix => "felix",
            Self::Bgp => "bgp",
            Self::TunnelIpAllocation => "tunnel-ip-allocation",
            Self::NodeStatus => "node-status",
        }
    }

    /// Reports whether it has objects of this kind.
    #[must_use]
    pub fn takes(self, kind: Kind, block_source: BlockSource) -> bool {
        match (self, kind) {
            (Self::Felix, Kind::BgpFilter | Kind::BlockAffinity | Kind::CalicoNodeStatus) => false,
            (Self::Felix, kind) => block_source.takes(kind),
            (Self::Bgp | Self::TunnelIpAllocation, Kind::IpPool | Kind::Node | Kind::KubernetesNode)
            | (Self::Bgp, Kind::BgpConfiguration | Kind::BgpPeer | Kind::BgpFilter)
            | (Self::NodeStatus, Kind::CalicoNodeStatus) => true,
            // A node's own networks for pods are part of the node.
            (Self::Bgp, Kind::BlockAffinity) => block_source != BlockSource::PodCidrs,
            _ => false,
        }
    }
}

impl fmt::Display for SyncerType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A word that names no syncer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a type of syncer")]
pub struct UnknownSyncer(pub String);

impl FromStr for SyncerType {
    type Err = UnknownSyncer;

    fn from_str(name: &str) -> Result<Self, UnknownSyncer> {
        Self::ALL.into_iter().find(|syncer| syncer.as_str() == name).ok_or_else(|| UnknownSyncer(name.to_owned()))
    }
}
