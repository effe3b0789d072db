//! Profiles.

use tortie_model::{LabelInterner, Profile};

use crate::scalar;
use crate::tree::{Cursor, Map, Sink};

/// The labels that a `Profile` resource applies.
pub(crate) fn profile_labels(
    root: &Cursor<'_, '_>,
    map: Map<'_, '_>,
    labels: &mut LabelInterner,
    sink: &mut Sink,
) -> Profile {
    let spec = map.field("spec").and_then(|spec| spec.map(sink));
    let pairs = match &spec {
        Some(spec) => spec.field("labelsToApply").map(|labels| labels.text_map(sink)).unwrap_or_default(),
        None => Vec::new(),
    };
    Profile { labels: scalar::interned(root, pairs, labels, sink) }
}
