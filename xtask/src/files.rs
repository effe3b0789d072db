//! Files and folders, with paths in errors.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::run;

/// Adds the path to an error.
pub fn failed(path: &Path) -> impl Fn(io::Error) -> String + '_ {
    move |error| format!("{}: {error}", path.display())
}

/// Returns the text of a file.
///
/// # Errors
/// If it cannot be read.
pub fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(failed(path))
}

/// Writes a file that is readable for all, and creates its parent folders.
///
/// # Errors
/// If they cannot be written.
pub fn write(path: &Path, text: &str) -> Result<(), String> {
    make_parent(path)?;
    fs::write(path, text).map_err(failed(path))?;
    set_mode(path, 0o644)
}

/// Copies a file, and creates the parent folders of the target.
pub(crate) fn copy(from: &Path, to: &Path, mode: u32) -> Result<(), String> {
    make_parent(to)?;
    fs::copy(from, to).map_err(failed(from))?;
    set_mode(to, mode)
}

pub(crate) fn set_mode(path: &Path, mode: u32) -> Result<(), String> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(failed(path))
}

/// Creates an empty folder, in place of an existing one.
///
/// # Errors
/// If the existing folder cannot be removed, or the new one created.
pub fn empty(folder: &Path) -> Result<PathBuf, String> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(folder)(error)),
        _ => fs::create_dir_all(folder).map_err(failed(folder))?,
    }
    Ok(folder.to_owned())
}

/// Returns all regular files and links below a folder, as relative paths, in order.
///
/// # Errors
/// If a folder cannot be read.
pub fn below(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(current) = folders.pop() {
        for entry in fs::read_dir(&current).map_err(failed(&current))? {
            let entry = entry.map_err(failed(&current))?;
            let path = entry.path();
            if entry.file_type().map_err(failed(&path))?.is_dir() {
                folders.push(path);
            } else {
                found.push(path.strip_prefix(folder).map_or(path.clone(), Path::to_owned));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Makes the folders below a folder accessible for all, whatever the umask was.
pub(crate) fn open_folders(folder: &Path) -> Result<(), String> {
    run(Command::new("find").arg(folder).args(["-type", "d", "-exec", "chmod", "0755", "{}", "+"]))
}

/// Returns the SHA-256 of a file in hexadecimal digits.
pub(crate) fn sha256(path: &Path) -> Result<String, String> {
    let line = crate::shell::output(Command::new("sha256sum").arg("--binary").arg(path))?;
    line.split_whitespace()
        .next()
        .map(str::to_owned)
        .ok_or_else(|| format!("sha256sum says nothing of {}", path.display()))
}

fn make_parent(path: &Path) -> Result<(), String> {
    path.parent().map_or(Ok(()), |parent| fs::create_dir_all(parent).map_err(failed(parent)))
}
