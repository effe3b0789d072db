//! Segments of a TCP connection in any order and overlap give the messages of their bytes without
//! repetitions, up to a gap.

use tortie_dns::{Stream, StreamEnd};

/// The first four bytes are the first sequence number, the next one the number of segments. Each of
/// these has two bytes: how far it begins before the next byte (from 0 to 127) or after it, and its
/// length. The rest is the content of the connection.
pub(crate) fn check(data: &[u8]) {
    let Some((first, rest)) = data.split_first_chunk::<4>() else { return };
    let Some((count, rest)) = rest.split_first() else { return };
    let Some((segments, content)) = rest.split_at_checked(2 * usize::from(*count)) else { return };
    let first = u32::from_be_bytes(*first);
    let (mut stream, mut next, mut messages, mut ended) = (Stream::new(first), 0, Vec::new(), None);
    for segment in segments.chunks_exact(2) {
        let (offset, length) = (usize::from(segment[0]), usize::from(segment[1]));
        let from = if offset < 128 { next - offset.min(next) } else { next + offset - 127 };
        let to = (from + length).min(content.len());
        let Some(bytes) = content.get(from..to) else { continue };
        let seq = first.wrapping_add(u32::try_from(from).expect("short inputs"));
        let pushed = stream.push(seq, bytes);
        assert!(ended.is_none() || pushed.messages.is_empty() && pushed.ended.is_none());
        messages.extend(pushed.messages);
        if ended.is_none() && !bytes.is_empty() {
            let is_gap = from > next;
            assert_eq!(is_gap, pushed.ended == Some(StreamEnd::Gap));
            next = if is_gap { next } else { next.max(to) };
            ended = pushed.ended;
        }
    }
    let (expected, is_short) = split(&content[..next]);
    assert_eq!(messages, expected);
    assert_eq!(is_short, matches!(ended, Some(StreamEnd::Short(_))));
    assert_eq!(stream.has_ended(), ended.is_some());
}

/// Returns the complete messages at the beginning of a content, and whether a length after them is
/// too small.
fn split(mut content: &[u8]) -> (Vec<Vec<u8>>, bool) {
    let mut messages = Vec::new();
    while let Some((length, rest)) = content.split_first_chunk() {
        let length = u16::from_be_bytes(*length);
        if length < 12 {
            return (messages, true);
        }
        let Some((message, rest)) = rest.split_at_checked(length.into()) else { break };
        messages.push(message.to_vec());
        content = rest;
    }
    (messages, false)
}
