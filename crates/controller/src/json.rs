//! Fields of JSON objects.

use serde_json::{Map, Value};

/// Returns the value at a path, or null.
pub(crate) fn field<'v>(value: &'v Value, path: &[&str]) -> &'v Value {
    path.iter().try_fold(value, |value, name| value.get(name)).unwrap_or(&Value::Null)
}

/// Removes the value at a path, if there is one.
pub(crate) fn remove(value: &mut Value, path: &[&str]) {
    let Some((name, parents)) = path.split_last() else { return };
    let parent = parents.iter().try_fold(value, |value, name| value.get_mut(name));
    if let Some(Value::Object(fields)) = parent {
        fields.shift_remove(*name);
    }
}

/// Sets the value at a path. A value on the way that is not an object is replaced with an object.
pub(crate) fn set(value: &mut Value, path: &[&str], new: Value) {
    let mut place = value;
    for name in path {
        if !place.is_object() {
            *place = Value::Object(Map::new());
        }
        let Value::Object(fields) = place else { return };
        place = fields.entry(*name).or_insert(Value::Null);
    }
    *place = new;
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn places_that_are_not_there() {
        let mut value = json!({"spec": 7});
        assert_eq!(field(&value, &["spec", "pod"]), &Value::Null);
        set(&mut value, &["spec", "pod"], "p".into());
        set(&mut value, &["metadata", "labels", "a"], "b".into());
        assert_eq!(value, json!({"spec": {"pod": "p"}, "metadata": {"labels": {"a": "b"}}}));
        assert_eq!(field(&value, &["metadata", "labels"]), &json!({"a": "b"}));
    }
}
