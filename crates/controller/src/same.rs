//! Equivalence of the parts of resources that the controller owns.

use serde_json::Value;
use tortie_resources::to_v3::DENY_ACTION;

use crate::json::{field, remove, set};

/// The parts of a resource that follow its object in Kubernetes; all others belong to users.
const OWNED: [&[&str]; 2] = [&["spec"], &["metadata", "annotations", DENY_ACTION]];

/// Reports whether the owned parts of a stored resource are equivalent to the desired ones.
pub(crate) fn is_like(stored: &Value, desired: &Value) -> bool {
    OWNED.iter().all(|path| same(field(stored, path), field(desired, path)))
}

/// Replaces the owned parts of a stored resource by the desired ones.
pub(crate) fn make_like(stored: &mut Value, desired: &Value) {
    for path in OWNED {
        match field(desired, path) {
            Value::Null => remove(stored, path),
            part => set(stored, path, part.clone()),
        }
    }
}

/// Reports whether two values are equivalent: 1000 equals 1000.0, and an empty value equals an
/// absent one, as Go programs serialize it.
pub(crate) fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            let covered = |a: &serde_json::Map<_, _>, b: &serde_json::Map<String, Value>| {
                a.iter().all(|(name, value): (&String, &Value)| match b.get(name) {
                    Some(other) => same(value, other),
                    None => is_empty(value),
                })
            };
            covered(a, b) && b.iter().all(|(name, value)| a.contains_key(name) || is_empty(value))
        }
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (a, b) => a == b || is_empty(a) && is_empty(b),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.values().all(is_empty),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tortie_resources::to_v3::DENY_ACTION;

    use super::{is_like, make_like, same};

    #[test]
    fn only_owned_parts_are_compared_and_replaced() {
        let annotated = |action: Option<&str>, note: Option<&str>, order: u32| {
            let mut annotations = serde_json::Map::new();
            annotations.extend(action.map(|action| (DENY_ACTION.to_owned(), json!(action))));
            annotations.extend(note.map(|note| ("note".to_owned(), json!(note))));
            json!({"metadata": {"name": "p", "annotations": annotations}, "spec": {"order": order}})
        };
        let stored = annotated(Some("Reject"), Some("kept"), 1);
        assert!(is_like(&stored, &annotated(Some("Reject"), None, 1)));
        for (desired, expected) in [
            (annotated(Some("Drop"), None, 1), annotated(Some("Drop"), Some("kept"), 1)),
            (annotated(None, None, 1), annotated(None, Some("kept"), 1)),
            (annotated(Some("Reject"), None, 2), annotated(Some("Reject"), Some("kept"), 2)),
        ] {
            assert!(!is_like(&stored, &desired), "{desired}");
            let mut made = stored.clone();
            make_like(&mut made, &desired);
            assert_eq!(made, expected);
            assert!(is_like(&made, &desired));
        }
        let mut bare = json!({"metadata": {"name": "p"}, "spec": {}});
        make_like(&mut bare, &json!({"spec": {"order": 1}}));
        assert_eq!(bare, json!({"metadata": {"name": "p"}, "spec": {"order": 1}}));
        make_like(&mut bare, &annotated(Some("Reject"), None, 1));
        assert_eq!(bare, annotated(Some("Reject"), None, 1));
    }

    #[test]
    fn equivalent_values_are_the_same() {
        let ours = json!({"order": 1000.0, "types": ["Ingress"], "ingress": [{"action": "Allow", "destination": {"ports": [80]}}]});
        let go = json!({"order": 1000, "types": ["Ingress"], "egress": null, "ingress": [
            {"action": "Allow", "source": {}, "destination": {"ports": [80]}}]});
        assert!(same(&ours, &go) && same(&go, &ours));
        for (path, value) in
            [("order", json!(999)), ("types", json!([])), ("egress", json!([{}])), ("selector", json!(""))]
        {
            let mut other = go.clone();
            other[path] = value;
            assert!(!same(&ours, &other) && !same(&other, &ours), "{path}");
        }
        // An empty rule in a list is a rule.
        assert!(!same(&json!([{}]), &json!([])) && !same(&json!([]), &json!([{}])));
        assert!(same(&json!({}), &json!(null)));
        assert!(!same(&json!(0), &json!(null)));
    }
}
