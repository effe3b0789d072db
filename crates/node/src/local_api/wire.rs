//! Messages of varlink.

use std::io::{self, BufRead, Read as _, Write};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The longest call that is read, in bytes. An answer may be longer.
pub(super) const MAX_CALL: u64 = 64 * 1024;
/// The longest answer that a client reads.
pub(super) const MAX_ANSWER: u64 = 256 * 1024 * 1024;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Call {
    pub(super) method: String,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub(super) parameters: Map<String, Value>,
    /// No answer is wanted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) oneway: bool,
    /// More than one answer is wanted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) more: bool,
}

/// An answer: values, or an error with its parameters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Reply {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    #[serde(default)]
    pub(super) parameters: Value,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) continues: bool,
}

impl Reply {
    pub(super) fn of(parameters: Value) -> Self {
        Self { parameters, ..Self::default() }
    }

    pub(super) fn error(name: &str, parameters: Value) -> Self {
        Self { error: Some(name.to_owned()), parameters, continues: false }
    }
}

/// Reads one message; `None` at the end of the stream.
///
/// # Errors
/// If reading fails, or the message is longer than `limit` or cut off.
pub(super) fn read(stream: &mut impl BufRead, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let mut message = Vec::new();
    stream.take(limit).read_until(0, &mut message)?;
    match message.pop() {
        None => Ok(None),
        Some(0) => Ok(Some(message)),
        Some(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "a message without end, or too long")),
    }
}

pub(super) fn write(stream: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut bytes = serde_json::to_vec(message)?;
    bytes.push(0);
    stream.write_all(&bytes)?;
    stream.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_end_with_a_zero_byte_and_are_read_one_by_one() {
        let call = Call { method: "a.b.C".into(), ..Call::default() };
        let mut bytes = Vec::new();
        write(&mut bytes, &call).unwrap();
        assert_eq!(bytes, b"{\"method\":\"a.b.C\"}\0");
        bytes.extend_from_slice(b"{}\0");
        let mut stream = &bytes[..];
        assert_eq!(serde_json::from_slice::<Call>(&read(&mut stream, 100).unwrap().unwrap()).unwrap(), call);
        assert_eq!(read(&mut stream, 100).unwrap().unwrap(), b"{}");
        assert_eq!(read(&mut stream, 100).unwrap(), None);
    }

    #[test]
    fn a_message_that_is_cut_off_or_too_long_is_an_error() {
        assert!(read(&mut &b"{}"[..], 100).is_err());
        assert!(read(&mut &b"{      }\0"[..], 5).is_err());
        assert!(read(&mut &b"{}\0"[..], 3).is_ok());
    }
}
