//! What clients say of whom they have called is taken out before it is read.
//!
//! gRPC of Go, of which Dikastes is made, names the path of the socket as the authority of a call, escaped as `%2Frun%2Fnodeagent…`
//! (`encodeAuthority` of `grpc-go/clientconn.go`). To `http`, and by that to `h2`, no authority may have a `%`, so that they refuse
//! each such call as malformed. Nothing here depends on the authority, as the socket tells who calls.
//!
//! The headers of HTTP/2 are compressed (RFC 7541), and later ones refer to those that were sent. Of a header that is spelled out and
//! named by the number of `:authority`, as all clients name it, the value is replaced. What takes the place of a value is not longer than
//! it, so that whoever reads forgets no header before the client does.

mod filter;

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use self::filter::Filter;

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

#[cfg(test)]
pub(super) mod tests;
