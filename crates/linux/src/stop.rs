//! Request to end the program, which also ends waits.

use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Request to end the program, shared by clones. The default one can never be set.
///
/// Setting it never blocks, and ends a wait for it at once.
#[derive(Clone, Debug, Default)]
pub struct Stop(Option<Arc<Shared>>);

/// Reason for which work was not done to its end: the program is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this program is ending")]
pub(crate) struct Stopping;

#[derive(Debug)]
struct Shared {
    set: AtomicBool,
    /// Writing end of a pipe, closed when the program is to end: this wakes any number of
    /// listeners, permanently.
    writer: Mutex<Option<PipeWriter>>,
    reader: PipeReader,
}

impl Stop {
    /// Creates one that can be set.
    ///
    /// # Errors
    /// If no pipe can be made.
    pub fn new() -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        Ok(Self(Some(Arc::new(Shared { set: AtomicBool::new(false), writer: Mutex::new(Some(writer)), reader }))))
    }

    /// Sets it. Reports whether it was set before.
    pub fn set(&self) -> bool {
        let Some(shared) = &self.0 else { return false };
        let before = shared.set.swap(true, Ordering::SeqCst);
        drop(shared.writer.lock().unwrap_or_else(PoisonError::into_inner).take());
        before
    }

    /// Reports whether it has been set.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.as_ref().is_some_and(|shared| shared.set.load(Ordering::SeqCst))
    }

    /// Waits for this time, or until it is set. Reports whether it is set.
    #[must_use]
    pub fn wait(&self, time: Duration) -> bool {
        let Some(descriptor) = self.descriptor() else {
            thread::sleep(time);
            return false;
        };
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if self.is_set() || left.is_zero() {
                return self.is_set();
            }
            if poll_for(&mut [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)], left).is_err() {
                // If the pipe fails, the flag still works.
                thread::sleep(left.min(Duration::from_millis(10)));
            }
        }
    }

    /// Returns a file descriptor that becomes readable when it is set; `None` if it can never be
    /// set.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(|shared| shared.reader.as_fd())
    }
}

/// Waits for an event on one of the descriptors, a signal, or the end of the time.
///
/// # Errors
/// If the kernel refuses.
pub fn poll_for(descriptors: &mut [PollFd<'_>], time: Duration) -> io::Result<()> {
    // A time that is too large for the kernel means no timeout.
    let time = Timespec::try_from(time).ok();
    match poll(descriptors, time.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests;
