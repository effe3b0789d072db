//! The wish that the program ends, heard by whoever waits for something.

use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Whether the program is to end; clones share it. By default it never is.
///
/// Setting it never waits for anybody, and a wait for it ends at once.
#[derive(Clone, Debug, Default)]
pub struct Stop(Option<Arc<Shared>>);

#[derive(Debug)]
struct Shared {
    set: AtomicBool,
    /// The pipe that is closed when the program is to end: one wake-up for any number of listeners, for ever.
    writer: Mutex<Option<PipeWriter>>,
    reader: PipeReader,
}

impl Stop {
    /// One that can be set.
    ///
    /// # Errors
    /// If no pipe can be made.
    pub fn new() -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        Ok(Self(Some(Arc::new(Shared { set: AtomicBool::new(false), writer: Mutex::new(Some(writer)), reader }))))
    }

    /// Sets it. Returns whether it was set before.
    pub fn set(&self) -> bool {
        let Some(shared) = &self.0 else { return false };
        let before = shared.set.swap(true, Ordering::SeqCst);
        drop(shared.writer.lock().unwrap_or_else(PoisonError::into_inner).take());
        before
    }

    /// Whether it has been set.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.as_ref().is_some_and(|shared| shared.set.load(Ordering::SeqCst))
    }

    /// Lets time pass, but no more once it is set; says whether it is.
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
                // Without the pipe there is the flag.
                thread::sleep(left.min(Duration::from_millis(10)));
            }
        }
    }

    /// What becomes readable when it is set.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(|shared| shared.reader.as_fd())
    }
}

/// Waits until something happens to one of the descriptors, a signal arrives, or the time is over.
///
/// # Errors
/// If the kernel refuses.
pub fn poll_for(descriptors: &mut [PollFd<'_>], time: Duration) -> io::Result<()> {
    // A time that the kernel cannot take is as good as for ever.
    let time = Timespec::try_from(time).ok();
    match poll(descriptors, time.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests;
