//! What we depend on.

use crate::shell::{self, cargo, is_installed, root};

/// The newest version that is known to work with `deny.toml`.
const VERSION: &str = "0.20.2";

/// Checks the dependencies of the workspace and of the fuzz targets against `deny.toml`. Advisories are left out: they need
/// a database that only the network has.
pub(crate) fn run() -> Result<(), String> {
    let mut path = std::env::var("PATH").unwrap_or_default();
    if !is_installed("cargo-deny") {
        let tools = root().join("target/tools");
        path = format!("{}/bin:{path}", tools.display());
        if !tools.join("bin/cargo-deny").is_file() {
            // It is run twice; optimizing it takes longer than that.
            let features = ["--debug", "--no-default-features"];
            let mut install = cargo(&["install", "--locked", "--quiet", "cargo-deny", "--version", VERSION]);
            // Not among our artefacts, where nobody would ever need its own again.
            let artefacts = std::env::temp_dir().join(format!("tortie-cargo-deny-{}", std::process::id()));
            install.args(features).arg("--root").arg(&tools).env("CARGO_TARGET_DIR", &artefacts);
            let installed = shell::run(install.env("CARGO_PROFILE_DEV_DEBUG", "0"));
            let removed = std::fs::remove_dir_all(&artefacts);
            installed?;
            removed.map_err(|error| format!("{}: {error}", artefacts.display()))?;
        }
    }
    for manifest in ["Cargo.toml", "fuzz/Cargo.toml"] {
        let mut deny = cargo(&["deny", "--locked", "--manifest-path", manifest, "check"]);
        if manifest != "Cargo.toml" {
            deny.args(["--allow", "unmatched-skip", "--allow", "unnecessary-skip", "--allow", "unused-wrapper"]);
        }
        deny.args(["--allow", "license-exception-not-encountered", "bans", "licenses", "sources"]);
        shell::run(deny.env("PATH", &path))?;
    }
    Ok(())
}
