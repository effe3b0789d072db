//! Reports to a service manager, such as systemd: the agent waits, policy is in force, the agent
//! ends.
//!
//! The protocol is that of `sd_notify(3)`: assignments as lines of one datagram to the socket that
//! `NOTIFY_SOCKET` names. Units that start after policy is in force are ordered after a unit with
//! `Type=notify`.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Variable with the socket on which a service manager listens.
const VARIABLE: &str = "NOTIFY_SOCKET";

/// Service manager that has started this program, if it expects notifications.
#[derive(Debug, Default)]
pub(crate) struct ServiceManager(Option<Listener>);

#[derive(Debug)]
struct Listener {
    socket: UnixDatagram,
    address: SocketAddr,
    ready_sent: bool,
    failure_logged: bool,
}

impl ServiceManager {
    /// Returns the service manager that the environment names. An unusable address is logged and
    /// does not prevent enforcement.
    #[must_use]
    pub(crate) fn from_environment() -> Self {
        let Some(name) = std::env::var_os(VARIABLE).filter(|name| !name.is_empty()) else { return Self::default() };
        Self::at(&name).unwrap_or_else(|error| {
            tracing::warn!(socket = %name.display(), %error, "the service manager of NOTIFY_SOCKET cannot be used and is not notified");
            Self::default()
        })
    }

    /// Returns a service manager that listens on a path, or, after an `@`, on an abstract socket
    /// name.
    ///
    /// # Errors
    /// If the name is no address, or no socket can be created.
    pub(crate) fn at(name: &OsStr) -> io::Result<Self> {
        let address = match name.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            [b'/', ..] => SocketAddr::from_pathname(name)?,
            _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, "neither an absolute path nor @NAME")),
        };
        let socket = UnixDatagram::unbound()?;
        // Enforcement must not wait for the service manager.
        socket.set_nonblocking(true)?;
        Ok(Self(Some(Listener { socket, address, ready_sent: false, failure_logged: false })))
    }

    /// Reports that policy is not in force yet, which explains a long start to the operator.
    pub(crate) fn starting(&mut self) {
        if let Some(listener) = &mut self.0 {
            listener.notify("STATUS=waiting for the datastore; earlier policy stays in force\n");
        }
    }

    /// Reports that policy is in force: once, and again only if the report failed.
    pub(crate) fn ready(&mut self) {
        let Some(listener) = self.0.as_mut().filter(|listener| !listener.ready_sent) else { return };
        listener.ready_sent = listener.notify("READY=1\nSTATUS=policy is in force\n");
    }

    /// Reports that the program ends; policy stays in force.
    pub(crate) fn stopping(&mut self) {
        if let Some(listener) = &mut self.0 {
            listener.notify("STOPPING=1\nSTATUS=stopping; policy stays in force\n");
        }
    }
}

impl Listener {
    fn notify(&mut self, message: &str) -> bool {
        match self.socket.send_to_addr(message.as_bytes(), &self.address) {
            Ok(_) => true,
            Err(error) => {
                if !std::mem::replace(&mut self.failure_logged, true) {
                    tracing::warn!(%error, "the service manager of NOTIFY_SOCKET cannot be notified");
                }
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(socket: &UnixDatagram) -> Option<String> {
        let mut bytes = [0; 256];
        let read = socket.recv(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes[..read]).into_owned())
    }

    #[test]
    fn a_service_manager_is_notified_once_of_readiness_and_of_the_end() {
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
            assert!(receive(&listener).unwrap().starts_with("STATUS=waiting for the datastore"));
            assert_eq!(receive(&listener), None, "nothing is in force yet");
            manager.ready();
            manager.ready();
            assert_eq!(receive(&listener).as_deref(), Some("READY=1\nSTATUS=policy is in force\n"));
            assert_eq!(receive(&listener), None);
            manager.stopping();
            assert!(receive(&listener).unwrap().starts_with("STOPPING=1\n"));
        }
    }

    #[test]
    fn a_late_listener_is_notified_and_an_invalid_address_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let mut manager = ServiceManager::at(path.as_os_str()).unwrap();
        manager.starting();
        manager.ready();
        let listener = UnixDatagram::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        manager.ready();
        assert!(receive(&listener).unwrap().starts_with("READY=1\n"));
        assert!(ServiceManager::at(OsStr::new("vsock:2:1234")).is_err());
        // Without a service manager, the report goes nowhere.
        ServiceManager::default().ready();
    }
}
