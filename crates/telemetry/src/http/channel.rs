//! Bytes to and from a client, with or without TLS, never waiting.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

#[cfg(feature = "tls")]
use rustls::{ServerConnection, StreamOwned};

/// A connection.
#[derive(Debug)]
pub(super) enum Channel {
    Plain(TcpStream),
    #[cfg(feature = "tls")]
    Tls(Box<StreamOwned<ServerConnection, TcpStream>>),
}

impl Channel {
    /// Whether TLS has bytes to send before more can be read.
    pub(super) fn wants_write(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.conn.wants_write(),
        }
    }

    /// Whether the client has begun a TLS handshake.
    pub(super) fn has_begun(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.conn.protocol_version().is_some(),
        }
    }

    /// Sends the pending bytes, and then the end of the stream.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        #[cfg(feature = "tls")]
        if let Self::Tls(stream) = self {
            stream.conn.send_close_notify();
            while stream.conn.wants_write() {
                stream.conn.write_tls(&mut stream.sock)?;
            }
        }
        self.socket().shutdown(Shutdown::Write)
    }

    /// Discards received bytes; returns their number.
    pub(super) fn discard(&self) -> io::Result<usize> {
        self.socket().read(&mut [0; 1024])
    }

    fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            #[cfg(feature = "tls")]
            Self::Tls(stream) => &stream.sock,
        }
    }
}

impl Read for Channel {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buffer),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Channel {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.flush(),
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket().as_fd()
    }
}
