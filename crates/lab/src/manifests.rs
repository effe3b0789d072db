//! Kubernetes objects in a directory, one file each, changed in place.
//!
//! Files appear and are replaced by rename, and are removed, as a file datastore expects.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use serde_json::Value;

/// Error of updating a directory of manifests.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// A file or the directory could not be read, written, renamed or removed.
    #[error("{}: {source}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// An object has no `kind` or no `metadata.name`.
    #[error("an object without kind or metadata.name: {0}")]
    Nameless(String),
}

/// A directory that contains one file per object and no other files.
#[derive(Debug)]
pub struct ManifestDir {
    path: PathBuf,
    files: BTreeMap<String, String>,
}

/// Result of [`ManifestDir::replace`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Changes {
    /// Number of files written, new or replaced.
    pub written: usize,
    /// Number of files removed.
    pub removed: usize,
}

impl ManifestDir {
    /// Creates the directory, with its parents.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn create(path: &Path) -> Result<Self, ManifestError> {
        fs::create_dir_all(path).map_err(|source| ManifestError::Io { path: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned(), files: BTreeMap::new() })
    }

    /// Returns the path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the contents with exactly `objects`: writes the differences in the given order,
    /// then removes the other files.
    ///
    /// # Errors
    /// The first object or file that fails. The directory may be partly updated then.
    pub fn replace(&mut self, objects: &[Value]) -> Result<Changes, ManifestError> {
        let mut changes = Changes::default();
        let mut desired = BTreeMap::new();
        for object in objects {
            let name = file_name(object)?;
            let text = format!("{object:#}\n");
            if self.files.get(&name) != Some(&text) {
                self.write(&name, &text)?;
                changes.written += 1;
            }
            desired.insert(name, text);
        }
        let removed: Vec<String> = self.files.keys().filter(|name| !desired.contains_key(*name)).cloned().collect();
        for name in removed {
            let path = self.path.join(&name);
            fs::remove_file(&path).map_err(|source| ManifestError::Io { path, source })?;
            self.files.remove(&name);
            changes.removed += 1;
        }
        Ok(changes)
    }

    fn write(&mut self, name: &str, text: &str) -> Result<(), ManifestError> {
        let (path, temporary) = (self.path.join(name), self.path.join(format!(".{name}.tmp")));
        fs::write(&temporary, text)
            .and_then(|()| fs::rename(&temporary, &path))
            .map_err(|source| ManifestError::Io { path, source })?;
        self.files.insert(name.to_owned(), text.to_owned());
        Ok(())
    }
}

fn file_name(object: &Value) -> Result<String, ManifestError> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
    let nameless = || ManifestError::Nameless(object.to_string());
    let kind = text("/kind").ok_or_else(nameless)?.to_lowercase();
    let name = text("/metadata/name").ok_or_else(nameless)?;
    Ok(match text("/metadata/namespace") {
        Some(namespace) => format!("{kind}.{namespace}.{name}.json"),
        None => format!("{kind}.{name}.json"),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::{Changes, ManifestDir, ManifestError};
    use crate::cases::{bundled, read};

    #[test]
    fn only_changed_files_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let mut manifests = ManifestDir::create(&folder.path().join("a/b")).unwrap();
        let object = |name: &str, value: u8| json!({"kind": "K", "metadata": {"name": name}, "value": value});
        let changes = |written, removed| Changes { written, removed };
        assert_eq!(manifests.replace(&[object("x", 1), object("y", 1)]).unwrap(), changes(2, 0));
        assert_eq!(manifests.replace(&[object("y", 1), object("x", 1)]).unwrap(), changes(0, 0));
        assert_eq!(manifests.replace(&[object("y", 2)]).unwrap(), changes(1, 1));
        let files: BTreeSet<_> =
            std::fs::read_dir(manifests.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(files, BTreeSet::from(["k.y.json".into()]));
        let text = std::fs::read_to_string(manifests.path().join("k.y.json")).unwrap();
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), object("y", 2));
        assert!(matches!(manifests.replace(&[json!({"kind": "K"})]), Err(ManifestError::Nameless(_))));
    }

    #[test]
    fn every_bundled_state_has_one_file_per_object() {
        let folder = tempfile::tempdir().unwrap();
        let mut manifests = ManifestDir::create(folder.path()).unwrap();
        for case in bundled().iter().flat_map(|path| read(path).unwrap()).step_by(20) {
            for step in &case.steps {
                let mut objects = step.cluster.objects();
                objects.extend(step.policies.iter().cloned());
                manifests.replace(&objects).unwrap();
                assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), objects.len(), "{}", case.file);
            }
        }
    }
}
