//! What a service manager is told, such as systemd: that the agent waits, that policy is in force, and that the agent ends.
//!
//! The protocol is that of `sd_notify(3)`: assignments as lines of one datagram to the socket that `NOTIFY_SOCKET` names. Units that
//! are to start when policy is in force are ordered after one with `Type=notify`.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Names the socket on which a service manager listens.
const VARIABLE: &str = "NOTIFY_SOCKET";

/// The service manager that has started this program, if one wants to be told.
#[derive(Debug, Default)]
pub(crate) struct ServiceManager(Option<Listener>);

#[derive(Debug)]
struct Listener {
    socket: UnixDatagram,
    address: SocketAddr,
    knows_ready: bool,
    is_deaf: bool,
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
        Ok(Self(Some(Listener { socket, address, knows_ready: false, is_deaf: false })))
    }

    /// Policy is not in force yet. Whoever asks why starting takes so long is told.
    pub(crate) fn starting(&mut self) {
        if let Some(listener) = &mut self.0 {
            listener.tell("STATUS=waiting for the datastore; what was in force stays in force\n");
        }
    }

    /// Policy is in force; said once, and again only if it could not be said.
    pub(crate) fn ready(&mut self) {
        let Some(listener) = self.0.as_mut().filter(|listener| !listener.knows_ready) else { return };
        listener.knows_ready = listener.tell("READY=1\nSTATUS=policy is in force\n");
    }

    /// The program ends, and leaves everything in force.
    pub(crate) fn stopping(&mut self) {
        if let Some(listener) = &mut self.0 {
            listener.tell("STOPPING=1\nSTATUS=stopping; what is in force stays in force\n");
        }
    }
}

impl Listener {
    fn tell(&mut self, message: &str) -> bool {
        match self.socket.send_to_addr(message.as_bytes(), &self.address) {
            Ok(_) => true,
            Err(error) => {
                if !std::mem::replace(&mut self.is_deaf, true) {
                    tracing::warn!(%error, "the service manager of {VARIABLE} cannot be told how this program is");
                }
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(heard(&listener), None, "nothing is in force yet");
            manager.ready();
            manager.ready();
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
        let mut manager = ServiceManager::at(path.as_os_str()).unwrap();
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
