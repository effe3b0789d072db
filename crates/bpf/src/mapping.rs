//! The memory of a map, as this process sees it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// A part of the memory of a map that may be mapped.
#[derive(Debug)]
pub(crate) struct Mapping {
    begin: NonNull<u8>,
    bytes: usize,
    is_writable: bool,
}

// SAFETY: the memory is that of the process, whichever thread asks for it.
unsafe impl Send for Mapping {}

impl Mapping {
    /// The first so many bytes, to read and to write.
    pub(crate) fn new(map: &OwnedFd, bytes: usize) -> io::Result<Self> {
        Self::map(map, bytes, 0, true)
    }

    /// So many bytes from an offset on, a multiple of the size of a page, that are only read.
    pub(crate) fn read_only(map: &OwnedFd, bytes: usize, offset: usize) -> io::Result<Self> {
        Self::map(map, bytes, offset, false)
    }

    fn map(map: &OwnedFd, bytes: usize, offset: usize, is_writable: bool) -> io::Result<Self> {
        let access = if is_writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: the kernel chooses where nothing is.
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
            // SAFETY: it is within what was mapped.
            Some(end) if end <= self.bytes => Ok(unsafe { self.begin.as_ptr().add(offset) }),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// The same for what is to be written.
    fn writable_at(&self, offset: usize, bytes: usize) -> io::Result<*mut u8> {
        if self.is_writable { self.at(offset, bytes) } else { Err(io::ErrorKind::PermissionDenied.into()) }
    }

    pub(crate) fn write(&self, offset: usize, value: &[u8]) -> io::Result<()> {
        let to = self.writable_at(offset, value.len())?;
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

    /// Where a number is that the kernel may change at any time.
    fn aligned<T>(&self, offset: usize) -> io::Result<*mut T> {
        let at = self.at(offset, size_of::<T>())?.cast::<T>();
        if at.is_aligned() { Ok(at) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }

    /// A number of 8 bytes that the kernel changes at once. What it wrote before is seen by what is read afterwards.
    pub(crate) fn load(&self, offset: usize) -> io::Result<u64> {
        let number = self.aligned(offset)?;
        // SAFETY: it is mapped as long as this, aligned, and all who change it do so at once.
        Ok(unsafe { AtomicU64::from_ptr(number) }.load(Ordering::Acquire))
    }

    /// The same of 4 bytes.
    pub(crate) fn load_half(&self, offset: usize) -> io::Result<u32> {
        let number = self.aligned(offset)?;
        // SAFETY: it is mapped as long as this, aligned, and all who change it do so at once.
        Ok(unsafe { AtomicU32::from_ptr(number) }.load(Ordering::Acquire))
    }

    /// Writes a number of 8 bytes that the kernel reads at once, after all that was read before.
    pub(crate) fn store(&self, offset: usize, number: u64) -> io::Result<()> {
        self.writable_at(offset, size_of::<u64>())?;
        let to = self.aligned(offset)?;
        // SAFETY: it may be written as long as this is there, is aligned, and all who read it do so at once.
        unsafe { AtomicU64::from_ptr(to) }.store(number, Ordering::Release);
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped so, and nothing refers to it any more.
        unsafe { libc::munmap(self.begin.as_ptr().cast(), self.bytes) };
    }
}
