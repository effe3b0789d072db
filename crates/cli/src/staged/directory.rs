//! Commit of staged policies in a directory: the manifest is printed, or replaces a file without
//! other objects.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tortie_datastore::{DirAccess, manifest_texts};
use tortie_model::Interner;
use tortie_resources::manifest::{Format, Options, read_written};
use tortie_resources::to_yaml;

use super::{StagedName, as_enforced};
use crate::Failure;

struct PolicyFile {
    file: PathBuf,
    text: String,
    objects: usize,
    object: Value,
}

pub(super) fn manifest(root: &Path, name: &StagedName) -> Result<(PathBuf, String), Failure> {
    let staged = only(root, name, true)?
        .ok_or_else(|| Failure::failed(format!("{} does not exist in {}", name.staged(), root.display())))?;
    match staged.object.pointer("/spec/stagedAction").and_then(Value::as_str).unwrap_or("Set") {
        "Set" => {}
        "Delete" => {
            let enforced = only(root, name, false)?.map(|found| format!(" and from {}", found.file.display()));
            let (policy, file) = (name.enforced(), staged.file.display());
            let why = format!("{policy} is to be deleted: remove it from {file}{}", enforced.unwrap_or_default());
            return Err(Failure::failed(why));
        }
        other => {
            let why =
                format!("{}: its stagedAction is {other}; only Set and Delete can be put in force", name.staged());
            return Err(Failure::failed(why));
        }
    }
    Ok((staged.file, to_yaml(&as_enforced(staged.object, name))))
}

/// Replaces the file, which must hold the staged policy and nothing else, with that manifest in one
/// step.
pub(super) fn write(root: &Path, name: &StagedName) -> Result<PathBuf, Failure> {
    let (file, text) = manifest(root, name)?;
    let refused = |why: String| Failure::failed(format!("{}: {why}; nothing has been changed", file.display()));
    let staged = only(root, name, true)?.ok_or_else(|| refused(format!("{} no longer exists", name.staged())))?;
    if staged.objects != 1 {
        return Err(refused(format!("has {} objects: write this one by hand, without --write", staged.objects)));
    }
    if Format::of(&file) == Format::Json {
        return Err(refused("is JSON, and would become YAML: write it by hand, without --write".to_owned()));
    }
    if let Some(line) = staged.text.lines().position(|line| line.contains(['#', '&', '*'])) {
        let line = line + 1;
        let why = format!(
            "line {line} may have a comment or an alias, which would be lost: write it by hand, without --write"
        );
        return Err(refused(why));
    }
    if let Some(enforced) = only(root, name, false)? {
        let other = enforced.file.display();
        return Err(refused(format!("{} is in {other} as well, and has to go from there first", name.enforced())));
    }
    replace(&file, &text).map_err(Failure::io(file.display().to_string()))?;
    Ok(file)
}

fn only(root: &Path, name: &StagedName, is_staged: bool) -> Result<Option<PolicyFile>, Failure> {
    let texts = manifest_texts(root, DirAccess::default()).map_err(Failure::io(root.display().to_string()))?;
    let mut all = Vec::new();
    for (file, text) in texts {
        let (_, objects) = read_written(&text, Format::of(&file), &Options::default(), &mut Interner::new());
        let count = objects.len();
        for object in objects.into_iter().filter(|object| name.is_of(object, is_staged)) {
            all.push(PolicyFile { file: file.clone(), text: text.clone(), objects: count, object });
        }
    }
    if let [first, second, ..] = &all[..] {
        let policy = if is_staged { name.staged() } else { name.enforced() };
        let (first, second) = (first.file.display(), second.file.display());
        return Err(Failure::failed(format!("{policy} is in {first} and in {second}")));
    }
    Ok(all.pop())
}

/// Keeps the permissions. A reader of the directory finds either the old file or the new one.
fn replace(file: &Path, text: &str) -> std::io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let new = folder.join(format!(".{name}.tortie-{}", std::process::id()));
    let written = (|| {
        let mut out = OpenOptions::new().write(true).create_new(true).open(&new)?;
        out.set_permissions(fs::metadata(file)?.permissions())?;
        out.write_all(text.as_bytes())?;
        out.sync_all()?;
        fs::rename(&new, file)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}
