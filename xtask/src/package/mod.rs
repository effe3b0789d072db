//! Packages: the agent without its symbols, the symbols, a Debian package, and an image.
//!
//! All are made from a program that is already built, so that tests package the program under test.

mod binary;
mod debian;
mod image;
mod sbom;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::files;
use crate::shell::{output, root, run};

pub use binary::{Binary, Limit, table};
pub use sbom::write_sbom;

/// Source and options of packages.
#[derive(Clone, Debug)]
pub struct Package {
    /// The agent, with all its features: it writes its manual pages itself.
    pub agent: PathBuf,
    /// Output folder.
    pub out: PathBuf,
    /// Time of all files, in seconds since 1970, so that packages of the same program are equal.
    pub epoch: u64,
    /// Level of compression, 1 to 9.
    pub compression: u8,
}

/// The packages.
#[derive(Clone, Debug)]
pub struct BuiltPackages {
    /// The agent without symbols, and the symbols.
    pub binary: Binary,
    /// The Debian package.
    pub debian: PathBuf,
    /// The image, a folder in OCI layout.
    pub image: PathBuf,
}

impl Package {
    /// Makes all packages.
    ///
    /// # Errors
    /// If a required program is missing or fails, or a file cannot be written.
    pub fn make(&self) -> Result<BuiltPackages, String> {
        std::fs::create_dir_all(&self.out).map_err(|error| format!("{}: {error}", self.out.display()))?;
        let binary = Binary::split(&self.agent, &self.out, "tortie")?;
        let debian = debian::make(self, &binary)?;
        let image = image::make(self, &binary)?;
        Ok(BuiltPackages { binary, debian, image })
    }
}

/// Returns the version of the workspace.
#[must_use]
pub fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// Returns the architecture of this machine in the naming of Debian and the OCI.
fn architecture() -> Result<&'static str, String> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => Err(format!("no packages are made for {other}")),
    }
}

/// Returns the time of the files of a package: `SOURCE_DATE_EPOCH`, else the time of the last
/// commit, else 1980.
#[must_use]
pub fn epoch() -> u64 {
    let from_environment = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|text| text.trim().parse().ok());
    let committed = || {
        let git = Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(root()).output().ok()?;
        String::from_utf8_lossy(&git.stdout).trim().parse().ok()
    };
    // The oldest time that every archive can hold.
    from_environment.or_else(committed).unwrap_or(315_532_800)
}

/// Writes completions for shells, and manual pages, laid out as below `/usr/share`.
///
/// # Errors
/// If the agent cannot write them.
pub fn write_manual(agent: &Path, share: &Path) -> Result<(), String> {
    let scripts = [
        ("bash", "bash-completion/completions/tortie"),
        ("zsh", "zsh/site-functions/_tortie"),
        ("fish", "fish/vendor_completions.d/tortie.fish"),
    ];
    for (shell, path) in scripts {
        let script = output(Command::new(agent).args(["completions", shell]))?;
        files::write(&share.join(path), &script)?;
    }
    run(Command::new(agent).args(["man", "--directory"]).arg(share.join("man/man1")))
}
