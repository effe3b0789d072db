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
    knows_ready: bool,
    is_deaf: bool,
}

impl ServiceManager {
    /// Returns the service manager that the environment names. An unusable address is logged and
    /// does not prevent enforcement.
    #[must_use]
    pub(crate) fn from_environment() -> Self {
        let Some(name) = std::env::var_os(VARIABLE).filter(|name| !name.is_empty()) else { return Self::default() };
        Self::at(&name).unwrap_or_else(|error| {
            tracing::warn!(socket = %name.display(), %error, "the service manager of {VARIABLE} cannot be used and is not notified");
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
        Ok(Self(Some(Listener { socket, address, knows_ready: false, is_deaf: false })))
    }

    /// Reports that policy is not in force yet, which explains a long start to the operator.
    pub(crate) fn starting(&mut self) {
        if let Some(listener) = &mut self.0 {
            listener.tell("STATUS=waiting for the datastore; earlier policy stays in force\n");
        }
    }

    /// Reports that policy is in force: once, and again only if the report failed.
    pub(crate) fn ready(&mut self) {
        let Some(listener) = self.0.as_mut().filter(|listener| !listener.knows_ready) else { return };
        listener.knows_ready = listener.tell("READY=1\nSTATUS=policy is in force\n");
    }

    /// Reports that the program ends; policy stays in force.
    pub(crate) fn stopping(&mut self) {
        if let Some(listener) = &mut self.0 {
            listener.tell("STOPPING=1\nSTATUS=stopping; policy stays in force\n");
        }
    }
}

impl Listener {
    fn tell(&mut self, message: &str) -> bool {
        match self.socket.send_to_addr(message.as_bytes(), &self.address) {
            Ok(_) => true,
            Err(error) => {
                if !std::mem::replace(&mut self.is_deaf, true) {
                    tracing::warn!(%error, "the service manager of {VARIABLE} cannot be notified");
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
        // Without a service manager, the report goes nowhere.
        ServiceManager::default().ready();
    }
}
