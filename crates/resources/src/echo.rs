//! Bounded repetitions of user input in messages.

use std::borrow::Cow;

/// The most characters of a text in backquotes.
pub(crate) const ECHO: usize = 200;

/// The most characters of a message. It bounds an echo that contains backquotes, which escapes the
/// other bound.
const MESSAGE: usize = 2000;

/// The most characters of a word outside of quotes; kind, namespace and name of an object fit.
const WORD: usize = 400;

/// Cuts each text in backquotes, by which messages repeat the input of users, after 200 characters,
/// and the message after 2,000, with the length behind the cut.
///
/// ```
/// let message = format!("`{}` is no port", "x".repeat(1000));
/// assert_eq!(tortie_resources::echoes_cut(&message).len(), 234);
/// ```
#[must_use]
pub fn echoes_cut(message: &str) -> Cow<'_, str> {
    let has_long_echo = message.split('`').skip(1).step_by(2).any(|echo| end(echo, ECHO).is_some());
    if !has_long_echo && !message.split_whitespace().any(|word| end(word, WORD).is_some()) {
        return cut(message, MESSAGE);
    }
    let parts = message.split('`').enumerate();
    let parts = parts.map(|(n, part)| if n % 2 == 1 { cut(part, ECHO).into_owned() } else { words_cut(part) });
    let shorter = parts.collect::<Vec<_>>().join("`");
    cut(&shorter, MESSAGE).into_owned().into()
}

/// Returns a text whose long words are cut.
fn words_cut(text: &str) -> String {
    let words = text.split_inclusive(char::is_whitespace);
    let parts = words.map(|word| word.split_at(word.trim_end().len()));
    parts
        .map(
            |(word, blank)| {
                if end(word, WORD).is_some() { cut(word, ECHO) + blank } else { (word.to_owned() + blank).into() }
            },
        )
        .collect()
}

/// Returns the end of the first `limit` characters of a longer text.
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
    fn a_long_word_is_cut() {
        let name = format!("NetworkPolicy/{}/{}: is wrong", "n".repeat(63), "p".repeat(253));
        assert_eq!(echoes_cut(&name), name);
        let long = echoes_cut(&format!("there is no {} here", "x".repeat(5_000))).into_owned();
        assert!(long.starts_with("there is no x") && long.ends_with(" here") && long.len() < 300, "{long}");
    }

    #[test]
    fn echoed_input_is_cut_between_characters() {
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
