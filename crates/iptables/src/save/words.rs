//! Splits a printed rule of `iptables-save` into words.

/// Quotes of a text, byte by byte.
#[derive(Debug, Default)]
pub(super) struct Quotes {
    is_open: bool,
    is_escaped: bool,
}

impl Quotes {
    pub(super) fn take(&mut self, byte: u8) {
        match byte {
            _ if self.is_escaped => self.is_escaped = false,
            b'\\' => self.is_escaped = true,
            b'"' => self.is_open = !self.is_open,
            _ => {}
        }
    }

    /// Reports whether every quote is closed.
    pub(super) fn are_closed(&self) -> bool {
        !self.is_open
    }
}

/// The words of a rule; a quoted one is a single word, without its quotes but with its escapes.
pub(super) fn unquoted_words(rule: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = rule;
    std::iter::from_fn(move || {
        rest = rest.trim_ascii_start();
        if let Some(quoted) = rest.strip_prefix(b"\"") {
            let end = closing_quote(quoted);
            let word = quoted.get(..end)?;
            rest = quoted.get(end + 1..).unwrap_or_default();
            return Some(word);
        }
        if rest.is_empty() {
            return None;
        }
        let end = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
        let (word, behind) = rest.split_at_checked(end)?;
        rest = behind;
        Some(word)
    })
}

fn closing_quote(text: &[u8]) -> usize {
    let mut escaped = false;
    let closing = text.iter().position(|byte| {
        let closes = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        closes
    });
    closing.unwrap_or(text.len())
}
