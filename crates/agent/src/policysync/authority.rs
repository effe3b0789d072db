//! What clients say of whom they have called is taken out before it is read.
//!
//! gRPC of Go, of which Dikastes is made, names the path of the socket as the authority of a call, escaped as `%2Frun%2Fnodeagent…`
//! (`encodeAuthority` of `grpc-go/clientconn.go`). To `http`, and by that to `h2`, no authority may have a `%`, so that they refuse
//! each such call as malformed. Nothing here depends on the authority, as the socket tells who calls.
//!
//! The headers of HTTP/2 are compressed (RFC 7541), and later ones refer to those that were sent. Of a header that is spelled out and
//! named by the number of `:authority`, as all clients name it, the value is replaced. What takes the place of a value is not longer than
//! it, so that whoever reads forgets no header before the client does.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// With what a client begins.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Length, type, flags and stream of a frame.
const HEAD: usize = 9;
/// The type of frames of headers.
const HEADERS: u8 = 1;
/// The flags of a frame of headers: all are in it; there is padding; there is a priority.
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// The longest frame that a server reads who has not said otherwise.
const MAX_FRAME: usize = 16 * 1024;
/// The number of the name `:authority`.
const AUTHORITY: usize = 1;
/// One letter, not compressed.
const VALUE: [u8; 2] = [1, b'x'];
/// How much is read at a time.
const PIECE: usize = 4 * 1024;

/// The other end of a connection without what it says of whom it has called.
#[derive(Debug)]
pub(super) struct WithoutAuthority<S> {
    connection: S,
    filter: Filter,
    /// What has not been read yet.
    ready: Vec<u8>,
    at: usize,
}

impl<S> WithoutAuthority<S> {
    pub(super) fn new(connection: S) -> Self {
        Self { connection, filter: Filter::default(), ready: Vec::new(), at: 0 }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WithoutAuthority<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.at == this.ready.len() {
            let mut piece = [0; PIECE];
            let mut piece = ReadBuf::new(&mut piece);
            ready!(Pin::new(&mut this.connection).poll_read(context, &mut piece))?;
            if piece.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.ready.clear();
            this.at = 0;
            this.filter.pass(piece.filled(), &mut this.ready);
        }
        let rest = this.ready.get(this.at..).unwrap_or_default();
        let taken = rest.len().min(into.remaining());
        into.put_slice(rest.get(..taken).unwrap_or_default());
        this.at += taken;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WithoutAuthority<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(context)
    }
}

/// What a client sends, in whatever pieces. Pure.
#[derive(Debug, Default)]
struct Filter {
    /// How much of the preface has passed; something else than a preface is passed on for ever, as it is.
    preface: usize,
    is_other: bool,
    /// The head of a frame, and of a frame of headers all of it, as far as it has come.
    held: Vec<u8>,
    /// How much of another frame is still to come.
    left: usize,
}

impl Filter {
    fn pass(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        while let Some(&byte) = bytes.first() {
            if self.is_other {
                out.extend_from_slice(bytes);
                return;
            }
            if let Some(&expected) = PREFACE.get(self.preface) {
                self.is_other = byte != expected;
                self.preface += 1;
                out.push(byte);
                bytes = bytes.get(1..).unwrap_or_default();
                continue;
            }
            if self.left > 0 {
                let (passed, rest) = bytes.split_at(self.left.min(bytes.len()));
                out.extend_from_slice(passed);
                self.left -= passed.len();
                bytes = rest;
                continue;
            }
            let wanted = self.wanted() - self.held.len();
            let (taken, rest) = bytes.split_at(wanted.min(bytes.len()));
            self.held.extend_from_slice(taken);
            bytes = rest;
            if self.held.len() < HEAD {
                continue;
            }
            let length = length_of(&self.held);
            if !self.is_headers() {
                self.left = length;
                out.append(&mut self.held);
            } else if self.held.len() == HEAD + length {
                let frame = std::mem::take(&mut self.held);
                out.extend(without_authority(&frame).unwrap_or(frame));
            }
        }
    }

    /// How much is held before something is done.
    fn wanted(&self) -> usize {
        if self.held.len() < HEAD { HEAD } else { HEAD + length_of(&self.held) }
    }

    /// Whether the frame is one of headers that is looked into. Longer ones are not to be, and are refused by who reads.
    fn is_headers(&self) -> bool {
        self.held.get(3) == Some(&HEADERS) && length_of(&self.held) <= MAX_FRAME
    }
}

fn length_of(head: &[u8]) -> usize {
    head.iter().take(3).fold(0, |length, byte| length << 8 | usize::from(*byte))
}

/// A frame of headers without the authority; `None` if it is not all of the headers, or none that is understood.
fn without_authority(frame: &[u8]) -> Option<Vec<u8>> {
    let (head, payload) = frame.split_at_checked(HEAD)?;
    let flags = *head.get(4)?;
    if flags & END_HEADERS == 0 {
        return None;
    }
    let (before, padding) = if flags & PADDED == 0 { (0, 0) } else { (1, usize::from(*payload.first()?)) };
    let before = before + if flags & PRIORITY == 0 { 0 } else { 5 };
    let end = payload.len().checked_sub(padding)?;
    let mut written = payload.get(..before)?.to_vec();
    written.extend(replaced(payload.get(before..end)?)?);
    written.extend_from_slice(payload.get(end..)?);
    let length = u32::try_from(written.len()).ok()?.to_be_bytes();
    let mut frame = length.get(1..)?.to_vec();
    frame.extend_from_slice(head.get(3..)?);
    frame.append(&mut written);
    Some(frame)
}

/// Compressed headers in which a value of `:authority` that is spelled out is another; `None` if they are not understood.
fn replaced(block: &[u8]) -> Option<Vec<u8>> {
    let mut written = Vec::with_capacity(block.len());
    let mut rest = block;
    while let Some(&first) = rest.first() {
        let field = rest;
        // An indexed header, one spelled out that will be referred to, another size of the table, one spelled out for once (section 6).
        let (bits, is_spelled_out) = match first {
            0x80.. => (7, false),
            0x40..=0x7f => (6, true),
            0x20..=0x3f => (5, false),
            _ => (4, true),
        };
        let number = integer(&mut rest, bits)?;
        if is_spelled_out && number == 0 {
            text(&mut rest)?;
        }
        let named = field.get(..field.len() - rest.len())?;
        written.extend_from_slice(named);
        if is_spelled_out {
            let value = text(&mut rest)?;
            // A value of length 0 has one byte: its length.
            let value = if number == AUTHORITY && value.len() > 1 { &VALUE } else { value };
            written.extend_from_slice(value);
        }
    }
    Some(written)
}

/// Takes an integer from the front, of which so many bits are in the first byte (section 5.1).
fn integer(rest: &mut &[u8], bits: u32) -> Option<usize> {
    let (&first, mut more) = rest.split_first()?;
    let most = (1_usize << bits) - 1;
    let mut value = usize::from(first) & most;
    if value == most {
        let mut shift = 0;
        loop {
            let (&byte, after) = more.split_first()?;
            more = after;
            value = value.checked_add(usize::from(byte & 0x7f) << shift)?;
            if byte & 0x80 == 0 {
                break;
            }
            shift += 7;
            if shift > 21 {
                // No header is that long.
                return None;
            }
        }
    }
    *rest = more;
    Some(value)
}

/// Takes a text from the front, with its length (section 5.2).
fn text<'b>(rest: &mut &'b [u8]) -> Option<&'b [u8]> {
    let begin = *rest;
    let length = integer(rest, 7)?;
    let (_, after) = rest.split_at_checked(length)?;
    *rest = after;
    begin.get(..begin.len() - after.len())
}

#[cfg(test)]
pub(super) mod tests;
