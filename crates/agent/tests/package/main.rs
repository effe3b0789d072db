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
use xtask::package::{Binary, BuiltPackages, Package};

/// Timestamp of everything in the packages.
const EPOCH: u64 = 1_700_000_000;

/// The packages, in a folder of cargo, since a test program removes nothing at its end.
static PACKAGES: LazyLock<BuiltPackages> = LazyLock::new(|| {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("package");
    let note = out.join("made-in-run");
    // Nextest runs each test in a separate process, one after the other.
    let run = std::env::var("NEXTEST_RUN_ID").ok();
    if run.is_some() && std::fs::read_to_string(&note).ok() == run {
        return found(&out);
    }
    let packages = make(out);
    std::fs::write(note, run.unwrap_or_default()).unwrap();
    packages
});

/// Returns the packages that an earlier process made in this folder.
fn found(out: &Path) -> BuiltPackages {
    let size = |path: &Path| std::fs::metadata(path).unwrap().len();
    let (program, symbols) = (out.join("tortie"), out.join("tortie.debug"));
    let name = format!("tortie_{}_", xtask::package::version());
    let is_package = |path: &PathBuf| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(&name));
    let mut files = std::fs::read_dir(out).unwrap().map(|entry| entry.unwrap().path());
    let debian = files.find(is_package).unwrap();
    let binary = Binary { size: size(&program), symbols_size: size(&symbols), program, symbols };
    BuiltPackages { binary, debian, image: out.join("oci") }
}

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
