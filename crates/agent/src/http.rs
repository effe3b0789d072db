//! A listener that answers `GET` with short texts: all that health checks and metrics need.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};

/// The longest request head that is read, in bytes.
const MAX_REQUEST: u64 = 8 * 1024;
/// How long a client may take to send its request or to take the answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to wait after a connection could not be taken, for instance for want of file descriptors.
const RETRY_DELAY: Duration = Duration::from_millis(100);

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
    /// Plain text.
    #[must_use]
    pub fn text(status: u16, body: impl Into<String>) -> Self {
        Self { status, content_type: "text/plain; charset=utf-8", body: body.into() }
    }
}

/// A listener at work. It ends, and its address is free again, when this is dropped.
#[derive(Debug)]
pub struct Server {
    listener: Arc<TcpListener>,
    address: SocketAddr,
    stop: Arc<AtomicBool>,
}

impl Server {
    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // This ends the wait for a connection, and gives the address back at once even if a client is being answered.
        let _ = shutdown(&*self.listener, Shutdown::Both);
    }
}

/// Answers requests on a thread of its own until the result is dropped; `answer` is given the path.
///
/// # Errors
/// If the address cannot be listened on.
pub fn serve(
    address: impl ToSocketAddrs,
    name: &str,
    answer: impl Fn(&str) -> Response + Send + 'static,
) -> io::Result<Server> {
    let listener = Arc::new(TcpListener::bind(address)?);
    let stop = Arc::new(AtomicBool::new(false));
    let server = Server { address: listener.local_addr()?, listener: Arc::clone(&listener), stop: Arc::clone(&stop) };
    thread::Builder::new().name(name.into()).spawn(move || {
        while !stop.load(Ordering::Acquire) {
            match listener.accept() {
                // One client's trouble must not end the service; it sees its connection closed.
                Ok((stream, _)) => {
                    if let Err(error) = handle(stream, &answer) {
                        tracing::debug!(%error, "a request failed");
                    }
                }
                Err(_) if stop.load(Ordering::Acquire) => {}
                Err(error) => {
                    tracing::debug!(%error, "a connection could not be taken");
                    thread::sleep(RETRY_DELAY);
                }
            }
        }
    })?;
    Ok(server)
}

fn handle(mut stream: TcpStream, answer: impl Fn(&str) -> Response) -> io::Result<()> {
    stream.set_read_timeout(Some(CLIENT_TIMEOUT))?;
    stream.set_write_timeout(Some(CLIENT_TIMEOUT))?;
    let mut request = BufReader::new((&stream).take(MAX_REQUEST));
    let mut first = String::new();
    request.read_line(&mut first)?;
    let mut header = String::new();
    while request.read_line(&mut header)? > 2 {
        header.clear();
    }
    let mut words = first.split_ascii_whitespace();
    let response = match (words.next(), words.next()) {
        (Some("GET" | "HEAD"), Some(target)) => answer(target.split('?').next().unwrap_or_default()),
        (Some(_), Some(_)) => Response::text(405, "only GET\n"),
        _ => Response::text(400, "not a request\n"),
    };
    let Response { status, content_type, body } = &response;
    let reason = match status {
        200 => "OK",
        204 => "No Content",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        _ => "Service Unavailable",
    };
    write!(
        stream,
        "HTTP/1.1 {status} {reason}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    )?;
    if first.starts_with("GET") {
        stream.write_all(body.as_bytes())?;
    }
    stream.flush()
}

#[cfg(test)]
mod tests;
