//! Lock of a network namespace, so that only one agent programs it.
//!
//! Two agents with different configurations would undo each other's changes for as long as both
//! run. The lock is an abstract Unix socket: its name exists once in each network namespace, in
//! all mount and PID namespaces, and the kernel releases it when the process ends in any way.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::stop::Stop;

const NAME: &str = "tortie/dataplane";
/// Time between two attempts while an earlier agent ends.
const PAUSE: Duration = Duration::from_millis(100);

/// Right to program the network namespace of the calling thread, until it is dropped.
#[derive(Debug)]
pub struct NamespaceLock {
    _listener: UnixListener,
}

/// Reason why the network namespace cannot be programmed.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another agent programs it.
    #[error("{holder} programs this network namespace; stop it first")]
    Taken {
        /// The other process, as it is shown to operators.
        holder: String,
    },
    /// The lock cannot be taken.
    #[error("the lock of this network namespace")]
    Io(#[source] io::Error),
}

impl NamespaceLock {
    /// Takes the lock; waits up to `patience` while another agent ends. A `stop` ends the wait.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn take(patience: Duration, stop: &Stop) -> Result<Self, LockError> {
        Self::take_named(NAME, patience, stop)
    }

    fn take_named(name: &str, patience: Duration, stop: &Stop) -> Result<Self, LockError> {
        let address = SocketAddr::from_abstract_name(name).map_err(LockError::Io)?;
        let until = Instant::now() + patience;
        loop {
            match UnixListener::bind_addr(&address) {
                Ok(listener) => return Ok(Self { _listener: listener }),
                Err(error) if error.kind() != ErrorKind::AddrInUse => return Err(LockError::Io(error)),
                Err(_) if Instant::now() < until && !stop.is_set() => thread::sleep(PAUSE),
                Err(_) => return Err(LockError::Taken { holder: holder(&address) }),
            }
        }
    }
}

/// Describes the process that has the lock. A process of another PID namespace has no number here.
fn holder(address: &SocketAddr) -> String {
    let peer = UnixStream::connect_addr(address)
        .and_then(|stream| rustix::net::sockopt::socket_peercred(&stream).map_err(io::Error::from));
    let Ok(peer) = peer else { return "another agent".to_owned() };
    let number = peer.pid.as_raw_nonzero();
    match fs::read_to_string(format!("/proc/{number}/comm")) {
        Ok(name) => format!("another agent ({}, process {number})", name.trim()),
        Err(_) => format!("another agent (process {number})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_agent_is_refused_until_the_first_ends() {
        let name = format!("tortie/test-{}", std::process::id());
        let stop = Stop::new().unwrap();
        let take = |patience| NamespaceLock::take_named(&name, patience, &stop);
        let first = take(Duration::ZERO).unwrap();
        let refused = take(Duration::ZERO).unwrap_err().to_string();
        let this = format!("process {}) programs this network namespace; stop it first", std::process::id());
        assert!(refused.starts_with("another agent (") && refused.ends_with(&this), "{refused}");

        let ending = thread::spawn(move || {
            thread::sleep(PAUSE);
            drop(first);
        });
        take(Duration::from_secs(60)).unwrap();
        ending.join().unwrap();
    }

    #[test]
    fn a_stop_ends_the_wait() {
        let name = format!("tortie/test-stop-{}", std::process::id());
        let stop = Stop::new().unwrap();
        let _first = NamespaceLock::take_named(&name, Duration::ZERO, &stop).unwrap();
        stop.set();
        assert!(NamespaceLock::take_named(&name, Duration::from_secs(3_600), &stop).is_err());
    }
}
