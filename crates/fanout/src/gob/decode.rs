//! Incremental decoding of streams.

use super::reader::{Reader, Stop, Types};
use super::{GobError, Limits, Value};

/// Decoder of one stream.
#[derive(Debug)]
pub struct Decoder {
    limits: Limits,
    types: Types,
    buffer: Vec<u8>,
    /// Number of bytes of the buffer that have been read.
    read: usize,
    /// Number of unread bytes that are needed to continue.
    needed: usize,
    /// Whether the next message is known to begin a value.
    in_value: bool,
    work: usize,
    failed: Option<GobError>,
}

impl Decoder {
    /// Creates a decoder for the beginning of a stream.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            types: Types::default(),
            buffer: Vec::new(),
            read: 0,
            needed: 1,
            in_value: false,
            work: 0,
            failed: None,
        }
    }

    /// Adds bytes of the stream. They are kept until they are read, so [`Decoder::read`] must
    /// follow.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.read);
        self.read = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the number of bytes that have been added and not read.
    #[must_use]
    pub fn unread(&self) -> usize {
        self.buffer.len() - self.read
    }

    /// Returns the number of parsed bytes, with repetitions. It is proportional to the length of
    /// the stream: a value is parsed again from its beginning only for each type that is defined
    /// within it.
    #[must_use]
    pub fn work(&self) -> usize {
        self.work
    }

    /// Returns the next value; `None` if more bytes are needed first.
    ///
    /// # Errors
    /// [`GobError`] if the stream breaks a rule or a limit. It cannot be read on: all later calls
    /// give the same error.
    pub fn read(&mut self) -> Result<Option<Value<'_>>, GobError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        while !self.in_value && self.unread() >= self.needed {
            let mut reader = Reader::new(self.buffer.get(self.read..).unwrap_or_default(), &self.limits, &self.types);
            let definition = reader.whole_definition();
            self.work += reader.work;
            match definition {
                Ok(true) => {
                    self.read += reader.position();
                    self.needed = 1;
                    let defined = reader.defined;
                    self.types.extend(defined);
                }
                Ok(false) => self.in_value = true,
                Err(Stop::Wait(needed)) => self.needed = needed,
                Err(Stop::Error(error)) => return Err(self.failed.insert(error).clone()),
            }
        }
        if self.unread() < self.needed {
            return Ok(None);
        }
        let mut reader = Reader::new(self.buffer.get(self.read..).unwrap_or_default(), &self.limits, &self.types);
        let value = reader.whole_value();
        self.work += reader.work;
        match value {
            Ok(value) => {
                self.read += reader.position();
                self.needed = 1;
                self.in_value = false;
                let defined = reader.defined;
                self.types.extend(defined);
                Ok(Some(value))
            }
            Err(Stop::Wait(needed)) => {
                self.needed = needed;
                Ok(None)
            }
            Err(Stop::Error(error)) => Err(self.failed.insert(error).clone()),
        }
    }
}
