//! Label selectors as users type them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::str::FromStr;

use serde_json::Value;
use tortie_selector::{ParseError, Selector};

/// A label selector of kubectl's `-l`, or a selector of Calico. Where both look the same, they mean
/// the same: an object without the label is not equal to any value, and in no set.
#[derive(Clone, Debug)]
pub struct LabelQuery {
    selector: Selector,
    is_blank: bool,
}

impl LabelQuery {
    /// Reports whether the text is blank, so that every object matches.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        self.is_blank
    }

    /// Reports whether the labels of an object match.
    #[must_use]
    pub fn matches(&self, object: &Value) -> bool {
        let labels = object.pointer("/metadata/labels").and_then(Value::as_object);
        let labels: BTreeMap<&str, &str> =
            labels.into_iter().flatten().filter_map(|(name, value)| Some((name.as_str(), value.as_str()?))).collect();
        self.selector.matches(&labels)
    }
}

/// Error of a text that is no label selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LabelQueryError {
    /// A requirement is missing beside a comma.
    #[error("a requirement is missing beside a comma; a valid selector is `a=b,c!=d`")]
    NoRequirement,
    /// A closing parenthesis has no opening one.
    #[error("has a `)` too many")]
    Unopened,
    /// An opening parenthesis has no closing one.
    #[error("has no `)` for each `(`")]
    Unclosed,
    /// A requirement with parentheses is no set.
    #[error("`{0}` is neither `NAME in (A,B)` nor `NAME notin (A,B)`")]
    Set(String),
    /// A comparison of numbers, which kubectl has for node affinities only.
    #[error("`{0}`: labels are not compared as numbers here")]
    Comparison(String),
    /// The name of a label is invalid.
    #[error("`{0}` is not a valid label name")]
    Name(String),
    /// The value of a label is invalid.
    #[error("`{0}` is not a valid label value")]
    Value(String),
    /// Error of a selector of Calico.
    #[error(transparent)]
    Selector(#[from] ParseError),
}

impl FromStr for LabelQuery {
    type Err = LabelQueryError;

    fn from_str(text: &str) -> Result<Self, LabelQueryError> {
        // Quotes, braces and `&&` are Calico's; so are calls such as `all()`.
        let is_of_calico = text.contains(['\'', '"', '{', '&', '|']) || text.contains("()") || text.contains("has(");
        let calico = if is_of_calico { text.to_owned() } else { of_kubectl(text)? };
        let selector = Selector::parse(&calico)?;
        Ok(Self { selector, is_blank: text.trim().is_empty() })
    }
}

fn of_kubectl(text: &str) -> Result<String, LabelQueryError> {
    let mut out = String::new();
    for part in parts(text)? {
        let part = part.trim();
        if part.is_empty() {
            return Err(LabelQueryError::NoRequirement);
        }
        if !out.is_empty() {
            out += " && ";
        }
        out += &requirement(part)?;
    }
    Ok(if out.is_empty() { "all()".into() } else { out })
}

/// Splits a text at the commas outside of parentheses.
fn parts(text: &str) -> Result<Vec<&str>, LabelQueryError> {
    let (mut depth, mut from, mut parts) = (0_u32, 0, Vec::new());
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.checked_sub(1).ok_or(LabelQueryError::Unopened)?,
            ',' if depth == 0 => {
                parts.extend(text.get(from..at));
                from = at + 1;
            }
            _ => {}
        }
    }
    if depth > 0 {
        return Err(LabelQueryError::Unclosed);
    }
    if !text.trim().is_empty() {
        parts.extend(text.get(from..));
    }
    Ok(parts)
}

/// Converts one of `a=b`, `a==b`, `a!=b`, `a in (b,c)`, `a notin (b,c)`, `a`, `!a`.
fn requirement(text: &str) -> Result<String, LabelQueryError> {
    if let Some(name) = text.strip_prefix('!') {
        return Ok(format!("!has({})", label(name)?));
    }
    for (sign, operator) in [("!=", "!="), ("==", "=="), ("=", "==")] {
        if let Some((name, value)) = text.split_once(sign) {
            return Ok(format!("{} {operator} '{}'", label(name)?, self::value(value)?));
        }
    }
    if let Some((left, values)) = text.strip_suffix(')').and_then(|text| text.split_once('(')) {
        let mut words = left.split_whitespace();
        let (Some(name), Some(word @ ("in" | "notin")), None) = (words.next(), words.next(), words.next()) else {
            return Err(LabelQueryError::Set(text.to_owned()));
        };
        let mut set = String::new();
        for text in values.split(',') {
            // Writing to a string cannot fail.
            let _ = write!(set, "{}'{}'", if set.is_empty() { "" } else { ", " }, value(text)?);
        }
        return Ok(format!("{} {} {{{set}}}", label(name)?, if word == "in" { "in" } else { "not in" }));
    }
    if text.contains(['<', '>']) {
        return Err(LabelQueryError::Comparison(text.to_owned()));
    }
    Ok(format!("has({})", label(text)?))
}

fn label(text: &str) -> Result<&str, LabelQueryError> {
    let text = text.trim();
    let is_letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '/' | '-');
    if text.is_empty() || !text.chars().all(is_letter) {
        return Err(LabelQueryError::Name(text.to_owned()));
    }
    Ok(text)
}

fn value(text: &str) -> Result<&str, LabelQueryError> {
    let text = text.trim();
    if text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-')) {
        return Ok(text);
    }
    Err(LabelQueryError::Value(text.to_owned()))
}

#[cfg(test)]
mod tests;
