//! Record of one file. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

use serde_json::{Value, json};
use tortie_model::Interner;
use tortie_resources::manifest::{self, Format, ObjectId, Options, Outcome, Resource};

use crate::state_file::{SealError, seal, unseal};
use crate::unknown::{self, Scope, is_unknown};

/// First line of a record.
const MAGIC: &str = "tortie-last-good 1";

/// State of a manifest when it was last taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Path of the file below the directory; empty if the source is this file instead of a
    /// directory.
    pub path: String,
    /// Text of the file; empty if it could never be read.
    pub text: String,
    /// Documents of earlier contents, as JSON, that stay in force because the same objects are
    /// unusable in `text`.
    pub kept: Vec<String>,
    /// Definitions of policies that the file had before and may still have, with those needed to
    /// determine them again.
    pub hidden: Vec<String>,
    /// Scopes that were closed because of the file.
    pub closed: BTreeSet<Scope>,
}

/// Reason why a record cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// It is no record, or of another version of the format.
    #[error("is no record of this version")]
    Format,
    /// It is incomplete or was modified.
    #[error("is torn or has been changed")]
    Checksum,
    /// A field is missing or invalid.
    #[error("is not a valid record")]
    Content,
}

impl From<SealError> for RecordError {
    fn from(error: SealError) -> Self {
        match error {
            SealError::Format => Self::Format,
            SealError::Checksum => Self::Checksum,
        }
    }
}

impl Record {
    /// Parses the output of [`Record::encode`].
    ///
    /// # Errors
    /// [`RecordError`]; no bytes make it panic.
    pub fn parse(bytes: &[u8]) -> Result<Self, RecordError> {
        let body: Value = serde_json::from_str(unseal(MAGIC, bytes)?).map_err(|_| RecordError::Content)?;
        let text = |field: &str| body.get(field).and_then(Value::as_str).map(str::to_owned).ok_or(RecordError::Content);
        let list = |field: &str| body.get(field).and_then(Value::as_array).ok_or(RecordError::Content);
        let closed = list("closed")?.iter().map(|scope| scope.as_str().and_then(scope_from));
        let texts = |list: &[Value]| list.iter().map(|text| text.as_str().map(str::to_owned)).collect::<Option<_>>();
        // Records of earlier versions have both in one list.
        let hidden = list("hidden").or_else(|_| list("kept"))?;
        let record = Self {
            path: text("path")?,
            text: text("text")?,
            kept: texts(list("kept")?).ok_or(RecordError::Content)?,
            hidden: texts(hidden).ok_or(RecordError::Content)?,
            closed: closed.collect::<Option<_>>().ok_or(RecordError::Content)?,
        };
        let is_below = |component| matches!(component, Component::Normal(_));
        if Path::new(&record.path).components().all(is_below) { Ok(record) } else { Err(RecordError::Content) }
    }

    /// Returns the record as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let closed: Vec<String> = self.closed.iter().map(scope_text).collect();
        let body =
            json!({ "path": self.path, "text": self.text, "kept": self.kept, "hidden": self.hidden, "closed": closed });
        Self::sealed(&body.to_string())
    }

    /// Returns a body with the header lines of a record, valid or not.
    #[doc(hidden)]
    #[must_use]
    pub fn sealed(body: &str) -> Vec<u8> {
        seal(MAGIC, body)
    }

    /// Returns the record after its file has been taken with another content.
    #[must_use]
    pub fn then(self, text: String, closed: BTreeSet<Scope>, options: &Options) -> Self {
        let format = Format::of(Path::new(&self.path));
        let new = Documents::read(&text, format, options);
        let (mut kept, mut hidden) = (Vec::new(), Vec::new());
        if !new.is_good() {
            for (id, state) in self.states(options) {
                new.keep(&id, state, &mut kept, &mut hidden);
            }
        }
        Self { path: self.path, text, kept, hidden, closed }
    }

    /// Replaces the closed scopes.
    pub(crate) fn with_closed(self, closed: BTreeSet<Scope>) -> Self {
        Self { closed, ..self }
    }

    /// Returns the state of each object.
    fn states(&self, options: &Options) -> BTreeMap<ObjectId, State> {
        let text = Documents::read(&self.text, Format::of(Path::new(&self.path)), options);
        let mut kept = Documents::read_all(&self.kept, options);
        let mut hidden = Documents::read_all(&self.hidden, options);
        let is_unidentified = text.is_unidentified;
        let mut states: BTreeMap<ObjectId, State> = BTreeMap::new();
        for (id, mut definitions) in text.of {
            let earlier = hidden.of.remove(&id).unwrap_or_default();
            let places = missing(&id, is_unidentified, &earlier, &definitions);
            let earlier = earlier.into_iter().enumerate().filter(|(place, _)| places.binary_search(place).is_ok());
            definitions.extend(earlier.map(|(_, document)| document));
            states.insert(id, State { last_good: None, definitions });
        }
        states.extend(hidden.of.into_iter().map(|(id, definitions)| (id, State { last_good: None, definitions })));
        for (id, state) in &mut states {
            state.last_good = kept.of.remove(id).and_then(|documents| documents.into_iter().next());
        }
        states
    }
}

/// Usability of a document; see `Register::put`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Quality {
    Unusable,
    /// The selected endpoints are known, and denied.
    Denied,
    Good,
}

/// Reports whether an earlier document stays in force after a later one.
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
struct Document {
    outcome: Outcome,
    written: Value,
}

/// The documents of one object.
struct State {
    /// The document in force instead of the first definition.
    last_good: Option<Document>,
    /// Definitions in the content, then those that the file may still have; not empty. The first
    /// one takes effect.
    definitions: Vec<Document>,
}

/// The documents of a content.
#[derive(Default)]
struct Documents {
    of: BTreeMap<ObjectId, Vec<Document>>,
    /// Whether any document does not identify the object that it defines.
    is_unidentified: bool,
}

/// Returns the indices of earlier definitions that the file may still have beside the current ones.
fn missing(id: &ObjectId, is_unidentified: bool, earlier: &[Document], now: &[Document]) -> Vec<usize> {
    if !id.kind.is_policy() || !is_unidentified && !now.iter().any(|document| is_unknown(&document.outcome)) {
        return Vec::new();
    }
    let [earlier, now] = [earlier, now].map(|documents| documents.iter().map(|one| &one.outcome).collect::<Vec<_>>());
    unknown::missing(&earlier, &now)
}

impl Documents {
    fn read(text: &str, format: Format, options: &Options) -> Self {
        let mut documents = Self::default();
        documents.add(text, format, options);
        documents
    }

    fn read_all(texts: &[String], options: &Options) -> Self {
        let mut documents = Self::default();
        for text in texts {
            documents.add(text, Format::Json, options);
        }
        documents
    }

    fn add(&mut self, text: &str, format: Format, options: &Options) {
        let (manifest, written) = manifest::read_written(text, format, options, &mut Interner::new());
        self.is_unidentified |= !manifest.unreadable.is_empty();
        for (Resource { id, outcome, .. }, written) in manifest.resources.into_iter().zip(written) {
            match id {
                Some(id) => self.of.entry(id).or_default().push(Document { outcome, written }),
                None => self.is_unidentified |= quality(&outcome) != Quality::Good,
            }
        }
    }

    fn is_good(&self) -> bool {
        let mut documents = self.of.values().flatten();
        !self.is_unidentified && documents.all(|document| quality(&document.outcome) == Quality::Good)
    }

    /// Adds the documents of an object that stay in force, or may still be in the file, beside
    /// these.
    fn keep(&self, id: &ObjectId, state: State, kept: &mut Vec<String>, hidden: &mut Vec<String>) {
        let text = |document: &Document| document.written.to_string();
        let State { last_good, definitions } = state;
        match self.of.get(id) {
            None if self.is_unidentified => {
                kept.extend(last_good.iter().map(text));
                hidden.extend(definitions.iter().map(text));
            }
            None => (),
            Some(now) => {
                let in_force = last_good.as_ref().or(definitions.first());
                let outlives = |(in_force, first): &(&Document, &Document)| {
                    outlives(quality(&in_force.outcome), quality(&first.outcome))
                };
                kept.extend(in_force.zip(now.first()).filter(outlives).map(|(in_force, _)| text(in_force)));
                let places = missing(id, self.is_unidentified, &definitions, now);
                if !places.is_empty() {
                    hidden.extend(now.iter().filter(|document| !is_unknown(&document.outcome)).map(text));
                    hidden.extend(places.into_iter().filter_map(|place| definitions.get(place)).map(text));
                }
            }
        }
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

#[cfg(test)]
mod tests;
