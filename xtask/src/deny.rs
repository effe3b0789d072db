//! Check of the workspace's dependencies.

use crate::shell::{self, cargo, is_installed};
use crate::tools::Tool;

const CARGO_DENY: Tool = Tool { name: "cargo-deny", version: "0.20.2" };

/// Checks the dependencies of the workspace and of the fuzz targets against `deny.toml`. If the
/// advisory database cannot be fetched, prints that advisories are not checked.
pub(crate) fn run() -> Result<(), String> {
    let mut path = std::env::var("PATH").unwrap_or_default();
    if !is_installed("cargo-deny") {
        let program = CARGO_DENY.installed()?;
        path = format!("{}:{path}", program.parent().unwrap_or(&program).display());
    }
    let fetched = shell::run(cargo(&["deny", "--locked", "fetch", "db"]).env("PATH", &path));
    if let Err(error) = &fetched {
        println!("advisories NOT checked: their database cannot be fetched: {error}");
    }
    for manifest in ["Cargo.toml", "fuzz/Cargo.toml"] {
        if fetched.is_ok() {
            let advisories = ["check", "--disable-fetch", "advisories"];
            let mut deny = cargo(&["deny", "--locked", "--manifest-path", manifest]);
            shell::run(deny.args(advisories).env("PATH", &path))?;
        }
        let mut deny = cargo(&["deny", "--locked", "--manifest-path", manifest, "check"]);
        if manifest != "Cargo.toml" {
            deny.args(["--allow", "unmatched-skip", "--allow", "unnecessary-skip", "--allow", "unused-wrapper"]);
        }
        deny.args(["--allow", "license-exception-not-encountered", "bans", "licenses", "sources"]);
        shell::run(deny.env("PATH", &path))?;
    }
    Ok(())
}
