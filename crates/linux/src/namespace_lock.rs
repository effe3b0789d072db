//! Lock of a network namespace, so that only one agent programs it.
//!
//! Two agents with different configurations would undo each other's changes for as long as both
//! run. The lock is an abstract Unix socket: its name exists once in each network namespace, in
//! all mount and PID namespaces, and the kernel releases it when the process ends in any way.
//!
//! Binding the name needs no privilege. Only root, or a process of this user, is believed to be an
//! agent; another holder could otherwise keep the node without enforcement.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, UCred, connect, socket_with, sockopt::socket_peercred,
};
use rustix::process::geteuid;

use crate::netlink::unix_listener_uid;
use crate::stop::Stop;

const NAME: &str = "tortie/dataplane";
/// Time between two attempts while an earlier agent ends.
const PAUSE: Duration = Duration::from_millis(100);
/// Time limit for the kernel's list of listeners.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);
const ROOT: u32 = 0;

/// Right to program the network namespace of the calling thread, until it is dropped.
#[derive(Debug)]
pub struct NamespaceLock {
    /// `None` if a process that is no agent holds the name.
    _listener: Option<UnixListener>,
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
    /// If a process that is no agent holds the name, this logs an error and succeeds without the
    /// lock.
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
                Ok(listener) => return Ok(Self { _listener: Some(listener) }),
                Err(error) if error.kind() != ErrorKind::AddrInUse => return Err(LockError::Io(error)),
                Err(_) if Instant::now() < until && !stop.is_set() => thread::sleep(PAUSE),
                Err(_) => break,
            }
        }
        let peer = peer(name);
        // Agents listen.
        let is_silent = peer == Err(Errno::CONNREFUSED);
        let peer = peer.ok();
        let listed = unix_listener_uid(name, LIST_TIMEOUT).ok().flatten();
        let uid = listed.or_else(|| peer.map(|peer| peer.uid.as_raw()));
        if uid.map_or(!is_silent, |uid| is_agent(uid, geteuid().as_raw())) {
            return Err(LockError::Taken { holder: describe(peer) });
        }
        // The holder may have ended since.
        if let Ok(listener) = UnixListener::bind_addr(&address) {
            return Ok(Self { _listener: Some(listener) });
        }
        tracing::error!(uid, "another process holds the name of the lock; going on without the lock");
        Ok(Self { _listener: None })
    }
}

/// Reports whether a holder of the lock with this user is believed to be an agent, by an agent
/// whose user is `own`.
const fn is_agent(uid: u32, own: u32) -> bool {
    uid == ROOT || uid == own
}

/// Returns the credentials of the process that has the lock. Fails if the queue of its socket is
/// full, or if the process has no number in this PID namespace.
fn peer(name: &str) -> Result<UCred, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    socket_peercred(&socket)
}

fn describe(peer: Option<UCred>) -> String {
    let Some(UCred { pid, .. }) = peer else { return "another agent".to_owned() };
    let number = pid.as_raw_nonzero();
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

    #[test]
    fn a_full_queue_does_not_block() {
        let name = format!("tortie/test-full-{}", std::process::id());
        let stop = Stop::new().unwrap();
        let _first = NamespaceLock::take_named(&name, Duration::ZERO, &stop).unwrap();
        // Closed connections stay in the queue of a listener that never accepts.
        while peer(&name).is_ok() {}
        let refused = NamespaceLock::take_named(&name, Duration::ZERO, &stop).unwrap_err().to_string();
        assert_eq!(refused, "another agent programs this network namespace; stop it first");
        match unix_listener_uid(&name, LIST_TIMEOUT) {
            Ok(uid) => assert_eq!(uid, Some(geteuid().as_raw())),
            Err(error) => println!("this kernel does not list Unix sockets: {error}"),
        }
    }

    #[test]
    fn a_name_that_is_bound_without_a_listener_does_not_keep_agents_out() {
        let name = format!("tortie/test-bound-{}", std::process::id());
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
        let stop = Stop::new().unwrap();
        let without = NamespaceLock::take_named(&name, Duration::ZERO, &stop).unwrap();
        assert!(without._listener.is_none());
    }

    #[test]
    fn only_root_and_this_user_are_agents() {
        assert!(is_agent(ROOT, ROOT) && is_agent(ROOT, 1_000) && is_agent(1_000, 1_000));
        assert!(!is_agent(1_000, ROOT) && !is_agent(1_001, 1_000));
    }
}
