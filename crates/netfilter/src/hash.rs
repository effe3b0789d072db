//! Rule hashes, by which rules are recognised when they are read back from the kernel.
//!
//! Each hash covers the chain's name and all rules up to its own, so a change in the middle of a
//! chain changes every hash from there on, and equal hashes mean equal beginnings
//! (`felix/generictables/rules.go`).

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha224};

/// Prefix of the hash in the first comment of each rule.
pub const HASH_COMMENT_PREFIX: &str = "cali:";

/// The 16 characters that identify a rule: base64url of 96 bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleHash([u8; Self::LEN]);

impl RuleHash {
    /// The length of the text.
    pub const LEN: usize = 16;

    /// A hash as read back from a comment; `None` unless it is 16 base64url characters.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let bytes: [u8; Self::LEN] = text.as_bytes().try_into().ok()?;
        let base64url = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
        bytes.iter().copied().all(base64url).then_some(Self(bytes))
    }

    /// The text.
    #[must_use]
    #[expect(clippy::expect_used, reason = "hashes are made of base64url characters")]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("a hash is base64url")
    }
}

impl fmt::Display for RuleHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for RuleHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// Hashes the rules of one list, in order.
///
/// ```
/// use tortie_netfilter::RuleHasher;
///
/// let mut hasher = RuleHasher::new("a-chain");
/// let first = hasher.next(["drop"]);
/// assert_ne!(hasher.next(["drop"]), first);
/// assert_eq!(RuleHasher::new("a-chain").next(["dr", "op"]), first);
/// ```
#[derive(Debug, Clone)]
pub struct RuleHasher {
    state: [u8; 28],
}

impl RuleHasher {
    /// A hasher for the list of this name.
    #[must_use]
    pub fn new(list: &str) -> Self {
        Self { state: Sha224::digest(list).into() }
    }

    /// The hash of the next rule, given its text in pieces.
    pub fn next<'a>(&mut self, text: impl IntoIterator<Item = &'a str>) -> RuleHash {
        let mut hasher = Sha224::new();
        hasher.update(self.state);
        for piece in text {
            hasher.update(piece);
        }
        self.state = hasher.finalize().into();

        let mut text = [0; RuleHash::LEN];
        // 12 bytes are exactly 16 characters.
        let written = URL_SAFE_NO_PAD.encode_slice(&self.state[..12], &mut text);
        debug_assert!(matches!(written, Ok(RuleHash::LEN)));
        RuleHash(text)
    }
}
