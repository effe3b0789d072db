//! The socket, and the permissions of its clients.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, BufReader, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::net::{Shutdown, shutdown};
use rustix::process::geteuid;

use super::service::{self, CallAnswer, Service};
use super::wire::{self, Reply};
use crate::flows::FlowReceiver;

/// Default path of the agent's socket.
pub const DEFAULT_SOCKET: &str = "/run/tortie/agent.sock";

const MAX_CLIENTS: usize = 16;
/// Time for which a client may be silent, or leave an answer unread.
const IDLE: Duration = Duration::from_secs(30);
/// Interval after which a client that follows flows is sent an answer, even if it is empty.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Pause after a connection could not be accepted, for instance for want of file descriptors.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// A listening socket. Dropping this closes it and removes its file.
#[derive(Debug)]
pub struct Server {
    listener: Arc<UnixListener>,
    path: PathBuf,
    stop: Arc<AtomicBool>,
}

impl Server {
    /// Answers on a socket at this path, on separate threads. The socket of an agent that was
    /// killed is replaced.
    ///
    /// # Errors
    /// If another program answers there, the path is something else than a socket, or the socket
    /// cannot be made.
    pub fn start(path: &Path, service: Service) -> io::Result<Self> {
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
        }
        remove_stale(path)?;
        let listener = Arc::new(UnixListener::bind(path)?);
        fs::set_permissions(path, Permissions::from_mode(0o600))?;
        let stop = Arc::new(AtomicBool::new(false));
        let server = Self { listener: Arc::clone(&listener), path: path.to_owned(), stop: Arc::clone(&stop) };
        thread::Builder::new().name("local-api".into()).spawn(move || accept(&listener, &stop, &Arc::new(service)))?;
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // This ends the wait for a connection.
        let _ = shutdown(&*self.listener, Shutdown::Both);
        let _ = fs::remove_file(&self.path);
    }
}

fn remove_stale(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::new(ErrorKind::AlreadyExists, "there is something else than a socket"));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(io::Error::new(ErrorKind::AddrInUse, "another program answers there")),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
    }
}

fn accept(listener: &UnixListener, stop: &AtomicBool, service: &Arc<Service>) {
    let clients = Arc::new(AtomicUsize::new(0));
    loop {
        let stream = match listener.accept() {
            _ if stop.load(Ordering::Acquire) => return,
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "a client of the local socket could not be taken");
                thread::sleep(RETRY_DELAY);
                continue;
            }
        };
        let slot = ClientSlot::take(&clients);
        if slot.number > MAX_CLIENTS {
            tracing::debug!("too many clients of the local socket");
            continue;
        }
        let service = Arc::clone(service);
        let serve = move || {
            // A failure of one client does not affect the others; its connection is closed.
            if let Err(error) = serve(&stream, &service) {
                tracing::debug!(%error, "a client of the local socket failed");
            }
            drop(slot);
        };
        if let Err(error) = thread::Builder::new().name("local-api-client".into()).spawn(serve) {
            tracing::debug!(%error, "a client of the local socket could not be served");
        }
    }
}

struct ClientSlot {
    clients: Arc<AtomicUsize>,
    number: usize,
}

impl ClientSlot {
    fn take(clients: &Arc<AtomicUsize>) -> Self {
        Self { clients: Arc::clone(clients), number: clients.fetch_add(1, Ordering::AcqRel) + 1 }
    }
}

impl Drop for ClientSlot {
    fn drop(&mut self) {
        self.clients.fetch_sub(1, Ordering::AcqRel);
    }
}

fn serve(stream: &UnixStream, service: &Service) -> io::Result<()> {
    stream.set_read_timeout(Some(IDLE))?;
    stream.set_write_timeout(Some(IDLE))?;
    let peer = socket_peercred(stream)?;
    let is_allowed = peer.uid.is_root() || peer.uid == geteuid();
    let (mut reader, mut writer) = (BufReader::new(stream), stream);
    while let Some(message) = wire::read(&mut reader, wire::MAX_CALL)? {
        if !is_allowed {
            return wire::write(&mut writer, &service::permission_denied());
        }
        match service.answer(&message, peer.uid.is_root())? {
            None => {}
            Some(CallAnswer::Once(reply)) => wire::write(&mut writer, &reply)?,
            Some(CallAnswer::Flows(followed)) => follow(&followed, &mut writer)?,
        }
    }
    Ok(())
}

fn follow(followed: &FlowReceiver, writer: &mut impl io::Write) -> io::Result<()> {
    loop {
        let batch = match followed.recv_timeout(HEARTBEAT) {
            Ok(batch) => Some(batch),
            // The next write detects that the client is gone.
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return wire::write(writer, &service::flows(&[])),
        };
        let (events, lost) = batch.as_ref().map_or((&[][..], 0), |batch| (&batch.events[..], batch.lost));
        wire::write(writer, &Reply { continues: true, ..service::followed(events, lost) })?;
    }
}

#[cfg(test)]
mod tests;
