//! Stable identifiers: a prefix and the SHA-224 digest of the content.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha224};

/// Length of a SHA-224 digest in unpadded base64.
const HASH_CHARS: usize = 38;

/// Names `content` by its hash: `prefix`, a colon, and the unpadded URL-safe base64 of
/// `SHA-224(prefix ":" content)`, 38 characters.
///
/// The same content always has the same id, and the prefix keeps kinds of content apart. Felix uses
/// the prefixes `s` (selectors), `n` (named ports), `svc` and `svcnoport` (services); see
/// `libcalico-go/lib/hash` and `felix/calc/rule_scanner.go`.
///
/// ```
/// assert_eq!(
///     tortie_selector::unique_id("s", "all()"),
///     "s:5y5I3VdRZfDU01O--xXAPx2yxCQQqMf0M6IWug",
/// );
/// ```
#[must_use]
pub fn unique_id(prefix: &str, content: &str) -> String {
    let mut id = String::with_capacity(prefix.len() + 1 + HASH_CHARS);
    id.push_str(prefix);
    id.push(':');
    URL_SAFE_NO_PAD.encode_string(digest(prefix, content), &mut id);
    id
}

fn digest(prefix: &str, content: &str) -> impl AsRef<[u8]> {
    Sha224::new().chain_update(prefix).chain_update(":").chain_update(content).finalize()
}

/// The identity of a [`Selector`](crate::Selector): `s:` and the hash of its canonical form.
///
/// Forty ASCII characters, stored in place, so it is cheap to copy and to use as a key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SelectorId([u8; SelectorId::LEN]);

impl SelectorId {
    /// Length of every selector id in bytes.
    pub const LEN: usize = 2 + HASH_CHARS;

    pub(crate) fn of_canonical(text: &str) -> SelectorId {
        let mut id = [b'A'; SelectorId::LEN];
        id[..2].copy_from_slice(b"s:");
        let written = URL_SAFE_NO_PAD.encode_slice(digest("s", text), &mut id[2..]);
        debug_assert_eq!(written.ok(), Some(HASH_CHARS));
        SelectorId(id)
    }

    /// Returns the id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // Base64 is ASCII, so this cannot fail.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl AsRef<str> for SelectorId {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for SelectorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for SelectorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SelectorId({})", self.as_str())
    }
}
