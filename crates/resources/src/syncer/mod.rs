//! Updates of Typha's syncers for clients other than Felix
//! (`libcalico-go/lib/backend/syncersv1/{bgpsyncer,tunnelipsyncer,nodestatussyncer}`): complete
//! resources of `projectcalico.org/v3`, and pools and block affinities in the form of etcd.
//!
//! An object that Felix cannot use is invalid for these clients as well. Beyond that, objects are
//! validated as in Calico.

mod affinity;
mod check;
mod metadata;
mod node;
mod pool;

use std::sync::Arc;

use serde_json::{Map as JsonMap, Value as Json, json};
use tortie_model::{Interner, SyncerObject, Update};

use crate::felix;
use crate::object::{Contributions, Kind, Object, Outcome, Resource};
use crate::tree::Sink;

pub use crate::object::{SyncerType, UnknownSyncer};
pub use affinity::{AFFINITIES, affinity_id, read_affinity};
pub(crate) use metadata::convert_uid;

/// Converts a resource for the clients of such a syncer.
pub(crate) fn contributions(object: &Object<'_, '_>, labels: &mut Interner, sink: &mut Sink) -> Option<Contributions> {
    let for_felix = felix_contributions(object, labels, sink)?;
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

/// Converts an object as for Felix, without warnings: the reader for Felix reports them.
fn felix_contributions(object: &Object<'_, '_>, labels: &mut Interner, sink: &mut Sink) -> Option<Contributions> {
    let mut own = sink.apart();
    let contributions = felix::contributions(object, labels, &mut own);
    own.problems.keep_errors();
    sink.adopt(own, false);
    contributions.filter(|_| !sink.has_errors())
}

/// Returns the path of a resource. Its name was checked, so it needs no escapes.
fn resource_path(plural: &str, object: &Object<'_, '_>) -> String {
    format!("/calico/resources/v3/projectcalico.org/{plural}/{}", object.id.name)
}

/// Returns a resource as written, without metadata that changes with each write.
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
    /// Sets the version of an object whose text has none.
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
