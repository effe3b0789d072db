//! Replaces the authorities of HTTP/2 calls before the calls are parsed.
//!
//! grpc-go, which Dikastes uses, sends the path of the socket as the authority of a call, escaped
//! as `%2Frun%2Fnodeagent…` (`encodeAuthority` of `grpc-go/clientconn.go`). `http`, and thus `h2`,
//! accept no `%` in an authority, and reject each such call as malformed. The authority is not
//! needed here, as the socket identifies the client.
//!
//! HTTP/2 headers are compressed (RFC 7541), and later ones refer to those that were sent. In a
//! literal header field whose name is the index of `:authority`, as all clients send it, the value
//! is replaced. The replacement is not longer than the value, so that the receiver evicts no header
//! from its table before the client does.

mod filter;

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use self::filter::Filter;

const PIECE: usize = 4 * 1024;

/// A connection whose incoming bytes have the authorities of calls replaced.
#[derive(Debug)]
pub(super) struct WithoutAuthority<S> {
    connection: S,
    filter: Filter,
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

#[cfg(test)]
pub(super) mod tests;
