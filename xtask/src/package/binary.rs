//! The agent without its symbols, which are kept in a separate file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::files::failed;
use crate::shell::{output, run};

/// Maximum size of a program without symbols, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit(pub u64);

impl Limit {
    /// Limit of the agent with its default features.
    pub const DEFAULT: Self = Self(15_000_000);
    /// Limit of the agent with all features.
    pub const FULL: Self = Self(25_000_000);
}

/// A program split into two files.
#[derive(Clone, Debug)]
pub struct Binary {
    /// The program, which contains the name and the checksum of the other file (`.gnu_debuglink`).
    pub program: PathBuf,
    /// Its symbols and source positions. Debuggers search for them beside the program and below
    /// `/usr/lib/debug`.
    pub symbols: PathBuf,
    /// Size of `program` in bytes.
    pub size: u64,
    /// Size of `symbols` in bytes.
    pub symbols_size: u64,
}

impl Binary {
    /// Splits a program into two files in a folder, `name` and `name.debug`.
    ///
    /// # Errors
    /// If `objcopy` is missing or fails.
    pub fn split(built: &Path, out: &Path, name: &str) -> Result<Self, String> {
        let (program, symbols) = (out.join(name), out.join(format!("{name}.debug")));
        // A running program cannot be written to, but it can be replaced.
        let new = out.join(format!("{name}.new"));
        run(objcopy().args(["--only-keep-debug", "--compress-debug-sections"]).arg(built).arg(&symbols))?;
        let mut link = std::ffi::OsString::from("--add-gnu-debuglink=");
        link.push(&symbols);
        run(objcopy().arg("--strip-all").arg(link).arg(built).arg(&new))?;
        fs::rename(&new, &program).map_err(failed(&program))?;
        let size = |path: &Path| fs::metadata(path).map(|data| data.len()).map_err(failed(path));
        Ok(Self { size: size(&program)?, symbols_size: size(&symbols)?, program, symbols })
    }

    /// Fails if the program exceeds the limit.
    ///
    /// # Errors
    /// The path, the size and the limit of the program.
    pub fn hold_to(&self, limit: Limit) -> Result<(), String> {
        if self.size <= limit.0 {
            return Ok(());
        }
        Err(format!("{} has {} bytes; the limit is {}", self.program.display(), self.size, limit.0))
    }

    /// Returns the lowest version of glibc with all symbols that the program needs.
    ///
    /// # Errors
    /// If `objdump` is missing, or the program needs no symbols of glibc.
    pub fn least_glibc(&self) -> Result<String, String> {
        let headers = output(Command::new("objdump").arg("--private-headers").arg(&self.program))?;
        let number = |text: &str| -> Option<(u32, u32)> {
            let (major, minor) = text.strip_prefix("GLIBC_")?.split_once('.')?;
            // A third number only occurs in versions older than any supported kernel.
            Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
        };
        let newest = headers.split_whitespace().filter_map(number).max();
        newest
            .map(|(major, minor)| format!("{major}.{minor}"))
            .ok_or_else(|| format!("{} wants nothing of glibc", self.program.display()))
    }
}

/// Returns a table of programs and their sizes, for a terminal or a document.
#[must_use]
pub fn table(binaries: &[(&str, &Binary, Limit)]) -> String {
    let mut text = "| agent | program | limit | symbols beside it |\n|---|---:|---:|---:|\n".to_owned();
    for (name, binary, limit) in binaries {
        let [size, limit, symbols] = [binary.size, limit.0, binary.symbols_size].map(megabytes);
        text += &format!("| {name} | {size} MB | {limit} MB | {symbols} MB |\n");
    }
    text
}

/// Formats megabytes with one decimal place.
fn megabytes(bytes: u64) -> String {
    let tenths = bytes.div_ceil(100_000);
    format!("{}.{}", tenths / 10, tenths % 10)
}

fn objcopy() -> Command {
    Command::new("objcopy")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binaries_over_the_limit_are_rejected_and_sizes_are_rounded_up() {
        let binary =
            Binary { program: "tortie".into(), symbols: "tortie.debug".into(), size: 14_999_999, symbols_size: 1 };
        assert_eq!(binary.hold_to(Limit::DEFAULT), Ok(()));
        assert_eq!(binary.hold_to(Limit(14_999_998)).unwrap_err(), "tortie has 14999999 bytes; the limit is 14999998");
        let table = table(&[("default", &binary, Limit::DEFAULT)]);
        assert_eq!(table.lines().last(), Some("| default | 15.0 MB | 15.0 MB | 0.1 MB |"));
    }
}
