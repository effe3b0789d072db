//! Third-party programs that are installed with cargo into `target/tools`, at a fixed version.

use std::path::PathBuf;

use crate::shell::{self, cargo, root};

/// A program, by the name of its package.
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    /// The newest version that is known to work.
    pub(crate) version: &'static str,
}

impl Tool {
    /// Returns the path of the program, which is built first if it is missing at this version.
    pub(crate) fn installed(&self) -> Result<PathBuf, String> {
        let tools = root().join("target/tools");
        let program = tools.join("bin").join(self.name);
        // Not every program prints its version; cargo keeps a list.
        let list = std::fs::read_to_string(tools.join(".crates.toml")).unwrap_or_default();
        if program.is_file() && list.contains(&format!("\"{} {} (", self.name, self.version)) {
            return Ok(program);
        }
        // It runs only a few times; optimizing it would take longer.
        let features = ["--debug", "--no-default-features"];
        let mut install = cargo(&["install", "--locked", "--quiet", "--force", self.name, "--version", self.version]);
        // In a separate target directory, since these artefacts are not needed again.
        let artefacts = std::env::temp_dir().join(format!("tortie-{}-{}", self.name, std::process::id()));
        install.args(features).arg("--root").arg(&tools).env("CARGO_TARGET_DIR", &artefacts);
        let installed = shell::run(install.env("CARGO_PROFILE_DEV_DEBUG", "0"));
        let removed = std::fs::remove_dir_all(&artefacts);
        installed?;
        removed.map_err(|error| format!("{}: {error}", artefacts.display()))?;
        Ok(program)
    }
}
