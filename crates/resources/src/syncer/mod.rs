//! What Typha's syncers for others than Felix give to their clients
//! (`libcalico-go/lib/backend/syncersv1/{bgpsyncer,tunnelipsyncer,nodestatussyncer}`): resources of `projectcalico.org/v3`
//! whole, pools and affinities of blocks in the form in which etcd has them.
//!
//! An object that Felix could not use is of no use to them either. Beyond that an object is judged as the original does
//! before it hands it on.

mod affinity;
mod check;
mod metadata;
mod node;
mod pool;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde_json::{Map as JsonMap, Value as Json, json};
use tortie_model::{Interner, SyncerObject, Update};

use crate::manifest::{self, BlockSource, Contributions, Kind, Object, Options, Outcome, Resource, UnknownFields};
use crate::tree::Sink;

pub use affinity::{AFFINITIES, affinity_id, read_affinity};
pub(crate) use metadata::convert_uid;

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

/// What a resource is for the clients of such a syncer.
pub(crate) fn contributions(object: &Object<'_, '_>, labels: &mut Interner, sink: &mut Sink) -> Option<Contributions> {
    let for_felix = judged(object, labels, sink)?;
    let (path, value) = match object.id.kind {
        Kind::IpPool => pool::ip_pool(object, &for_felix, sink)?,
        Kind::BlockAffinity => match affinity::block_affinity(object, sink)? {
            Some(affinity) => affinity,
            None => return Some(Contributions::new()),
        },
        Kind::KubernetesNode => (resource_path("nodes", object), node::kubernetes_node(object, sink)?),
        kind => {
            let plural = match kind {
                Kind::Node => "nodes",
                Kind::BgpConfiguration => "bgpconfigurations",
                Kind::BgpPeer => "bgppeers",
                Kind::BgpFilter => "bgpfilters",
                _ => "caliconodestatuses",
            };
            check::resource(object, sink);
            (resource_path(plural, object), resource(object, sink)?)
        }
    };
    let resource_version = metadata::resource_version(object, sink).into();
    let value = SyncerObject { text: value.to_string().into(), resource_version };
    Some(vec![Update::SyncerObject(path.into(), Some(value.into()))])
}

/// What Felix makes of an object. Its warnings are for who reads for Felix.
fn judged(object: &Object<'_, '_>, labels: &mut Interner, sink: &mut Sink) -> Option<Contributions> {
    let mut own = sink.apart();
    let contributions = manifest::contributions(object, labels, &mut own);
    own.problems.keep_errors();
    sink.adopt(own, false);
    contributions.filter(|_| !sink.has_errors())
}

/// Calico's view of a node of Kubernetes: a `Node` of `projectcalico.org/v3`. `None` if it cannot be understood.
#[must_use]
pub fn calico_node(json: &str) -> Option<Json> {
    let options = Options {
        syncer: SyncerType::TunnelIpAllocation,
        block_source: BlockSource::IpamBlocks,
        unknown_fields: UnknownFields::Ignore,
        ..Options::default()
    };
    let node = manifest::read_object(json, Kind::KubernetesNode, &options, &mut Interner::new()).ok()?;
    let Outcome::Valid(contributions) = node.outcome else { return None };
    contributions.iter().find_map(|update| match update {
        Update::SyncerObject(_, Some(object)) => serde_json::from_str(&object.text).ok(),
        _ => None,
    })
}

/// A name that was checked has nothing that would have to be escaped.
fn resource_path(plural: &str, object: &Object<'_, '_>) -> String {
    format!("/calico/resources/v3/projectcalico.org/{plural}/{}", object.id.name)
}

/// A resource as it is written, but for what tells only of when it was.
fn resource(object: &Object<'_, '_>, sink: &mut Sink) -> Option<Json> {
    let part = |name| object.map.field(name).map(|part| Json::from(part.content()));
    let mut value = JsonMap::new();
    value.insert("kind".into(), object.id.kind.as_str().into());
    value.insert("apiVersion".into(), "projectcalico.org/v3".into());
    value.insert("metadata".into(), metadata::metadata(object, sink)?.into());
    value.insert("spec".into(), part("spec").unwrap_or_else(|| json!({})));
    if let Some(status) = part("status") {
        value.insert("status".into(), status);
    }
    Some(value.into())
}

impl Resource {
    /// The same, of an object whose version its text does not tell.
    #[must_use]
    pub fn with_version(mut self, version: i64) -> Self {
        if let Outcome::Valid(contributions) = &mut self.outcome {
            for update in contributions {
                if let Update::SyncerObject(_, Some(object)) = update {
                    let object = Arc::make_mut(object);
                    object.resource_version = version.to_string().into();
                }
            }
        }
        self
    }
}

#[cfg(test)]
mod tests;
