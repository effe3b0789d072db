//! Frames on a connection.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;
use tokio::io::{AsyncRead, AsyncReadExt};

use super::frame::{self, FrameError};

/// Minimum buffer space for a read in bytes; the buffer grows for larger frames.
const READ: usize = 2 * 1024;
/// Capacity in bytes above which an empty buffer is released.
const KEEP: usize = 64 * 1024;

/// Reason why no message was read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    /// The other side has closed the connection.
    #[error("the connection was closed")]
    Closed,
    /// Reading failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The bytes are no frames of the protocol.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// Reader of messages. Cancelling a call loses no data.
#[derive(Debug)]
pub(crate) struct Messages<R> {
    reader: R,
    buffer: BytesMut,
    limit: usize,
}

impl<R: AsyncRead + Unpin> Messages<R> {
    /// Creates a reader that rejects frames longer than `limit`.
    pub(crate) fn new(reader: R, limit: usize) -> Self {
        Self { reader, buffer: BytesMut::new(), limit }
    }

    pub(crate) async fn next<M: Message + Default>(&mut self) -> Result<M, ReadError> {
        loop {
            if let Some(message) = frame::take(&mut self.buffer, self.limit)? {
                if self.buffer.is_empty() && self.buffer.capacity() > KEEP {
                    self.buffer = BytesMut::new();
                }
                return Ok(message);
            }
            self.buffer.reserve(READ);
            // A frame that is not complete is shorter than the limit.
            let room = (4 + self.limit).saturating_sub(self.buffer.len());
            if self.reader.read_buf(&mut (&mut self.buffer).limit(room)).await? == 0 {
                return Err(ReadError::Closed);
            }
        }
    }
}

/// Byte strings that are written in sequence without copying them into one.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    pieces: VecDeque<Bytes>,
    remaining: usize,
}

impl Pieces {
    pub(crate) fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.remaining += piece.len();
            self.pieces.push_back(piece);
        }
    }
}

impl From<Bytes> for Pieces {
    fn from(piece: Bytes) -> Self {
        let mut pieces = Self::default();
        pieces.push(piece);
        pieces
    }
}

impl Buf for Pieces {
    fn remaining(&self) -> usize {
        self.remaining
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.front().map_or(&[], |piece| piece)
    }

    fn chunks_vectored<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        let filled = into.iter_mut().zip(&self.pieces).map(|(slice, piece)| *slice = IoSlice::new(piece));
        filled.count()
    }

    fn advance(&mut self, mut count: usize) {
        self.remaining -= count;
        while let Some(front) = self.pieces.front_mut() {
            if count < front.len() {
                return front.advance(count);
            }
            count -= front.len();
            self.pieces.pop_front();
        }
    }
}
