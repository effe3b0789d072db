//! Other processes change the files that report endpoint states to CNI plugins.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::programs::admit;
use crate::{
    Fault,
    stage::{Stage, StageError, StageResult, ensure},
};

pub(super) const FAULTS: &[Fault] = &[Fault::new(
    "status-files",
    "status files are torn, deleted and obstructed: policy is enforced, and the files are repaired",
    status_files,
)
.ebpf()];

const FOREIGN: &str = "notes.txt";
const WARNING: &str = "endpoint status files cannot be kept";
const RESOLVED: &str = "endpoint status files are kept again";

/// Returns the contents of each file; empty if the directory is missing.
fn held(directory: &Path) -> BTreeMap<String, String> {
    let Ok(entries) = fs::read_dir(directory) else { return BTreeMap::new() };
    let file = |entry: std::io::Result<fs::DirEntry>| {
        let entry = entry.ok()?;
        Some((entry.file_name().into_string().ok()?, fs::read_to_string(entry.path()).ok()?))
    };
    entries.filter_map(file).collect()
}

fn status_files(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    let directory = stage.folder().join("endpoint-status");
    stage.until("there are status files", |_| Ok(held(&directory).len() > 1))?;
    let good = held(&directory);
    let first = good.keys().next().cloned().unwrap_or_default();
    let is_good = |directory: &Path| -> Result<bool, StageError> { Ok(held(directory) == good) };

    fs::write(directory.join(&first), &good[&first][..5])?;
    fs::write(directory.join("k8s shop%2Fgone eth0"), "{}")?;
    fs::write(directory.join(FOREIGN), "not an endpoint's")?;
    stage.until("torn and stale files are repaired", |_| {
        let mut now = held(&directory);
        Ok(now.remove(FOREIGN).is_some() && now == good)
    })?;

    fs::remove_dir_all(&directory)?;
    stage.until("a directory that was deleted is back", |_| is_good(&directory))?;

    fs::remove_dir_all(&directory)?;
    fs::write(&directory, "in the way")?;
    stage.until("the blocking file is logged", |stage| Ok(stage.log().contains(WARNING)))?;
    admit(stage, true)?;
    ensure(stage.is_ready(), || "the agent is not ready because of files".to_owned())?;
    fs::remove_file(&directory)?;
    stage.until("the files are back", |_| is_good(&directory))?;
    stage.until("the resolution is logged", |stage| Ok(stage.log().contains(RESOLVED)))?;
    let warnings = stage.log().matches(WARNING).count();
    ensure(warnings == 1, || format!("it was said {warnings} times that files cannot be kept"))?;
    admit(stage, false)
}
