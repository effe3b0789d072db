//! A short ASCII string stored inline, because names are compared, hashed and copied by the ten
//! thousand.

use std::fmt;
use std::num::NonZeroU8;

/// One word of at most `N` bytes (`N` ≤ 255) that needs no quoting in the input of
/// `iptables-restore` and `ipset restore`.
///
/// ```
/// use tortie_net::InlineText;
/// let name = InlineText::<8>::new("cali-in").expect("a word");
/// assert_eq!(name.as_str(), "cali-in");
/// assert!(["", "too-long-for-8", "a b", "\"a\"", "!a", "é"].iter().all(|text| InlineText::<8>::new(text).is_none()));
/// ```
// Unused bytes are zero, so the derived order is the order of the text. No text is empty, so an
// `Option` of it needs no further space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InlineText<const N: usize> {
    bytes: [u8; N],
    len: NonZeroU8,
}

impl<const N: usize> InlineText<N> {
    /// Returns `None` if `text` is empty, too long, or not a bare word: printable ASCII without
    /// quotes or backslash, and not starting like a negation, a comment, a chain or a table.
    #[must_use]
    pub const fn new(text: &str) -> Option<Self> {
        let source = text.as_bytes();
        if source.len() > N || source.len() > u8::MAX as usize || !is_bare_word(source) {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, reason = "checked above")]
        let Some(len) = NonZeroU8::new(source.len() as u8) else { return None };
        let mut bytes = [0; N];
        let mut i = 0;
        #[expect(clippy::indexing_slicing, reason = "neither is shorter, and constant functions cannot use iterators")]
        while i < source.len() {
            bytes[i] = source[i];
            i += 1;
        }
        Some(Self { bytes, len })
    }

    /// Reports whether programs read the text as an option, unless it is the value of one.
    #[must_use]
    pub const fn is_option(&self) -> bool {
        matches!(self.as_str().as_bytes(), [b'-', ..])
    }

    /// Returns the text.
    #[must_use]
    pub const fn as_str(&self) -> &str {
        let Some((text, _)) = self.bytes.split_at_checked(self.len.get() as usize) else { return "" };
        match str::from_utf8(text) {
            Ok(text) => text,
            Err(_) => "",
        }
    }
}

impl<const N: usize> fmt::Display for InlineText<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl<const N: usize> fmt::Debug for InlineText<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

const fn is_bare_word(mut text: &[u8]) -> bool {
    if matches!(text.first(), Some(b'!' | b'#' | b':' | b'*')) {
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
