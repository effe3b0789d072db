//! Set ids and kernel set names.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;
use tortie_net::Family;

/// The longest set name that the kernel takes, in bytes (`IPSET_MAXNAMELEN - 1`).
pub const MAX_NAME_LEN: usize = 31;

/// The word that `ipset create … family` takes.
pub(crate) const fn family_word(family: Family) -> &'static str {
    match family {
        Family::V4 => "inet",
        Family::V6 => "inet6",
    }
}

/// What a main set's name starts with. The `0` is a format version: it has to be raised when
/// the *type* of a set changes, since only sets of one type can be swapped.
const fn main_prefix(family: Family) -> &'static str {
    match family {
        Family::V4 => "cali40",
        Family::V6 => "cali60",
    }
}

const fn temp_prefix(family: Family) -> &'static str {
    match family {
        Family::V4 => "cali4t",
        Family::V6 => "cali6t",
    }
}

/// What names of ours start with, historic ones included (`felix/ipsets/ipset_defs.go`).
const fn owned_prefixes(family: Family) -> &'static [&'static str] {
    match family {
        Family::V4 => &["cali4", "felix-4", "felix-masq-ipam-pools", "felix-all-ipam-pools"],
        Family::V6 => &["cali6", "felix-6"],
    }
}

/// Why a text is no [`SetId`] or [`SetName`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NameError {
    /// The text is empty.
    #[error("IP set name: empty")]
    Empty,
    /// The text is longer than the kernel takes.
    #[error("IP set name {0:?}: longer than {MAX_NAME_LEN} bytes")]
    TooLong(String),
    /// The text has a character that could not be told from syntax in a restore file.
    #[error("IP set name {0:?}: only printable ASCII without spaces, quotes and `#` is allowed")]
    BadCharacter(String),
}

fn check_characters(text: &str) -> Result<(), NameError> {
    if text.is_empty() {
        return Err(NameError::Empty);
    }
    let fits = |b: u8| b.is_ascii_graphic() && !matches!(b, b'"' | b'\'' | b'#' | b'\\');
    if text.bytes().all(fits) { Ok(()) } else { Err(NameError::BadCharacter(text.to_owned())) }
}

/// The identity of a set, the same for both families and of any length: `s:` and a hash for a
/// selector, `all-hosts-net`, ….
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SetId(Arc<str>);

impl SetId {
    /// An id of printable ASCII without spaces and quotes.
    ///
    /// # Errors
    /// Any other text, and the empty one.
    pub fn new(text: impl Into<Arc<str>>) -> Result<Self, NameError> {
        let text = text.into();
        check_characters(&text)?;
        Ok(Self(text))
    }

    /// The text of the id.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for SetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SetId({})", self.0)
    }
}

/// The name of a set in the kernel: at most 31 bytes of printable ASCII.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SetName(Arc<str>);

impl SetName {
    /// A name as it is.
    ///
    /// # Errors
    /// Texts that the kernel or a restore file would not take.
    pub fn new(text: &str) -> Result<Self, NameError> {
        check_characters(text)?;
        if text.len() > MAX_NAME_LEN {
            return Err(NameError::TooLong(text.to_owned()));
        }
        Ok(Self(text.into()))
    }

    /// The name under which rules refer to the set `id`: `cali40` or `cali60`, then the id, cut at
    /// 31 bytes.
    #[must_use]
    pub fn main(family: Family, id: &SetId) -> Self {
        let prefix = main_prefix(family);
        let id = id.as_str();
        let cut = id.len().min(MAX_NAME_LEN - prefix.len());
        // Ids are ASCII, so that any byte is a character boundary.
        Self(format!("{prefix}{}", &id[..cut]).into())
    }

    /// The name of the `counter`th set that is filled aside and then swapped in.
    #[must_use]
    pub fn temporary(family: Family, counter: u64) -> Self {
        Self(format!("{}{counter}", temp_prefix(family)).into())
    }

    /// What sorts before all names of temporary sets of that family.
    pub(crate) fn temporary_prefix(family: Family) -> Self {
        Self(temp_prefix(family).into())
    }

    /// Whether this is the name of a temporary set of that family.
    #[must_use]
    pub fn is_temporary(&self, family: Family) -> bool {
        self.0.starts_with(temp_prefix(family))
    }

    /// Whether a set of this name belongs to Calico in that family; all others are never touched.
    #[must_use]
    pub fn is_owned(&self, family: Family) -> bool {
        owned_prefixes(family).iter().any(|prefix| self.0.starts_with(prefix))
    }

    /// The text of the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for SetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SetName({})", self.0)
    }
}
