//! Check of the workspace's dependencies.

use crate::shell::{self, cargo, is_installed};
use crate::tools::Tool;

const CARGO_DENY: Tool = Tool { name: "cargo-deny", version: "0.20.2" };

/// Checks the dependencies of the workspace against `deny.toml`. If the advisory database cannot be
/// fetched, prints that advisories are not checked.
pub(crate) fn run() -> Result<(), String> {
    let mut path = std::env::var("PATH").unwrap_or_default();
    if !is_installed("cargo-deny") {
        let program = CARGO_DENY.installed()?;
        path = format!("{}:{path}", program.parent().unwrap_or(&program).display());
    }
    match shell::run(cargo(&["deny", "--locked", "fetch", "db"]).env("PATH", &path)) {
        Ok(()) => {
            let advisories = ["deny", "--locked", "check", "--disable-fetch", "advisories"];
            shell::run(cargo(&advisories).env("PATH", &path))?;
        }
        Err(error) => println!("advisories NOT checked: their database cannot be fetched: {error}"),
    }
    shell::run(cargo(&["deny", "--locked", "check", "bans", "licenses", "sources"]).env("PATH", &path))
}
