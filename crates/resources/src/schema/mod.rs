//! Rules for objects that users write: those by which calicoctl and the API server refuse an object
//! (`api/config/crd`, tags of `api/pkg/apis/projectcalico/v3`, `libcalico-go/lib/validator/v3`).
//!
//! Readers of stored objects are more tolerant, because a datastore has accepted its objects, and
//! another release may have other fields. The tables have the parts that the readers for Felix
//! ignore; what these read, they check themselves.

mod felix;
mod kinds;
mod names;
mod shape;
mod value;

use crate::object::METADATA_FIELDS;
use crate::stored::ResourceKind;
use crate::tree::{Cursor, Map, Sink};

/// Reports the fields, values and names of an object that calicoctl refuses.
pub(crate) fn check(kind: ResourceKind, root: Cursor<'_, '_>, sink: &mut Sink) {
    let Some(object) = root.map(sink) else { return };
    object.only(&["apiVersion", "kind", "metadata", "spec", "status"], sink);
    let metadata = object.field("metadata").and_then(|metadata| metadata.map(sink));
    let name = metadata.and_then(|metadata| check_metadata(kind, metadata, sink)).unwrap_or_default();
    let Some(spec) = object.field("spec").and_then(|spec| spec.map(sink)) else { return };
    match kind {
        ResourceKind::FelixConfiguration => felix::check(name, spec, sink),
        _ => {
            if let Some(mapping) = kinds::spec(kind) {
                mapping.check(spec, sink);
            }
        }
    }
}

fn check_metadata<'n>(kind: ResourceKind, metadata: Map<'n, '_>, sink: &mut Sink) -> Option<&'n str> {
    metadata.only(&METADATA_FIELDS, sink);
    names::check_pairs(metadata, sink);
    let name = metadata.field("name")?;
    let text = name.text(sink)?;
    if let Some(rule) = names::broken_rule(kind, text) {
        name.error(sink, format!("`{text}` is not a name: {rule}"));
    }
    Some(text)
}

#[cfg(test)]
mod tests;
