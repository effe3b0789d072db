//! Consecutive streams of one direction of a connection.

use super::messages::MessageError;
use super::snappy::{Decompressor, SnappyError};
use crate::gob::{Decoder, GobError, Limits, Value};

/// Reason why the peer's bytes cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// Not a gob stream.
    #[error(transparent)]
    Gob(#[from] GobError),
    /// Not a compressed stream.
    #[error(transparent)]
    Snappy(#[from] SnappyError),
    /// Not a message.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// More bytes arrived before the restart of the decoder was confirmed.
    #[error("{bytes} bytes follow the end of a stream, before the next one may begin")]
    TooEarly {
        /// Number of bytes.
        bytes: usize,
    },
}

/// Reader of consecutive streams.
#[derive(Debug)]
pub(super) struct Incoming {
    limits: Limits,
    decoder: Decoder,
    decompressor: Option<Decompressor>,
}

impl Incoming {
    /// Creates a reader at the beginning of a connection, whose first stream is not compressed.
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, decoder: Decoder::new(limits), decompressor: None }
    }

    /// Begins the next stream. None of its bytes can have arrived, since the sender waits for the
    /// confirmation.
    pub(super) fn restart(&mut self, compressed: bool) -> Result<(), WireError> {
        let bytes = self.decoder.unread() + self.decompressor.as_ref().map_or(0, Decompressor::unread);
        if bytes > 0 {
            return Err(WireError::TooEarly { bytes });
        }
        self.decoder = Decoder::new(self.limits);
        self.decompressor = compressed.then(Decompressor::default);
        Ok(())
    }

    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<(), WireError> {
        match &mut self.decompressor {
            None => self.decoder.push(bytes),
            Some(decompressor) => decompressor.push(bytes, |bytes| {
                self.decoder.push(bytes);
                Ok::<_, SnappyError>(())
            })?,
        }
        Ok(())
    }

    pub(super) fn read(&mut self) -> Result<Option<Value<'_>>, GobError> {
        self.decoder.read()
    }
}
