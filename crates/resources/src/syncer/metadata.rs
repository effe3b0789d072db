//! Metadata of resources in the form for Calico's readers (`ConvertK8sResourceToCalicoResource` of
//! `libcalico-go/lib/backend/k8s/resources/resources.go`).

use serde_json::{Map as JsonMap, Value as Json};

use crate::object::{Object, STORED_METADATA};
use crate::tree::Sink;

/// Group and version whose objects have their metadata in an annotation, and other UIDs than their
/// readers know.
const STORED_API: &str = "crd.projectcalico.org/v1";
/// Fields that are useless to readers, or sent separately.
const LEFT_OUT: [&str; 5] = ["resourceVersion", "managedFields", "selfLink", "labels", "annotations"];

fn written(object: &Object<'_, '_>) -> JsonMap<String, Json> {
    match object.map.field("metadata").map(|metadata| Json::from(metadata.content())) {
        Some(Json::Object(metadata)) => metadata,
        _ => JsonMap::new(),
    }
}

/// Returns the version in the text.
pub(super) fn resource_version(object: &Object<'_, '_>, sink: &mut Sink) -> String {
    let metadata = object.map.field("metadata").and_then(|metadata| metadata.map(sink));
    metadata.map_or("", |metadata| metadata.text_or_empty("resourceVersion", sink)).to_owned()
}

/// Returns the metadata without the fields that change with each write.
pub(super) fn metadata(object: &Object<'_, '_>, sink: &mut Sink) -> Option<JsonMap<String, Json>> {
    let written = written(object);
    let is_stored = object.map.text("apiVersion", &mut Sink::default()) == Some(STORED_API);
    let mut metadata = match kept(object).filter(|_| is_stored) {
        Some(mut kept) => {
            kept.insert("name".into(), (&*object.id.name).into());
            kept.shift_remove("namespace");
            for (name, always) in [("uid", true), ("creationTimestamp", false)] {
                let absent = kept.get(name).is_none_or(Json::is_null);
                if let Some(value) = written.get(name).filter(|_| always || absent) {
                    kept.insert(name.into(), value.clone());
                }
            }
            for owner in kept.get_mut("ownerReferences").and_then(Json::as_array_mut).into_iter().flatten() {
                convert_owner(object, owner, sink)?;
            }
            kept
        }
        None => written,
    };
    for name in LEFT_OUT {
        metadata.shift_remove(name);
    }
    if is_stored && let Some(uid) = metadata.get_mut("uid") {
        *uid = converted(object, uid, sink)?;
    }
    for (name, pairs) in [("labels", &object.meta.labels), ("annotations", &object.meta.annotations)] {
        let pairs = pairs.iter().filter(|(name, _)| *name != STORED_METADATA);
        let pairs: JsonMap<String, Json> = pairs.map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
        if !pairs.is_empty() {
            metadata.insert(name.into(), pairs.into());
        }
    }
    Some(metadata)
}

/// Returns the metadata in the annotation, which has been checked before.
fn kept(object: &Object<'_, '_>) -> Option<JsonMap<String, Json>> {
    let quiet = &mut Sink::default();
    let metadata = object.map.field("metadata")?.map(quiet)?;
    let annotations = metadata.field("annotations")?.map(quiet)?;
    serde_json::from_str(annotations.text(STORED_METADATA, quiet)?).ok()
}

fn convert_owner(object: &Object<'_, '_>, owner: &mut Json, sink: &mut Sink) -> Option<()> {
    let version = owner.get("apiVersion").and_then(Json::as_str);
    if version.is_some_and(|version| version == STORED_API || version == "projectcalico.org/v3") {
        if let Some(uid) = owner.get("uid") {
            let uid = converted(object, uid, sink)?;
            *owner.get_mut("uid")? = uid;
        }
        *owner.get_mut("apiVersion")? = "projectcalico.org/v3".into();
    }
    Some(())
}

/// Returns the UID by which readers know an object, from the API server's UID.
fn converted(object: &Object<'_, '_>, uid: &Json, sink: &mut Sink) -> Option<Json> {
    let found = uid.as_str().and_then(convert_uid);
    if found.is_none() {
        object.root.error(sink, format!("metadata.uid: {uid} is not a UID"));
    }
    found.map(Json::from)
}

/// Reverses the bits of each byte except version and variant (`ConvertUID` of
/// `libcalico-go/lib/backend/k8s/conversion/conversion.go`). A second conversion restores the UID.
pub(crate) fn convert_uid(uid: &str) -> Option<String> {
    let groups: Vec<&str> = uid.split('-').collect();
    if !groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12]) {
        return None;
    }
    let digits = groups.concat();
    // A sign is not a digit.
    if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = u128::from_str_radix(&digits, 16).ok()?.to_be_bytes();
    for (at, byte) in bytes.iter_mut().enumerate() {
        if !matches!(at, 6 | 8) {
            *byte = byte.reverse_bits();
        }
    }
    let mut text = format!("{:032x}", u128::from_be_bytes(bytes));
    for at in [20, 16, 12, 8] {
        text.insert(at, '-');
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::convert_uid;

    #[test]
    fn uids_are_converted_there_and_back() {
        let uid = "30316465-6365-4463-ad63-3564622d3638";
        // Calico's `TestConvertUID` asserts that a second conversion restores the UID; the bytes
        // are those of the reversal.
        let converted = convert_uid(uid).unwrap();
        assert_eq!(converted, "0c8c26a6-c6a6-44c6-adc6-ac2646b46c1c");
        assert_eq!(convert_uid(&converted).as_deref(), Some(uid));
        for wrong in ["", "7", "30316465636544 63ad633564622d3638", "+0316465-6365-4463-ad63-3564622d3638"] {
            assert_eq!(convert_uid(wrong), None, "{wrong}");
        }
    }
}
