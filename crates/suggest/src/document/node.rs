//! Values with comments.

use serde_json::Value;
use tortie_resources::to_yaml;

/// A value whose list items may have comments.
pub(crate) enum Node {
    Map(Vec<(&'static str, Node)>),
    List(Vec<(Vec<String>, Node)>),
    Value(Value),
}

impl From<Value> for Node {
    fn from(value: Value) -> Self {
        Self::Value(value)
    }
}

impl Node {
    /// Returns the value without comments.
    pub(crate) fn value(self) -> Value {
        match self {
            Self::Map(fields) => fields.into_iter().map(|(name, node)| (name.to_owned(), node.value())).collect(),
            Self::List(items) => items.into_iter().map(|(_, node)| node.value()).collect(),
            Self::Value(value) => value,
        }
    }

    /// Appends the value as YAML.
    pub(crate) fn write(&self, text: &mut String) {
        for line in self.lines() {
            text.push_str(&line);
            text.push('\n');
        }
    }

    fn lines(&self) -> Vec<String> {
        match self {
            Self::Value(value) => to_yaml(value).lines().map(str::to_owned).collect(),
            Self::Map(fields) => fields.iter().flat_map(|(name, node)| field(name, node)).collect(),
            Self::List(items) => items.iter().flat_map(|(comments, node)| item(comments, node)).collect(),
        }
    }

    /// Reports whether the value takes lines below its name, and is indented there.
    fn is_below(&self) -> (bool, bool) {
        match self {
            Self::Map(_) | Self::Value(Value::Object(_)) => (true, true),
            Self::List(_) | Self::Value(Value::Array(_)) => (true, false),
            Self::Value(_) => (false, false),
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Map(fields) => fields.is_empty(),
            Self::List(items) => items.is_empty(),
            Self::Value(value) => {
                value.as_object().is_some_and(serde_json::Map::is_empty) || value.as_array().is_some_and(Vec::is_empty)
            }
        }
    }
}

fn field(name: &str, node: &Node) -> Vec<String> {
    let lines = node.lines();
    let (is_below, is_indented) = node.is_below();
    if !is_below || node.is_empty() {
        return vec![format!("{name}: {}", lines.concat())];
    }
    let indent = if is_indented { "  " } else { "" };
    let below = lines.iter().map(|line| format!("{indent}{line}"));
    std::iter::once(format!("{name}:")).chain(below).collect()
}

fn item(comments: &[String], node: &Node) -> Vec<String> {
    let lines = node.lines();
    let mut marker = "- ";
    let item = lines.iter().map(|line| format!("{}{line}", std::mem::replace(&mut marker, "  ")));
    comments.iter().map(|comment| format!("# {comment}")).chain(item).collect()
}
