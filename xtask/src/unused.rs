//! Check for dependencies that a package declares and does not use.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use xtask::files::{failed, read};

/// Packages and dependencies that are used without being named in code.
const UNNAMED: &[(&str, &str)] = &[
    // A test includes generated code of another package.
    ("tortie-agent", "tonic-prost"),
    // It selects the API version of `kube`.
    ("tortie-datastore", "k8s-openapi"),
    // Its library is named `webpki`.
    ("tortie-fanout", "rustls-webpki"),
];

/// Adds the dependencies that no code of their package names.
pub(crate) fn check(packages: &[Value], wrong: &mut Vec<String>) -> Result<(), String> {
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let manifest = Path::new(package["manifest_path"].as_str().unwrap_or_default());
        let folder = manifest.parent().unwrap_or(manifest);
        let targets = package["targets"].as_array().into_iter().flatten();
        let roots: Vec<PathBuf> = targets.filter_map(|target| target["src_path"].as_str().map(PathBuf::from)).collect();
        let built = code(&["src", "build.rs", "fuzz_targets", "checks"].map(|part| folder.join(part)))?;
        let tested = code(&[&roots[..], &["tests", "benches", "README.md"].map(|part| folder.join(part))].concat())?;
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let dependency_name = dependency["name"].as_str().unwrap_or_default();
            let word = dependency["rename"].as_str().unwrap_or(dependency_name).replace('-', "_");
            let is_used = has_word(&built, &word) || dependency["kind"] == "dev" && has_word(&tested, &word);
            if !is_used && !UNNAMED.contains(&(name, dependency_name)) {
                wrong.push(format!("{name} names {dependency_name} as a dependency and does not use it"));
            }
        }
    }
    Ok(())
}

/// Adds the dependencies that the workspace declares in its manifest, and no package takes from it.
pub(crate) fn check_shared(manifest: &str, manifests_of_packages: &[String], wrong: &mut Vec<String>) {
    let shared = manifest.split_once("[workspace.dependencies]\n").map_or("", |(_, rest)| rest);
    let lines = shared.lines().take_while(|line| !line.starts_with('['));
    for (name, _) in lines.filter_map(|line| line.split_once(" = ")) {
        let taken = [format!("\n{name}.workspace = true"), format!("\n{name} = {{ workspace = true")];
        if !manifests_of_packages.iter().any(|text| taken.iter().any(|taken| text.contains(taken.as_str()))) {
            wrong.push(format!("Cargo.toml declares {name} for the workspace, and no package takes it"));
        }
    }
}

/// Returns the text of these files, and of all Rust files in these folders; missing ones count as
/// empty.
fn code(paths: &[PathBuf]) -> Result<String, String> {
    let mut text = String::new();
    let mut waiting: Vec<PathBuf> = paths.to_vec();
    while let Some(path) = waiting.pop() {
        if path.is_dir() {
            for entry in fs::read_dir(&path).map_err(failed(&path))? {
                waiting.push(entry.map_err(failed(&path))?.path());
            }
        } else if path.is_file() && path.extension().is_some_and(|extension| extension == "rs" || extension == "md") {
            text += &read(&path)?;
        }
    }
    Ok(text)
}

/// Reports whether a text contains a word as a whole.
fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let (before, after) = (text[..at].chars().next_back(), text[at + word.len()..].chars().next());
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dependency_without_use_is_named() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("src")).unwrap();
        fs::write(folder.path().join("src/lib.rs"), "use serde_json::Value; // serde").unwrap();
        let dependency = |name: &str, kind: Value| serde_json::json!({"name": name, "rename": null, "kind": kind});
        let package = serde_json::json!({
            "name": "p",
            "manifest_path": folder.path().join("Cargo.toml"),
            "targets": [],
            "dependencies": [
                dependency("serde-json", Value::Null),
                dependency("serde", "dev".into()),
                dependency("json", Value::Null),
                dependency("regex", "dev".into()),
            ],
        });
        let mut wrong = Vec::new();
        check(&[package], &mut wrong).unwrap();
        let named = |name: &str| format!("p names {name} as a dependency and does not use it");
        assert_eq!(wrong, [named("json"), named("regex")]);
    }
    #[test]
    fn a_shared_dependency_that_no_package_takes_is_named() {
        let manifest = "[package]\nx = 1\n[workspace.dependencies]\na = \"1\"\n# a comment\nb = { path = \"b\" }\nbc = \"2\"\n\n[lints]\nd = 1\n";
        let packages =
            ["[dependencies]\na.workspace = true\n", "[dependencies]\nbc = { workspace = true, optional = true }\n"];
        let mut wrong = Vec::new();
        check_shared(manifest, &packages.map(str::to_owned), &mut wrong);
        assert_eq!(wrong, ["Cargo.toml declares b for the workspace, and no package takes it"]);
    }
}
