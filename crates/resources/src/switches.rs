//! Words without quotes that YAML 1.1 reads as booleans, in fields that are not read.

use tortie_parameters::{FieldForm, of_field};

use crate::tree::{Content, Cursor, Sink};

/// Boolean fields of Calico's kinds, besides those of `FelixConfiguration`.
const FLAGS: [&str; 12] = [
    "applyOnForward",
    "autoAllocateBlocks",
    "datastoreReady",
    "disableBGPExport",
    "disabled",
    "doNotTrack",
    "enabled",
    "keepOriginalNextHop",
    "natOutgoing",
    "nodeToNodeMeshEnabled",
    "preDNAT",
    "strictAffinity",
];

/// Mappings of text to text, with names that users choose.
const TEXT_MAPS: [&str; 4] = ["annotations", "labels", "labelsToApply", "matchLabels"];

/// Reports each such word that is not the value of a boolean field of Calico's API: it is text for
/// YAML 1.2, and `true` or `false` for calicoctl, which stores even a label as `"false"`.
pub(crate) fn check(cursor: Cursor<'_, '_>, sink: &mut Sink) {
    check_field("", cursor, sink);
}

fn check_field(name: &str, cursor: Cursor<'_, '_>, sink: &mut Sink) {
    match cursor.content() {
        Content::Switch(..) if !is_boolean(name) => {
            // Reports the error.
            let _ = cursor.text(sink);
        }
        Content::List(_) => cursor.items(sink).for_each(|item| check_field(name, item, sink)),
        Content::Map(_) => {
            let Some(map) = cursor.map(sink) else { return };
            let has_texts = TEXT_MAPS.contains(&name);
            map.fields().for_each(|(name, field)| check_field(if has_texts { "" } else { name }, field, sink));
        }
        _ => {}
    }
}

fn is_boolean(field: &str) -> bool {
    FLAGS.contains(&field) || matches!(of_field(field), Some((_, FieldForm::Bool)))
}
