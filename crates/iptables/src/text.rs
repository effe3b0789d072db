//! A short ASCII string kept in place: names are compared, hashed and copied by the ten thousand.

use std::fmt;

/// At most `N` bytes of printable ASCII.  Unused bytes are zero, so the derived order is the order
/// of the text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct InlineText<const N: usize> {
    bytes: [u8; N],
    len: u8,
}

impl<const N: usize> InlineText<N> {
    /// `None` if `text` is empty, too long, or would not survive as one bare word of an
    /// `iptables-restore` line.
    #[expect(clippy::indexing_slicing, reason = "the text is no longer than the array")]
    pub(crate) const fn new(text: &str) -> Option<Self> {
        let source = text.as_bytes();
        if source.is_empty() || source.len() > N || !is_bare_word(source) {
            return None;
        }
        let mut bytes = [0; N];
        let mut i = 0;
        while i < source.len() {
            bytes[i] = source[i];
            i += 1;
        }
        // N is at most 31.
        #[allow(clippy::cast_possible_truncation, reason = "every N in this crate is below 32")]
        let len = source.len() as u8;
        Some(Self { bytes, len })
    }

    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(self.bytes.get(..usize::from(self.len)).unwrap_or_default()).unwrap_or_default()
    }
}

impl<const N: usize> fmt::Debug for InlineText<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// One unquoted argument for `iptables-restore`: printable ASCII without quotes or backslash, and
/// not starting like an option or a negation.
const fn is_bare_word(mut text: &[u8]) -> bool {
    if matches!(text.first(), Some(b'-' | b'!' | b'#' | b':' | b'*')) {
        return false;
    }
    while let [byte, rest @ ..] = text {
        if !byte.is_ascii_graphic() || matches!(byte, b'"' | b'\'' | b'\\') {
            return false;
        }
        text = rest;
    }
    true
}
