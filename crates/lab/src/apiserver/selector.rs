//! Label and field selectors of queries.

use serde_json::Value;

/// Restriction of a list or a watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<Requirement>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
}

impl Requirement {
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if let Some((name, value)) = text.split_once("!=") {
            return Some(Self::NotIn(name.trim().into(), vec![value.trim().into()]));
        }
        if let Some((name, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
            return Some(Self::In(name.trim().into(), vec![value.trim().into()]));
        }
        if let Some((head, values)) = text.strip_suffix(')').and_then(|text| text.split_once('(')) {
            let values = values.split(',').map(|value| value.trim().to_owned()).collect();
            let (name, operator) = head.trim().split_once(char::is_whitespace)?;
            return match operator.trim() {
                "in" => Some(Self::In(name.into(), values)),
                "notin" => Some(Self::NotIn(name.into(), values)),
                _ => None,
            };
        }
        match text.strip_prefix('!') {
            Some(name) => Some(Self::Absent(name.trim().into())),
            None if text.is_empty() || text.contains(char::is_whitespace) => None,
            None => Some(Self::Exists(text.into())),
        }
    }

    fn matches<'v>(&self, value: impl Fn(&str) -> Option<&'v str>) -> bool {
        match self {
            Self::In(name, values) => value(name).is_some_and(|value| values.iter().any(|v| v == value)),
            Self::NotIn(name, values) => value(name).is_none_or(|value| values.iter().all(|v| v != value)),
            Self::Exists(name) => value(name).is_some(),
            Self::Absent(name) => value(name).is_none(),
        }
    }
}

impl Selector {
    /// Parses both selectors; `None` if one is invalid.
    pub(super) fn parse(labels: &str, fields: &str) -> Option<Self> {
        let all = |text: &str| -> Option<Vec<Requirement>> {
            parts(text).into_iter().filter(|part| !part.trim().is_empty()).map(Requirement::parse).collect()
        };
        Some(Self { labels: all(labels)?, fields: all(fields)? })
    }

    pub(super) fn matches(&self, object: &Value) -> bool {
        let label = |name: &str| object["metadata"]["labels"][name].as_str();
        // An absent field counts as empty.
        let field = |path: &str| Some(path.split('.').fold(object, |value, name| &value[name]).as_str().unwrap_or(""));
        self.labels.iter().all(|requirement| requirement.matches(label))
            && self.fields.iter().all(|requirement| requirement.matches(field))
    }
}

/// Splits at commas outside of parentheses.
fn parts(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut begin, mut depth) = (0, 0);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' => depth -= 1,
            b',' if depth == 0 => {
                parts.push(&text[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[begin..]);
    parts
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors() {
        let object =
            json!({"metadata": {"name": "w", "labels": {"app": "web", "x/y": ""}}, "spec": {"nodeName": "n1"}});
        for (labels, fields, expected) in [
            ("", "", true),
            ("app=web", "spec.nodeName=n1", true),
            ("app in (db, web),x/y", "", true),
            ("app notin (db,web)", "", false),
            ("!app", "", false),
            ("!tier,tier!=db,x/y==", "", true),
            ("", "spec.nodeName!=n1", false),
            ("", "metadata.name=w,spec.other=", true),
        ] {
            assert_eq!(Selector::parse(labels, fields).unwrap().matches(&object), expected, "{labels} {fields}");
        }
        assert_eq!(Selector::parse("a b", ""), None);
    }
}
