//! Incremental framing of snappy (`framing_format.txt` of github.com/google/snappy; Go's
//! `snappy.NewBufferedWriter` and `snappy.NewReader`).

use std::io::{self, Read, Write};

use snap::read::FrameDecoder;
use snap::write::FrameEncoder;

/// First bytes of a stream.
pub const STREAM_BEGIN: &[u8] = b"\xff\x06\x00\x00sNaPpY";

/// Maximum length of a chunk in bytes: 64 KiB of incompressible data and a checksum, with some
/// room. Longer ones are invalid.
const CHUNK: usize = 128 * 1024;

/// Reason why a stream cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the compressed stream is not valid: {0}")]
pub struct SnappyError(String);

/// Compresses bytes into an independent part of a stream. It may follow any other part of any
/// stream that has begun with [`STREAM_BEGIN`].
#[must_use]
pub fn compress(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = FrameEncoder::new(Vec::with_capacity(STREAM_BEGIN.len() + bytes.len() / 2));
    // Writing to memory does not fail.
    let written = encoder.write_all(bytes).and_then(|()| encoder.flush());
    debug_assert!(written.is_ok());
    let mut out = std::mem::take(encoder.get_mut());
    if out.starts_with(STREAM_BEGIN) {
        out.drain(..STREAM_BEGIN.len());
    }
    out
}

/// Decompressor of one stream.
pub struct Decompressor {
    decoder: FrameDecoder<Chunks>,
    /// Bytes of an incomplete chunk.
    partial: Vec<u8>,
    failed: Option<SnappyError>,
}

/// Complete chunks only, so that the decoder never reaches the end of its input within one.
#[derive(Debug, Default)]
struct Chunks {
    bytes: Vec<u8>,
    at: usize,
}

impl Read for Chunks {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let count = rest.len().min(to.len());
        for (to, from) in to.iter_mut().zip(rest) {
            *to = *from;
        }
        self.at += count;
        Ok(count)
    }
}

impl Default for Decompressor {
    fn default() -> Self {
        Self { decoder: FrameDecoder::new(Chunks::default()), partial: Vec::new(), failed: None }
    }
}

impl std::fmt::Debug for Decompressor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decompressor").field("partial", &self.partial.len()).finish_non_exhaustive()
    }
}

impl Decompressor {
    /// Decompresses bytes of the stream and passes the result to `take`, at most 64 KiB at a time.
    ///
    /// # Errors
    /// [`SnappyError`] if the stream is damaged; all later calls return it as well. Errors of
    /// `take` are passed on.
    pub fn push<E: From<SnappyError>>(
        &mut self,
        bytes: &[u8],
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        if let Some(error) = &self.failed {
            return Err(error.clone().into());
        }
        self.partial.extend_from_slice(bytes);
        let mut whole = 0;
        while let Some([_, length @ ..]) = self.partial.get(whole..).and_then(|rest| rest.first_chunk::<4>()) {
            let length = u32::from_le_bytes([length[0], length[1], length[2], 0]) as usize;
            if length > CHUNK {
                return Err(self.fail(format!("a piece of {length} bytes")).into());
            }
            if self.partial.len() < whole + 4 + length {
                break;
            }
            whole += 4 + length;
        }
        let chunks = self.decoder.get_mut();
        chunks.bytes.clear();
        chunks.at = 0;
        chunks.bytes.extend(self.partial.drain(..whole));
        let mut buffer = vec![0; 64 * 1024];
        loop {
            match self.decoder.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => take(buffer.get(..count).unwrap_or_default())?,
                Err(error) => return Err(self.fail(error.to_string()).into()),
            }
        }
    }

    /// Returns the number of bytes that wait for the rest of their chunk.
    #[must_use]
    pub fn unread(&self) -> usize {
        self.partial.len()
    }

    fn fail(&mut self, why: String) -> SnappyError {
        let error = SnappyError(why);
        self.failed = Some(error.clone());
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(stream: &[u8], step: usize) -> Result<Vec<u8>, SnappyError> {
        let mut decompressor = Decompressor::default();
        let mut out = Vec::new();
        for part in stream.chunks(step) {
            decompressor.push(part, |bytes| {
                out.extend_from_slice(bytes);
                Ok::<_, SnappyError>(())
            })?;
        }
        assert_eq!(decompressor.unread(), 0);
        Ok(out)
    }

    #[test]
    fn parts_join_to_a_stream_however_they_arrive() {
        let text: Vec<u8> = (0..200_000u32).flat_map(|n| (n / 7).to_le_bytes()).collect();
        let mut stream = STREAM_BEGIN.to_vec();
        for part in [&text[..], b"", b"small", &text[..70_000]] {
            stream.extend(compress(part));
        }
        let expected = [&text[..], b"small", &text[..70_000]].concat();
        for step in [977, 65_536, stream.len()] {
            assert_eq!(all(&stream, step).unwrap(), expected);
        }
        assert_eq!(all(&[STREAM_BEGIN, &compress(b"x")].concat(), 1).unwrap(), b"x");
    }

    #[test]
    fn damage_is_found() {
        let mut stream = [STREAM_BEGIN, &compress(b"some bytes that do not matter")].concat();
        assert!(all(&stream[STREAM_BEGIN.len()..], 100).is_err(), "without its beginning");
        for at in [12, 16, 25] {
            stream[at] ^= 1;
            let mut decompressor = Decompressor::default();
            let mut sound = decompressor.push(&stream, |_| Ok::<_, SnappyError>(()));
            if sound.is_ok() {
                // The chunk claims to be longer than the data.
                sound = decompressor.push(&[0; 200_000], |_| Ok::<_, SnappyError>(()));
            }
            assert!(sound.is_err(), "{at}");
            assert_eq!(decompressor.push(&[], |_| Ok::<_, SnappyError>(())), sound, "it stays so");
            stream[at] ^= 1;
        }
        assert!(all(b"\x00\xff\xff\xff", 4).is_err());
    }
}
