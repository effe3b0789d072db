//! Descriptions of packages, the only part of the workspace that visitors of a registry see.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::metadata::is_unpublished;
use crate::shell::{command, output, root};

/// Number of lines within which a README states the audience of a crate.
const FIRST_LINES: usize = 16;

/// Packages that are not published.
const UNPUBLISHED: [&str; 6] =
    ["tortie-benches", "tortie-faults", "tortie-fuzz", "tortie-lab", "tortie-testkit", "xtask"];

/// Checks all packages in the output of `cargo metadata`.
pub(crate) fn check(packages: &[Value], wrong: &mut Vec<String>) -> Result<(), String> {
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        if package["license"] != "Apache-2.0" {
            wrong.push(format!("{name} does not say that its licence is Apache-2.0"));
        }
        if is_unpublished(package) != UNPUBLISHED.contains(&name) {
            wrong.push(format!("{name}: `publish` is wrong"));
        }
        if !is_unpublished(package) {
            fields(name, package, wrong);
            documents(name, package, wrong)?;
        }
    }
    check_cycles(packages, wrong);
    compiler(packages, wrong)
}

/// Checks the fields that a registry shows.
fn fields(name: &str, package: &Value, wrong: &mut Vec<String>) {
    for field in ["description", "readme", "rust_version"] {
        if package[field].is_null() {
            wrong.push(format!("{name} has no `{field}`"));
        }
    }
    for field in ["keywords", "categories", "authors"] {
        if package[field].as_array().is_none_or(Vec::is_empty) {
            wrong.push(format!("{name} has no `{field}`"));
        }
    }
    let documentation = format!("https://docs.rs/{name}");
    if package["documentation"] != documentation.as_str() {
        wrong.push(format!("{name}: `documentation` is not {documentation}"));
    }
    // With features, the documentation includes all items, each with its required feature.
    let has_features = package["features"].as_object().is_some_and(|features| !features.is_empty());
    let mut docs = json!({ "rustdoc-args": ["--cfg", "docsrs"] });
    if has_features {
        docs["all-features"] = true.into();
    }
    if package["metadata"]["docs"]["rs"] != docs {
        wrong.push(format!("{name}: `package.metadata.docs.rs` is not {docs}"));
    }
}

/// Checks the documents of a package for users.
fn documents(name: &str, package: &Value, wrong: &mut Vec<String>) -> Result<(), String> {
    let folder = Path::new(package["manifest_path"].as_str().unwrap_or_default()).parent().unwrap_or(Path::new(""));
    let read = |file: &str| fs::read_to_string(folder.join(file)).map_err(|error| format!("{name}: {file}: {error}"));
    let has_features = package["features"].as_object().is_some_and(|features| !features.is_empty());
    if has_features && !read("src/lib.rs")?.contains("#![cfg_attr(docsrs, feature(doc_cfg))]") {
        wrong.push(format!("{name}: the crate has features, but src/lib.rs does not enable `doc_cfg` for docs.rs"));
    }
    let readme = read("README.md")?;
    if !names_audience(&readme) {
        wrong.push(format!("{name}: the first lines of README.md do not say `For …; not for …`"));
    }
    for link in links(&readme) {
        let is_whole = link.starts_with("https://") || link.starts_with('#');
        if !is_whole {
            wrong.push(format!("{name}: README.md links to {link}, which leads nowhere in a registry"));
        }
    }
    Ok(())
}

fn names_audience(readme: &str) -> bool {
    let first: Vec<&str> = readme.lines().take(FIRST_LINES).collect();
    let mut paragraphs = first.split(|line| line.is_empty()).map(|lines| lines.join(" "));
    paragraphs.any(|text| text.starts_with("For ") && text.contains("; not "))
}

/// Returns the link targets of a Markdown text.
fn links(text: &str) -> Vec<String> {
    let mut is_code = false;
    let prose = text.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    });
    prose
        .flat_map(|line| {
            let inline = line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
            // `[name]: where`
            let defined = line.strip_prefix('[').and_then(|rest| rest.split_once("]: ")).map(|(_, link)| link);
            inline.chain(defined).map(str::to_owned).collect::<Vec<_>>()
        })
        .collect()
}

/// Checks for cyclic dependencies. A registry accepts a package only if it has all dependencies
/// with a version, including those of tests.
fn check_cycles(packages: &[Value], wrong: &mut Vec<String>) {
    let published: BTreeSet<&str> = packages
        .iter()
        .filter(|package| !is_unpublished(package))
        .filter_map(|package| package["name"].as_str())
        .collect();
    let mut waits: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in packages {
        let Some(name) = package["name"].as_str().filter(|name| published.contains(name)) else { continue };
        // Dependencies with a path and without a version are omitted from the package.
        let named = package["dependencies"].as_array().into_iter().flatten().filter(|named| named["req"] != "*");
        let ours = named.filter_map(|named| named["name"].as_str()).filter(|named| published.contains(named));
        waits.insert(name, ours.collect());
    }
    loop {
        let ready: BTreeSet<&str> =
            waits.iter().filter(|(_, dependencies)| dependencies.is_empty()).map(|(name, _)| *name).collect();
        if ready.is_empty() {
            break;
        }
        waits.retain(|name, _| !ready.contains(name));
        waits.values_mut().for_each(|dependencies| dependencies.retain(|name| !ready.contains(name)));
    }
    if !waits.is_empty() {
        let names: Vec<&str> = waits.into_keys().collect();
        wrong.push(format!(
            "none of {} can be published first; is one a dependency of the others' tests?",
            names.join(", ")
        ));
    }
}

/// Checks that the oldest supported compiler is the one of the container images, and not newer than
/// the current one.
fn compiler(packages: &[Value], wrong: &mut Vec<String>) -> Result<(), String> {
    let oldest: BTreeSet<&str> = packages.iter().filter_map(|package| package["rust_version"].as_str()).collect();
    let [oldest] = oldest.iter().copied().collect::<Vec<_>>()[..] else {
        wrong.push(format!("`rust-version` is not the same everywhere: {oldest:?}"));
        return Ok(());
    };
    let version_text = output(&mut command("rustc", &["--version"]))?;
    let used = version_text.split_whitespace().nth(1).unwrap_or_default();
    if version(used) < version(oldest) {
        wrong.push(format!("Rust {used} is older than `rust-version`, {oldest}"));
    }
    let path = "deploy/Containerfile";
    let image = fs::read_to_string(root().join(path)).map_err(|error| format!("{path}: {error}"))?;
    if !image.contains(&format!("/rust:{oldest}-")) {
        wrong.push(format!("{path} does not build with Rust {oldest}, which is `rust-version`"));
    }
    Ok(())
}

/// Returns the first two numbers of a version.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_those_of_the_text_only() {
        let text = "[a](https://a) and [b](../b.md)\n```\nlist[0](c)\n```\n[d]: src/d.rs\n* [e](#e \"E\")\n";
        assert_eq!(links(text), ["https://a", "../b.md", "src/d.rs", "#e"]);
    }

    #[test]
    fn the_audience_is_named_in_the_first_lines() {
        assert!(names_audience("# x\n\nWhat it is.\n\nFor those who\nwant it; not for others.\n\nMore.\n"));
        assert!(!names_audience("# x\n\nWhat it is.\n\nFor those who want it.\n"));
        let late = format!("# x\n\n{}For those; not for others.\n", "More.\n\n".repeat(FIRST_LINES));
        assert!(!names_audience(&late));
    }

    #[test]
    fn cyclic_dependencies_are_reported() {
        let package = |name: &str, kind: Value, req: &str, other: &str| json!({ "name": name, "publish": null, "dependencies": [{ "name": other, "kind": kind, "req": req }] });
        let mut wrong = Vec::new();
        check_cycles(&[package("a", Value::Null, "^0.1", "b"), package("b", json!("dev"), "*", "a")], &mut wrong);
        assert_eq!(wrong, [""; 0]);
        check_cycles(&[package("a", Value::Null, "^0.1", "b"), package("b", json!("dev"), "^0.1", "a")], &mut wrong);
        assert!(wrong[0].starts_with("none of a, b can be published first"), "{wrong:?}");
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(version("1.100.0") > version("1.90"));
        assert_eq!(version("1.90.1"), version("1.90"));
        assert_eq!(version("nightly"), None);
    }
}
