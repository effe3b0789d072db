//! Programs that run in the workspace's root.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Returns the root of the workspace.
#[must_use]
pub fn root() -> PathBuf {
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().map_or(manifest.clone(), PathBuf::from)
}

/// Returns a command that runs in the root of the workspace.
#[must_use]
pub fn command(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).current_dir(root());
    command
}

/// Returns the cargo that runs this program.
#[must_use]
pub fn cargo(args: &[&str]) -> Command {
    let mut cargo = command(&std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()), args);
    clear_package_variables(&mut cargo);
    cargo
}

/// Removes the variables that `cargo run` has set for this program. The build scripts of some
/// dependencies run again whenever one of them changes; nearly everything would then be compiled
/// again after each change between `cargo` and `cargo xtask`.
fn clear_package_variables(cargo: &mut Command) {
    let is_set_by_cargo = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_set_by_cargo)) {
        cargo.env_remove(name);
    }
}

/// Returns cargo of a Rust release, which is installed if it is missing and another release runs
/// this program.
///
/// # Errors
/// If `rustup` is missing or cannot install it.
pub fn cargo_of(release: &str) -> Result<Command, String> {
    // A release without its last number means the newest of these.
    let is_this = |version: &str| version.strip_prefix(release).is_some_and(|rest| rest.starts_with([' ', '.']));
    if output(&mut command("rustc", &["--version"]))?.strip_prefix("rustc ").is_some_and(is_this) {
        return Ok(cargo(&[]));
    }
    let cargo = || {
        let mut cargo = command("rustup", &["run", release, "cargo"]);
        cargo.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO");
        clear_package_variables(&mut cargo);
        cargo
    };
    // Installing an existing release would query the network for a newer one.
    if !cargo().arg("--version").output().is_ok_and(|version| version.status.success()) {
        let mut install = command("rustup", &["toolchain", "install", "--profile", "minimal", "--no-self-update"]);
        run(install.arg(release)).map_err(|error| format!("Rust {release} is needed: {error}"))?;
    }
    Ok(cargo())
}

/// Runs a command with its output visible to the user.
///
/// # Errors
/// If it cannot be started or does not succeed.
pub fn run(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{}: {error}", show(command)))?;
    if status.success() { Ok(()) } else { Err(format!("{}: {status}", show(command))) }
}

/// Runs a command and prints its output at the end.
///
/// # Errors
/// If it cannot be started or does not succeed.
pub fn collect(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{}: {error}", show(command)))?;
    print!("{}", String::from_utf8_lossy(&output.stdout));
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    if output.status.success() { Ok(()) } else { Err(format!("{}: {}", show(command), output.status)) }
}

/// Runs a command and returns its standard output.
///
/// # Errors
/// If it cannot be started or does not succeed, or its output is not UTF-8.
pub fn output(command: &mut Command) -> Result<String, String> {
    let output = command.stderr(Stdio::inherit()).output().map_err(|error| format!("{}: {error}", show(command)))?;
    if !output.status.success() {
        return Err(format!("{}: {}", show(command), output.status));
    }
    String::from_utf8(output.stdout).map_err(|_| format!("{}: its output is not UTF-8", show(command)))
}

/// Runs a build and returns the paths of its programs, by name.
///
/// # Errors
/// If the build fails.
pub fn built(build: &mut Command) -> Result<BTreeMap<String, PathBuf>, String> {
    built_with(build, &[])
}

/// As [`built`], with these arguments for the compiler of the program.
///
/// # Errors
/// If the build fails.
pub fn built_with(build: &mut Command, rustc: &[&str]) -> Result<BTreeMap<String, PathBuf>, String> {
    build.arg("--message-format=json-render-diagnostics");
    if !rustc.is_empty() {
        build.arg("--").args(rustc);
    }
    let messages = output(build)?;
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    Ok(messages
        .filter_map(|message| {
            let path = message["executable"].as_str().map(PathBuf::from)?;
            Some((message["target"]["name"].as_str()?.to_owned(), path))
        })
        .collect())
}

fn show(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// Reports whether a program is installed.
#[must_use]
pub fn is_installed(file: &str) -> bool {
    // Kernel tools are in folders outside an ordinary user's search path.
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':').chain(["/usr/sbin", "/sbin"]).any(|dir| Path::new(dir).join(file).is_file())
}

/// Fails unless the disk has room for a build. A full disk ends a linker by a bus error, which
/// names no reason.
///
/// # Errors
/// Checks that the disk of a folder has this much free space.
pub fn require_room(folder: &Path, mebibytes: u64) -> Result<(), String> {
    let Some(free) = free_mebibytes(folder) else { return Ok(()) };
    if free >= mebibytes {
        return Ok(());
    }
    let folder = folder.display();
    Err(format!(
        "{free} MiB are free on the disk of {folder}, but {mebibytes} MiB are needed; `cargo clean` removes earlier builds"
    ))
}

/// Returns the free room of a folder's disk in MiB; `None` if unknown.
fn free_mebibytes(folder: &Path) -> Option<u64> {
    // POSIX defines the output: a line of headings, and a line whose fourth word is the number of
    // free units.
    let table = Command::new("df").arg("-Pk").arg(folder).stderr(Stdio::null()).output().ok()?;
    let table = String::from_utf8(table.stdout).ok()?;
    let free: u64 = table.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()?;
    Some(free / 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_reported_before_a_build() {
        assert_eq!(require_room(&root(), 0), Ok(()));
        let refused = require_room(&root(), u64::MAX).unwrap_err();
        assert!(refused.contains("MiB are free on the disk of /"), "{refused}");
        // An unknown size must not stop a build.
        assert_eq!(free_mebibytes(Path::new("/nowhere/at/all")), None);
    }
}
