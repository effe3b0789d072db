//! Operations common to maps, programs and links.

use std::error::Error;
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::{fmt, io};

use crate::call::{GetInfo, OBJ_GET, OBJ_GET_INFO_BY_FD, OBJ_PIN, ObjectPath, call, descriptor, number};

fn text(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// An error with the path that it concerns. Its text includes the underlying error, because users
/// of an [`io::Error`] print no sources.
#[derive(Debug)]
struct AtPath {
    path: PathBuf,
    error: io::Error,
}

impl fmt::Display for AtPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.error)
    }
}

impl Error for AtPath {}

/// Adds a path to an error and keeps its kind.
pub(crate) fn at_path(path: &Path) -> impl FnOnce(io::Error) -> io::Error {
    let path = path.to_owned();
    |error| io::Error::new(error.kind(), AtPath { path, error })
}

/// Pins an object in a BPF file system, which keeps it in existence.
pub(crate) fn pin(object: &OwnedFd, path: &Path) -> io::Result<()> {
    let path = text(path)?;
    let mut attributes = ObjectPath { pathname: path.as_ptr() as u64, bpf_fd: number(object), file_flags: 0 };
    // SAFETY: the path is zero-terminated and outlives the call.
    let done = unsafe { call(OBJ_PIN, &mut attributes) };
    done.map(drop)
}

/// Opens a pinned object.
pub(crate) fn open(path: &Path) -> io::Result<OwnedFd> {
    let path = text(path)?;
    let mut attributes = ObjectPath { pathname: path.as_ptr() as u64, bpf_fd: 0, file_flags: 0 };
    // SAFETY: the path is zero-terminated and outlives the call, which opens a descriptor.
    unsafe { descriptor(OBJ_GET, &mut attributes) }
}

/// Returns the first words of an object's info structure. Words beyond the kernel's structure are
/// zero.
pub(crate) fn info<const WORDS: usize>(object: &OwnedFd) -> io::Result<[u32; WORDS]> {
    let mut words = [0_u32; WORDS];
    let length = u32::try_from(size_of_val(&words)).map_err(|_| io::ErrorKind::InvalidInput)?;
    // The kernel writes at most `length` bytes.
    let mut attributes = GetInfo { bpf_fd: number(object), info_len: length, info: words.as_mut_ptr() as u64 };
    // SAFETY: the kernel writes at most `info_len` bytes, all of them into `words`.
    unsafe { call(OBJ_GET_INFO_BY_FD, &mut attributes) }?;
    Ok(words)
}

/// Returns the error for an object of an unexpected type.
pub(crate) fn other(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}
