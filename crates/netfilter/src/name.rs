//! Names in the kernel, each checked once when it is made.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use tortie_net::{InlineText, word_name};

word_name!(
    /// The name of an iptables chain: at most 28 bytes, the kernel's limit.
    ChainName, 28, "chain"
);

impl ChainName {
    const fn acceptable(text: &InlineText<28>) -> bool {
        !text.is_option()
    }

    /// `prefix` followed by `id`, or, if that is too long or cannot be written as a bare word, by a
    /// hash of `id` (see [`limited_id`]).  Different ids give different names.
    #[must_use]
    pub fn limited(prefix: ChainPrefix, id: &str) -> Self {
        let name = limited_id(prefix.0, id, Self::MAX_LEN);
        match InlineText::new(&name) {
            Some(text) => Self(text),
            None => {
                let hashed = hashed_id(prefix.0, id, Self::MAX_LEN);
                InlineText::new(&hashed).map_or(FALLBACK_CHAIN, Self)
            }
        }
    }
}

/// Never used in practice: a prefix is checked to be a bare word, and so is its hash. Even this
/// name is safe: no chain is defined under it, and a table refuses to program undefined chains.
const FALLBACK_CHAIN: ChainName = ChainName::from_static("cali-unnamed");

/// The fixed beginning of a family of generated chain names, for instance `cali-tw-`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChainPrefix(&'static str);

impl ChainPrefix {
    /// A prefix that is part of the program.
    ///
    /// # Panics
    /// If the prefix is not the beginning of a legal chain name or leaves fewer than 15 bytes for
    /// a hash; meant for constants, where that is a compile error.
    #[must_use]
    pub const fn new(prefix: &'static str) -> Self {
        let is_word = matches!(InlineText::<12>::new(prefix), Some(text) if !text.is_option());
        assert!(is_word, "not a legal chain prefix");
        Self(prefix)
    }

    /// The text.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

/// `prefix` + `id` if that fits in `max` bytes, else `prefix` + `_` + as much of the base64url
/// SHA-256 of `id` as fits.
///
/// An empty id counts as `_`. An id that starts with `_` and makes exactly `max` bytes is hashed as
/// well, so that no id can collide with the hash of another (`libcalico-go/lib/hash/unique_id.go`).
///
/// # Panics
/// If the prefix leaves no room for a hash.
///
/// ```
/// use tortie_netfilter::limited_id;
/// assert_eq!(limited_id("cali-fw-", "eth0", 28), "cali-fw-eth0");
/// assert_eq!(limited_id("felix", "12345678910", 13), "felix_Y2QCZIS");
/// ```
#[must_use]
pub fn limited_id(prefix: &str, id: &str, max: usize) -> String {
    let id = if id.is_empty() { "_" } else { id };
    let len = prefix.len() + id.len();
    if len > max || (len == max && id.starts_with('_')) {
        return hashed_id(prefix, id, max);
    }
    format!("{prefix}{id}")
}

#[expect(clippy::expect_used, reason = "prefixes are constants of the callers")]
fn hashed_id(prefix: &str, id: &str, max: usize) -> String {
    let mut hash = URL_SAFE_NO_PAD.encode(Sha256::digest(id));
    let room = max.checked_sub(prefix.len() + 1);
    hash.truncate(room.expect("a prefix leaves room for a hash"));
    format!("{prefix}_{hash}")
}

/// One of the kernel's tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// `raw`: before connection tracking.
    Raw,
    /// `mangle`: packet marks and other alterations.
    Mangle,
    /// `nat`: address translation, first packet of a connection only.
    Nat,
    /// `filter`: accept or drop.
    Filter,
}

impl Table {
    /// All tables that this crate programs.
    pub const ALL: [Self; 4] = [Self::Raw, Self::Mangle, Self::Nat, Self::Filter];

    /// The name that `iptables -t` takes.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Mangle => "mangle",
            Self::Nat => "nat",
            Self::Filter => "filter",
        }
    }

    /// The kernel's own chains of this table, from which every packet starts.
    #[must_use]
    pub const fn kernel_chains(self) -> &'static [ChainName] {
        use kernel_chain as k;
        match self {
            Self::Raw => &[k::PREROUTING, k::OUTPUT],
            Self::Mangle => &[k::PREROUTING, k::INPUT, k::FORWARD, k::OUTPUT, k::POSTROUTING],
            Self::Nat => &[k::PREROUTING, k::INPUT, k::OUTPUT, k::POSTROUTING],
            Self::Filter => &[k::INPUT, k::FORWARD, k::OUTPUT],
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The kernel's own chains.
pub mod kernel_chain {
    use super::ChainName;

    /// Packets as they arrive, before routing.
    pub const PREROUTING: ChainName = ChainName::from_static("PREROUTING");
    /// Packets to this host.
    pub const INPUT: ChainName = ChainName::from_static("INPUT");
    /// Packets that are routed through this host.
    pub const FORWARD: ChainName = ChainName::from_static("FORWARD");
    /// Packets from this host.
    pub const OUTPUT: ChainName = ChainName::from_static("OUTPUT");
    /// Packets as they leave, after routing.
    pub const POSTROUTING: ChainName = ChainName::from_static("POSTROUTING");
}

#[cfg(test)]
mod tests;
