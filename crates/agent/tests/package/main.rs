//! The packages, built with the tested agent: unpacked, installed, run, and removed again.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test that runs programs")]

mod debian;
mod image;
mod machine;
mod unit;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use tempfile::TempDir;
use xtask::package::{BuiltPackages, Package};

/// Timestamp of everything in the packages.
const EPOCH: u64 = 1_700_000_000;

/// The packages, in a folder of cargo, since a test program removes nothing at its end.
static PACKAGES: LazyLock<BuiltPackages> =
    LazyLock::new(|| make(Path::new(env!("CARGO_TARGET_TMPDIR")).join("package")));

fn make(out: PathBuf) -> BuiltPackages {
    let agent = PathBuf::from(env!("CARGO_BIN_EXE_tortie"));
    Package { agent, out, epoch: EPOCH, compression: 1 }.make().unwrap()
}

/// Returns the output of a program that must succeed.
fn output_of(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{error}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

fn sha256(path: &Path) -> String {
    output_of(Command::new("sha256sum").arg(path)).split_whitespace().next().unwrap().to_owned()
}

#[test]
fn symbols_are_beside_the_program_which_names_them() {
    let binary = &PACKAGES.binary;
    let built = std::fs::metadata(env!("CARGO_BIN_EXE_tortie")).unwrap().len();
    assert!(binary.size < built && binary.symbols_size > 1_000_000, "{binary:?}, of {built}");
    assert!(output_of(Command::new(&binary.program).arg("version")).starts_with("tortie "));
    // Debuggers accept only a file with this checksum.
    let link = output_of(Command::new("readelf").arg("--debug-dump=links").arg(&binary.program));
    assert!(link.contains("tortie.debug"), "{link}");
    let nothing = Command::new("nm").arg(&binary.program).output().unwrap();
    assert!(String::from_utf8_lossy(&nothing.stderr).contains("no symbols"), "{nothing:?}");
    assert!(output_of(Command::new("nm").arg(&binary.symbols)).lines().count() > 10_000);
}

#[test]
fn the_same_program_makes_the_same_packages() {
    let folder = TempDir::new().unwrap();
    let (first, second) = (&*PACKAGES, make(folder.path().to_owned()));
    assert_eq!(sha256(&first.debian), sha256(&second.debian));
    // The index names everything else by digest.
    assert_eq!(sha256(&first.image.join("index.json")), sha256(&second.image.join("index.json")));
}
