//! Repetitions of users' texts in messages, without their length.

use std::borrow::Cow;

/// The most characters of a text in backquotes.
pub(crate) const ECHO: usize = 200;

/// The most characters of a message; an echo with backquotes of its own escapes the other bound.
const MESSAGE: usize = 2000;

/// Cuts each text in backquotes, by which messages repeat the input of users, after 200 characters, and the message after 2,000,
/// with the length behind the cut.
///
/// ```
/// let message = format!("`{}` is no port", "x".repeat(1000));
/// assert_eq!(tortie_resources::echoes_cut(&message).len(), 234);
/// ```
#[must_use]
pub fn echoes_cut(message: &str) -> Cow<'_, str> {
    let is_long = |echo: &str| end(echo, ECHO).is_some();
    if !message.split('`').skip(1).step_by(2).any(is_long) {
        return cut(message, MESSAGE);
    }
    let parts = message.split('`').enumerate().map(|(n, part)| if n % 2 == 1 { cut(part, ECHO) } else { part.into() });
    let shorter = parts.collect::<Vec<_>>().join("`");
    cut(&shorter, MESSAGE).into_owned().into()
}

/// The end of the first `limit` characters of a longer text.
fn end(text: &str, limit: usize) -> Option<usize> {
    text.char_indices().nth(limit).map(|(end, _)| end)
}

/// Returns a text with at most `limit` characters, and its length behind the cut.
pub(crate) fn cut(text: &str, limit: usize) -> Cow<'_, str> {
    match end(text, limit).and_then(|end| text.get(..end)) {
        None => text.into(),
        Some(start) => format!("{start}… ({} characters)", text.chars().count()).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_messages_repeat_of_users_is_cut_between_characters() {
        let whole = "ä".repeat(ECHO);
        let message = format!("field `a`: `{whole}` is no port");
        assert!(matches!(echoes_cut(&message), Cow::Borrowed(same) if same == message));
        let longer = echoes_cut(&format!("field `a`: `{whole}b` is no port")).into_owned();
        assert_eq!(longer, format!("field `a`: `{whole}… (201 characters)` is no port"));
    }

    #[test]
    fn backquotes_in_an_echo_do_not_keep_it_whole() {
        let message = format!("`a`{}` is no port", "x".repeat(1_000_000));
        assert!(echoes_cut(&message).chars().count() < MESSAGE + 30);
    }
}
