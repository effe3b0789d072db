//! A directory of manifests under test.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;

use tempfile::TempDir;
use tortie_resources::manifest::ObjectId;

use super::Edit;

/// A directory of manifests that the edits of the suite go into, a file for each object, in place at once.
#[derive(Debug)]
pub struct Folder {
    parent: TempDir,
    names: BTreeMap<ObjectId, String>,
}

impl Folder {
    /// An empty one.
    ///
    /// # Errors
    /// If there is no place for it.
    pub fn new() -> io::Result<Self> {
        let folder = Self { parent: TempDir::new()?, names: BTreeMap::new() };
        fs::create_dir(folder.path())?;
        Ok(folder)
    }

    /// Where the manifests are.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.parent.path().join("manifests")
    }

    /// Makes the edits, one after the other.
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

    /// Takes the directory away.
    ///
    /// # Errors
    /// If it is not there.
    pub fn hide(&self) -> io::Result<()> {
        fs::rename(self.path(), self.parent.path().join("away"))
    }

    /// Brings it back.
    ///
    /// # Errors
    /// If it is not away.
    pub fn show(&self) -> io::Result<()> {
        fs::rename(self.parent.path().join("away"), self.path())
    }
}
