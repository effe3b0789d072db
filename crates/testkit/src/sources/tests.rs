use std::collections::BTreeMap;
use std::fs;

use tempfile::TempDir;
use tortie_datastore::DirSource;
use tortie_resources::manifest::Options;

use super::*;

/// A directory of manifests, a file for each object.
struct Directory {
    parent: TempDir,
    names: BTreeMap<ObjectId, String>,
}

impl Directory {
    fn new() -> Self {
        let parent = TempDir::new().expect("a directory");
        fs::create_dir(parent.path().join("manifests")).expect("a directory");
        Self { parent, names: BTreeMap::new() }
    }
}

impl SourceUnderTest for Directory {
    fn source(&mut self) -> Box<dyn Source> {
        let interval = std::time::Duration::from_millis(100);
        Box::new(DirSource::new(self.parent.path().join("manifests"), Options::default()).rescan_every(interval))
    }

    fn edit(&mut self, edits: &[Edit]) {
        for edit in edits {
            let (Edit::Put(id, _) | Edit::Delete(id)) = edit;
            let count = self.names.len();
            let name = self.names.entry(id.clone()).or_insert_with(|| format!("manifests/{count}.json"));
            let path = self.parent.path().join(name);
            match edit {
                Edit::Put(_, object) => {
                    let new = self.parent.path().join("new");
                    fs::write(&new, object.to_string()).expect("a file");
                    fs::rename(&new, path).expect("a file");
                }
                Edit::Delete(_) => fs::remove_file(path).expect("a file"),
            }
        }
    }

    fn lacks(&self) -> Vec<(Need, &'static str)> {
        vec![
            (Need::Cut, "there is no connection to a directory"),
            (Need::Partition, "there is no connection to a directory"),
            (Need::Compact, "a directory has no history"),
        ]
    }

    fn stop(&mut self) {
        fs::rename(self.parent.path().join("manifests"), self.parent.path().join("away")).expect("a directory");
    }

    fn start(&mut self) {
        fs::rename(self.parent.path().join("away"), self.parent.path().join("manifests")).expect("a directory");
    }
}

#[test]
fn a_directory_passes() {
    let report = run(Directory::new);
    assert!(report.passed.len() >= 15 && !report.not_supported.is_empty(), "{report}");
}
