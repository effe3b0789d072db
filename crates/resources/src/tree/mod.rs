//! Documents as trees with the position of each part.
//!
//! Trees are short-lived: one document is parsed, converted to typed values and dropped before the
//! next.

mod cursor;
mod json;
mod problems;
mod reader_options;
mod yaml;

use std::borrow::Cow;

pub(crate) use cursor::{Cursor, Map, Sink, UnknownField};
pub(crate) use json::parse as parse_json;
pub(crate) use problems::Problems;
pub use reader_options::{ParameterCheck, ParameterRemark, RulePositions};
pub(crate) use yaml::parse as parse_yaml;

use crate::Position;

/// Part of a document.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node<'t> {
    pub(crate) position: Position,
    pub(crate) extent: Extent,
    pub(crate) content: Content<'t>,
}

/// Extent of a number, a word or a text in its line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Length in characters; 0 if unknown, as for content of several lines.
    pub(crate) length: u32,
    /// Offset of the text itself in characters, if it is written without escapes.
    pub(crate) text_at: Option<u32>,
}

/// Content of a [`Node`].
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Content<'t> {
    Null,
    Bool(bool),
    /// A word without quotes that YAML 1.1 reads as this boolean, and YAML 1.2 as text: `yes`, `n`,
    /// `off`. kubectl and calicoctl read YAML 1.1.
    Switch(bool, Cow<'t, str>),
    Int(i64),
    Float(f64),
    Text(Cow<'t, str>),
    List(Vec<Node<'t>>),
    Map(Vec<Entry<'t>>),
}

/// Field of a mapping.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry<'t> {
    pub(crate) key: Cow<'t, str>,
    /// The boolean as which YAML 1.1 reads the name; see [`Content::Switch`].
    pub(crate) switch: Option<bool>,
    pub(crate) position: Position,
    pub(crate) node: Node<'t>,
}

impl Content<'_> {
    /// Returns the noun for this kind of content in messages.
    pub(crate) fn noun(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Bool(_) | Self::Switch(..) => "true or false",
            Self::Int(_) | Self::Float(_) => "a number",
            Self::Text(_) => "text",
            Self::List(_) => "a list",
            Self::Map(_) => "a mapping",
        }
    }
}

/// Syntax error of a document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{position}: {message}")]
pub struct SyntaxError {
    /// Position where parsing stopped.
    pub position: Position,
    /// The reason.
    pub message: String,
}

impl<'t> From<&'t serde_json::Value> for Node<'t> {
    /// Converts a value that was parsed elsewhere, without positions.
    fn from(value: &'t serde_json::Value) -> Self {
        use serde_json::Value;
        let content = match value {
            Value::Null => Content::Null,
            Value::Bool(b) => Content::Bool(*b),
            Value::Number(n) => match n.as_i64() {
                Some(int) => Content::Int(int),
                None => Content::Float(n.as_f64().unwrap_or(f64::INFINITY)),
            },
            Value::String(s) => Content::Text(Cow::Borrowed(s)),
            Value::Array(items) => Content::List(items.iter().map(Node::from).collect()),
            Value::Object(fields) => Content::Map(
                fields
                    .iter()
                    .map(|(key, value)| Entry {
                        key: Cow::Borrowed(key),
                        switch: None,
                        position: Position::default(),
                        node: Node::from(value),
                    })
                    .collect(),
            ),
        };
        Self { position: Position::default(), extent: Extent::default(), content }
    }
}

impl From<&Node<'_>> for serde_json::Value {
    /// Converts a node, without positions. A number that JSON cannot represent becomes null.
    fn from(node: &Node<'_>) -> Self {
        Self::from(&node.content)
    }
}

impl From<&Content<'_>> for serde_json::Value {
    /// As for the whole node.
    fn from(content: &Content<'_>) -> Self {
        match content {
            Content::Null => Self::Null,
            Content::Bool(b) | Content::Switch(b, _) => (*b).into(),
            Content::Int(int) => (*int).into(),
            Content::Float(float) => (*float).into(),
            Content::Text(text) => text.as_ref().into(),
            Content::List(items) => items.iter().map(Self::from).collect(),
            Content::Map(entries) => {
                Self::Object(entries.iter().map(|entry| (entry.key.to_string(), Self::from(&entry.node))).collect())
            }
        }
    }
}

#[cfg(test)]
mod tests;
