//! Opening of files below a directory: nothing that blocks, and nothing outside unless that is
//! permitted.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fstatfs, openat, openat2, readlink};
use rustix::io::Errno;

use super::DirAccess;

pub(super) const IRREGULAR: &str = "is neither a file nor a directory";
const OF_KERNEL: &str = "is a file of the kernel (proc, sysfs, debugfs or tracefs), not a manifest";

/// File systems whose files are interfaces of the kernel: reading them may block, or have effects.
const KERNEL_FILE_SYSTEMS: [u64; 4] = [0x9fa0, 0x6265_6572, 0x6462_6720, 0x7472_6163];

/// A directory, or a single file, beneath which files are opened.
pub(super) struct Tree<'r> {
    path: &'r Path,
    root: OwnedFd,
    follow_links: bool,
}

impl<'r> Tree<'r> {
    /// Opens the directory or file itself, which may be a link.
    ///
    /// # Errors
    /// If there is none, or its path cannot be searched.
    pub(super) fn open(path: &'r Path, access: DirAccess) -> io::Result<Self> {
        let root = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { path, root, follow_links: access.follow_links })
    }

    /// Returns the metadata of the file or directory that a path leads to.
    ///
    /// # Errors
    /// If there is none, or it is outside; see [`leads_out`].
    pub(super) fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        self.examine(path).1
    }

    /// As [`Tree::metadata`], and whether the path is that of a link.
    pub(super) fn examine(&self, path: &Path) -> (bool, io::Result<Metadata>) {
        if path != self.path {
            match fs::symlink_metadata(path) {
                Ok(metadata) if metadata.is_symlink() => {}
                metadata => return (false, metadata),
            }
        }
        let metadata = self.open_at(path, OFlags::PATH).and_then(|file| File::from(file).metadata());
        (true, metadata)
    }

    /// Returns the metadata of a directory that may be listed.
    ///
    /// # Errors
    /// As [`Tree::metadata`], and if it is on a file system of the kernel.
    pub(super) fn folder(&self, path: &Path) -> io::Result<Metadata> {
        let folder = self.open_at(path, OFlags::PATH | OFlags::DIRECTORY)?;
        refuse_kernel(&folder)?;
        File::from(folder).metadata()
    }

    /// Opens a regular file for reading.
    ///
    /// # Errors
    /// If it is anything else, on a file system of the kernel, gone or outside.
    pub(super) fn regular(&self, path: &Path) -> io::Result<File> {
        // Opening a device may have effects, so the file is checked first.
        check_regular(self.open_at(path, OFlags::PATH)?)?;
        check_regular(self.open_at(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?)
    }

    fn open_at(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC;
        let below = path.strip_prefix(self.path).unwrap_or(path);
        if below.as_os_str().is_empty() {
            return Ok(openat(CWD, path, flags, Mode::empty())?);
        }
        if self.follow_links {
            return Ok(openat(&self.root, below, flags, Mode::empty())?);
        }
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        match openat2(&self.root, below, flags, Mode::empty(), resolve) {
            // An absolute link may lead to a place beneath the root; a kernel or a sandbox may lack
            // `openat2`.
            Err(Errno::XDEV | Errno::NOSYS | Errno::PERM | Errno::AGAIN) => self.open_and_check(below, flags),
            opened => Ok(opened?),
        }
    }

    /// Opens the target of a path and checks its location as reported by the kernel.
    pub(super) fn open_and_check(&self, below: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let found = openat(&self.root, below, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        if !place(&found)?.starts_with(place(&self.root)?) {
            return Err(Errno::XDEV.into());
        }
        if flags.contains(OFlags::PATH) {
            return Ok(found);
        }
        Ok(openat(CWD, by_number(&found), flags, Mode::empty())?)
    }
}

fn by_number(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

fn place(file: &OwnedFd) -> io::Result<PathBuf> {
    use std::os::unix::ffi::OsStringExt;
    let place = readlink(by_number(file), Vec::new())?;
    Ok(std::ffi::OsString::from_vec(place.into_bytes()).into())
}

fn check_regular(file: OwnedFd) -> io::Result<File> {
    refuse_kernel(&file)?;
    let file = File::from(file);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other(IRREGULAR));
    }
    Ok(file)
}

fn refuse_kernel(file: &OwnedFd) -> io::Result<()> {
    let kind = u64::try_from(fstatfs(file)?.f_type).unwrap_or_default();
    if KERNEL_FILE_SYSTEMS.contains(&kind) { Err(io::Error::other(OF_KERNEL)) } else { Ok(()) }
}

/// Reports whether a file was refused because it is not beneath the root.
pub(super) fn leads_out(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::XDEV)
}
