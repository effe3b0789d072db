//! Equivalence of specifications.

use serde_json::Value;

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

    use super::same;

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
