//! Any bytes are frames of the fan-out protocol or rejected, independent of the sizes in which they
//! arrive. Accepted messages can be written and read again.

use bytes::BytesMut;
use prost::Message;
use tortie_fanout::protocol::frame::{self, Compression, FrameError};
use tortie_fanout::protocol::{ToClient, ToServer};

/// Small enough that the fuzzer finds larger frames.
const LIMIT: usize = 64 * 1024;

/// The first byte is the number of bytes that arrive at a time.
pub(crate) fn check(data: &[u8]) {
    let Some((&step, bytes)) = data.split_first() else { return };
    check_round_trip::<ToServer>(bytes, step);
    check_round_trip::<ToClient>(bytes, step);
}

fn check_round_trip<M: Message + Default + PartialEq>(bytes: &[u8], step: u8) {
    let (messages, error) = read::<M>([bytes].into_iter());
    let (piecemeal, same_error) = read::<M>(bytes.chunks(usize::from(step).max(1)));
    assert!(messages == piecemeal && error == same_error);
    let mut encoded = BytesMut::new();
    for message in &messages {
        encoded.extend_from_slice(&frame::encode(message, Compression::Fast));
    }
    // Other encodings of the same message may be slightly longer than the one that was read.
    let mut again = Vec::new();
    while let Some(message) = frame::take::<M>(&mut encoded, 2 * LIMIT).expect("written frames can be read") {
        again.push(message);
    }
    assert!(encoded.is_empty() && again == messages);
}

fn read<'a, M: Message + Default>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<M>, Option<FrameError>) {
    let (mut buffer, mut messages) = (BytesMut::new(), Vec::new());
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            match frame::take(&mut buffer, LIMIT) {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(error) => return (messages, Some(error)),
            }
        }
    }
    (messages, None)
}
