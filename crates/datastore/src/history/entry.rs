//! What is kept of a state. Pure.

use std::fmt;
use std::path::{Component, Path};

use serde_json::{Value, json};

use crate::state_file::{hex_digest, seal, unseal};

/// The first line of an entry.
const MAGIC: &str = "tortie-history 1";

/// A text by its SHA-256 digest, in hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

/// A file that has another text since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileChange {
    /// The file, below the directory; empty if it is not a directory but this file.
    pub path: String,
    /// The text that it had; `None` if there was no such file, or it was empty.
    pub before: Option<TextId>,
    /// The text that it has; `None` if there is no such file, or it is empty.
    pub after: Option<TextId>,
}

/// How the directory came into a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryEntry {
    /// States are counted from 1.
    pub number: u64,
    /// When the change was taken, in milliseconds since 1970.
    pub time_ms: u64,
    /// Changes between this state and the one before could not be kept.
    pub gap: bool,
    /// What changed; nothing for the first state.
    pub changes: Vec<FileChange>,
}

impl HistoryEntry {
    /// Reads what [`HistoryEntry::encode`] has written; `None` if it is something else, or torn.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let whole: Value = serde_json::from_str(unseal(MAGIC, bytes).ok()?).ok()?;
        let changes = whole.get("changes")?.as_array()?.iter().map(change).collect::<Option<_>>()?;
        Some(Self {
            number: whole.get("number")?.as_u64()?,
            time_ms: whole.get("time_ms")?.as_u64()?,
            gap: whole.get("gap")?.as_bool()?,
            changes,
        })
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let text = |id: &Option<TextId>| id.as_ref().map(|id| id.0.clone());
        let change = |change: &FileChange| json!([change.path, text(&change.before), text(&change.after)]);
        let body = json!({
            "number": self.number,
            "time_ms": self.time_ms,
            "gap": self.gap,
            "changes": self.changes.iter().map(change).collect::<Vec<_>>(),
        });
        seal(MAGIC, &body.to_string())
    }
}

fn change(value: &Value) -> Option<FileChange> {
    let [path, before, after] = value.as_array()?.as_slice() else { return None };
    let id = |value: &Value| match value {
        Value::Null => Some(None),
        other => other.as_str().and_then(TextId::parse).map(Some),
    };
    let path = path.as_str()?.to_owned();
    let is_below = |component| matches!(component, Component::Normal(_));
    let is_below = Path::new(&path).components().all(is_below);
    is_below.then_some(FileChange { path, before: id(before)?, after: id(after)? })
}
