//! Record of a state. Pure.

use std::fmt;
use std::path::{Component, Path};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::journal::Entry;
use crate::state_file::hex_digest;

/// SHA-256 digest of a text, in hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct TextId(String);

impl TextId {
    /// Returns the digest of a text.
    ///
    /// ```
    /// use tortie_revisions::history::TextId;
    ///
    /// assert!(TextId::of("kind: Tier\n").to_string().len() == 64);
    /// ```
    #[must_use]
    pub fn of(text: &str) -> Self {
        Self(hex_digest(text.as_bytes()))
    }

    /// Returns the digest of a file's text; `None` for an empty file, which counts as missing.
    pub(super) fn of_file(text: Option<&str>) -> Option<Self> {
        text.filter(|text| !text.is_empty()).map(Self::of)
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let is_digest = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_digest.then(|| Self(text.to_owned()))
    }
}

impl fmt::Display for TextId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for TextId {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(from)?).ok_or_else(|| D::Error::custom("not a SHA-256 digest"))
    }
}

/// Change of a file's text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileChange {
    /// Path of the file below the directory; empty if the source is this file instead of a
    /// directory.
    #[serde(deserialize_with = "below")]
    pub path: String,
    /// Digest of the previous text; `None` if there was no such file, or it was empty.
    pub before: Option<TextId>,
    /// Digest of the new text; `None` if there is no such file, or it is empty.
    pub after: Option<TextId>,
}

/// The change that led to a state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryEntry {
    /// Number of the state, from 1.
    #[serde(rename = "id", alias = "number")]
    pub number: u64,
    /// Time when the change was taken, in milliseconds since 1970.
    pub time_ms: u64,
    /// Whether changes between the previous state and this one could not be recorded.
    pub gap: bool,
    /// The changed files; none for the first state. Serialised apart, as records of a
    /// [journal](crate::journal).
    #[serde(skip)]
    pub changes: Vec<FileChange>,
}

impl Entry for HistoryEntry {
    const KIND: &'static str = "state";
    const MAX_BYTES: u64 = 256 << 20;
    const FORMER: (&'static str, &'static str) = ("tortie-history 1", "changes");
    type Record = FileChange;

    fn records(&self) -> &[FileChange] {
        &self.changes
    }

    fn with_records(self, changes: Vec<FileChange>) -> Self {
        Self { changes, ..self }
    }
}

/// Deserializes a path, and rejects one that leads out of its directory.
fn below<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let path = String::deserialize(from)?;
    let is_below = Path::new(&path).components().all(|component| matches!(component, Component::Normal(_)));
    if is_below { Ok(path) } else { Err(D::Error::custom("the path leads out of the directory")) }
}
