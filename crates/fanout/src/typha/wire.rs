//! The streams of one direction of a connection, one after the other.

use super::messages::MessageError;
use super::snappy::{Decompressor, SnappyError};
use crate::gob::{Decoder, GobError, Limits, Value};

/// Why the other side cannot be understood.
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
    /// More came before it was confirmed that the decoder has been restarted.
    #[error("{bytes} bytes follow the end of a stream, before the next one may begin")]
    TooEarly {
        /// How many.
        bytes: usize,
    },
}

/// Reads one stream after the other.
#[derive(Debug)]
pub(super) struct Incoming {
    limits: Limits,
    decoder: Decoder,
    decompressor: Option<Decompressor>,
}

impl Incoming {
    /// At the beginning of a connection, whose first stream is not compressed.
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, decoder: Decoder::new(limits), decompressor: None }
    }

    /// The stream has ended, and another one follows. Nothing of it can have come yet: who sends it waits until it is
    /// told to.
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
