//! Text of users as terminals and logs show it: without characters that move, hide or forge what stands around it.
//!
//! Escapes have the form of JSON (`\n`, `\u001b`), so that JSON with escaped characters stays the same JSON.

use std::borrow::Cow;
use std::fmt::Write as _;

/// The most characters of a user's text that an error repeats.
pub(crate) const ECHO: usize = 200;

/// Escapes a text that is one line: control characters, line ends, marks that change the direction of text, and characters
/// without width.
#[must_use]
pub(crate) fn line(text: &str) -> Cow<'_, str> {
    escaped(text, is_hidden)
}

/// Escapes a text of several lines like [`line()`], except for line feeds and tabs.
#[must_use]
pub(crate) fn text(text: &str) -> Cow<'_, str> {
    escaped(text, |c| is_hidden(c) && !matches!(c, '\n' | '\t'))
}

/// Escapes a text like [`text`], except for the sequences that colour it: users' own were escaped before the text was coloured.
#[must_use]
pub(crate) fn coloured(text: &str) -> Cow<'_, str> {
    escaped(text, |c| is_hidden(c) && !matches!(c, '\n' | '\t' | '\u{1b}'))
}

/// Cuts each text in backquotes, by which messages repeat the input of users, after [`ECHO`] characters, with its length behind
/// the cut.
#[must_use]
pub(crate) fn echoes_cut(message: &str) -> Cow<'_, str> {
    let is_long = |text: &str| text.char_indices().nth(ECHO).map(|(end, _)| end);
    if !message.split('`').skip(1).step_by(2).any(|echo| is_long(echo).is_some()) {
        return Cow::Borrowed(message);
    }
    let parts = message.split('`').enumerate().map(|(n, part)| match is_long(part).filter(|_| n % 2 == 1) {
        None => Cow::Borrowed(part),
        Some(end) => {
            Cow::Owned(format!("{}… ({} characters)", part.get(..end).unwrap_or_default(), part.chars().count()))
        }
    });
    Cow::Owned(parts.collect::<Vec<_>>().join("`"))
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

/// Whether a character changes how others are shown. None lies beyond U+FFFF, so that four digits suffice.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{061c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        )
}

#[cfg(test)]
mod tests;
