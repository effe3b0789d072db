//! Domain names and patterns of them.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The longest name, in characters, without a trailing dot (RFC 1035, 255 bytes on the wire).
const MAX_NAME: usize = 253;
/// The longest label, in characters.
const MAX_LABEL: usize = 63;

/// A domain name: labels of 1 to 63 letters, digits, hyphens and underscores, at most 253
/// characters in total. Cheap to clone.
///
/// Names compare without case, so the text has lower case; it has no trailing dot.
///
/// ```
/// use tortie_net::DomainName;
/// let name: DomainName = "API.Example.com.".parse()?;
/// assert_eq!(name.as_str(), "api.example.com");
/// assert_eq!(name.labels().next_back(), Some("com"));
/// # Ok::<(), tortie_net::DomainParseError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DomainName(Arc<str>);

impl DomainName {
    /// Returns the name in lower case, without a trailing dot.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the labels from left to right; there are at least 1 and at most 127.
    #[must_use]
    pub fn labels(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.split('.')
    }

    /// Reports whether this is a name below `parent`, with one more label or several.
    #[must_use]
    pub fn is_below(&self, parent: &Self) -> bool {
        self.0.strip_suffix(parent.as_str()).is_some_and(|rest| rest.ends_with('.'))
    }
}

/// A domain name, or a pattern of names with the label `*`, which stands for one or more labels.
/// Cheap to clone.
///
/// `*` is a whole label, occurs at most once, and is not the last label: `*.example.com` matches
/// `a.example.com` and `a.b.example.com`, but neither `example.com` nor `an-example.com`. A pattern
/// has the alphabet, the bounds and the normal form of a [`DomainName`].
///
/// ```
/// use tortie_net::DomainPattern;
/// let pattern: DomainPattern = "*.Example.com".parse()?;
/// assert_eq!(pattern.to_string(), "*.example.com");
/// assert!(pattern.matches(&"a.b.example.com".parse()?));
/// assert!(!pattern.matches(&"example.com".parse()?));
/// # Ok::<(), tortie_net::DomainParseError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DomainPattern {
    text: Arc<str>,
    /// The position of `*`, which the text determines.
    star: Option<u8>,
}

impl DomainPattern {
    /// Returns the pattern in lower case, without a trailing dot.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the text before and after the label `*`, without the dots beside it: `("www",
    /// "example.com")` for `www.*.example.com`, an empty text for `*.example.com`. `None` if the
    /// pattern is a name.
    #[must_use]
    pub fn around_star(&self) -> Option<(&str, &str)> {
        let (before, after) = self.text.split_at_checked(usize::from(self.star?))?;
        Some((before.strip_suffix('.').unwrap_or(before), after.strip_prefix("*.")?))
    }

    /// Reports whether the pattern matches a name.
    #[must_use]
    pub fn matches(&self, name: &DomainName) -> bool {
        let Some((before, after)) = self.around_star() else { return *self.text == *name.0 };
        let Some(rest) = name.0.strip_suffix(after).and_then(|rest| rest.strip_suffix('.')) else { return false };
        if before.is_empty() {
            return !rest.is_empty();
        }
        let middle = rest.strip_prefix(before).and_then(|rest| rest.strip_prefix('.'));
        middle.is_some_and(|middle| !middle.is_empty())
    }
}

/// Text that is no domain name, or no pattern of names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no domain name: {problem}, at character {position}")]
pub struct DomainParseError {
    /// The offending text.
    pub text: String,
    /// The place of the problem, in characters from 1.
    pub position: usize,
    /// The broken rule.
    pub problem: DomainProblem,
}

/// The rule that a text breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DomainProblem {
    /// There is no label.
    #[error("it is empty")]
    Empty,
    /// Nothing is before a dot.
    #[error("a label is empty")]
    EmptyLabel,
    /// A label has more than 63 characters.
    #[error("a label has more than 63 characters")]
    LongLabel,
    /// The name has more than 253 characters.
    #[error("it has more than 253 characters")]
    Long,
    /// A character of no name. An internationalized name is written with `xn--` labels.
    #[error("`{}` is not a letter, digit, `-` or `_`{}", .0.escape_default(), ascii_hint(*.0))]
    Character(char),
    /// `*` where a name is required.
    #[error("`*` is not allowed here")]
    Wildcard,
    /// `*` as a part of a label.
    #[error("`*` must be a whole label")]
    PartialWildcard,
    /// A second `*`.
    #[error("`*` may occur only once")]
    SecondWildcard,
    /// `*` as the last label, or alone.
    #[error("`*` must not be the last label")]
    LastWildcard,
}

/// Returns advice for names with characters of other alphabets.
fn ascii_hint(character: char) -> &'static str {
    if character.is_ascii() { "" } else { "; write labels with other characters as `xn--…`" }
}

/// Checks a text, and returns its normal form with the position of `*`.
fn normal_form(text: &str, with_star: bool) -> Result<(Arc<str>, Option<u8>), DomainParseError> {
    let error = |at: usize, problem| {
        let position = text.char_indices().take_while(|(index, _)| *index < at).count() + 1;
        Err(DomainParseError { text: text.to_owned(), position, problem })
    };
    let name = text.strip_suffix('.').unwrap_or(text);
    if name.is_empty() {
        return error(0, DomainProblem::Empty);
    }
    let (mut at, mut star) = (0, None);
    for label in name.split('.') {
        if label == "*" {
            match u8::try_from(at) {
                _ if !with_star => return error(at, DomainProblem::Wildcard),
                _ if star.is_some() => return error(at, DomainProblem::SecondWildcard),
                _ if at + 1 == name.len() => return error(at, DomainProblem::LastWildcard),
                Err(_) => return error(MAX_NAME, DomainProblem::Long),
                Ok(place) => star = Some(place),
            }
        } else if let Err((offset, problem)) = check_label(label, with_star) {
            return error(at + offset, problem);
        }
        at += label.len() + 1;
    }
    if name.len() > MAX_NAME {
        return error(MAX_NAME, DomainProblem::Long);
    }
    Ok((name.to_ascii_lowercase().into(), star))
}

/// Returns the place and the kind of the first problem of a label.
fn check_label(label: &str, with_star: bool) -> Result<(), (usize, DomainProblem)> {
    for (at, character) in label.char_indices() {
        match character {
            _ if at >= MAX_LABEL => return Err((at, DomainProblem::LongLabel)),
            'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' => {}
            '*' if with_star => return Err((at, DomainProblem::PartialWildcard)),
            '*' => return Err((at, DomainProblem::Wildcard)),
            other => return Err((at, DomainProblem::Character(other))),
        }
    }
    if label.is_empty() { Err((0, DomainProblem::EmptyLabel)) } else { Ok(()) }
}

impl FromStr for DomainName {
    type Err = DomainParseError;

    /// Accepts letters of both cases and one trailing dot.
    fn from_str(text: &str) -> Result<Self, DomainParseError> {
        normal_form(text, false).map(|(text, _)| Self(text))
    }
}

impl FromStr for DomainPattern {
    type Err = DomainParseError;

    /// Accepts letters of both cases and one trailing dot.
    fn from_str(text: &str) -> Result<Self, DomainParseError> {
        normal_form(text, true).map(|(text, star)| Self { text, star })
    }
}

impl From<DomainName> for DomainPattern {
    fn from(name: DomainName) -> Self {
        Self { text: name.0, star: None }
    }
}

impl fmt::Display for DomainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for DomainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for DomainPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for DomainPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

crate::serde_text!(DomainName, crate::de_text);
crate::serde_text!(DomainPattern, crate::de_text);

#[cfg(test)]
mod tests;
