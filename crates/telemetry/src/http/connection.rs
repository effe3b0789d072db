//! One client from its connection to its end.

use std::io::{self, Read, Write};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};

use super::Response;
use super::channel::Channel;

/// The longest request head that is read, in bytes.
const MAX_REQUEST: usize = 8 * 1024;
/// Maximum number of reads and writes of one client before other clients are served.
const ROUNDS: usize = 32;

/// A client.
#[derive(Debug)]
pub(super) struct Connection {
    channel: Channel,
    deadline: Instant,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// The part of the request that has been read.
    Asks(Vec<u8>),
    /// The answer, and the number of bytes that have been written.
    IsAnswered(Vec<u8>, usize),
    /// Further bytes of the client are discarded: to close the connection before would destroy the
    /// answer in transit.
    Leaves,
}

/// State of a client after its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It continues when the connection is ready, or ends when the time is over.
    Waits,
    /// It has ended.
    Over,
}

impl Connection {
    /// A client on a channel that does not block.
    pub(super) fn start(channel: Channel, deadline: Instant) -> Self {
        Self { channel, deadline, stage: Stage::Asks(Vec::new()) }
    }

    /// Returns the event to wait for.
    pub(super) fn awaited(&self) -> PollFd<'_> {
        let flags = match self.stage {
            Stage::Asks(_) if self.channel.wants_write() => PollFlags::OUT,
            Stage::Asks(_) | Stage::Leaves => PollFlags::IN,
            Stage::IsAnswered(..) => PollFlags::OUT,
        };
        PollFd::new(&self.channel, flags)
    }

    /// Whether the client has sent a part of its request, or of its TLS handshake.
    pub(super) fn has_spoken(&self) -> bool {
        match &self.stage {
            Stage::Asks(request) => !request.is_empty() || self.channel.has_begun(),
            Stage::IsAnswered(..) | Stage::Leaves => true,
        }
    }

    /// When the time is over.
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Reads and writes as far as possible without waiting.
    pub(super) fn go_on(&mut self, now: Instant, answer: impl Fn(&str) -> Response) -> io::Result<Progress> {
        if now >= self.deadline {
            return Ok(Progress::Over);
        }
        for _ in 0..ROUNDS {
            match self.step(&answer) {
                Ok(true) => {}
                Ok(false) => return Ok(Progress::Over),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(Progress::Waits)
    }

    /// Reads or writes once; returns whether there is more to do.
    fn step(&mut self, answer: impl Fn(&str) -> Response) -> io::Result<bool> {
        match &mut self.stage {
            Stage::Asks(request) => {
                let mut some = [0; 1024];
                let read = self.channel.read(&mut some)?;
                request.extend_from_slice(some.get(..read).unwrap_or_default());
                if read == 0 && request.is_empty() {
                    return Ok(false);
                }
                // A client that closes its side has sent its request.
                if read == 0 || has_ended(request) || request.len() >= MAX_REQUEST {
                    self.stage = Stage::IsAnswered(respond(request, &answer), 0);
                }
            }
            Stage::IsAnswered(bytes, written) if *written < bytes.len() => {
                *written += self.channel.write(bytes.get(*written..).unwrap_or_default())?;
            }
            Stage::IsAnswered(..) => {
                self.channel.finish()?;
                self.stage = Stage::Leaves;
            }
            Stage::Leaves => return Ok(self.channel.discard()? > 0),
        }
        Ok(true)
    }
}

/// Whether there is an empty line after the first one.
fn has_ended(request: &[u8]) -> bool {
    let is_empty = |line: &&[u8]| matches!(*line, b"\r\n" | b"\n");
    request.split_inclusive(|byte| *byte == b'\n').skip(1).any(|line| is_empty(&line))
}

fn respond(request: &[u8], answer: impl Fn(&str) -> Response) -> Vec<u8> {
    let first = request.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let first = String::from_utf8_lossy(first);
    let mut words = first.split_ascii_whitespace();
    let (method, target) = (words.next(), words.next());
    let response = match (method, target) {
        _ if !has_ended(request) && request.len() >= MAX_REQUEST => Response::text(431, "too long a request\n"),
        (Some("GET" | "HEAD"), Some(target)) => answer(target.split('?').next().unwrap_or_default()),
        (Some(_), Some(_)) => Response::text(405, "only GET\n"),
        _ => Response::text(400, "not a request\n"),
    };
    let Response { status, content_type, body } = response;
    let reason = match status {
        200 => "OK",
        204 => "No Content",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        431 => "Request Header Fields Too Large",
        _ => "Service Unavailable",
    };
    let head = format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let body = if method == Some("HEAD") { String::new() } else { body };
    [head.into_bytes(), body.into_bytes()].concat()
}
