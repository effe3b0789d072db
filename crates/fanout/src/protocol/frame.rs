//! Messages as bytes.
//!
//! A frame is a length (four bytes, the lowest first), of what follows; a byte that says how it is written; and the
//! message: as it is (0), or its length and then itself compressed with zstd (1).

use std::cell::RefCell;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;
use zstd::bulk::{Compressor, Decompressor};

/// The largest frame that a client sends, without its length. With the length and the magic, 16 KiB are read before the
/// hello at most.
pub const MAX_TO_SERVER: usize = 16 * 1024 - 12;
/// The largest frame that a server sends, without its length, and the largest message in it, uncompressed.
pub const MAX_TO_CLIENT: usize = 16 * 1024 * 1024;

/// Messages that are shorter are not worth compressing.
const COMPRESS_FROM: usize = 512;
const PLAIN: u8 = 0;
const ZSTD: u8 = 1;

/// Why bytes are not frames of our protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// A frame is longer than it may be.
    #[error("a frame of {length} bytes; the limit is {limit}")]
    TooLong {
        /// The length that it claims.
        length: usize,
        /// The limit.
        limit: usize,
    },
    /// A frame without a message.
    #[error("an empty frame")]
    Empty,
    /// A frame that is written in a way that we do not know.
    #[error("a frame of the unknown kind {0}")]
    UnknownKind(u8),
    /// What should be compressed cannot be uncompressed, or to another length than it says.
    #[error("a frame that cannot be uncompressed")]
    BadCompression,
    /// The message is not one.
    #[error("a message that cannot be read")]
    BadMessage(#[from] prost::DecodeError),
}

/// How hard to compress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// For what is sent once or a few times.
    Fast,
    /// For what many get.
    Good,
}

thread_local! {
    // To make one of these takes longer than to compress a small message.
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

/// Takes the next message from the front of `buffer`; `None` if it is not all there yet.
///
/// `limit` bounds the frame as well as the message. Nothing is allocated for what a frame merely claims, beyond the limit.
///
/// # Errors
/// [`FrameError`], after which the buffer is of no use.
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
