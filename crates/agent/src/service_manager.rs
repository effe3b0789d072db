//! What a service manager is told, such as systemd: that the agent waits, that policy is in force, and that the agent ends.
//!
//! The protocol is that of `sd_notify(3)`: assignments as lines of one datagram to the socket that `NOTIFY_SOCKET` names. Units that
//! are to start when policy is in force are ordered after one with `Type=notify`.

use std::cell::Cell;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::rc::Rc;

use tortie_model::desired::DesiredUpdate;

use tortie_node::engine::{Observer, Progress};

/// Names the socket on which a service manager listens.
const VARIABLE: &str = "NOTIFY_SOCKET";

/// The service manager that has started this program, if one wants to be told; clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServiceManager(Option<Rc<Listener>>);

#[derive(Debug)]
struct Listener {
    socket: UnixDatagram,
    address: SocketAddr,
    knows_ready: Cell<bool>,
    is_deaf: Cell<bool>,
}

impl ServiceManager {
    /// As the environment says. One that cannot be told is logged, and keeps nobody from enforcing policy.
    #[must_use]
    pub(crate) fn from_environment() -> Self {
        let Some(name) = std::env::var_os(VARIABLE).filter(|name| !name.is_empty()) else { return Self::default() };
        Self::at(&name).unwrap_or_else(|error| {
            tracing::warn!(socket = %name.display(), %error, "the service manager of {VARIABLE} is not told that policy is in force");
            Self::default()
        })
    }

    /// One that listens here: on a path, or after an `@` on a name of the network namespace.
    ///
    /// # Errors
    /// If that is no address, or no socket can be made.
    pub(crate) fn at(name: &OsStr) -> io::Result<Self> {
        let address = match name.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            [b'/', ..] => SocketAddr::from_pathname(name)?,
            _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, "neither an absolute path nor @NAME")),
        };
        let socket = UnixDatagram::unbound()?;
        // Enforcing waits for nobody.
        socket.set_nonblocking(true)?;
        Ok(Self(Some(Rc::new(Listener { socket, address, knows_ready: Cell::new(false), is_deaf: Cell::new(false) }))))
    }

    /// Policy is not in force yet. Whoever asks why starting takes so long is told.
    pub(crate) fn starting(&self) {
        if let Some(listener) = &self.0 {
            listener.tell("STATUS=waiting for the datastore; what was in force stays in force\n");
        }
    }

    /// Policy is in force; said once, and again only if it could not be said.
    pub(crate) fn ready(&self) {
        let Some(listener) = self.0.as_ref().filter(|listener| !listener.knows_ready.get()) else { return };
        listener.knows_ready.set(listener.tell("READY=1\nSTATUS=policy is in force\n"));
    }

    /// The program ends, and leaves everything in force.
    pub(crate) fn stopping(&self) {
        if let Some(listener) = &self.0 {
            listener.tell("STOPPING=1\nSTATUS=stopping; what is in force stays in force\n");
        }
    }
}

impl Listener {
    fn tell(&self, message: &str) -> bool {
        match self.socket.send_to_addr(message.as_bytes(), &self.address) {
            Ok(_) => true,
            Err(error) => {
                if !self.is_deaf.replace(true) {
                    tracing::warn!(%error, "the service manager of {VARIABLE} cannot be told how this program is");
                }
                false
            }
        }
    }
}

impl Observer for ServiceManager {
    fn on_update(&mut self, _: &DesiredUpdate) {}

    fn on_progress(&mut self, _: &Progress, has_enforced: bool) {
        if has_enforced {
            self.ready();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn progress() -> Progress {
        Progress {
            done: true,
            next: Duration::ZERO,
            in_kernel: Duration::ZERO,
            statuses: Vec::new(),
            process_status: None,
            wireguard_keys: Vec::new(),
        }
    }

    fn heard(socket: &UnixDatagram) -> Option<String> {
        let mut bytes = [0; 256];
        let read = socket.recv(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes[..read]).into_owned())
    }

    #[test]
    fn a_service_manager_hears_once_that_policy_is_in_force_and_then_that_the_program_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let name = format!("tortie-test-{}", std::process::id());
        let listeners = [
            (UnixDatagram::bind(&path).unwrap(), path.display().to_string()),
            (UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap(), format!("@{name}")),
        ];
        for (listener, name) in listeners {
            listener.set_nonblocking(true).unwrap();
            let mut manager = ServiceManager::at(OsStr::new(&name)).unwrap();
            manager.starting();
            assert!(heard(&listener).unwrap().starts_with("STATUS=waiting for the datastore"));
            manager.on_progress(&progress(), false);
            assert_eq!(heard(&listener), None, "nothing is in force yet");
            manager.on_progress(&progress(), true);
            // A session that restarts has a clone.
            manager.clone().on_progress(&progress(), true);
            assert_eq!(heard(&listener).as_deref(), Some("READY=1\nSTATUS=policy is in force\n"));
            assert_eq!(heard(&listener), None);
            manager.stopping();
            assert!(heard(&listener).unwrap().starts_with("STOPPING=1\n"));
        }
    }

    #[test]
    fn one_that_listens_late_is_told_all_the_same_and_no_address_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let manager = ServiceManager::at(path.as_os_str()).unwrap();
        manager.starting();
        manager.ready();
        let listener = UnixDatagram::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        manager.ready();
        assert!(heard(&listener).unwrap().starts_with("READY=1\n"));
        assert!(ServiceManager::at(OsStr::new("vsock:2:1234")).is_err());
        // Who was started by hand tells nobody.
        ServiceManager::default().ready();
    }
}
