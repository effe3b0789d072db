//! Update of a scan for single names.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::open::Tree;
use super::{DirAccess, Entry, Named, ScanResult, identity, is_hidden_below};

/// Brings a scan of `root` up to date, given all names that may have changed since. Returns the
/// checked names; `None`, without any change, if only another scan can tell: a directory is
/// concerned, or a limit may be.
///
/// The cost is that of the names, and of all links and files with several names, as a change of
/// their content bears another name.
pub(crate) fn recheck(
    root: &Path,
    access: DirAccess,
    found: &mut ScanResult,
    names: &BTreeSet<PathBuf>,
) -> Option<BTreeSet<PathBuf>> {
    let tree = Tree::open(root, access).ok().filter(|_| found.is_checkable)?;
    let names: BTreeSet<&PathBuf> = names.iter().chain(&found.aliases).collect();
    let mut entries = Vec::with_capacity(names.len());
    let mut total = found.total;
    for path in names {
        if !path.starts_with(root) {
            return None;
        }
        if is_hidden_below(root, path) {
            // A hidden file counts by its other names only: links are known, and others are not.
            if has_other_names(path) || found.lists_by_another_name(path.parent()?) {
                return None;
            }
            continue;
        }
        if found.folders.contains(path) || !path.parent().is_some_and(|folder| found.folders.contains(folder)) {
            return None;
        }
        let Named { entry, is_alias } = Named::find(&tree, path);
        if is_alias && !found.aliases.contains(path) {
            // The other names of the file have changed as well.
            return None;
        }
        total -= found.files.get(path).map_or(0, |stamp| stamp.size);
        match &entry {
            Entry::Folder => return None,
            Entry::Manifest(stamp) if stamp.size > access.max_file_bytes => return None,
            Entry::Manifest(stamp) => total = total.saturating_add(stamp.size),
            Entry::Closed(_) | Entry::Other => {}
        }
        entries.push((path.clone(), Named { entry, is_alias }));
    }
    if total > access.max_directory_bytes {
        return None;
    }
    found.total = total;
    Some(entries.into_iter().map(|(path, named)| found.put(path, named)).collect())
}

fn has_other_names(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_dir() && metadata.nlink() > 1)
}

impl ScanResult {
    /// Reports whether a directory is listed, by another name than this one.
    fn lists_by_another_name(&self, folder: &Path) -> bool {
        !self.folders.contains(folder) && identity(folder).is_some_and(|identity| self.visited.contains(&identity))
    }

    fn put(&mut self, path: PathBuf, Named { entry, is_alias }: Named) -> PathBuf {
        self.files.remove(&path);
        self.closed.remove(&path);
        if !is_alias {
            self.aliases.remove(&path);
        }
        match entry {
            Entry::Manifest(stamp) => drop(self.files.insert(path.clone(), stamp)),
            Entry::Closed(why) => drop(self.closed.insert(path.clone(), why)),
            Entry::Folder | Entry::Other => {}
        }
        path
    }
}

#[cfg(test)]
mod tests;
