//! Memory-mapped maps.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// A memory mapping of a part of a map.
#[derive(Debug)]
pub(crate) struct Mapping {
    begin: NonNull<u8>,
    bytes: usize,
    is_writable: bool,
}

// SAFETY: a mapping belongs to the process, and any thread may access it.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps the first `bytes` bytes for reading and writing.
    pub(crate) fn new(map: &OwnedFd, bytes: usize) -> io::Result<Self> {
        Self::map(map, bytes, 0, true)
    }

    /// Maps `bytes` bytes from `offset` on, a multiple of the page size, for reading only.
    pub(crate) fn read_only(map: &OwnedFd, bytes: usize, offset: usize) -> io::Result<Self> {
        Self::map(map, bytes, offset, false)
    }

    fn map(map: &OwnedFd, bytes: usize, offset: usize, is_writable: bool) -> io::Result<Self> {
        let access = if is_writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: the kernel chooses an unused address range.
        let begin =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, map.as_raw_fd(), offset) };
        if begin == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let begin = NonNull::new(begin.cast::<u8>()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { begin, bytes, is_writable })
    }

    fn at(&self, offset: usize, bytes: usize) -> io::Result<*mut u8> {
        match offset.checked_add(bytes) {
            // SAFETY: the offset lies within the mapping.
            Some(end) if end <= self.bytes => Ok(unsafe { self.begin.as_ptr().add(offset) }),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// As [`Mapping::at`], with an error if the mapping is read-only.
    fn writable_at(&self, offset: usize, bytes: usize) -> io::Result<*mut u8> {
        if self.is_writable { self.at(offset, bytes) } else { Err(io::ErrorKind::PermissionDenied.into()) }
    }

    pub(crate) fn write(&self, offset: usize, value: &[u8]) -> io::Result<()> {
        let to = self.writable_at(offset, value.len())?;
        // SAFETY: the target range is mapped for writing, and no reference in this process points
        // into it.
        unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), to, value.len()) };
        // A later write must not become visible before this one.
        fence(Ordering::SeqCst);
        Ok(())
    }

    pub(crate) fn read(&self, offset: usize, value: &mut [u8]) -> io::Result<()> {
        let from = self.at(offset, value.len())?;
        // SAFETY: the source range is mapped. If a program writes it meanwhile, the copy has some
        // old and some new bytes.
        unsafe { std::ptr::copy_nonoverlapping(from, value.as_mut_ptr(), value.len()) };
        Ok(())
    }

    /// Returns the address of a number that the kernel may change at any time.
    fn aligned<T>(&self, offset: usize) -> io::Result<*mut T> {
        let at = self.at(offset, size_of::<T>())?.cast::<T>();
        if at.is_aligned() { Ok(at) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }

    /// Loads an 8-byte number that the kernel writes atomically. Later reads see all writes that
    /// the kernel did before (acquire ordering).
    pub(crate) fn load(&self, offset: usize) -> io::Result<u64> {
        let number = self.aligned(offset)?;
        // SAFETY: the number is aligned and mapped as long as `self` exists, and every writer
        // changes it atomically.
        Ok(unsafe { AtomicU64::from_ptr(number) }.load(Ordering::Acquire))
    }

    /// As [`Mapping::load`], for a number of 4 bytes.
    pub(crate) fn load_half(&self, offset: usize) -> io::Result<u32> {
        let number = self.aligned(offset)?;
        // SAFETY: the number is aligned and mapped as long as `self` exists, and every writer
        // changes it atomically.
        Ok(unsafe { AtomicU32::from_ptr(number) }.load(Ordering::Acquire))
    }

    /// Stores an 8-byte number that the kernel reads atomically, after all earlier reads (release
    /// ordering).
    pub(crate) fn store(&self, offset: usize, number: u64) -> io::Result<()> {
        self.writable_at(offset, size_of::<u64>())?;
        let to = self.aligned(offset)?;
        // SAFETY: the number is aligned and mapped for writing as long as `self` exists, and every
        // reader loads it atomically.
        unsafe { AtomicU64::from_ptr(to) }.store(number, Ordering::Release);
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `mmap` returned this range with this length, and no reference points into it.
        unsafe { libc::munmap(self.begin.as_ptr().cast(), self.bytes) };
    }
}
