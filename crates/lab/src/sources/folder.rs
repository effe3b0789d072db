//! A directory of manifests for the suite.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;

use tempfile::TempDir;
use tortie_resources::manifest::ObjectId;

use super::Edit;

/// A directory of manifests to which the suite's edits are applied, a file for each object, each
/// replaced atomically.
#[derive(Debug)]
pub struct Folder {
    parent: TempDir,
    names: BTreeMap<ObjectId, String>,
}

impl Folder {
    /// Creates an empty directory.
    ///
    /// # Errors
    /// If the directory cannot be created.
    pub fn new() -> io::Result<Self> {
        let folder = Self { parent: TempDir::new()?, names: BTreeMap::new() };
        fs::create_dir(folder.path())?;
        Ok(folder)
    }

    /// Returns the path of the manifests.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.parent.path().join("manifests")
    }

    /// Applies the edits in order.
    ///
    /// # Errors
    /// If a file cannot be written or removed.
    pub fn edit(&mut self, edits: &[Edit]) -> io::Result<()> {
        for edit in edits {
            let (Edit::Put(id, _) | Edit::Delete(id)) = edit;
            let count = self.names.len();
            let name = self.names.entry(id.clone()).or_insert_with(|| format!("{count}.json"));
            let path = self.parent.path().join("manifests").join(name);
            match edit {
                Edit::Put(_, object) => {
                    let new = self.parent.path().join("new");
                    fs::write(&new, object.to_string())?;
                    fs::rename(&new, path)?;
                }
                Edit::Delete(_) => fs::remove_file(path)?,
            }
        }
        Ok(())
    }

    /// Moves the directory away.
    ///
    /// # Errors
    /// If it does not exist.
    pub fn hide(&self) -> io::Result<()> {
        fs::rename(self.path(), self.parent.path().join("away"))
    }

    /// Moves it back.
    ///
    /// # Errors
    /// If it has not been moved away.
    pub fn show(&self) -> io::Result<()> {
        fs::rename(self.parent.path().join("away"), self.path())
    }
}
