//! The manifests below a directory, and whether they have changed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// File systems tell times apart only so finely; a file changed more recently than this may change again and look the
/// same.
const RACY: Duration = Duration::from_millis(100);

/// What tells one content of a file from another without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Whether the file changed so recently that an equal stamp does not prove equal contents.
    pub(crate) fn is_racy(&self, now: SystemTime) -> bool {
        let since_epoch = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let changed = Duration::new(
            u64::try_from(self.changed.0).unwrap_or(0),
            u32::try_from(self.changed.1).unwrap_or(0).min(999_999_999),
        );
        since_epoch < changed + RACY
    }
}

/// The manifests below `root`: files ending in `.yaml`, `.yml` or `.json`, links followed, hidden entries left out (a
/// mounted `ConfigMap` keeps its versions in hidden directories and links to them). `root` may be a single file.
///
/// # Errors
/// If a directory cannot be listed: then nothing is known, least of all that files are gone.
pub(crate) fn scan(root: &Path) -> io::Result<BTreeMap<PathBuf, Stamp>> {
    let mut found = BTreeMap::new();
    let metadata = fs::metadata(root).map_err(|error| naming(root, &error))?;
    if metadata.is_file() {
        found.insert(root.to_path_buf(), Stamp::of(&metadata));
        return Ok(found);
    }
    let mut folders = vec![root.to_path_buf()];
    // Links may lead in circles.
    let mut visited = BTreeSet::new();
    while let Some(folder) = folders.pop() {
        let metadata = fs::metadata(&folder).map_err(|error| naming(&folder, &error))?;
        if !visited.insert((metadata.dev(), metadata.ino())) {
            continue;
        }
        for entry in fs::read_dir(&folder).map_err(|error| naming(&folder, &error))? {
            let path = entry.map_err(|error| naming(&folder, &error))?.path();
            if path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b".")) {
                continue;
            }
            // A dangling link is a file that is gone, and so is one removed since the listing.
            let Ok(metadata) = fs::metadata(&path) else { continue };
            if metadata.is_dir() {
                folders.push(path);
            } else if metadata.is_file() && is_manifest(&path) {
                found.insert(path, Stamp::of(&metadata));
            }
        }
    }
    Ok(found)
}

fn is_manifest(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml" || extension == "json")
}

fn naming(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// The text of a file; `Ok(None)` if it is gone by now.
pub(crate) fn read(path: &Path) -> Result<Option<String>, String> {
    match fs::read(path) {
        Ok(bytes) => String::from_utf8(bytes).map(Some).map_err(|_| "is not UTF-8 text".to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("cannot be read: {error}")),
    }
}
