//! JSON written as YAML for users to edit.

use std::fmt::Write as _;

use serde_json::Value;

use crate::tree::{Cursor, Sink, SyntaxError, parse_yaml};
use crate::{Position, switches};

/// Formats the value as a YAML document that [`manifest`](crate::manifest) reads unchanged.
///
/// ```
/// use serde_json::json;
///
/// let tier = json!({"kind": "Tier", "metadata": {"name": "platform"}, "spec": {"order": 5, "defaultAction": "Pass"}});
/// let text = "kind: Tier\nmetadata:\n  name: platform\nspec:\n  order: 5\n  defaultAction: Pass\n";
/// assert_eq!(tortie_resources::to_yaml(&tier), text);
/// ```
#[must_use]
pub fn to_yaml(value: &Value) -> String {
    let mut text = String::new();
    block(value, 0, &mut text);
    text
}

/// Parses one YAML document, which may be JSON.
///
/// ```
/// use serde_json::json;
/// use tortie_resources::from_yaml;
///
/// assert_eq!(from_yaml("{spec: {order: 5}}"), Ok(json!({"spec": {"order": 5}})));
/// assert_eq!(from_yaml("a: [1").unwrap_err().position.line, 1);
/// ```
///
/// # Errors
/// [`SyntaxError`], also if there is no document or more than one, if a field is given twice, or if
/// a word without quotes, such as `no`, is text here and a boolean for calicoctl.
pub fn from_yaml(text: &str) -> Result<Value, SyntaxError> {
    let wrong = |message: &str| SyntaxError { position: Position { line: 1, column: 1 }, message: message.to_owned() };
    let mut documents = parse_yaml(text);
    let first = documents.next().ok_or_else(|| wrong("the document is empty"))??;
    let mut sink = Sink::default();
    switches::check(Cursor::root(&first), &mut sink);
    if let Some(problem) = sink.problems.errors().next() {
        return Err(SyntaxError { position: problem.position, message: problem.to_string() });
    }
    match documents.next() {
        None => Ok(Value::from(&first)),
        Some(_) => Err(wrong("there is more than one document")),
    }
}

/// Writes a value on separate lines.
fn block(value: &Value, indent: usize, out: &mut String) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (n, (name, value)) in fields.iter().enumerate() {
                if n > 0 {
                    pad(indent, out);
                }
                text(name, out);
                out.push(':');
                match value {
                    // Lists are not indented below their names.
                    Value::Array(items) if !items.is_empty() => {
                        out.push('\n');
                        pad(indent, out);
                        block(value, indent, out);
                    }
                    Value::Object(fields) if !fields.is_empty() => {
                        out.push('\n');
                        pad(indent + 2, out);
                        block(value, indent + 2, out);
                    }
                    _ => {
                        out.push(' ');
                        block(value, indent, out);
                    }
                }
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (n, item) in items.iter().enumerate() {
                if n > 0 {
                    pad(indent, out);
                }
                out.push_str("- ");
                block(item, indent + 2, out);
            }
        }
        Value::Object(_) => out.push_str("{}\n"),
        Value::Array(_) => out.push_str("[]\n"),
        Value::String(value) => {
            text(value, out);
            out.push('\n');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {
            let _ = writeln!(out, "{value}");
        }
    }
}

fn pad(indent: usize, out: &mut String) {
    out.extend(std::iter::repeat_n(' ', indent));
}

/// Writes a text, in quotes unless it can only be read as text.
fn text(text: &str, out: &mut String) {
    const WORDS: [&str; 9] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let is_plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'/' | b'-'))
        && !WORDS.iter().any(|word| text.eq_ignore_ascii_case(word));
    if is_plain {
        out.push_str(text);
        return;
    }
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            // The character is not printable, ends a line, or is not allowed within a text.
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}') => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, json};
    use tortie_model::Interner;

    use super::*;
    use crate::manifest::{Format, Options, read_written};

    #[test]
    fn the_text_is_formatted_conventionally() {
        let value = json!({
            "apiVersion": "projectcalico.org/v3",
            "metadata": {"name": "web", "labels": {"a": "1", "b": "yes"}, "annotations": {}},
            "spec": {
                "order": 10.5,
                "selector": "a == 'b'",
                "ingress": [{"action": "Allow", "source": {"nets": ["10.0.0.0/8"], "ports": []}}, [1, [2]]],
            },
        });
        assert_eq!(
            to_yaml(&value),
            r#"apiVersion: projectcalico.org/v3
metadata:
  name: web
  labels:
    a: "1"
    b: "yes"
  annotations: {}
spec:
  order: 10.5
  selector: "a == 'b'"
  ingress:
  - action: Allow
    source:
      nets:
      - "10.0.0.0/8"
      ports: []
  - - 1
    - - 2
"#
        );
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            (-1_000_000..1_000_000_i32).prop_map(|n| Value::from(f64::from(n) / 8.0)),
            any::<String>().prop_map(Value::from),
            "[a-zA-Z0-9:#~ .'\"-]{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::vec(("[a-zA-Z0-9:#~ .'\"-]{1,8}", inner), 0..5)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect::<Map<_, _>>())),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_text_is_read_back_unchanged(value in any_value()) {
            let whole = json!({"value": value});
            let text = to_yaml(&whole);
            let (manifest, written) =
                read_written(&text, Format::Yaml, &Options::default(), &mut Interner::new());
            prop_assert_eq!(manifest.unreadable, vec![], "{}", text);
            prop_assert_eq!(written, vec![whole], "{}", text);
        }
    }
}
