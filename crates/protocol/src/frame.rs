//! Messages in a stream of bytes: eight bytes that hold the length, little-endian, and then as many bytes of message
//! (`felix/dataplane/external/ext_dataplane.go`).

use std::io::{self, Read, Write};

/// How long a message may be if nothing else is said: 1 GiB. The largest are IP sets: a million members take 20 MB.
pub const MAX_FRAME: u64 = 1 << 30;

/// A buffer that has grown beyond this for one message is given back afterwards.
const KEEP: usize = 1 << 20;

/// Why no further message can be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The stream ended inside a message.
    #[error("the stream ends after {got} of {wanted} bytes of {part}")]
    Truncated {
        /// Which part of the frame: its length, or the message.
        part: &'static str,
        /// How many bytes were there.
        got: u64,
        /// How many belong there.
        wanted: u64,
    },
    /// A message is longer than allowed.
    #[error("a message of {length} bytes is announced; at most {limit} are taken")]
    TooLong {
        /// How long it is said to be.
        length: u64,
        /// How long it may be.
        limit: u64,
    },
    /// Reading failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Reads one message after the other. After an error the stream's state is unknown and no more should be read.
#[derive(Debug)]
pub struct FrameReader<R> {
    stream: R,
    limit: u64,
    buffer: Vec<u8>,
}

impl<R: Read> FrameReader<R> {
    /// Takes messages of up to [`MAX_FRAME`] bytes.
    pub fn new(stream: R) -> Self {
        Self::with_limit(stream, MAX_FRAME)
    }

    /// Takes messages of up to `limit` bytes.
    pub fn with_limit(stream: R, limit: u64) -> Self {
        Self { stream, limit, buffer: Vec::new() }
    }

    /// The next message; `None` if the stream ends before it begins. Memory is taken as bytes arrive, not as they are
    /// announced.
    ///
    /// # Errors
    /// [`FrameError`] if the stream fails, ends inside a message, or announces one that is too long.
    pub fn next_frame(&mut self) -> Result<Option<&[u8]>, FrameError> {
        const PREFIX: u64 = 8;
        if self.buffer.capacity() > KEEP {
            self.buffer = Vec::new();
        }
        match self.fill(PREFIX)? {
            0 => return Ok(None),
            PREFIX => {}
            got => return Err(FrameError::Truncated { part: "a length", got, wanted: PREFIX }),
        }
        let mut prefix = [0; 8];
        prefix.copy_from_slice(&self.buffer);
        let length = u64::from_le_bytes(prefix);
        if length > self.limit {
            return Err(FrameError::TooLong { length, limit: self.limit });
        }
        let got = self.fill(length)?;
        if got < length {
            return Err(FrameError::Truncated { part: "a message", got, wanted: length });
        }
        Ok(Some(&self.buffer))
    }

    /// Reads so many bytes into the buffer, or fewer if the stream ends.
    fn fill(&mut self, wanted: u64) -> io::Result<u64> {
        self.buffer.clear();
        let got = self.stream.by_ref().take(wanted).read_to_end(&mut self.buffer)?;
        Ok(u64::try_from(got).unwrap_or(u64::MAX))
    }
}

/// Writes one message.
///
/// # Errors
/// If writing fails; the stream is of no more use then.
pub fn write_frame(stream: &mut impl Write, message: &[u8]) -> io::Result<()> {
    let length = u64::try_from(message.len()).map_err(io::Error::other)?;
    stream.write_all(&length.to_le_bytes())?;
    stream.write_all(message)
}

#[cfg(test)]
mod tests;
