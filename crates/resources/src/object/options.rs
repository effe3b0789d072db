//! Parameters of the conversion of objects.

use std::fmt;
use std::str::FromStr;

use super::Kind;
use crate::tree::ParameterCheck;

/// What conversion needs to know besides the manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// What the names of workload interfaces begin with: the first entry of Felix's `InterfacePrefix`.
    pub interface_prefix: String,
    /// What becomes of fields that are not known.
    pub unknown_fields: UnknownFields,
    /// What the name of a policy is that no annotation tells.
    pub policy_names: PolicyNames,
    /// Which objects are read that are only passed on. Those that are not are of no known kind.
    pub block_source: BlockSource,
    /// For whom it is read: which kinds, and what is made of them.
    pub syncer: SyncerType,
    /// What the program has to say of parameters in a `FelixConfiguration`.
    pub parameters: ParameterCheck,
    /// Whether warnings advise against what is valid and that few people mean ([`Lint`](crate::Lint)).
    pub lints: bool,
}

/// Meaning of the prefix `default.` of a stored policy name, if no annotation has the name.
///
/// Older releases put the prefix before all such names, without an annotation into etcd
/// (`libcalico-go/lib/backend/model/keys.go`), with one that has no name into the API server
/// (`libcalico-go/lib/backend/k8s/resources/resources.go`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PolicyNames {
    /// In files: part of the name in `projectcalico.org/v3`, a prefix in `crd.projectcalico.org/v1`.
    #[default]
    Written,
    /// In etcd: a prefix.
    Prefixed,
    /// The name as it is: in the API server, where `x` and `default.x` are two policies.
    Plain,
}

/// What becomes of fields that are not known.
///
/// Whoever writes a file wants to hear of a misspelt field before anything else happens. A datastore or API server has
/// accepted what it holds, and a newer version of it may have more fields than are known here: it must not take the whole
/// object out of force that it has one more. There is one exception, whatever the source: what a rule matches, its peers,
/// ports and selectors included, or what a label selector selects. A field that is not known there may narrow the match,
/// so to ignore it may allow more than was meant; the policy is invalid then, and fails closed.
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
        }
    }
}

impl Options {
    /// Whether objects of this kind are read.
    #[must_use]
    pub fn takes(&self, kind: Kind) -> bool {
        self.syncer.takes(kind, self.block_source)
    }
}

/// Which blocks of addresses are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BlockSource {
    /// None: whoever calculates no routes has no use for them.
    #[default]
    Omitted,
    /// Those that Calico's IPAM keeps.
    IpamBlocks,
    /// In place of IPAM's blocks one for each network that a node has for its pods: for clusters that give out addresses
    /// by `host-local` (`USE_POD_CIDR` of the original).
    PodCidrs,
}

impl BlockSource {
    /// Whether objects of this kind are read.
    #[must_use]
    pub fn takes(self, kind: Kind) -> bool {
        match self {
            Self::IpamBlocks => true,
            Self::Omitted | Self::PodCidrs => kind != Kind::IpamBlock,
        }
    }
}

/// Whom objects are read for (`typha/pkg/syncproto`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SyncerType {
    /// Felix, and agents like it.
    #[default]
    Felix,
    /// What configures a node's BGP daemon: confd.
    Bgp,
    /// What gives nodes the addresses of their tunnels.
    TunnelIpAllocation,
    /// What reports the status of nodes on demand.
    NodeStatus,
}

impl SyncerType {
    /// All of them, as the original orders them.
    pub const ALL: [Self; 4] = [Self::Felix, Self::Bgp, Self::TunnelIpAllocation, Self::NodeStatus];

    /// Its name in the protocol and in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Felix => "felix",
            Self::Bgp => "bgp",
            Self::TunnelIpAllocation => "tunnel-ip-allocation",
            Self::NodeStatus => "node-status",
        }
    }

    /// Whether it has objects of this kind.
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
