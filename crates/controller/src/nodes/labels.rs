//! Copy of node labels from Kubernetes to Calico
//! (`kube-controllers/pkg/controllers/node/labels.go`).

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::json::{field, set};

/// Annotation with the labels that came from Kubernetes, so that labels of users stay.
const ANNOTATION: &str = "projectcalico.org/kube-labels";

/// Invalid labels in Kubernetes or in the annotation.
#[derive(Debug, thiserror::Error)]
pub(super) enum LabelsError {
    #[error("the labels of the Kubernetes node are invalid")]
    OfKubernetes,
    #[error("annotation {ANNOTATION}: is no text")]
    NoText,
    #[error("annotation {ANNOTATION}")]
    Json(#[from] serde_json::Error),
}

/// Returns the node with its labels from Kubernetes; `None` if it has them already.
///
/// # Errors
/// If the annotation with the earlier labels from Kubernetes is invalid.
pub(super) fn synced(node: &Value, labels: &BTreeMap<String, String>) -> Result<Option<Value>, LabelsError> {
    let before: BTreeMap<String, String> = match field(node, &["metadata", "annotations", ANNOTATION]) {
        Value::Null => BTreeMap::new(),
        Value::String(text) => serde_json::from_str(text)?,
        _ => return Err(LabelsError::NoText),
    };
    let own = field(node, &["metadata", "labels"]);
    let mut all: Map<String, Value> = own.as_object().cloned().unwrap_or_default();
    for name in before.keys().filter(|name| !labels.contains_key(*name)) {
        all.shift_remove(name);
    }
    all.extend(labels.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str()))));
    if own.as_object().map_or_else(|| all.is_empty(), |own| *own == all) {
        return Ok(None);
    }
    let mut node = node.clone();
    set(&mut node, &["metadata", "labels"], all.into());
    set(&mut node, &["metadata", "annotations", ANNOTATION], json!(labels).to_string().into());
    Ok(Some(node))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn labels_of_users_stay() {
        let node = json!({"metadata": {"labels": {"rack": "r1", "zone": "mine"}}, "spec": {}});
        let first = synced(&node, &labels(&[("zone", "a"), ("old", "1")])).expect("it can be").expect("it differs");
        assert_eq!(first["metadata"]["labels"], json!({"rack": "r1", "zone": "a", "old": "1"}));
        assert_eq!(first["metadata"]["annotations"][ANNOTATION], r#"{"old":"1","zone":"a"}"#);
        assert_eq!(synced(&first, &labels(&[("zone", "a"), ("old", "1")])).expect("it can be"), None);
        let second = synced(&first, &labels(&[("zone", "b")])).expect("it can be").expect("it differs");
        assert_eq!(second["metadata"]["labels"], json!({"rack": "r1", "zone": "b"}));
        // A label that another process removed is restored.
        let mut without = second.clone();
        without["metadata"]["labels"] = json!({"rack": "r1"});
        assert_eq!(synced(&without, &labels(&[("zone", "b")])).expect("it can be"), Some(second));
    }

    #[test]
    fn without_the_record_of_labels_from_kubernetes_nothing_changes() {
        let node = json!({"metadata": {"labels": {"a": "b"}, "annotations": {ANNOTATION: "{"}}});
        assert!(synced(&node, &labels(&[])).is_err());
        assert_eq!(synced(&json!({"metadata": {}}), &labels(&[])).expect("it can be"), None);
    }
}
