//! The memory of a map, as this process sees it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};

/// The one value of an array map that may be mapped.
#[derive(Debug)]
pub(crate) struct Mapping {
    begin: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory is that of the process, whichever thread asks for it.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Of a map whose value has so many bytes.
    pub(crate) fn new(map: &OwnedFd, bytes: usize) -> io::Result<Self> {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: the kernel chooses where nothing is.
        let begin = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, map.as_raw_fd(), 0) };
        if begin == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let begin = NonNull::new(begin.cast::<u8>()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { begin, bytes })
    }

    fn at(&self, offset: usize, bytes: usize) -> io::Result<*mut u8> {
        match offset.checked_add(bytes) {
            // SAFETY: it is within what was mapped.
            Some(end) if end <= self.bytes => Ok(unsafe { self.begin.as_ptr().add(offset) }),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    pub(crate) fn write(&self, offset: usize, value: &[u8]) -> io::Result<()> {
        let to = self.at(offset, value.len())?;
        // SAFETY: as many bytes are mapped there, to which nothing in this process refers.
        unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), to, value.len()) };
        // What is written next must not be seen before.
        fence(Ordering::SeqCst);
        Ok(())
    }

    pub(crate) fn read(&self, offset: usize, value: &mut [u8]) -> io::Result<()> {
        let from = self.at(offset, value.len())?;
        // SAFETY: as many bytes are mapped there. Who writes them meanwhile has some of them read as before.
        unsafe { std::ptr::copy_nonoverlapping(from, value.as_mut_ptr(), value.len()) };
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped so, and nothing refers to it any more.
        unsafe { libc::munmap(self.begin.as_ptr().cast(), self.bytes) };
    }
}
