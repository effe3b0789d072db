//! What is kept of a state. Pure.

use std::fmt;
use std::path::{Component, Path};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::journal::Entry;
use crate::state_file::hex_digest;

/// A text by its SHA-256 digest, in hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct TextId(String);

impl TextId {
    /// Of a text.
    ///
    /// ```
    /// use tortie_datastore::history::TextId;
    ///
    /// assert!(TextId::of("kind: Tier\n").to_string().len() == 64);
    /// ```
    #[must_use]
    pub fn of(text: &str) -> Self {
        Self(hex_digest(text.as_bytes()))
    }

    /// Of a file's text; a file without a text is as good as none.
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

/// A file that has another text since.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileChange {
    /// The file, below the directory; empty if it is not a directory but this file.
    #[serde(deserialize_with = "below")]
    pub path: String,
    /// The text that it had; `None` if there was no such file, or it was empty.
    pub before: Option<TextId>,
    /// The text that it has; `None` if there is no such file, or it is empty.
    pub after: Option<TextId>,
}

/// How the directory came into a state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryEntry {
    /// States are counted from 1.
    #[serde(rename = "id", alias = "number")]
    pub number: u64,
    /// When the change was taken, in milliseconds since 1970.
    pub time_ms: u64,
    /// Changes between this state and the one before could not be kept.
    pub gap: bool,
    /// The changed files; none for the first state. Serialised apart, as records of a [journal](crate::journal).
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

/// Reads a path that leads nowhere but below its directory.
fn below<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let path = String::deserialize(from)?;
    let is_below = Path::new(&path).components().all(|component| matches!(component, Component::Normal(_)));
    if is_below { Ok(path) } else { Err(D::Error::custom("the path leads out of the directory")) }
}
