//! What is kept of one file. Pure.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tortie_model::Interner;
use tortie_resources::manifest::{self, Format, ObjectId, Options, Outcome, Resource};

use crate::dir_state::Scope;

/// The first line of a record.
const MAGIC: &str = "tortie-last-good 1";

/// What is known of a manifest from when it was last taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The file, below the directory; empty if it is not a directory but this file.
    pub path: String,
    /// What the file held; nothing if it could never be read.
    pub text: String,
    /// Documents of former contents, as JSON, that are better than those of the same objects in `text`.
    pub kept: Vec<String>,
    /// What was kept closed on account of the file.
    pub(crate) closed: BTreeSet<Scope>,
}

/// Why a record cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// It is none, or of another version of the format.
    #[error("is no record of this version")]
    Format,
    /// It is not what was written.
    #[error("is torn or has been changed")]
    Checksum,
    /// It does not say what a record must say.
    #[error("does not hold what a record holds")]
    Content,
}

impl Record {
    /// Reads what [`Record::encode`] has written.
    ///
    /// # Errors
    /// [`RecordError`]; no bytes make it panic.
    pub fn parse(bytes: &[u8]) -> Result<Self, RecordError> {
        let text = std::str::from_utf8(bytes).map_err(|_| RecordError::Format)?;
        let rest = text.strip_prefix(MAGIC).and_then(|rest| rest.strip_prefix('\n')).ok_or(RecordError::Format)?;
        let (sum, body) = rest.split_once('\n').ok_or(RecordError::Checksum)?;
        if sum != hex_digest(body.as_bytes()) {
            return Err(RecordError::Checksum);
        }
        let body: Value = serde_json::from_str(body).map_err(|_| RecordError::Content)?;
        let text = |field: &str| body.get(field).and_then(Value::as_str).map(str::to_owned).ok_or(RecordError::Content);
        let list = |field: &str| body.get(field).and_then(Value::as_array).ok_or(RecordError::Content);
        let closed = list("closed")?.iter().map(|scope| scope.as_str().and_then(scope_from));
        let kept = list("kept")?.iter().map(|document| document.as_str().map(str::to_owned));
        let record = Self {
            path: text("path")?,
            text: text("text")?,
            kept: kept.collect::<Option<_>>().ok_or(RecordError::Content)?,
            closed: closed.collect::<Option<_>>().ok_or(RecordError::Content)?,
        };
        let is_below = |component| matches!(component, Component::Normal(_));
        if Path::new(&record.path).components().all(is_below) { Ok(record) } else { Err(RecordError::Content) }
    }

    /// The record as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let closed: Vec<String> = self.closed.iter().map(scope_text).collect();
        let body = json!({ "path": self.path, "text": self.text, "kept": self.kept, "closed": closed });
        Self::sealed(&body.to_string())
    }

    /// What is to be taken for a record that was written, as far as its first lines tell.
    #[doc(hidden)]
    #[must_use]
    pub fn sealed(body: &str) -> Vec<u8> {
        format!("{MAGIC}\n{}\n{body}", hex_digest(body.as_bytes())).into_bytes()
    }

    pub(crate) fn closed(&self) -> &BTreeSet<Scope> {
        &self.closed
    }

    /// The record after its file has been taken with another content.
    #[must_use]
    pub(crate) fn then(self, text: String, closed: BTreeSet<Scope>, options: &Options) -> Self {
        let format = Format::of(Path::new(&self.path));
        let new = Documents::read(&text, format, options);
        let kept = if new.is_good() { Vec::new() } else { new.lacking(self.documents(format, options)) };
        Self { path: self.path, text, kept, closed }
    }

    /// The same with another set of what is closed.
    pub(crate) fn with_closed(self, closed: BTreeSet<Scope>) -> Self {
        Self { closed, ..self }
    }

    /// The best document of each object.
    fn documents(&self, format: Format, options: &Options) -> BTreeMap<ObjectId, Definitions> {
        let Documents { mut best, .. } = Documents::read(&self.text, format, options);
        let mut kept = Documents::default();
        for document in &self.kept {
            kept.add(document, Format::Json, options);
        }
        for (id, kept) in kept.best {
            match best.entry(id) {
                Entry::Vacant(vacant) => drop(vacant.insert(kept)),
                Entry::Occupied(mut text) if outlives(kept.quality(), text.get().quality()) => {
                    // Ignored definitions are those of the text that has the object.
                    let text = text.get_mut();
                    text.doubles.retain(|double| double.outcome != text.first.outcome);
                    text.first = kept.first;
                }
                Entry::Occupied(_) => (),
            }
        }
        best
    }
}

/// How much of a document can be used; see `Register::put`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Quality {
    Unusable,
    /// What it selects is known, and denied.
    Denied,
    Good,
}

/// Whether an earlier document stays in force after a later one.
fn outlives(earlier: Quality, later: Quality) -> bool {
    later != Quality::Good && (earlier == Quality::Good || later == Quality::Unusable)
}

fn quality(outcome: &Outcome) -> Quality {
    match outcome {
        Outcome::Valid(_) | Outcome::Unknown => Quality::Good,
        Outcome::Invalid { substitute: Some(_) } => Quality::Denied,
        Outcome::Invalid { substitute: None } => Quality::Unusable,
    }
}

/// One document, and its meaning.
struct Definition {
    outcome: Outcome,
    written: Value,
}

/// Documents of one object in one content.
struct Definitions {
    /// The first one, which counts.
    first: Definition,
    /// The others. An ignored definition of a policy closes the endpoints that it selects.
    doubles: Vec<Definition>,
}

impl Definitions {
    fn quality(&self) -> Quality {
        quality(&self.first.outcome)
    }
}

/// The documents of a content.
#[derive(Default)]
struct Documents {
    best: BTreeMap<ObjectId, Definitions>,
    /// There are some of which it is not known what they define.
    is_unidentified: bool,
}

impl Documents {
    fn read(text: &str, format: Format, options: &Options) -> Self {
        let mut documents = Self::default();
        documents.add(text, format, options);
        documents
    }

    fn add(&mut self, text: &str, format: Format, options: &Options) {
        let (manifest, written) = manifest::read_written(text, format, options, &mut Interner::new());
        self.is_unidentified |= !manifest.unreadable.is_empty();
        for (Resource { id, outcome, .. }, written) in manifest.resources.into_iter().zip(written) {
            match id.map(|id| self.best.entry(id)) {
                Some(Entry::Occupied(mut definitions)) => {
                    definitions.get_mut().doubles.push(Definition { outcome, written });
                }
                Some(Entry::Vacant(new)) => {
                    new.insert(Definitions { first: Definition { outcome, written }, doubles: Vec::new() });
                }
                None => self.is_unidentified |= quality(&outcome) != Quality::Good,
            }
        }
    }

    fn is_good(&self) -> bool {
        !self.is_unidentified && self.best.values().all(|definitions| definitions.quality() == Quality::Good)
    }

    /// What of the documents before stays in force with these.
    fn lacking(&self, before: BTreeMap<ObjectId, Definitions>) -> Vec<String> {
        let mut kept = Vec::new();
        for (id, earlier) in before {
            match self.best.get(&id) {
                Some(later) if outlives(earlier.quality(), later.quality()) => {
                    kept.push(earlier.first.written.to_string());
                }
                None if self.is_unidentified => {
                    let all = std::iter::once(earlier.first).chain(earlier.doubles);
                    kept.extend(all.map(|document| document.written.to_string()));
                }
                Some(_) | None => (),
            }
        }
        kept
    }
}

fn scope_text(scope: &Scope) -> String {
    match scope {
        Scope::All => "all".into(),
        Scope::Nobody => "nobody".into(),
        Scope::Namespace(name) => format!("namespace/{name}"),
    }
}

fn scope_from(text: &str) -> Option<Scope> {
    match text {
        "all" => Some(Scope::All),
        "nobody" => Some(Scope::Nobody),
        _ => text.strip_prefix("namespace/").map(Scope::of_namespace),
    }
}

pub(crate) fn hex_digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
