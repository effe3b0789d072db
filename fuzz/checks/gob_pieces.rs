//! A gob stream in pieces of any lengths gives the same values as the whole stream, and its cost is
//! linear in its length.

use tortie_fanout::gob::{Decoder, Limits};

/// The number of types, each of which allows one more pass over a value.
const TYPES: usize = 64;

/// The first 16 bytes are the lengths of the pieces, in turn, from 1 to 16 bytes; the rest is the
/// stream.
pub(crate) fn check(data: &[u8]) {
    let Some((lengths, stream)) = data.split_first_chunk::<16>() else { return };
    let mut pieces = Vec::new();
    let mut rest = stream;
    for length in lengths.iter().cycle() {
        let (piece, after) = rest.split_at(rest.len().min(usize::from(length % 16) + 1));
        pieces.push(piece);
        rest = after;
        if rest.is_empty() {
            break;
        }
    }
    assert_eq!(read(&pieces), read(&[stream]));
}

/// Returns the values of a stream, and the error at its end.
fn read(pieces: &[&[u8]]) -> Vec<String> {
    let limits = Limits { value_bytes: 1 << 14, types: TYPES, ..Limits::default() };
    let mut decoder = Decoder::new(limits);
    let (mut output, mut length) = (Vec::new(), 0);
    for piece in pieces {
        length += piece.len();
        decoder.push(piece);
        loop {
            match decoder.read() {
                Ok(Some(value)) => output.push(format!("{value:?}")),
                Ok(None) => break,
                Err(error) => {
                    output.push(error.to_string());
                    return output;
                }
            }
        }
        // Three passes for each message of a value: its length in two parts, and its contents.
        let limit = 4 * length + 3 * (TYPES + 1) * limits.value_bytes.min(length);
        assert!(decoder.work() <= limit, "{} bytes parsed of {length}", decoder.work());
    }
    output
}
