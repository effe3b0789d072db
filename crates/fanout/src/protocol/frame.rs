//! Encoding of messages as frames.
//!
//! A frame consists of the length of the rest (four bytes, little-endian), a byte for the encoding,
//! and the message. Encoding 0: the plain message. Encoding 1: its uncompressed length (four bytes,
//! little-endian), then the message compressed with zstd.

use std::cell::RefCell;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;
use zstd::bulk::{Compressor, Decompressor};

/// Maximum length of a client's frame in bytes, without the length field. Together with the length
/// field and the magic, the server reads at most 16 KiB before the hello.
pub const MAX_TO_SERVER: usize = 16 * 1024 - 12;
/// Maximum length of a server's frame in bytes, without the length field, and of the uncompressed
/// message in it.
pub const MAX_TO_CLIENT: usize = 16 * 1024 * 1024;

/// Length in bytes from which a message is compressed.
const COMPRESS_FROM: usize = 512;
const PLAIN: u8 = 0;
const ZSTD: u8 = 1;

/// Error in a frame of the fan-out protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The frame is longer than the limit.
    #[error("a frame of {length} bytes; the limit is {limit}")]
    TooLong {
        /// Length that the frame declares.
        length: usize,
        /// The limit.
        limit: usize,
    },
    /// A frame without a message.
    #[error("an empty frame")]
    Empty,
    /// The encoding of the frame is unknown.
    #[error("a frame of the unknown kind {0}")]
    UnknownKind(u8),
    /// The compressed message is corrupt, or its uncompressed length differs from the declared one.
    #[error("a frame that cannot be uncompressed")]
    BadCompression,
    /// The message is no valid protobuf message of its type.
    #[error("a message that cannot be read")]
    BadMessage(#[from] prost::DecodeError),
}

/// Compression level of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// No compression.
    None,
    /// For messages that are sent once or a few times.
    Fast,
    /// For messages that many clients get.
    Good,
}

thread_local! {
    // Creating a compressor takes longer than compressing a small message.
    static FAST: RefCell<Option<Compressor<'static>>> = RefCell::new(Compressor::new(1).ok());
    static GOOD: RefCell<Option<Compressor<'static>>> = RefCell::new(Compressor::new(3).ok());
    static READER: RefCell<Option<Decompressor<'static>>> = RefCell::new(Decompressor::new().ok());
}

/// Writes a frame.
///
/// # Panics
/// If the message takes 4 GiB; those of the protocol are far shorter.
#[must_use]
#[expect(clippy::expect_used, reason = "the server cuts messages, and a client's are small")]
pub fn encode(message: &impl Message, compression: Compression) -> Bytes {
    let raw = message.encode_to_vec();
    let compressed = match compression {
        _ if raw.len() < COMPRESS_FROM => None,
        Compression::None => None,
        Compression::Fast => FAST.with_borrow_mut(|fast| fast.as_mut()?.compress(&raw).ok()),
        Compression::Good => GOOD.with_borrow_mut(|good| good.as_mut()?.compress(&raw).ok()),
    };
    let compressed = compressed.filter(|compressed| compressed.len() < raw.len());
    // Messages are cut at a few MiB, and the readers' limits are far below 4 GiB.
    let length = |bytes: usize| u32::try_from(bytes).expect("a frame is shorter than 4 GiB");
    let mut out = BytesMut::with_capacity(9 + compressed.as_ref().map_or(raw.len(), Vec::len));
    match compressed {
        Some(compressed) => {
            out.put_u32_le(length(1 + 4 + compressed.len()));
            out.put_u8(ZSTD);
            out.put_u32_le(length(raw.len()));
            out.put_slice(&compressed);
        }
        None => {
            out.put_u32_le(length(1 + raw.len()));
            out.put_u8(PLAIN);
            out.put_slice(&raw);
        }
    }
    out.freeze()
}

/// Removes the next message from the front of `buffer`; `None` if it is incomplete.
///
/// `limit` bounds the frame as well as the message. A declared length above the limit causes no
/// allocation.
///
/// # Errors
/// [`FrameError`]. The buffer is unusable afterwards.
pub fn take<M: Message + Default>(buffer: &mut BytesMut, limit: usize) -> Result<Option<M>, FrameError> {
    let Some(head) = buffer.first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_le_bytes(*head) as usize;
    if length > limit {
        return Err(FrameError::TooLong { length, limit });
    }
    if buffer.len() - 4 < length {
        return Ok(None);
    }
    buffer.advance(4);
    let mut frame = buffer.split_to(length).freeze();
    let raw = match frame.try_get_u8() {
        Err(_) => return Err(FrameError::Empty),
        Ok(PLAIN) => frame,
        Ok(ZSTD) => {
            let length = frame.try_get_u32_le().map_err(|_| FrameError::BadCompression)? as usize;
            if length > limit {
                return Err(FrameError::TooLong { length, limit });
            }
            let mut raw = vec![0; length];
            let decompress = |reader: &mut Decompressor<'_>| reader.decompress_to_buffer(&frame, &mut raw).ok();
            match READER.with_borrow_mut(|reader| reader.as_mut().and_then(decompress)) {
                Some(written) if written == length => raw.into(),
                _ => return Err(FrameError::BadCompression),
            }
        }
        Ok(kind) => return Err(FrameError::UnknownKind(kind)),
    };
    Ok(Some(M::decode(raw)?))
}

#[cfg(test)]
mod tests;
