//! `cargo xtask publish-check`: what would be published builds from what is in the packages alone; `oldest`: each crate builds
//! alone with the oldest compiler that must work.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use xtask::files::failed;

use crate::metadata::{is_unpublished, metadata};
use crate::samples;
use crate::shell::{cargo, cargo_of, command, root, run};

/// Packs all crates, unpacks them into a workspace of their own, and has the compiler check that, the oldest one that must work if
/// the arguments are `--oldest`.
///
/// `cargo package` itself builds each crate with everything that it needs, once more for each; here they share what is built,
/// also with other commands, as profiles are the same.
pub(crate) fn check(args: &[String]) -> Result<(), String> {
    let is_oldest = match args {
        [] => false,
        [arg] if arg == "--oldest" => true,
        _ => return Err("cargo xtask publish-check [--oldest]".into()),
    };
    let metadata = metadata()?;
    let packages: Vec<&Value> = metadata["packages"].as_array().into_iter().flatten().collect();
    let published: Vec<String> = packages
        .iter()
        .filter(|package| !is_unpublished(package))
        .filter_map(|package| Some(format!("{}-{}", package["name"].as_str()?, package["version"].as_str()?)))
        .collect();
    let packed = Path::new(metadata["target_directory"].as_str().unwrap_or_default()).join("package");
    pack(&packages)?;

    let folder = packed.join("unpacked");
    unpack(&packed, &published, &folder)?;
    fs::write(folder.join("Cargo.toml"), workspace(&published)?).map_err(failed(&folder))?;
    fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock")).map_err(failed(&folder))?;

    let mut compiler = if is_oldest { oldest_cargo(&metadata)? } else { cargo(&[]) };
    // What they have in common is in the lock file; that tests need more is gone from it.
    compiler.args(["check", "--workspace", "--lib", "--bins", "--examples", "--all-features", "--target-dir"]);
    run(compiler.arg(packed.parent().unwrap_or(&packed)).current_dir(&folder))?;
    println!("{} packages are complete", published.len());
    Ok(())
}

/// Into how many parts the crates are divided that are compiled alone.
const PARTS: usize = 5;

/// Has the oldest compiler that must work check each published crate alone with its default features, without a warning. A crate that
/// needs a feature of a dependency which only another crate asks for is found by that. Each choice of features compiles dependencies
/// again, so `--rotate` checks a fifth of the crates, another for each commit. Where that compiler cannot be had, the current
/// one does it, and a line of output names it.
pub(crate) fn oldest(args: &[String]) -> Result<(), String> {
    let part = match args {
        [] => None,
        [arg] if arg == "--rotate" => Some(samples::change()? % PARTS),
        _ => return Err("cargo xtask oldest [--rotate]".into()),
    };
    let metadata = metadata()?;
    let is_available =
        oldest_cargo(&metadata).inspect_err(|error| println!("{error}; the current compiler is used")).is_ok();
    let packages = metadata["packages"].as_array().ok_or("cargo lists no packages")?;
    let published = packages.iter().filter(|package| !is_unpublished(package));
    let names = published.filter_map(|package| package["name"].as_str()).enumerate();
    for (_, name) in names.filter(|(place, _)| part.is_none_or(|part| place % PARTS == part)) {
        println!("{name} alone");
        let mut compiler = if is_available { oldest_cargo(&metadata)? } else { cargo(&[]) };
        check_without_warnings(compiler.args(["check", "--quiet", "--locked", "--package", name, "--lib", "--bins"]))
            .map_err(|error| format!("{name} alone: {error}"))?;
    }
    Ok(())
}

/// Runs a check that fails by a warning. `-D warnings` in `RUSTFLAGS` would have every dependency compiled again.
fn check_without_warnings(check: &mut Command) -> Result<(), String> {
    let checked = check.arg("--message-format=json").stderr(Stdio::inherit()).output();
    let checked = checked.map_err(|error| format!("cargo check: {error}"))?;
    let messages = String::from_utf8_lossy(&checked.stdout);
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let told: Vec<String> =
        messages.filter_map(|message| Some(message["message"]["rendered"].as_str()?.to_owned())).collect();
    eprint!("{}", told.concat());
    if checked.status.success() && told.is_empty() {
        return Ok(());
    }
    Err(format!("{}, {} messages of the compiler", checked.status, told.len()))
}

/// Cargo of the release that manifests name as `rust-version`.
fn oldest_cargo(metadata: &Value) -> Result<Command, String> {
    let release = metadata["packages"][0]["rust_version"].as_str();
    cargo_of(release.ok_or("no manifest names `rust-version`")?)
}

/// Makes the files that a registry would be given.
fn pack(packages: &[&Value]) -> Result<(), String> {
    let mut pack = cargo(&["package", "--quiet", "--workspace", "--no-verify", "--locked", "--allow-dirty"]);
    for name in packages.iter().filter(|package| is_unpublished(package)).filter_map(|package| package["name"].as_str())
    {
        pack.args(["--exclude", name]);
    }
    run(&mut pack)
}

fn unpack(packed: &Path, published: &[String], folder: &Path) -> Result<(), String> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(failed(folder))?;
    }
    fs::create_dir_all(folder).map_err(failed(folder))?;
    for package in published {
        let file: PathBuf = packed.join(format!("{package}.crate"));
        // All files of packages are of one time in the past, by which the compiler would take what is new for what it knows.
        run(command("tar", &["-xzmf"]).arg(file).arg("-C").arg(folder))?;
    }
    Ok(())
}

/// The manifest of a workspace of packages, in which they find each other.
fn workspace(published: &[String]) -> Result<String, String> {
    let ours = fs::read_to_string(root().join("Cargo.toml")).map_err(failed(&root()))?;
    let mut manifest = format!("[workspace]\nresolver = \"3\"\nmembers = {published:?}\n\n[patch.crates-io]\n");
    for package in published {
        let name = package.rsplit_once('-').map_or(package.as_str(), |(name, _)| name);
        // Writing to a string cannot fail.
        let _ = writeln!(manifest, "{name} = {{ path = {package:?} }}");
    }
    let mut is_profile = false;
    for line in ours.lines() {
        if line.starts_with('[') {
            is_profile = line.starts_with("[profile.");
        }
        if is_profile {
            manifest.extend([line, "\n"]);
        }
    }
    Ok(manifest)
}
