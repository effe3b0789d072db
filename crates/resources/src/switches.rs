//! Words without quotes that YAML 1.1 reads as booleans, in fields that are not read.

use tortie_parameters::{FieldForm, of_field};

use crate::tree::{Content, Cursor, Sink};

/// Boolean fields of Calico's kinds and of `ownerReferences`, besides those of
/// `FelixConfiguration`.
const FLAGS: [&str; 15] = [
    "applyOnForward",
    "autoAllocateBlocks",
    "blockOwnerDeletion",
    "controller",
    "datastoreReady",
    "deleted",
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

/// Reports the same words in a `FelixConfiguration`. In an unknown field of `spec` such a word is a
/// boolean: a newer Calico may have the field.
pub(crate) fn check_configuration(root: Cursor<'_, '_>, sink: &mut Sink) {
    let Some(map) = root.map(sink) else { return };
    for (name, field) in map.fields() {
        match field.content() {
            Content::Map(_) if name == "spec" => {
                let Some(spec) = field.map(sink) else { continue };
                let is_unknown = |name: &str| name != "nodeSelector" && of_field(name).is_none();
                spec.fields()
                    .filter(|(name, field)| !(is_unknown(name) && matches!(field.content(), Content::Switch(..))))
                    .for_each(|(name, field)| check_field(name, field, sink));
            }
            _ => check_field(name, field, sink),
        }
    }
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
