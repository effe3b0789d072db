//! Recorded data for tests. The files are in the folder `testdata` of the test's crate or, all of
//! them, under the same names in the folder of `TORTIE_GOLDEN_DIR`. Data in such a folder may have
//! other numbers of cases, so these are printed instead of compared; all other comparisons apply.

use std::ffi::OsString;
use std::fmt::Debug;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;

/// Environment variable that names another folder with recorded data.
pub const DIR_VARIABLE: &str = "TORTIE_GOLDEN_DIR";

fn other_folder() -> Option<OsString> {
    std::env::var_os(DIR_VARIABLE).filter(|dir| !dir.is_empty())
}

/// Returns the bytes of a recorded file, for a crate whose manifest is in `crate_folder`:
/// `env!("CARGO_MANIFEST_DIR")`. If the folder of the variable does not contain the file, returns
/// `None` and prints a line to stdout.
///
/// # Panics
/// If the file cannot be read.
#[must_use]
pub fn bytes(crate_folder: &str, name: &str) -> Option<Vec<u8>> {
    let path = match other_folder() {
        Some(folder) => PathBuf::from(folder).join(name),
        None => Path::new(crate_folder).join("testdata").join(name),
    };
    match std::fs::read(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && other_folder().is_some() => {
            println!("skipped: {} is not there", path.display());
            None
        }
        read => Some(read.unwrap_or_else(|error| panic!("{}: {error}", path.display()))),
    }
}

/// Returns the text of a recorded file, decompressed if its name ends with `.gz`; see [`bytes`].
///
/// # Panics
/// If the file cannot be read, or is not text.
#[must_use]
pub fn text(crate_folder: &str, name: &str) -> Option<String> {
    let bytes = bytes(crate_folder, name)?;
    let mut text = String::new();
    let read = if Path::new(name).extension().is_some_and(|extension| extension == "gz") {
        GzDecoder::new(&bytes[..]).read_to_string(&mut text)
    } else {
        (&bytes[..]).read_to_string(&mut text)
    };
    read.unwrap_or_else(|error| panic!("{name}: {error}"));
    Some(text)
}

/// Asserts numbers of cases in the crate's own data; prints them for other data.
///
/// # Panics
/// If the data are the crate's own and the numbers differ.
#[track_caller]
#[expect(clippy::needless_pass_by_value, reason = "as with `assert_eq!`, callers need not borrow")]
pub fn assert_count<T: Debug + PartialEq<U>, U: Debug>(name: &str, found: T, expected: U) {
    if other_folder().is_some() {
        println!("{name}: {found:?}");
    } else {
        assert_eq!(found, expected, "{name}");
    }
}
