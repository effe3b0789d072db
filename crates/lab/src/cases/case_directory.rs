//! A case as the updates of a directory, step by step.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tortie_datastore::{DirState, FileContent};
use tortie_model::Update;
use tortie_resources::manifest::Options;

use super::Step;

/// A directory that follows the steps of a case, with one object per file.
#[derive(Debug)]
pub struct CaseDirectory {
    directory: DirState,
    files: BTreeMap<PathBuf, String>,
    nodes: usize,
}

impl CaseDirectory {
    /// Creates the state before the first step. Pods will be spread over this many nodes.
    #[must_use]
    pub fn new(nodes: usize) -> Self {
        Self { directory: DirState::new(Options::default()), files: BTreeMap::new(), nodes }
    }

    /// Returns the updates of a step; with the first step, also those of an empty directory.
    ///
    /// # Panics
    /// If objects of the case have problems.
    pub fn follow(&mut self, step: &Step) -> Vec<Update> {
        let mut pods = step.cluster.clone();
        pods.spread(self.nodes);
        self.follow_objects(pods.objects().iter().chain(&step.policies))
    }

    /// Returns the updates after which exactly these objects exist.
    ///
    /// # Panics
    /// If they have problems.
    pub fn follow_objects<'a>(&mut self, objects: impl IntoIterator<Item = &'a Value>) -> Vec<Update> {
        let mut updates = self.directory.take_updates();
        let files: BTreeMap<PathBuf, String> =
            objects.into_iter().map(|object| (path(object), object.to_string())).collect();
        let removed: Vec<PathBuf> = self.files.keys().filter(|path| !files.contains_key(*path)).cloned().collect();
        for path in &removed {
            updates.extend(self.directory.set_file(path, None));
        }
        for (path, text) in &files {
            if self.files.get(path) != Some(text) {
                updates.extend(self.directory.set_file(path, Some(FileContent::Text(text))));
            }
        }
        self.files = files;
        let problems: Vec<String> = self.directory.problems().map(|problem| problem.to_string()).collect();
        assert_eq!(problems, [""; 0]);
        updates
    }
}

fn path(object: &Value) -> PathBuf {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let metadata = |field: &str| text(&object["metadata"][field]);
    Path::new(&format!("{}.{}.{}.json", text(&object["kind"]), metadata("namespace"), metadata("name"))).to_owned()
}
