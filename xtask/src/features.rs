//! `cargo xtask features`: check that every feature compiles without the others.

use crate::metadata::{is_unpublished, metadata};
use crate::shell::{cargo, run};

/// Checks each crate with each of its features alone, and without any.
///
/// Warnings are errors, as in the check of all features together: code for a single feature is
/// easily unused without it.
pub(crate) fn check(args: &[String]) -> Result<(), String> {
    if !args.is_empty() {
        return Err("cargo xtask features".into());
    }
    let metadata = metadata()?;
    let mut count = 0;
    for package in metadata["packages"].as_array().into_iter().flatten().filter(|package| !is_unpublished(package)) {
        let (Some(name), Some(features)) = (package["name"].as_str(), package["features"].as_object()) else {
            continue;
        };
        // A crate without features is covered by other builds.
        if features.is_empty() {
            continue;
        }
        for feature in std::iter::once("").chain(features.keys().map(String::as_str)) {
            println!("{name} {}", if feature.is_empty() { "without features" } else { feature });
            let check = ["clippy", "--quiet", "--locked", "--lib", "--bins", "--no-default-features"];
            let mut check = cargo(&check);
            run(check.args(["--package", name, "--features", feature, "--", "-D", "warnings"]))?;
            count += 1;
        }
    }
    println!("{count} combinations");
    Ok(())
}
