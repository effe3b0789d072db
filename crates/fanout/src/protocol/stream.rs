//! Frames on a connection.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;
use tokio::io::{AsyncRead, AsyncReadExt};

use super::frame::{self, FrameError};

/// How much is read at once at first; what a large frame needs comes on top.
const READ: usize = 2 * 1024;
/// A buffer that has become larger than this is given back when it is empty.
const KEEP: usize = 64 * 1024;

/// Why no message came.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    /// The other side has closed the connection.
    #[error("the connection was closed")]
    Closed,
    /// Reading failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It does not speak our protocol.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// Reads messages. A call that is abandoned loses nothing.
#[derive(Debug)]
pub(crate) struct Messages<R> {
    reader: R,
    buffer: BytesMut,
    limit: usize,
}

impl<R: AsyncRead + Unpin> Messages<R> {
    /// No frame is longer than `limit`.
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

/// Pieces that are written one after the other, without being copied together.
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
