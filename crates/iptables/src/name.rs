//! Names that end up in the kernel, each checked once when it is made.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};

use crate::text::InlineText;

/// A name that the kernel, or the text format of `iptables-restore`, would not take.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} name {name:?} must be 1 to {max} printable ASCII characters that need no quoting")]
pub struct InvalidName {
    /// What was being named: `chain`, `IP set` or `interface`.
    pub kind: &'static str,
    /// The rejected text.
    pub name: String,
    /// The longest legal name, in bytes.
    pub max: usize,
}

macro_rules! checked_name {
    ($name:ident, $max:expr, $kind:literal) => {
        impl $name {
            /// The longest legal name, in bytes.
            pub const MAX_LEN: usize = $max;

            /// Checks `text` and keeps it in place, without an allocation.
            ///
            /// # Errors
            /// [`InvalidName`] if the text is empty, too long, or not one bare ASCII word.
            pub fn new(text: &str) -> Result<Self, InvalidName> {
                InlineText::new(text).filter(Self::acceptable).map(Self).ok_or_else(|| InvalidName {
                    kind: $kind,
                    name: text.to_owned(),
                    max: $max,
                })
            }

            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                self.0.as_str()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(self.as_str(), f)
            }
        }

        impl std::str::FromStr for $name {
            type Err = InvalidName;

            fn from_str(text: &str) -> Result<Self, InvalidName> {
                Self::new(text)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                self.as_str()
            }
        }
    };
}

/// The name of an iptables chain: at most 28 bytes, the kernel's limit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChainName(InlineText<28>);
checked_name!(ChainName, 28, "chain");

/// The name of an IP set: at most 31 bytes, the kernel's limit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IpSetName(InlineText<31>);
checked_name!(IpSetName, 31, "IP set");

/// The name of a network interface: at most 15 bytes (`IFNAMSIZ` with its terminator).
///
/// A trailing `+` is refused: `iptables` would read it as a wildcard.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceName(InlineText<15>);
checked_name!(InterfaceName, 15, "interface");

impl ChainName {
    fn acceptable(_: &InlineText<28>) -> bool {
        true
    }

    /// A name that is part of the program.
    ///
    /// # Panics
    /// If the name is not legal; meant for constants, where that is a compile error.
    #[expect(clippy::panic, reason = "in a constant this fails the build")]
    #[must_use]
    pub const fn from_static(name: &'static str) -> Self {
        match InlineText::new(name) {
            Some(text) => Self(text),
            None => panic!("not a legal chain name"),
        }
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

/// Never reached: a prefix is checked to be a bare word, and so is its hash.  Even so it is the
/// name of a chain that nobody defines, which a table refuses to program.
const FALLBACK_CHAIN: ChainName = ChainName::from_static("cali-unnamed");

impl IpSetName {
    /// A name that is part of the program.
    ///
    /// # Panics
    /// If the name is not a legal bare word of at most 31 bytes; meant for constants.
    #[expect(clippy::panic, reason = "in a constant this fails the build")]
    #[must_use]
    pub const fn from_static(name: &'static str) -> Self {
        match InlineText::new(name) {
            Some(text) => Self(text),
            None => panic!("not a legal IP set name"),
        }
    }

    fn acceptable(_: &InlineText<31>) -> bool {
        true
    }
}

impl InterfaceName {
    /// A name that is part of the program.
    ///
    /// # Panics
    /// If the name is not a legal bare word of at most 15 bytes; meant for constants.
    #[expect(clippy::panic, reason = "in a constant this fails the build")]
    #[must_use]
    pub const fn from_static(name: &'static str) -> Self {
        match InlineText::new(name) {
            Some(text) => Self(text),
            None => panic!("not a legal interface name"),
        }
    }

    fn acceptable(text: &InlineText<15>) -> bool {
        !text.as_str().ends_with('+') && !text.as_str().contains('/')
    }
}

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
        assert!(InlineText::<12>::new(prefix).is_some(), "not a legal chain prefix");
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
/// An empty id counts as `_`.  An id that starts with `_` and makes exactly `max` bytes is hashed as
/// well, so that nobody can choose an id that looks like the hash of another
/// (`libcalico-go/lib/hash/unique_id.go`).
///
/// ```
/// use tortie_iptables::limited_id;
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

fn hashed_id(prefix: &str, id: &str, max: usize) -> String {
    let mut hash = URL_SAFE_NO_PAD.encode(Sha256::digest(id));
    hash.truncate(max.saturating_sub(prefix.len() + 1));
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
