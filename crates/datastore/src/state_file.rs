//! Files of a state directory: written by this user alone, replaced as a whole, sealed with a digest.

use std::fs::{self, Metadata, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use sha2::{Digest as _, Sha256};

/// Reason for which bytes are not of a sealed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SealError {
    /// They are of another kind or version.
    Format,
    /// They are not all that was written, or were changed.
    Checksum,
}

/// Returns a body behind two lines: its kind and version, then its digest.
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
#[cfg(feature = "sources")]
pub(crate) fn folder_name(directory: &Path, node: &str) -> String {
    hex_digest(&[directory.as_os_str().as_encoded_bytes(), b"\0", node.as_bytes()].concat())
}

/// Returns whether only this user can write the file or directory.
pub(crate) fn is_ours(metadata: &Metadata) -> bool {
    metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode() & 0o022 == 0
}

/// Fails if another user can write into one of these directories.
#[cfg(feature = "sources")]
pub(crate) fn check_ours(directories: &[&Path]) -> io::Result<()> {
    for directory in directories {
        if !is_ours(&fs::symlink_metadata(directory)?) {
            let what = format!("{} belongs to another user, or others may write into it", directory.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
        }
    }
    Ok(())
}

/// Replaces a file in one step: a reader finds the old or the new content. A power failure may undo the replacement.
pub(crate) fn put(place: &Path, bytes: &[u8]) -> io::Result<()> {
    let draft = place.with_extension("tmp");
    let written =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft).and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&draft, place)
        });
    if written.is_err() {
        // A draft that is cut off, as by a full disk, is of no use.
        let _ = fs::remove_file(&draft);
    }
    written
}
