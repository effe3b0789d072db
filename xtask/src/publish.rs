//! `cargo xtask publish-check`: check that packages to be published build from their own contents;
//! `oldest`: check that each crate builds alone with the oldest supported compiler.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use xtask::files::failed;

use crate::metadata::{is_unpublished, metadata};
use crate::samples;
use crate::shell::{cargo, cargo_of, command, root, run};

/// Packs all crates, unpacks them into a separate workspace, and compiles it, with `--oldest` by
/// the oldest supported compiler, and with `--rotate` only for every second change.
///
/// `cargo package` itself would build each crate with all its dependencies separately; here builds
/// are shared, also with other commands, as profiles are the same.
pub(crate) fn check(args: &[String]) -> Result<(), String> {
    let is_oldest = match args {
        [] => false,
        [arg] if arg == "--oldest" => true,
        [arg] if arg == "--rotate" => {
            if samples::change()? % 2 == 1 {
                println!("left to the next change, whose number is even");
                return Ok(());
            }
            false
        }
        _ => return Err("cargo xtask publish-check [--oldest|--rotate]".into()),
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
    // The lock file contains the common dependencies; those of tests have been removed from it.
    compiler.args(["check", "--workspace", "--lib", "--bins", "--examples", "--all-features", "--target-dir"]);
    run(compiler.arg(packed.parent().unwrap_or(&packed)).current_dir(&folder))?;
    println!("{} packages are complete", published.len());
    Ok(())
}

/// Number of parts into which the separately compiled crates are divided.
const PARTS: usize = 5;

/// Checks each published crate alone with its default features, by the oldest supported compiler
/// and without warnings. This detects a crate that needs a feature of a dependency which only
/// another crate enables. Each choice of features compiles dependencies again, so `--rotate` checks
/// a fifth of the crates, for the changes that `publish-check --rotate` leaves out. If that
/// compiler is not available, the current one is used, and a line of output names it.
pub(crate) fn oldest(args: &[String]) -> Result<(), String> {
    let part = match args {
        [] => None,
        [arg] if arg == "--rotate" => match samples::change()? {
            change if change % 2 == 0 => {
                println!("left to the next change, whose number is odd");
                return Ok(());
            }
            change => Some(change / 2 % PARTS),
        },
        _ => return Err("cargo xtask oldest [--rotate]".into()),
    };
    let metadata = metadata()?;
    let is_available =
        oldest_cargo(&metadata).inspect_err(|error| println!("{error}; the current compiler is used")).is_ok();
    let packages = metadata["packages"].as_array().ok_or("cargo lists no packages")?;
    let published = packages.iter().filter(|package| !is_unpublished(package));
    let names = published.filter_map(|package| package["name"].as_str()).enumerate();
    for (_, name) in names.filter(|(position, _)| part.is_none_or(|part| position % PARTS == part)) {
        println!("{name} alone");
        let mut compiler = if is_available { oldest_cargo(&metadata)? } else { cargo(&[]) };
        check_without_warnings(compiler.args(["check", "--quiet", "--locked", "--package", name, "--lib", "--bins"]))
            .map_err(|error| format!("{name} alone: {error}"))?;
    }
    Ok(())
}

/// Runs a check that fails on a warning. `-D warnings` in `RUSTFLAGS` would recompile every
/// dependency.
fn check_without_warnings(check: &mut Command) -> Result<(), String> {
    let checked = check.arg("--message-format=json").stderr(Stdio::inherit()).output();
    let checked = checked.map_err(|error| format!("cargo check: {error}"))?;
    let messages = String::from_utf8_lossy(&checked.stdout);
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let rendered: Vec<String> =
        messages.filter_map(|message| Some(message["message"]["rendered"].as_str()?.to_owned())).collect();
    eprint!("{}", rendered.concat());
    if checked.status.success() && rendered.is_empty() {
        return Ok(());
    }
    Err(format!("{}, {} messages of the compiler", checked.status, rendered.len()))
}

/// Returns cargo of the release in the manifests' `rust-version`.
fn oldest_cargo(metadata: &Value) -> Result<Command, String> {
    let release = metadata["packages"][0]["rust_version"].as_str();
    cargo_of(release.ok_or("no manifest names `rust-version`")?)
}

/// Makes the package files for a registry.
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
        // All files of packages have the same past time, so that the compiler would not notice
        // changed ones.
        run(command("tar", &["-xzmf"]).arg(file).arg("-C").arg(folder))?;
    }
    Ok(())
}

/// Returns the manifest of a workspace in which the packages use each other.
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
