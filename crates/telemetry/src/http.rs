//! A listener that answers `GET` with short texts: all that health checks and metrics need.
//!
//! One thread serves all clients, and no client blocks another: a slow client is left until more of
//! its request has arrived, or there is room for more of its answer. The cost of clients is
//! limited: the bytes of a request, the time from its connection to the end of the answer, and the
//! number of connections at the same time. Beyond that number, the oldest connection that has sent
//! nothing is closed, or else the oldest; a probe that is answered at once gets through any number
//! of idle connections. The thread serves its clients before it accepts more, and accepts a limited
//! number of them at a time.

mod channel;
mod connection;
#[cfg(feature = "tls")]
mod tls;

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::net::{Shutdown, shutdown};
use tortie_linux::stop::poll_for;

use crate::escape;
use channel::Channel;
use connection::{Connection, Progress};

/// Longest wait of the thread.
const REST: Duration = Duration::from_secs(60);
/// Pause after a connection could not be accepted, for instance for want of file descriptors.
const RETRY_DELAY: Duration = Duration::from_millis(100);
/// Number of connections that may wait in the kernel to be accepted, up to `net.core.somaxconn`: a
/// second of a flood, which may pass while an answer is made.
const BACKLOG: i32 = 4096;

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The type of the body.
    pub content_type: &'static str,
    /// The body.
    pub body: String,
}

impl Response {
    /// Plain text, escaped as for a terminal.
    #[must_use]
    pub fn text(status: u16, body: impl Into<String>) -> Self {
        Self { status, content_type: "text/plain; charset=utf-8", body: escape::text(&body.into()).into_owned() }
    }
}

/// Limits of the cost of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Time that a client has from its connection to the end of the answer.
    pub time: Duration,
    /// Maximum number of connected clients.
    pub connections: usize,
}

impl Default for Limits {
    /// Five seconds, and 256 connections.
    fn default() -> Self {
        Self { time: Duration::from_secs(5), connections: 256 }
    }
}

/// Options of a listener.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Limits of the cost of clients.
    pub limits: Limits,
    /// Files for TLS; with them the listener answers over TLS alone.
    pub tls: Option<Tls>,
}

/// Files in PEM form for TLS. They are read again when they have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The certificate, and the intermediate certificates of its authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Certificates of the authorities that issue those of clients.
    pub authority: Option<PathBuf>,
    /// Requirement on the certificates of clients.
    pub clients: ClientCertificates,
}

/// Requirement on the certificate of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCertificates {
    /// No certificate is requested.
    NotAsked,
    /// A certificate of any authority.
    Any,
    /// A certificate of the authority, or none.
    VerifiedIfGiven,
    /// A certificate of the authority.
    Verified,
}

/// A running listener. Dropping this ends it and frees its address.
#[derive(Debug)]
pub struct Server {
    listener: Arc<TcpListener>,
    address: SocketAddr,
    stop: Arc<AtomicBool>,
}

impl Server {
    /// Address of the listener.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // This ends the wait for a connection, and gives the address back at once even if a client
        // is being answered.
        let _ = shutdown(&*self.listener, Shutdown::Both);
    }
}

/// Answers requests on a separate thread until the result is dropped; `answer` receives the path,
/// and must not take long.
///
/// # Errors
/// If the address cannot be listened on, or the thread cannot be started.
pub fn serve(
    address: impl ToSocketAddrs,
    name: &str,
    answer: impl Fn(&str) -> Response + Send + 'static,
) -> io::Result<Server> {
    serve_with(Options::default(), address, name, answer)
}

/// Answers requests as [`serve`], with options.
///
/// # Errors
/// As [`serve`]; or if the TLS files are unusable, or TLS is missing from this build.
pub fn serve_with(
    options: Options,
    address: impl ToSocketAddrs,
    name: &str,
    answer: impl Fn(&str) -> Response + Send + 'static,
) -> io::Result<Server> {
    let Options { limits, tls } = options;
    let security = tls.map_or(Ok(Security::None), Security::new)?;
    let listener = Arc::new(TcpListener::bind(address)?);
    listener.set_nonblocking(true)?;
    // The standard library allows 128.
    rustix::net::listen(&*listener, BACKLOG)?;
    let stop = Arc::new(AtomicBool::new(false));
    let server = Server { address: listener.local_addr()?, listener: Arc::clone(&listener), stop: Arc::clone(&stop) };
    let service = Service { limits, security, listener, stop, answer, connections: VecDeque::new(), accept_at: None };
    thread::Builder::new().name(name.into()).spawn(move || service.run())?;
    Ok(server)
}

/// Transport security of new connections.
enum Security {
    None,
    #[cfg(feature = "tls")]
    Tls(tls::Reloading),
}

impl Security {
    #[cfg(feature = "tls")]
    fn new(tls: Tls) -> io::Result<Self> {
        tls::Reloading::new(tls).map(Self::Tls)
    }

    #[cfg(not(feature = "tls"))]
    fn new(_: Tls) -> io::Result<Self> {
        Err(io::Error::other("TLS is missing from this build: built without `tls` (see `tortie version`)"))
    }

    fn channel(&mut self, stream: TcpStream) -> io::Result<Channel> {
        stream.set_nonblocking(true)?;
        match self {
            Self::None => Ok(Channel::Plain(stream)),
            #[cfg(feature = "tls")]
            Self::Tls(files) => {
                let connection = rustls::ServerConnection::new(files.current()).map_err(io::Error::other)?;
                Ok(Channel::Tls(Box::new(rustls::StreamOwned::new(connection, stream))))
            }
        }
    }
}

struct Service<F> {
    limits: Limits,
    security: Security,
    listener: Arc<TcpListener>,
    stop: Arc<AtomicBool>,
    answer: F,
    /// The oldest first.
    connections: VecDeque<Connection>,
    /// Time of the next attempt to accept connections after a failure.
    accept_at: Option<Instant>,
}

impl<F: Fn(&str) -> Response> Service<F> {
    fn run(mut self) {
        loop {
            let stopping = self.stop.load(Ordering::Acquire);
            if stopping && self.connections.is_empty() {
                return;
            }
            if let Err(error) = self.wait(stopping) {
                tracing::error!(%error, "HTTP clients cannot be waited for; trying again");
                thread::sleep(RETRY_DELAY);
            }
            self.go_on();
            if !self.stop.load(Ordering::Acquire) {
                self.accept();
            }
        }
    }

    /// Serves the clients that have sent something or have room for an answer.
    fn go_on(&mut self) {
        let (now, answer) = (Instant::now(), &self.answer);
        self.connections.retain_mut(|connection| match connection.go_on(now, answer) {
            Ok(Progress::Waits) => true,
            Ok(Progress::Over) => false,
            // A failure of one client must not end the service; its connection is closed.
            Err(error) => {
                tracing::debug!(%error, "a request failed");
                false
            }
        });
    }

    fn wait(&self, stopping: bool) -> io::Result<()> {
        let now = Instant::now();
        let mut until = now + REST;
        let mut descriptors: Vec<PollFd<'_>> = Vec::new();
        match self.accept_at {
            _ if stopping => {}
            Some(at) if at > now => until = at,
            _ => descriptors.push(PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN)),
        }
        for connection in &self.connections {
            descriptors.push(connection.awaited());
            until = until.min(connection.deadline());
        }
        poll_for(&mut descriptors, until.saturating_duration_since(now))
    }

    /// Accepts the waiting clients, and serves each at once as far as possible, so that a client
    /// that has sent its request already is answered before it could be cut off.
    fn accept(&mut self) {
        if self.accept_at.is_some_and(|at| Instant::now() < at) {
            return;
        }
        self.accept_at = None;
        // Half of them, so that each is looked at once more before it could be cut off.
        for _ in 0..self.limits.connections.div_ceil(2) {
            match self.listener.accept() {
                Ok((stream, _)) => self.take(stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {
                }
                Err(_) if self.stop.load(Ordering::Acquire) => return,
                Err(error) => {
                    tracing::debug!(%error, "a connection could not be taken");
                    // Idle clients may hold the missing descriptors.
                    self.cut_one_off();
                    self.accept_at = Some(Instant::now() + RETRY_DELAY);
                    return;
                }
            }
        }
    }

    fn take(&mut self, stream: TcpStream) {
        let now = Instant::now();
        let started = self.security.channel(stream).and_then(|channel| {
            let mut connection = Connection::start(channel, now + self.limits.time);
            connection.go_on(now, &self.answer).map(|progress| (connection, progress))
        });
        match started {
            Ok((connection, Progress::Waits)) => {
                while self.connections.len() >= self.limits.connections {
                    self.cut_one_off();
                }
                self.connections.push_back(connection);
            }
            Ok((_, Progress::Over)) => {}
            Err(error) => tracing::debug!(%error, "a request failed"),
        }
    }

    /// Cuts off the oldest client that has sent nothing, or else the oldest.
    fn cut_one_off(&mut self) {
        let silent = self.connections.iter().position(|connection| !connection.has_spoken());
        self.connections.remove(silent.unwrap_or_default());
    }
}

#[cfg(test)]
mod tests;
