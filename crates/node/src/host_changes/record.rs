//! Record of the objects that governed this host, and of held changes, for a restart.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};
use tortie_model::{Interner, Update};
use tortie_resources::path::to_path;
use tortie_resources::v1::{Decoded, decode_text, encode};
use tortie_revisions::journal::{Entry, JournalError, load, make_folders, save};

use super::connection::ManagementConnection;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    #[serde(skip)]
    pub(super) objects: Vec<Object>,
    pub(super) held: Option<HeldRecord>,
}

/// An object that exists; on disk its path and text, as in a datastore.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Object(pub(super) Update);

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HeldRecord {
    /// Time since which they were held back, in milliseconds since 1970.
    pub(super) since_ms: u64,
    pub(super) boot: String,
    pub(super) connections: Vec<ManagementConnection>,
}

impl Entry for Record {
    const KIND: &'static str = "host-changes";
    const MAX_BYTES: u64 = 16 << 20;
    const FORMER: (&'static str, &'static str) = ("tortie-host-changes 1", "objects");
    type Record = Object;

    fn records(&self) -> &[Object] {
        &self.objects
    }

    fn with_records(self, objects: Vec<Object>) -> Self {
        Self { objects, ..self }
    }
}

impl Serialize for Object {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let path = to_path(&self.0.key()).map_err(S::Error::custom)?;
        let text = encode(&self.0).ok_or_else(|| S::Error::custom(format!("{path} does not exist")))?;
        (path, String::from_utf8(text).map_err(S::Error::custom)?).serialize(to)
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let (path, text) = <(String, String)>::deserialize(from)?;
        match decode_text(&path, Some(&text), &mut Interner::new()) {
            Ok(Decoded::Update(update)) if update.exists() => Ok(Self(update)),
            _ => Err(D::Error::custom(format!("{path} is not an object of this version"))),
        }
    }
}

#[derive(Debug)]
pub(super) struct Store {
    place: PathBuf,
    written: Option<Record>,
}

impl Store {
    /// Other nodes and datastores may share the directory. Creates nothing before it is needed.
    pub(super) fn new(state: &Path, node: &str, datastore: &str) -> Self {
        let digest = Sha256::digest(format!("{node}\0{datastore}"));
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        Self { place: state.join("host-changes").join(digest), written: None }
    }

    pub(super) fn load(&self) -> Result<Option<Record>, JournalError> {
        load(&self.place)
    }

    /// Replaces the record atomically, unless it has written the same already.
    pub(super) fn put(&mut self, record: Record) -> Result<(), JournalError> {
        if self.written.as_ref() == Some(&record) {
            return Ok(());
        }
        // The content of the file is unknown until all is done.
        self.written = None;
        self.place.parent().map_or(Ok(()), |folder| make_folders(&[folder]))?;
        save(&self.place, &record)?;
        self.written = Some(record);
        Ok(())
    }

    pub(super) fn remove(&mut self) -> io::Result<()> {
        self.written = None;
        match fs::remove_file(&self.place) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    pub(super) fn place(&self) -> &Path {
        &self.place
    }
}

#[cfg(test)]
mod tests;
