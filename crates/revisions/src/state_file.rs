//! Files of a state directory: written by this user alone, replaced as a whole, sealed with a
//! digest.

use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use sha2::{Digest as _, Sha256};

/// Reason for which bytes are not of a sealed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SealError {
    /// They are of another kind or version.
    Format,
    /// They are incomplete, or were changed.
    Checksum,
}

/// Returns a body after two header lines: its kind and version, then its digest.
pub(crate) fn seal(magic: &str, body: &str) -> Vec<u8> {
    format!("{magic}\n{}\n{body}", hex_digest(body.as_bytes())).into_bytes()
}

/// Returns the body that [`seal`] was given.
pub(crate) fn unseal<'b>(magic: &str, bytes: &'b [u8]) -> Result<&'b str, SealError> {
    let text = std::str::from_utf8(bytes).map_err(|_| SealError::Format)?;
    let rest = text.strip_prefix(magic).and_then(|rest| rest.strip_prefix('\n')).ok_or(SealError::Format)?;
    let (digest, body) = rest.split_once('\n').ok_or(SealError::Checksum)?;
    if digest == hex_digest(body.as_bytes()) { Ok(body) } else { Err(SealError::Checksum) }
}

pub(crate) fn hex_digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the name of the folder for one node's state of a directory.
pub(crate) fn folder_name(directory: &Path, node: &str) -> String {
    hex_digest(&[directory.as_os_str().as_encoded_bytes(), b"\0", node.as_bytes()].concat())
}

/// Returns whether only this user can write the file or directory.
pub(crate) fn is_ours(metadata: &Metadata) -> bool {
    metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode() & 0o022 == 0
}

/// Replaces a file in one step that survives a power failure: a reader finds the old or the new
/// content.
///
/// # Errors
/// If it cannot be written, or another program writes it at this moment.
pub(crate) fn put(place: &Path, bytes: &[u8]) -> io::Result<()> {
    let draft = place.with_extension("tmp");
    let mut file = lock_draft(&draft)?;
    let written = file.set_len(0).and_then(|()| file.write_all(bytes)).and_then(|()| file.sync_all());
    if let Err(error) = written.and_then(|()| fs::rename(&draft, place)) {
        // A draft that is cut off, as by a full disk, is useless.
        let _ = fs::remove_file(&draft);
        return Err(error);
    }
    place.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

/// Opens a draft that no other program writes until the file is closed. A killed program may have
/// left the draft.
fn lock_draft(draft: &Path) -> io::Result<File> {
    loop {
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(draft)?;
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => io::Error::other("another program writes it at this moment"),
            TryLockError::Error(error) => error,
        })?;
        // The program that had the lock may have renamed or removed the draft that is open here.
        match fs::symlink_metadata(draft) {
            Ok(metadata) if metadata.ino() == file.metadata()?.ino() => return Ok(file),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
}
