//! Syntax errors with their place in the text.

use std::fmt;
use std::ops::Range;

use crate::expr::{MAX_DEPTH, MAX_LABEL_LENGTH, MAX_TERMS};

/// The reason why a text is not a selector, with its position.
///
/// `Display` is one line without the place; [`ParseError::render`] shows the text with the place
/// underlined.
///
/// ```
/// let text = "app == 'web' && tier 'db'";
/// let error = tortie_selector::Selector::parse(text).unwrap_err();
/// assert_eq!(error.to_string(), "expected operator after label `tier`, found a string");
/// assert_eq!(error.span(), 21..25);
/// assert_eq!(
///     error.render(text),
///     "app == 'web' && tier 'db'\n                     ^^^^ \
///      expected operator after label `tier`, found a string",
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind}")]
#[non_exhaustive]
pub struct ParseError {
    span: Range<usize>,
    kind: ParseErrorKind,
}

/// Kind of a syntax error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParseErrorKind {
    /// A condition was expected: a label, `has(`, `all()`, `global()`, `(` or `!`.
    ExpectedCondition(Found),
    /// `==`, `!=`, `in`, `not in`, `contains`, `starts with` or `ends with` was expected.
    ExpectedOperator {
        /// The label before it.
        label: Box<str>,
        /// The text found instead.
        found: Found,
    },
    /// A single `=`, `&` or `|`: the operators are `==`, `&&` and `||`.
    HalfOperator {
        /// The whole operator.
        whole: &'static str,
    },
    /// A string in quotes was expected after an operator.
    ExpectedString {
        /// The operator.
        operator: &'static str,
        /// The text found instead.
        found: Found,
    },
    /// A set `{…}` was expected after `in` or `not in`.
    ExpectedSet {
        /// The operator.
        operator: &'static str,
        /// The text found instead.
        found: Found,
    },
    /// A set is not continued by `,` or closed by `}`.
    ExpectedSetEnd(Found),
    /// In a set, a string in quotes or `}` was expected.
    ExpectedSetValue(Found),
    /// A string has no closing quote.
    UnterminatedString,
    /// A label is longer than [`MAX_LABEL_LENGTH`].
    LabelTooLong {
        /// Its length in bytes.
        length: usize,
    },
    /// `has(` is not followed by a label.
    ExpectedLabel(Found),
    /// `has(label`, `all(` or `global(` is not closed.
    UnclosedCall {
        /// `has`, `all` or `global`.
        function: &'static str,
        /// The text found instead of `)`.
        found: Found,
    },
    /// Space between `has`, `all` or `global` and its parenthesis.
    DetachedCall {
        /// `has`, `all` or `global`.
        function: &'static str,
    },
    /// A parenthesis after a name that is no function.
    UnknownFunction {
        /// The name.
        name: Box<str>,
    },
    /// A `(` that is never closed.
    UnclosedParenthesis,
    /// A `)` that closes nothing.
    UnmatchedParenthesis,
    /// Something other than `&&`, `||` or the end follows a complete condition.
    ExpectedEnd(Found),
    /// More than [`MAX_DEPTH`] operators nested in each other.
    TooDeep,
    /// More than [`MAX_TERMS`] conditions and values.
    TooLarge,
}

/// The text found where something else was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Found {
    /// The end of the text.
    End,
    /// A string in quotes.
    String,
    /// A word: label characters.
    Word(Box<str>),
    /// A line break; selectors are a single line, except inside strings.
    LineBreak,
    /// `==`, `!=`, `&&` or `||`.
    Operator(&'static str),
    /// Any other character.
    Char(char),
}

impl ParseError {
    pub(crate) fn new(span: Range<usize>, kind: ParseErrorKind) -> ParseError {
        ParseError { span, kind }
    }

    /// Returns the range of the offending bytes in the text. It is empty, and at the end, if
    /// something is missing there.
    #[must_use]
    pub fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> &ParseErrorKind {
        &self.kind
    }

    /// Renders the line of `text` that contains the error, and below it the marked position and the
    /// message.
    ///
    /// `text` must be the text that was parsed.
    #[must_use]
    pub fn render(&self, text: &str) -> String {
        let clamp = |offset: usize| {
            let mut offset = offset.min(text.len());
            while !text.is_char_boundary(offset) {
                offset -= 1;
            }
            offset
        };
        let start = clamp(self.span.start);
        let line_start = text[..start].rfind('\n').map_or(0, |at| at + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |at| start + at);
        let line = &text[line_start..line_end];
        let end = clamp(self.span.end).clamp(start, line_end);

        // Tabs stay tabs, so that the marks are aligned whatever the width of a tab.
        let indent = text[line_start..start].chars().map(|c| if c == '\t' { '\t' } else { ' ' });
        let width = text[start..end].chars().count().max(1);
        let mut rendered = String::with_capacity(2 * line.len() + 80);
        rendered.push_str(line);
        rendered.push('\n');
        rendered.extend(indent);
        rendered.extend(std::iter::repeat_n('^', width));
        rendered.push(' ');
        rendered.push_str(&self.to_string());
        rendered
    }
}

impl fmt::Display for ParseErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParseErrorKind::ExpectedCondition(found) => {
                write!(f, "expected a label, `has(`, `all()`, `global()`, `(` or `!`, found {found}")
            }
            ParseErrorKind::ExpectedOperator { label, found } => {
                let label = Shortened(label);
                write!(f, "expected operator after label `{label}`, found {found}")
            }
            ParseErrorKind::HalfOperator { whole } => {
                let half = whole.get(..1).unwrap_or_default();
                write!(f, "`{half}` is not an operator; is `{whole}` meant?")
            }
            ParseErrorKind::ExpectedString { operator, found } => {
                write!(f, "expected a string in quotes after `{operator}`, found {found}")
            }
            ParseErrorKind::ExpectedSet { operator, found } => {
                write!(f, "expected a set like {{'a', 'b'}} after `{operator}`, found {found}")
            }
            ParseErrorKind::ExpectedSetEnd(found) => {
                write!(f, "expected `,` or `}}` in the set, found {found}")
            }
            ParseErrorKind::ExpectedSetValue(found) => {
                write!(f, "expected a string in quotes or `}}` in the set, found {found}")
            }
            ParseErrorKind::UnterminatedString => f.write_str("unterminated string"),
            ParseErrorKind::LabelTooLong { length } => {
                write!(f, "label of {length} characters, at most {MAX_LABEL_LENGTH} are allowed")
            }
            ParseErrorKind::ExpectedLabel(found) => {
                write!(f, "expected a label in `has(`, found {found}")
            }
            ParseErrorKind::UnclosedCall { function, found } => {
                write!(f, "expected `)` to close `{function}(`, found {found}")
            }
            ParseErrorKind::DetachedCall { function } => {
                write!(f, "`{function}(` must be written without a space before `(`")
            }
            ParseErrorKind::UnknownFunction { name } => {
                write!(f, "unknown function `{}`, there are `has(label)`, `all()` and `global()`", Shortened(name))
            }
            ParseErrorKind::UnclosedParenthesis => f.write_str("`(` is never closed"),
            ParseErrorKind::UnmatchedParenthesis => f.write_str("`)` closes nothing"),
            ParseErrorKind::ExpectedEnd(found) => {
                write!(f, "expected `&&`, `||` or the end of the selector, found {found}")
            }
            ParseErrorKind::TooDeep => {
                write!(f, "more than {MAX_DEPTH} operators are nested in each other")
            }
            ParseErrorKind::TooLarge => write!(f, "more than {MAX_TERMS} conditions and values"),
        }
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Found::End => f.write_str("the end"),
            Found::String => f.write_str("a string"),
            Found::Word(word) => write!(f, "`{}`", Shortened(word)),
            Found::LineBreak => f.write_str("a line break"),
            Found::Operator(operator) => write!(f, "`{operator}`"),
            Found::Char(c) => write!(f, "`{}`", c.escape_debug()),
        }
    }
}

/// A name or word for an error message, cut after 80 characters.
struct Shortened<'a>(&'a str);

impl fmt::Display for Shortened<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LIMIT: usize = 80;
        match self.0.char_indices().nth(LIMIT) {
            Some((cut, _)) => write!(f, "{}…", &self.0[..cut]),
            None => f.write_str(self.0),
        }
    }
}

#[cfg(test)]
mod tests;
