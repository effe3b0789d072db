//! What is known after a restart of what governed this host, and of what was held back.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tortie_model::{Interner, Update};
use tortie_resources::path::to_path;
use tortie_resources::v1::{Decoded, decode_text, encode};

use super::connection::ManagementConnection;

/// The first line of a record.
const MAGIC: &str = "tortie-host-changes 1";
/// A record of more bytes is neither written nor read.
const MAX_RECORD: u64 = 16 << 20;

/// What is kept.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Record {
    /// The objects that governed this host, as they were in force.
    pub(super) objects: Vec<Update>,
    /// On whose account changes were held back, if any were.
    pub(super) held: Option<HeldRecord>,
}

/// On whose account changes were held back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HeldRecord {
    /// Since when, in milliseconds since 1970.
    pub(super) since_ms: u64,
    /// Which start of the machine it was.
    pub(super) boot: String,
    /// The connections that would have been cut.
    pub(super) connections: Vec<ManagementConnection>,
}

/// The form of it on disk.
#[derive(Serialize, Deserialize)]
struct Body {
    /// Path and text of each object, as in a datastore.
    objects: Vec<(String, String)>,
    held: Option<HeldRecord>,
}

/// Why a record cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RecordError {
    #[error("is no record of this version")]
    Format,
    #[error("is torn or has been changed")]
    Checksum,
    #[error("does not hold what a record holds")]
    Content,
}

/// The reason why the record cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoadError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("is not a regular file of this user that no other user may write")]
    Foreign,
    #[error("is larger than any record")]
    TooLarge,
    #[error(transparent)]
    Record(#[from] RecordError),
}

impl Record {
    /// Reads what [`Record::encode`] has written.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, RecordError> {
        let text = std::str::from_utf8(bytes).map_err(|_| RecordError::Format)?;
        let rest = text.strip_prefix(MAGIC).and_then(|rest| rest.strip_prefix('\n')).ok_or(RecordError::Format)?;
        let (sum, body) = rest.split_once('\n').ok_or(RecordError::Checksum)?;
        if sum != digest(body.as_bytes()) {
            return Err(RecordError::Checksum);
        }
        let Body { objects, held } = serde_json::from_str(body).map_err(|_| RecordError::Content)?;
        let mut interner = Interner::new();
        let mut object = |(path, text): &(String, String)| match decode_text(path, Some(text), &mut interner) {
            Ok(Decoded::Update(update)) if update.exists() => Ok(update),
            _ => Err(RecordError::Content),
        };
        Ok(Self { objects: objects.iter().map(&mut object).collect::<Result<_, _>>()?, held })
    }

    #[expect(clippy::expect_used, reason = "an invariant of the types of a record")]
    pub(super) fn encode(&self) -> Vec<u8> {
        let object = |update: &Update| {
            let path = to_path(&update.key()).ok()?;
            Some((path, String::from_utf8(encode(update)?).ok()?))
        };
        let body = Body { objects: self.objects.iter().filter_map(object).collect(), held: self.held.clone() };
        let body = serde_json::to_string(&body).expect("texts and numbers can always be written");
        format!("{MAGIC}\n{}\n{body}", digest(body.as_bytes())).into_bytes()
    }
}

/// Where the record is kept of one node and datastore.
#[derive(Debug)]
pub(super) struct Store {
    place: PathBuf,
    /// What is there.
    written: Option<Vec<u8>>,
}

impl Store {
    /// In a state directory of the program; others may keep theirs in the same. Nothing is made before it is needed.
    pub(super) fn new(state: &Path, node: &str, datastore: &str) -> Self {
        let whose = digest(format!("{node}\0{datastore}").as_bytes());
        Self { place: state.join("host-changes").join(whose), written: None }
    }

    /// What is kept; `None` if nothing is.
    ///
    /// # Errors
    /// Why what is there cannot be used.
    pub(super) fn load(&mut self) -> Result<Option<Record>, LoadError> {
        let metadata = match fs::symlink_metadata(&self.place) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        if !metadata.is_file() || !is_ours(&metadata) {
            return Err(LoadError::Foreign);
        }
        if metadata.len() > MAX_RECORD {
            return Err(LoadError::TooLarge);
        }
        let bytes = fs::read(&self.place)?;
        let record = Record::parse(&bytes)?;
        self.written = Some(bytes);
        Ok(Some(record))
    }

    /// Replaces it, so that at any time the old one or the new one is there. Writes nothing that is there already.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn put(&mut self, record: &Record) -> io::Result<()> {
        let bytes = record.encode();
        if self.written.as_ref() == Some(&bytes) {
            return Ok(());
        }
        if bytes.len() as u64 > MAX_RECORD {
            return Err(io::Error::other(format!("a record of {} bytes is too large", bytes.len())));
        }
        let Some(folder) = self.place.parent() else { return Ok(()) };
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        if !is_ours(&fs::symlink_metadata(folder)?) {
            let what = format!("{} belongs to another user, or others may write into it", folder.display());
            return Err(io::Error::new(ErrorKind::PermissionDenied, what));
        }
        // What is there now is unknown until all is done.
        self.written = None;
        let draft = self.place.with_extension("tmp");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
        let written =
            file.write_all(&bytes).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&draft, &self.place));
        if let Err(error) = written {
            let _ = fs::remove_file(&draft);
            return Err(error);
        }
        File::open(folder)?.sync_all()?;
        self.written = Some(bytes);
        Ok(())
    }

    /// Removes what is kept.
    ///
    /// # Errors
    /// If it is there and cannot be removed.
    pub(super) fn remove(&mut self) -> io::Result<()> {
        self.written = None;
        match fs::remove_file(&self.place) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Where it is.
    pub(super) fn place(&self) -> &Path {
        &self.place
    }
}

/// Whether nobody else can have written it, or can.
fn is_ours(metadata: &fs::Metadata) -> bool {
    metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode() & 0o022 == 0
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
