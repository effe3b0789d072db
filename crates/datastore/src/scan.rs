//! Scan of the manifests below a directory, and detection of changes.

mod open;
mod recheck;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

use open::Tree;
pub(crate) use recheck::recheck;
use tortie_model::with_causes;

/// Resolution of file system time stamps: a file changed more recently than this may change again
/// and keep the same stamp.
const RACY: Duration = Duration::from_millis(100);

/// Metadata that distinguishes contents of a file without reading them.
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

    /// Reports whether the file changed so recently that an equal stamp does not prove equal
    /// contents.
    pub(crate) fn is_racy(age: Duration) -> bool {
        age < RACY
    }

    /// Returns the age of the last change at `time`, by the file's time stamp; zero if it changed
    /// between `time` and `now`.
    pub(crate) fn age(&self, time: SystemTime, now: SystemTime) -> Duration {
        let since_epoch = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let (time, now, changed) = (since_epoch(time), since_epoch(now), self.changed());
        if (time..=now).contains(&changed) {
            return Duration::ZERO;
        }
        // A time in the future indicates a clock that was set back, not a recent change.
        time.abs_diff(changed)
    }

    fn changed(&self) -> Duration {
        let (seconds, nanos) = self.changed;
        Duration::new(u64::try_from(seconds).unwrap_or(0), u32::try_from(nanos).unwrap_or(0).min(999_999_999))
    }

    /// Returns the identity of the file (device and inode), which is independent of its name.
    pub(crate) fn file(&self) -> (u64, u64) {
        (self.device, self.inode)
    }

    /// Reports whether this is the same file with the same content, by its stamps. Its name, owner
    /// or mode may differ.
    pub(crate) fn is_same_content(&self, other: &Self) -> bool {
        let of = |stamp: &Self| (stamp.file(), stamp.size, stamp.modified);
        of(self) == of(other)
    }

    /// Returns a stamp for tests.
    #[cfg(test)]
    pub(crate) fn fake(inode: u64, size: u64, version: i64) -> Self {
        Self { device: 1, inode, size, modified: (version, 0), changed: (version, 0) }
    }

    /// Returns the stamp of a file; `None` if it is unavailable.
    pub(crate) fn at(path: &Path) -> Option<Self> {
        fs::metadata(path).ok().map(|metadata| Self::of(&metadata))
    }
}

/// Returns the identity (device and inode) of a file or directory; `None` if it does not exist.
pub(crate) fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Result of a scan.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ScanResult {
    /// The manifests.
    pub(crate) files: BTreeMap<PathBuf, Stamp>,
    /// Manifests that cannot be read, and directories that cannot be listed, with the reason.
    pub(crate) closed: BTreeMap<PathBuf, String>,
    /// The listed directories.
    folders: BTreeSet<PathBuf>,
    /// Identities (device and inode) of the listed directories, which may have other names.
    visited: BTreeSet<(u64, u64)>,
    /// Links, and files with several names: events of other names may concern them.
    aliases: BTreeSet<PathBuf>,
    /// Sum of the sizes of the manifests in bytes.
    total: u64,
    /// Whether [`recheck()`] can keep this up to date.
    pub(crate) is_checkable: bool,
}

/// Largest manifest that is read by default: 64 MiB.
pub const MAX_FILE_BYTES: u64 = 64 << 20;
/// Largest sum of the sizes of all manifests of a directory by default: 256 MiB.
pub const MAX_DIRECTORY_BYTES: u64 = 256 << 20;

/// Bounds of reading a directory of manifests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirAccess {
    /// Whether links may lead out of the directory; false by default.
    pub follow_links: bool,
    /// Largest manifest; [`MAX_FILE_BYTES`] by default.
    pub max_file_bytes: u64,
    /// Largest sum of the sizes of all manifests; [`MAX_DIRECTORY_BYTES`] by default.
    pub max_directory_bytes: u64,
}

impl Default for DirAccess {
    fn default() -> Self {
        Self { follow_links: false, max_file_bytes: MAX_FILE_BYTES, max_directory_bytes: MAX_DIRECTORY_BYTES }
    }
}

/// Lists the manifests below `root`: files ending in `.yaml`, `.yml` or `.json`. Links are
/// followed, out of `root` only if `access` permits it. Hidden entries are left out: a mounted
/// `ConfigMap` keeps its versions in hidden directories and links to them. `root` may be a single
/// file.
///
/// # Errors
/// If `root` cannot be listed; this does not mean that files are gone.
pub(crate) fn scan(root: &Path, access: DirAccess) -> io::Result<ScanResult> {
    scan_from(root, root, access)
}

/// As [`scan`], of a directory or file below `root`.
///
/// # Errors
/// If `start` cannot be listed.
pub(crate) fn scan_from(root: &Path, start: &Path, access: DirAccess) -> io::Result<ScanResult> {
    let naming = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", start.display()));
    let tree = Tree::open(root, access).map_err(naming)?;
    let mut found = ScanResult::default();
    let metadata = tree.metadata(start).map_err(naming)?;
    if metadata.is_file() {
        found.files.insert(start.to_path_buf(), Stamp::of(&metadata));
    } else {
        found.is_checkable = true;
        let mut folders = vec![start.to_path_buf()];
        while let Some(folder) = folders.pop() {
            match list(&tree, &folder, &mut folders, &mut found) {
                Ok(()) => drop(found.folders.insert(folder)),
                Err(error) if folder == start => return Err(naming(error)),
                // It was removed since it was listed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    found.closed.insert(folder, refusal(error));
                }
            }
        }
    }
    found.limit(access);
    Ok(found)
}

impl ScanResult {
    /// Reports whether a name below `root` is, or may have been, that of a link to a directory.
    /// Hidden names are not listed, so that any of them may.
    pub(crate) fn may_link_to_folder(&self, root: &Path, path: &Path) -> bool {
        is_hidden_below(root, path) || self.folders.contains(path) && self.aliases.contains(path)
    }

    /// Moves to `closed` the files that are too large, and those that exceed the directory's limit
    /// together with the files that sort before them.
    fn limit(&mut self, access: DirAccess) {
        let (closed, sum) = (&mut self.closed, &mut self.total);
        let count = self.files.len();
        self.files.retain(|path, stamp| {
            let why = if stamp.size > access.max_file_bytes {
                too_large(access.max_file_bytes)
            } else if sum.saturating_add(stamp.size) > access.max_directory_bytes {
                let bound = Size(access.max_directory_bytes);
                format!("is over the bound of {bound} for all manifests of a directory (--max-directory-mib)")
            } else {
                *sum += stamp.size;
                return true;
            };
            closed.insert(path.clone(), why);
            false
        });
        // A change of one file can open or close others.
        self.is_checkable &= self.files.len() == count;
    }
}

fn too_large(bound: u64) -> String {
    format!("is larger than {} (--max-file-mib)", Size(bound))
}

struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(bytes) = *self;
        if bytes % (1 << 20) == 0 { write!(f, "{} MiB", bytes >> 20) } else { write!(f, "{bytes} bytes") }
    }
}

fn list(tree: &Tree<'_>, folder: &Path, folders: &mut Vec<PathBuf>, found: &mut ScanResult) -> io::Result<()> {
    let metadata = tree.folder(folder)?;
    // Links may lead in circles.
    if !found.visited.insert((metadata.dev(), metadata.ino())) {
        found.is_checkable = false;
        return Ok(());
    }
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.file_name().is_none_or(is_hidden) {
            continue;
        }
        let Named { entry, is_alias } = Named::find(tree, &path);
        if is_alias {
            found.aliases.insert(path.clone());
        }
        match entry {
            Entry::Folder => {
                // A directory with several names has events by one of them.
                found.is_checkable &= !is_alias;
                folders.push(path);
            }
            Entry::Manifest(stamp) => drop(found.files.insert(path, stamp)),
            Entry::Closed(why) => drop(found.closed.insert(path, why)),
            Entry::Other => {}
        }
    }
    Ok(())
}

/// A name in a directory.
struct Named {
    entry: Entry,
    /// Whether it is a link, or the file has other names as well.
    is_alias: bool,
}

enum Entry {
    Folder,
    Manifest(Stamp),
    /// It is relevant, and cannot be read for this reason.
    Closed(String),
    /// It does not exist, or is no manifest.
    Other,
}

impl Named {
    fn find(tree: &Tree<'_>, path: &Path) -> Self {
        let (is_link, metadata) = tree.examine(path);
        let has_names = metadata.as_ref().is_ok_and(|metadata| !metadata.is_dir() && metadata.nlink() > 1);
        Self { entry: Entry::of(path, metadata), is_alias: is_link || has_names }
    }
}

impl Entry {
    fn of(path: &Path, metadata: io::Result<Metadata>) -> Self {
        match metadata {
            Ok(metadata) if metadata.is_dir() => Self::Folder,
            Ok(_) if !is_manifest(path) => Self::Other,
            Ok(metadata) if metadata.is_file() => Self::Manifest(Stamp::of(&metadata)),
            Ok(_) => Self::Closed(open::IRREGULAR.to_owned()),
            // A file that was removed since the listing is gone; a dangling link is a problem.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let dangles = is_manifest(path) && fs::symlink_metadata(path).is_ok();
                if dangles { Self::Closed("is a link to nothing".to_owned()) } else { Self::Other }
            }
            // A file other than a manifest does not matter, wherever it is.
            Err(error) if open::leads_out(&error) && !is_manifest(path) && !path.is_dir() => Self::Other,
            Err(error) => Self::Closed(refusal(error)),
        }
    }
}

fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

/// Reports whether the name of a file or of a directory on its path is hidden, `root` excepted.
fn is_hidden_below(root: &Path, path: &Path) -> bool {
    let is_hidden = |part| matches!(part, Component::Normal(name) if is_hidden(name));
    path.strip_prefix(root).is_ok_and(|below| below.components().any(is_hidden))
}

fn is_manifest(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml" || extension == "json")
}

/// Reads the manifests below a directory, or the one file, with the rules of [`crate::DirSource`],
/// in the order of their paths. Unreadable files are left out, because the source reports them.
///
/// # Errors
/// If the directory cannot be listed.
pub fn manifest_texts(root: &Path, access: DirAccess) -> io::Result<Vec<(PathBuf, String)>> {
    let files = scan(root, access)?.files.into_keys();
    let text = |path: PathBuf| {
        let text = read(root, &path, access).ok().flatten()?;
        Some((path, text))
    };
    Ok(files.filter_map(text).collect())
}

/// Reason for which a manifest cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ManifestError {
    #[error("is not UTF-8 text")]
    NotText(#[source] std::str::Utf8Error),
    #[error("{}", too_large(*.0))]
    TooLarge(u64),
    #[error("is a link that leads out of the directory (--follow-links permits it)")]
    LeadsOut,
    #[error("cannot be read")]
    Io(#[source] io::Error),
    /// A file of another kind.
    #[error(transparent)]
    Refused(io::Error),
}

impl From<io::Error> for ManifestError {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(_) if open::leads_out(&error) => Self::LeadsOut,
            Some(_) => Self::Io(error),
            None => Self::Refused(error),
        }
    }
}

/// Returns the reason why a file cannot be read, as a problem reports it.
fn refusal(error: io::Error) -> String {
    with_causes(&ManifestError::from(error))
}

/// Returns the text of a file below `root`; `Ok(None)` if it is gone by now.
pub(crate) fn read(root: &Path, path: &Path, access: DirAccess) -> Result<Option<String>, ManifestError> {
    let bytes = Tree::open(root, access)
        .and_then(|tree| tree.regular(path))
        .and_then(|file| read_bytes(file, access.max_file_bytes));
    match bytes {
        Ok(Some(bytes)) => match String::from_utf8(bytes) {
            Ok(text) => Ok(Some(text)),
            Err(error) => Err(ManifestError::NotText(error.utf8_error())),
        },
        Ok(None) => Err(ManifestError::TooLarge(access.max_file_bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns the bytes of a file; `None` if there are more than `max`.
fn read_bytes(file: File, max: u64) -> io::Result<Option<Vec<u8>>> {
    let size = file.metadata()?.len();
    if size > max {
        return Ok(None);
    }
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or_default());
    // It may grow meanwhile.
    file.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= max).then_some(bytes))
}

#[cfg(test)]
mod tests;
