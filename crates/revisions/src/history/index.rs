//! Content of a copy when the newest entry was made. Pure.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::entry::{FileChange, HistoryEntry, TextId};
use crate::state_file::{seal, unseal};

/// The first line of an index.
const MAGIC: &str = "tortie-copy 1";

/// Digests of the texts of a copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Index {
    /// The number of the entry.
    pub(super) state: u64,
    /// Digest and size in bytes of each file.
    pub(super) files: BTreeMap<String, (TextId, u64)>,
}

impl Index {
    /// Parses the output of [`Index::encode`]; `None` if it is something else, or incomplete.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let whole: Value = serde_json::from_str(unseal(MAGIC, bytes).ok()?).ok()?;
        let file = |(path, file): (&String, &Value)| {
            let [id, size] = file.as_array()?.as_slice() else { return None };
            Some((path.clone(), (TextId::parse(id.as_str()?)?, size.as_u64()?)))
        };
        let files = whole.get("files")?.as_object()?.iter().map(file).collect::<Option<_>>()?;
        Some(Self { state: whole.get("state")?.as_u64()?, files })
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let files: serde_json::Map<String, Value> =
            self.files.iter().map(|(path, (id, size))| (path.clone(), json!([id.to_string(), size]))).collect();
        let body = json!({ "state": self.state, "files": files }).to_string();
        seal(MAGIC, &body)
    }

    /// Applies entries that were made before the index could be written.
    pub(super) fn catch_up(&mut self, entries: &[HistoryEntry], size_of: impl Fn(&str) -> u64) {
        for entry in entries {
            if entry.number > self.state {
                for change in &entry.changes {
                    self.set(&change.path, change.after.clone().map(|id| (id, size_of(&change.path))));
                }
                self.state = entry.number;
            }
        }
    }

    /// Returns the change of a file to this text; `None` if the text is the same.
    pub(super) fn change(&self, path: &str, text: Option<&str>) -> Option<FileChange> {
        let (before, after) = (self.get(path).cloned(), TextId::of_file(text));
        (before != after).then(|| FileChange { path: path.to_owned(), before, after })
    }

    pub(super) fn get(&self, path: &str) -> Option<&TextId> {
        self.files.get(path).map(|(id, _)| id)
    }

    pub(super) fn set(&mut self, path: &str, file: Option<(TextId, u64)>) {
        match file {
            Some(file) => self.files.insert(path.to_owned(), file),
            None => self.files.remove(path),
        };
    }

    pub(super) fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// Returns the total size of all texts in bytes.
    pub(super) fn size(&self) -> u64 {
        self.files.values().map(|(_, size)| size).sum()
    }
}
