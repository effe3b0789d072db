//! Programs that lead separate process groups, so that the processes that they start can be ended
//! with them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, pidfd_open, waitid,
};

use crate::stop::poll_for;

/// Polling interval for the end of a program on kernels without pidfd (before Linux 5.3).
pub(super) const ASK: Duration = Duration::from_millis(10);
/// Maximum wait for a killed program. One that survives SIGKILL for longer is abandoned.
const AFTER_KILL: Duration = Duration::from_secs(2);
/// Maximum wait of [`kill_all`] for a program that is being started.
const BEING_STARTED: Duration = Duration::from_millis(200);

/// Leaders of all groups. None of them has been waited for, so that their process ids cannot have
/// been reused. `None` once this process ends immediately and starts no more programs.
static LEADERS: Mutex<Option<Vec<Pid>>> = Mutex::new(Some(Vec::new()));
/// Abandoned programs; they are waited for when others are started.
static LEFT_BEHIND: Mutex<Vec<Child>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Neither list can be half-changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills all groups and prevents further starts, for a process that ends immediately. Never waits
/// long.
pub fn kill_all() {
    let deadline = Instant::now() + BEING_STARTED;
    let mut leaders = loop {
        match LEADERS.try_lock() {
            Ok(leaders) => break leaders,
            Err(TryLockError::Poisoned(poisoned)) => break poisoned.into_inner(),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => thread::sleep(Duration::from_millis(1)),
            Err(TryLockError::WouldBlock) => return,
        }
    };
    for leader in leaders.take().unwrap_or_default() {
        // The group may have ended by itself.
        let _ = kill_process_group(leader, Signal::KILL);
    }
}

/// Started program with the processes that it has started itself. Dropping this kills all of them.
#[derive(Debug)]
pub struct Group {
    /// `None` once it has been waited for.
    child: Option<Child>,
    leader: Pid,
    /// Becomes readable when the leader has ended.
    end: Option<OwnedFd>,
}

impl Group {
    /// Starts a program. The caller takes its pipes from [`Group::child`].
    ///
    /// # Errors
    /// If it cannot be started, or this process is ending.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        lock(&LEFT_BEHIND).retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        let mut leaders = lock(&LEADERS);
        let Some(leaders) = leaders.as_mut() else { return Err(io::Error::other("this program is ending")) };
        let child = command.process_group(0).spawn()?;
        let leader = Pid::from_child(&child);
        leaders.push(leader);
        Ok(Self { child: Some(child), leader, end: pidfd_open(leader, PidfdFlags::empty()).ok() })
    }

    /// Returns the leader; `None` if it has been waited for.
    pub fn child(&mut self) -> Option<&mut Child> {
        self.child.as_mut()
    }

    /// Returns a file descriptor that becomes readable when the leader has ended. If there is none,
    /// the caller has to poll [`Group::has_ended`].
    pub fn end_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.end.as_ref().map(AsFd::as_fd)
    }

    /// Reports whether the leader has ended. Its process id stays reserved.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        self.child.is_none() || !matches!(waitid(WaitId::Pid(self.leader), options), Ok(None))
    }

    /// Waits for this time at most, and reports whether the leader has ended.
    #[expect(clippy::must_use_candidate, reason = "it is called to wait")]
    pub fn ends_within(&self, time: Duration) -> bool {
        let end = Instant::now() + time;
        while !self.has_ended() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = match self.end_descriptor() {
                Some(descriptor) => poll_for(&mut [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)], left),
                None => Err(io::ErrorKind::Unsupported.into()),
            };
            if waited.is_err() {
                thread::sleep(left.min(ASK));
            }
        }
        true
    }

    /// Sends a signal to all processes of the group.
    pub fn signal(&self, signal: Signal) {
        if self.child.is_some() {
            // They may have ended by themselves.
            let _ = kill_process_group(self.leader, signal);
        }
    }

    /// Sends a signal to the leader alone.
    pub fn signal_leader(&self, signal: Signal) {
        if self.child.is_some() {
            let _ = kill_process(self.leader, signal);
        }
    }

    /// Waits for the leader, which should have ended, and returns its exit status. Other processes
    /// of the group stay.
    ///
    /// # Errors
    /// If it was waited for before.
    pub fn reap(&mut self) -> io::Result<ExitStatus> {
        let Some(mut child) = self.child.take() else { return Err(io::ErrorKind::NotFound.into()) };
        self.unlist();
        child.wait()
    }

    /// Removes the leader from the list. Must precede the wait for the leader, since its process id
    /// may be reused afterwards.
    fn unlist(&self) {
        if let Some(leaders) = lock(&LEADERS).as_mut() {
            leaders.retain(|leader| *leader != self.leader);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        let ended = self.ends_within(AFTER_KILL);
        let Some(mut child) = self.child.take() else { return };
        self.unlist();
        if ended {
            // It was killed, so its exit status is of no interest.
            let _ = child.wait();
        } else {
            tracing::error!(process = self.leader.as_raw_nonzero(), "a program survived SIGKILL; abandoning it");
            lock(&LEFT_BEHIND).push(child);
        }
    }
}
