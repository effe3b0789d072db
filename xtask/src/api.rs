//! Lists of the public API of all published libraries. They are committed, so that reviews show
//! changes of an API.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use public_api::{Builder, PublicApi};
use serde_json::{Value, json};

use crate::api_errors;
use crate::shell::{self, cargo, cargo_of, output, root};

/// Compiler whose JSON format `public-api` reads. Both versions change together.
const RUST: &str = "1.95.0";

/// Writes the lists, or with `--check` compares them with the libraries.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let check = match args {
        [] => false,
        [arg] if arg == "--check" => true,
        _ => return Err("cargo xtask api [--check]".into()),
    };
    let lists = lists()?;
    let missing = api_errors::missing(lists.iter().map(|list| list.text.as_str()));
    if !missing.is_empty() {
        return Err(format!("errors are no errors:\n{}", missing.join("\n")));
    }
    if check {
        return compare(&lists);
    }
    fs::create_dir_all(folder()).map_err(at(&folder()))?;
    for stale in stale(&lists)? {
        fs::remove_file(&stale).map_err(at(&stale))?;
    }
    for list in &lists {
        fs::write(&list.path, &list.text).map_err(at(&list.path))?;
    }
    println!("{} lists in {}", lists.len(), folder().display());
    Ok(())
}

/// The public API of a library, one item per line.
struct List {
    path: PathBuf,
    text: String,
}

fn folder() -> PathBuf {
    root().join("xtask/public-api")
}

fn at<E: std::fmt::Display>(path: &Path) -> impl FnOnce(E) -> String {
    move |error| format!("{}: {error}", path.display())
}

/// Returns the current lists.
fn lists() -> Result<Vec<List>, String> {
    let metadata = output(&mut cargo(&["metadata", "--locked", "--no-deps", "--format-version=1"]))?;
    let metadata: Value = serde_json::from_str(&metadata).map_err(|error| error.to_string())?;
    let documents = Path::new(metadata["target_directory"].as_str().unwrap_or_default()).join("doc");
    document()?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    packages
        .filter_map(library)
        .map(|(package, library)| {
            let document = documents.join(format!("{}.json", library.replace('-', "_")));
            Ok(List { path: folder().join(format!("{package}.txt")), text: list(&document)? })
        })
        .collect()
}

/// Returns the names of a package and its library; `None` if it is unpublished, or its library
/// serves only its own program.
fn library(package: &Value) -> Option<(&str, &str)> {
    let target = |kind| package["targets"].as_array()?.iter().find(|target| target["kind"] == json!([kind]));
    let published = package["publish"].is_null() && target("bin").is_none();
    published.then(|| Some((package["name"].as_str()?, target("lib")?["name"].as_str()?)))?
}

/// Writes JSON descriptions of all libraries.
fn document() -> Result<(), String> {
    let mut cargo = cargo_of(RUST)?;
    // Built for the workspace as a whole, with the features of other commands, so that nothing is
    // built twice.
    cargo.args(["doc", "--quiet", "--locked", "--workspace", "--lib", "--no-deps", "--all-features"]);
    shell::run(unstable(&mut cargo).env("RUSTDOCFLAGS", "--cap-lints=allow -Z unstable-options --output-format json"))
}

/// Allows unstable options for rustdoc only: build scripts that see such a setting would rebuild
/// many crates.
fn unstable(cargo: &mut Command) -> &mut Command {
    cargo.env("RUSTDOC", root().join("xtask/src/unstable-rustdoc.sh"))
}

/// Returns the list of a library from its JSON description.
fn list(document: &Path) -> Result<String, String> {
    let build = |builder: Builder| builder.build().map_err(at(document));
    let builder = Builder::from_rustdoc_json(document).omit_blanket_impls(true).omit_auto_trait_impls(true);
    let by_hand = build(builder.clone().omit_auto_derived_impls(true))?;
    Ok(text(&build(builder)?, &by_hand))
}

/// Returns the list of public items: those written by hand, and all implementations.
fn text(all: &PublicApi, by_hand: &PublicApi) -> String {
    let by_hand: BTreeSet<String> = by_hand.items().map(ToString::to_string).collect();
    let is_telling = |line: &String| {
        by_hand.contains(line) || (line.starts_with("impl") && !line.contains("core::marker::StructuralPartialEq"))
    };
    all.items().map(|item| format!("{item}\n")).filter(|line| is_telling(&line.trim_end().to_owned())).collect()
}

/// Compares the lists with the committed ones.
fn compare(lists: &[List]) -> Result<(), String> {
    let mut differences = Vec::new();
    for stale in stale(lists)? {
        differences.push(format!("{} is of no library", stale.display()));
    }
    for List { path, text } in lists {
        let committed = fs::read_to_string(path).unwrap_or_default();
        if committed == *text {
            continue;
        }
        differences.push(path.display().to_string());
        let (old, new): (BTreeSet<&str>, BTreeSet<&str>) = (committed.lines().collect(), text.lines().collect());
        differences.extend(old.difference(&new).map(|line| format!("- {line}")));
        differences.extend(new.difference(&old).map(|line| format!("+ {line}")));
    }
    if differences.is_empty() {
        return Ok(());
    }
    Err(format!("the public API is not the listed one; see cargo xtask api\n{}", differences.join("\n")))
}

/// Returns files in the folder of lists that belong to no library.
fn stale(lists: &[List]) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder()).map_err(at(&folder()))?;
    let files = entries.map(|entry| entry.map(|entry| entry.path()));
    let files: Vec<PathBuf> = files.collect::<Result<_, _>>().map_err(at(&folder()))?;
    Ok(files.into_iter().filter(|file| lists.iter().all(|list| list.path != *file)).collect())
}
