//! The manifests below a directory, and whether they have changed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// File systems tell times apart only so finely; a file changed more recently than this may change again and look the
/// same.
const RACY: Duration = Duration::from_millis(100);
/// A file of more bytes is taken for a mistake rather than read.
const MAX_SIZE: u64 = 1 << 30;

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
    pub(crate) fn is_racy(age: Duration) -> bool {
        age < RACY
    }

    /// For how long the file had been as it is at `time`, by its own account; not at all if it changed between `time` and
    /// `now`.
    pub(crate) fn age(&self, time: SystemTime, now: SystemTime) -> Duration {
        let since_epoch = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let (time, now, changed) = (since_epoch(time), since_epoch(now), self.changed());
        if (time..=now).contains(&changed) {
            return Duration::ZERO;
        }
        // A time in the future tells of a clock that was set back, not of a recent change.
        time.abs_diff(changed)
    }

    fn changed(&self) -> Duration {
        let (seconds, nanos) = self.changed;
        Duration::new(u64::try_from(seconds).unwrap_or(0), u32::try_from(nanos).unwrap_or(0).min(999_999_999))
    }

    /// Which file it is, whatever its name.
    pub(crate) fn file(&self) -> (u64, u64) {
        (self.device, self.inode)
    }

    /// Whether this is the same file with the same content, as far as stamps tell. Its name, owner or mode may be others.
    pub(crate) fn is_same_content(&self, other: &Self) -> bool {
        let of = |stamp: &Self| (stamp.file(), stamp.size, stamp.modified);
        of(self) == of(other)
    }

    /// The stamp of no real file.
    #[cfg(test)]
    pub(crate) fn fake(inode: u64, size: u64, version: i64) -> Self {
        Self { device: 1, inode, size, modified: (version, 0), changed: (version, 0) }
    }

    /// The stamp of a file; `None` if it cannot be had.
    pub(crate) fn at(path: &Path) -> Option<Self> {
        fs::metadata(path).ok().map(|metadata| Self::of(&metadata))
    }
}

/// Tells one file or directory from another of the same name; `None` if there is none.
pub(crate) fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// What is below a directory.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The manifests.
    pub(crate) files: BTreeMap<PathBuf, Stamp>,
    /// What cannot be looked into, and why: manifests, or directories that may hold some.
    pub(crate) closed: BTreeMap<PathBuf, String>,
}

/// The manifests below `root`: files ending in `.yaml`, `.yml` or `.json`, links followed, hidden entries left out (a
/// mounted `ConfigMap` keeps its versions in hidden directories and links to them). `root` may be a single file.
///
/// # Errors
/// If `root` cannot be listed: then nothing is known, least of all that files are gone.
pub(crate) fn scan(root: &Path) -> io::Result<Found> {
    let mut found = Found::default();
    let metadata = fs::metadata(root).map_err(|error| naming(root, &error))?;
    if metadata.is_file() {
        found.files.insert(root.to_path_buf(), Stamp::of(&metadata));
        return Ok(found);
    }
    let mut folders = vec![root.to_path_buf()];
    // Links may lead in circles.
    let mut visited = BTreeSet::new();
    while let Some(folder) = folders.pop() {
        match list(&folder, &mut visited, &mut folders, &mut found) {
            Ok(()) => {}
            Err(error) if folder == root => return Err(naming(root, &error)),
            // Gone since it was seen.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                found.closed.insert(folder, format!("cannot be read: {error}"));
            }
        }
    }
    Ok(found)
}

fn list(
    folder: &Path,
    visited: &mut BTreeSet<(u64, u64)>,
    folders: &mut Vec<PathBuf>,
    found: &mut Found,
) -> io::Result<()> {
    let metadata = fs::metadata(folder)?;
    if !visited.insert((metadata.dev(), metadata.ino())) {
        return Ok(());
    }
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b".")) {
            continue;
        }
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_dir() => folders.push(path),
            Ok(_) if !is_manifest(&path) => {}
            Ok(metadata) if metadata.is_file() => {
                found.files.insert(path, Stamp::of(&metadata));
            }
            Ok(_) => {
                found.closed.insert(path, "is neither a file nor a directory".to_owned());
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // What was removed since the listing is gone; what a link promises is missing.
                if is_manifest(&path) && fs::symlink_metadata(&path).is_ok() {
                    found.closed.insert(path, "is a link to nothing".to_owned());
                }
            }
            Err(error) => {
                found.closed.insert(path, format!("cannot be read: {error}"));
            }
        }
    }
    Ok(())
}

fn is_manifest(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml" || extension == "json")
}

fn naming(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// The manifests below a directory, or the one file, as [`crate::DirSource`] finds them, in the order of their paths. Those
/// that cannot be read are left out: the source says why.
///
/// # Errors
/// If the directory cannot be listed.
pub fn manifest_texts(root: &Path) -> io::Result<Vec<(PathBuf, String)>> {
    let files = scan(root)?.files.into_keys();
    let text = |path: PathBuf| {
        let text = read(&path).ok().flatten()?;
        Some((path, text))
    };
    Ok(files.filter_map(text).collect())
}

/// The text of a file; `Ok(None)` if it is gone by now.
pub(crate) fn read(path: &Path) -> Result<Option<String>, String> {
    match read_bytes(path) {
        Ok(Some(bytes)) => String::from_utf8(bytes).map(Some).map_err(|_| "is not UTF-8 text".to_owned()),
        Ok(None) => Err(format!("is larger than {} MiB", MAX_SIZE >> 20)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("cannot be read: {error}")),
    }
}

/// What a file holds; `None` if that is too much.
fn read_bytes(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    if size > MAX_SIZE {
        return Ok(None);
    }
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or_default());
    // It may grow meanwhile.
    file.take(MAX_SIZE + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= MAX_SIZE).then_some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_changed_while_a_look_took_its_time_may_change_again_and_look_the_same() {
        let stamp = Stamp::fake(1, 1, 1000);
        let at = |seconds: f64| SystemTime::UNIX_EPOCH + Duration::from_secs_f64(seconds);
        let is_racy = |time: f64, now: f64| Stamp::is_racy(stamp.age(at(time), at(now)));
        assert!(is_racy(1000.05, 1000.06));
        assert!(!is_racy(1000.2, 1000.3));
        assert!(is_racy(998.0, 1000.0), "changed two seconds after the look began");
        assert!(is_racy(998.0, 1005.0));
        // The clock was set back: this is never going to be long ago.
        assert!(!is_racy(500.0, 501.0));
    }
}
