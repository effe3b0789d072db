//! Revisions on disk: states of a history, the change that waits for confirmation, objects that
//! govern a host.
//!
//! All have one text format. The first line names its version and the kind of the file. The second
//! line is a header in JSON: number (`id`), time (`time_ms`), author (`by`), `deadline` and state,
//! as far as the kind has them. Each further line is one record in JSON. The last line is the
//! SHA-256 digest of all others:
//!
//! ```text
//! tortie-journal 1 pending-change
//! {"phase":"waiting","by":"ada","time_ms":1764446669000,"window_ms":60000,"deadline":{…},"datastore":{…}}
//! {"path":"/calico/resources/v3/…","before":{…},"based_on":7,"after":null}
//! sha256 9b1f…
//! ```
//!
//! A file is replaced as a whole: a draft is written, synchronised and renamed, and then its folder
//! is synchronised. So a killed program or a power failure leaves the old or the new revision. For
//! an incomplete or edited file an error with its line is returned, and the file is not used. Files
//! of the previous format are read, and the next write replaces them.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::state_file::{hex_digest, is_ours, put, unseal};

/// Beginning of the first line of each file, before its kind.
const MAGIC: &str = "tortie-journal 1";
/// Beginning of the last line of each file, before its digest.
const SEAL: &str = "sha256 ";

/// One kind of file. Serialised without its records, it is the header.
pub trait Entry: Serialize + DeserializeOwned {
    /// Name of the kind, in the first line.
    const KIND: &'static str;
    /// Bound on the size of a file that is written or read, in bytes.
    const MAX_BYTES: u64;
    /// The format before this one: its first line, and the name of the records in its JSON body.
    const FORMER: (&'static str, &'static str);
    /// One record, such as a resource.
    type Record: Serialize + DeserializeOwned;

    /// Returns the records, in order.
    fn records(&self) -> &[Self::Record];

    /// Returns the entry with these records.
    #[must_use]
    fn with_records(self, records: Vec<Self::Record>) -> Self;
}

/// Reason for which an entry cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// Reading or writing failed.
    #[error("{}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The reason.
        #[source]
        error: io::Error,
    },
    /// Another user owns the file or directory, or can write it.
    #[error("{} belongs to another user, or others may write into it", .0.display())]
    Foreign(PathBuf),
    /// The file is not a regular one, or larger than any of its kind.
    #[error("{} is not a file of at most {max} bytes", path.display())]
    Size {
        /// The file.
        path: PathBuf,
        /// Bound on its size in bytes.
        max: u64,
    },
    /// The file is not as it was written.
    #[error("{}:{line}: {damage}; the file is not used: check by hand which change it described, then remove it", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// The damage, which is part of the message.
        damage: Damage,
    },
}

impl JournalError {
    /// Returns a function that names the path of a failed operation.
    ///
    /// ```
    /// use tortie_revisions::journal::JournalError;
    ///
    /// let folder = "/nonexistent/changes".as_ref();
    /// let error = std::fs::read_dir(folder).map_err(JournalError::at(folder)).unwrap_err();
    /// assert_eq!(error.to_string(), "/nonexistent/changes");
    /// ```
    pub fn at(path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        |error| Self::Io { path, error }
    }
}

/// Difference between a file and any that was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// It begins with another line.
    #[error("is not the first line of a {0} that this version knows")]
    Kind(&'static str),
    /// It does not end with the digest of its lines.
    #[error("is not the digest of the file, which is torn or has been changed")]
    Digest,
    /// The header or a record has another form.
    #[error("{}", without_place(.0))]
    Content(serde_json::Error),
}

/// Creates missing directories, accessible only to this user.
///
/// # Errors
/// [`JournalError::Io`], or [`JournalError::Foreign`] if another user can write into one.
pub fn make_folders(folders: &[&Path]) -> Result<(), JournalError> {
    for folder in folders {
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(JournalError::at(folder))?;
        if !is_ours(&fs::symlink_metadata(folder).map_err(JournalError::at(folder))?) {
            return Err(JournalError::Foreign((*folder).to_owned()));
        }
    }
    Ok(())
}

/// Replaces a file. When this returns, the entry survives a power failure. After an error, the file
/// has the old or the new content.
///
/// # Errors
/// [`JournalError::Io`], also if another program writes the file at this moment, or
/// [`JournalError::Size`].
pub fn save<E: Entry>(path: &Path, entry: &E) -> Result<(), JournalError> {
    let bytes = encode(entry).map_err(|error| JournalError::at(path)(error.into()))?;
    if bytes.len() as u64 > E::MAX_BYTES {
        return Err(JournalError::Size { path: path.to_owned(), max: E::MAX_BYTES });
    }
    put(path, &bytes).map_err(JournalError::at(path))
}

/// Reads a file; `None` if there is none.
///
/// # Errors
/// [`JournalError`].
pub fn load<E: Entry>(path: &Path) -> Result<Option<E>, JournalError> {
    let metadata = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        metadata => metadata.map_err(JournalError::at(path))?,
    };
    if !is_ours(&metadata) {
        return Err(JournalError::Foreign(path.to_owned()));
    }
    if !metadata.is_file() || metadata.len() > E::MAX_BYTES {
        return Err(JournalError::Size { path: path.to_owned(), max: E::MAX_BYTES });
    }
    let bytes = fs::read(path).map_err(JournalError::at(path))?;
    let damaged = |(line, damage)| JournalError::Damaged { path: path.to_owned(), line, damage };
    parse(&bytes).map(Some).map_err(damaged)
}

/// Returns whether a file has the format before this one.
pub(crate) fn is_former<E: Entry>(path: &Path) -> Result<bool, JournalError> {
    use std::io::Read as _;

    let mut first = Vec::new();
    let file = fs::File::open(path).map_err(JournalError::at(path))?;
    file.take(E::FORMER.0.len() as u64).read_to_end(&mut first).map_err(JournalError::at(path))?;
    Ok(first == E::FORMER.0.as_bytes())
}

/// Returns the message of an error without the position in its line of JSON.
fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or(&text).to_owned()
}

fn encode<E: Entry>(entry: &E) -> serde_json::Result<Vec<u8>> {
    let mut text = format!("{MAGIC} {}\n{}\n", E::KIND, serde_json::to_string(entry)?);
    for record in entry.records() {
        text += &serde_json::to_string(record)?;
        text.push('\n');
    }
    let digest = hex_digest(text.as_bytes());
    Ok(format!("{text}{SEAL}{digest}\n").into_bytes())
}

/// Reads the bytes of a file; an error has a line.
fn parse<E: Entry>(bytes: &[u8]) -> Result<E, (usize, Damage)> {
    let kind = || (1_usize, Damage::Kind(E::KIND));
    let text = std::str::from_utf8(bytes).map_err(|_| kind())?;
    let (first, _) = text.split_once('\n').ok_or_else(kind)?;
    if first == E::FORMER.0 {
        return parse_former(bytes);
    }
    if first.strip_prefix(MAGIC).and_then(|rest| rest.strip_prefix(' ')) != Some(E::KIND) {
        return Err(kind());
    }
    let digest = || (text.lines().count(), Damage::Digest);
    let (sealed, seal) = text.rsplit_once(SEAL).ok_or_else(digest)?;
    if seal.strip_suffix('\n') != Some(&hex_digest(sealed.as_bytes())) {
        return Err(digest());
    }
    let mut lines = sealed.lines().skip(1);
    let header = lines.next().unwrap_or_default();
    let header: E = serde_json::from_str(header).map_err(|error| (2_usize, Damage::Content(error)))?;
    let record = |(record, line)| serde_json::from_str(record).map_err(|error| (line, Damage::Content(error)));
    let records: Result<_, (usize, Damage)> = lines.zip(3..).map(record).collect();
    Ok(header.with_records(records?))
}

/// Reads the format before this one: its first line, a digest, and one JSON object with header and
/// records.
fn parse_former<E: Entry>(bytes: &[u8]) -> Result<E, (usize, Damage)> {
    let (magic, records) = E::FORMER;
    let body = unseal(magic, bytes).map_err(|_| (2_usize, Damage::Digest))?;
    let parts = || {
        let mut header: Map<String, Value> = serde_json::from_str(body)?;
        let records = header.shift_remove(records).unwrap_or_default();
        Ok(E::with_records(serde_json::from_value(header.into())?, serde_json::from_value(records)?))
    };
    parts().map_err(|error: serde_json::Error| (3, Damage::Content(error)))
}

#[cfg(test)]
mod tests;
