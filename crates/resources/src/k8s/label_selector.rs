//! Label selectors of Kubernetes, as selectors of endpoints.

use std::fmt::Write as _;

use tortie_model::{NODE_LABEL, NODE_LABEL_PREFIX};

use crate::object::reserved::ORCHESTRATOR_LABEL;
use crate::object::{is_label_name, is_label_value};
use crate::tree::{Cursor, Map, Sink};

/// Returns the selector of endpoints for a pod selector: pods of Kubernetes with these labels.
/// Without a field, it selects all pods.
pub(crate) fn of_pods(field: Option<Cursor<'_, '_>>, sink: &mut Sink) -> String {
    let mut terms = vec![format!("{ORCHESTRATOR_LABEL} == 'k8s'")];
    if let Some(map) = field.and_then(|field| field.map(sink)) {
        terms.extend(requirements("", map, sink));
    }
    terms.join(" && ")
}

/// Returns the selector of rules for a node selector; an empty one selects all nodes.
pub(super) fn of_nodes(field: Cursor<'_, '_>, sink: &mut Sink) -> String {
    let mut terms = vec![format!("has({NODE_LABEL})")];
    if let Some(map) = field.map(sink) {
        terms.extend(requirements(NODE_LABEL_PREFIX, map, sink));
    }
    terms.join(" && ")
}

/// Returns the selector over namespace labels for a namespace selector; an empty one selects all
/// namespaces.
pub(super) fn of_namespaces(field: Cursor<'_, '_>, sink: &mut Sink) -> String {
    let terms = field.map(sink).map(|map| requirements("", map, sink)).unwrap_or_default();
    if terms.is_empty() { "all()".into() } else { terms.join(" && ") }
}

/// Returns the terms of a selector; `prefix` precedes each name of a label.
fn requirements(prefix: &str, map: Map<'_, '_>, sink: &mut Sink) -> Vec<String> {
    map.only(&["matchLabels", "matchExpressions"], sink);
    let mut terms = Vec::new();
    if let Some(field) = map.field("matchLabels") {
        let mut labels = field.text_map(sink);
        labels.sort_unstable();
        for (name, value) in labels {
            check(field, name, &[value], sink);
            terms.push(format!("{prefix}{name} == '{value}'"));
        }
    }
    terms.extend(map.list("matchExpressions", sink, |cursor, sink| expression(prefix, cursor, sink)));
    terms
}

fn expression(prefix: &str, cursor: Cursor<'_, '_>, sink: &mut Sink) -> Option<String> {
    let map = cursor.map(sink)?;
    map.only(&["key", "operator", "values"], sink);
    let values = map.texts("values", sink);
    let name = map.text_or_empty("key", sink);
    check(cursor, name, &values, sink);
    let Some(field) = map.field("operator") else {
        map.missing("operator", sink);
        return None;
    };
    let operator = field.text(sink)?;
    match (operator, values.is_empty()) {
        ("In" | "NotIn", true) => map.error(sink, format!("operator {operator} needs values")),
        ("Exists" | "DoesNotExist", false) => map.error(sink, format!("operator {operator} takes no values")),
        _ => {}
    }
    let mut set = String::new();
    for value in &values {
        let _ = write!(set, "{}'{value}'", if set.is_empty() { "" } else { ", " });
    }
    Some(match operator {
        "In" => format!("{prefix}{name} in {{ {set} }}"),
        "NotIn" => format!("{prefix}{name} not in {{ {set} }}"),
        "Exists" => format!("has({prefix}{name})"),
        "DoesNotExist" => format!("! has({prefix}{name})"),
        other => {
            field.error(sink, format!("`{other}` is none of In, NotIn, Exists, DoesNotExist"));
            return None;
        }
    })
}

/// Checks names and values, which go into a selector verbatim, so that only valid labels do.
fn check(cursor: Cursor<'_, '_>, name: &str, values: &[&str], sink: &mut Sink) {
    if !is_label_name(name) {
        cursor.error(sink, format!("`{name}` is not a valid label name"));
    }
    for value in values.iter().filter(|value| !is_label_value(value)) {
        cursor.error(sink, format!("`{value}` is not a value for label `{name}`"));
    }
}
