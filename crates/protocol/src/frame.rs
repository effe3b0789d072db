//! Framing of messages in a byte stream: the length in eight bytes, little-endian, followed by the
//! message (`felix/dataplane/external/ext_dataplane.go`).

use std::io::{self, Read, Write};

/// Default limit of the message length: 1 GiB. The largest messages are IP sets: a million members
/// take 20 MB.
pub const MAX_FRAME: u64 = 1 << 30;

/// Largest buffer that is kept for the next message; a larger one is freed.
const KEEP: usize = 1 << 20;

/// The reason why no further message can be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The stream ended inside a message.
    #[error("the stream ends after {got} of {expected} bytes of {part}")]
    Truncated {
        /// The incomplete part of the frame: its length, or the message.
        part: &'static str,
        /// Number of bytes received.
        got: u64,
        /// Number of bytes expected.
        expected: u64,
    },
    /// A message exceeds the limit.
    #[error("a message of {length} bytes is announced; at most {limit} are taken")]
    TooLong {
        /// Announced length of the message, in bytes.
        length: u64,
        /// Limit of the message length, in bytes.
        limit: u64,
    },
    /// Reading failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Reader of framed messages. After an error the position in the stream is unknown, and the caller
/// must not read on.
#[derive(Debug)]
pub struct FrameReader<R> {
    stream: R,
    limit: u64,
    buffer: Vec<u8>,
}

impl<R: Read> FrameReader<R> {
    /// Returns a reader that accepts messages of up to [`MAX_FRAME`] bytes.
    pub fn new(stream: R) -> Self {
        Self::with_limit(stream, MAX_FRAME)
    }

    /// Returns a reader that accepts messages of up to `limit` bytes.
    pub fn with_limit(stream: R, limit: u64) -> Self {
        Self { stream, limit, buffer: Vec::new() }
    }

    /// Returns the next message; `None` if the stream ends between messages. Memory is allocated as
    /// bytes arrive, not for the announced length.
    ///
    /// # Errors
    /// [`FrameError`] if the stream fails, ends inside a message, or announces a message that is
    /// too long.
    pub fn next_frame(&mut self) -> Result<Option<&[u8]>, FrameError> {
        const PREFIX: u64 = 8;
        if self.buffer.capacity() > KEEP {
            self.buffer = Vec::new();
        }
        match self.fill(PREFIX)? {
            0 => return Ok(None),
            PREFIX => {}
            got => return Err(FrameError::Truncated { part: "a length", got, expected: PREFIX }),
        }
        let mut prefix = [0; 8];
        prefix.copy_from_slice(&self.buffer);
        let length = u64::from_le_bytes(prefix);
        if length > self.limit {
            return Err(FrameError::TooLong { length, limit: self.limit });
        }
        let got = self.fill(length)?;
        if got < length {
            return Err(FrameError::Truncated { part: "a message", got, expected: length });
        }
        Ok(Some(&self.buffer))
    }

    /// Reads `expected` bytes into the buffer, or fewer if the stream ends, and returns their
    /// number.
    fn fill(&mut self, expected: u64) -> io::Result<u64> {
        self.buffer.clear();
        let got = self.stream.by_ref().take(expected).read_to_end(&mut self.buffer)?;
        Ok(u64::try_from(got).unwrap_or(u64::MAX))
    }
}

/// Writes one message.
///
/// # Errors
/// If writing fails. The stream must not be used any more, because part of the frame may have been
/// written.
pub fn write_frame(stream: &mut impl Write, message: &[u8]) -> io::Result<()> {
    let length = u64::try_from(message.len()).map_err(io::Error::other)?;
    stream.write_all(&length.to_le_bytes())?;
    stream.write_all(message)
}

#[cfg(test)]
mod tests;
