//! Text of users for terminals and logs: without characters that move, hide or forge the text
//! around it.
//!
//! Escapes have the form of JSON (`\n`, `\u001b`), so that JSON with escaped characters stays the
//! same JSON.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Escapes a text that is one line: control characters, line ends, marks that change the direction
/// of text, and characters without width.
#[must_use]
pub fn line(text: &str) -> Cow<'_, str> {
    escaped(text, is_hidden)
}

/// Escapes a text of several lines like [`line()`], except for line feeds and tabs.
#[must_use]
pub fn text(text: &str) -> Cow<'_, str> {
    escaped(text, |c| is_hidden(c) && !matches!(c, '\n' | '\t'))
}

/// Escapes a text like [`text`], except for the sequences that colour it: users' own were escaped
/// before the text was coloured.
#[must_use]
pub fn coloured(text: &str) -> Cow<'_, str> {
    escaped(text, |c| is_hidden(c) && !matches!(c, '\n' | '\t' | '\u{1b}'))
}

fn escaped(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            c if !is_escaped(c) => out.push(c),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c => {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
        }
    }
    Cow::Owned(out)
}

/// Whether a character changes how others are shown. None lies beyond U+FFFF, so that four digits
/// suffice.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{061c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        )
}

#[cfg(test)]
mod tests;
