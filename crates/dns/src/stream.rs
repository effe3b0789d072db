//! Messages in one direction of a TCP connection.

/// The shortest message: a header.
const HEADER: usize = 12;

/// One direction of a TCP connection with DNS messages, each after its length in two bytes (RFC
/// 1035, section 4.2.2).
///
/// Segments are expected in order; repeated and overlapping ones are allowed, and the first copy of
/// a byte counts. Bytes beyond a gap end the stream: it teaches nothing more. A stream holds at
/// most one incomplete message, in at most 65,535 bytes of memory, which grow as its bytes arrive.
///
/// ```
/// use tortie_dns::Stream;
/// let mut stream = Stream::new(1_000);
/// let message = [7; 12];
/// assert!(stream.push(1_000, &[0, 12, 7, 7]).messages.is_empty());
/// assert_eq!(stream.push(1_004, &message[2..]).messages, [message]);
/// ```
#[derive(Clone, Debug)]
pub struct Stream {
    /// The sequence number of the next byte.
    next: u32,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    /// Bytes of a message are missing: first those of its length.
    Open {
        length: Length,
        message: Vec<u8>,
    },
    Ended,
}

/// The length of the message under way.
#[derive(Clone, Copy, Debug)]
enum Length {
    Unknown,
    /// Its first byte.
    Half(u8),
    Known(u16),
}

/// The reason for which a stream teaches nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamEnd {
    /// Bytes before this segment are missing: it was lost before the observer, or overtook others.
    #[error("bytes of the connection are missing")]
    Gap,
    /// A length is too small for a message.
    #[error("a message has {0} bytes, fewer than a header")]
    Short(u16),
}

/// The result of a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Pushed {
    /// The messages that this segment completes, in order; at most one for each 14 bytes of it, and
    /// one more.
    pub messages: Vec<Vec<u8>>,
    /// The reason for which this segment ended the stream; a later segment has none.
    pub ended: Option<StreamEnd>,
    /// The segment has bytes that came before, as a retransmission has. While the caller holds an
    /// earlier segment back, it must not let such a one pass: the receiver would take the same
    /// bytes from it.
    pub repeats: bool,
}

impl Stream {
    /// Begins a stream at the sequence number of its first byte: one more than that of the segment
    /// with SYN.
    #[must_use]
    pub fn new(first: u32) -> Self {
        Self { next: first, state: State::Open { length: Length::Unknown, message: Vec::new() } }
    }

    /// Reports whether the stream teaches nothing more.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self.state, State::Ended)
    }

    /// Reports whether all bytes before the one with this sequence number were read, or the stream
    /// teaches nothing more: a segment with FIN at this number is the last one that counts.
    #[must_use]
    pub fn is_read_up_to(&self, seq: u32) -> bool {
        self.next == seq || self.has_ended()
    }

    /// Takes the payload of a segment with the sequence number of its first byte.
    ///
    /// Cost: proportional to the length of the payload.
    pub fn push(&mut self, seq: u32, bytes: &[u8]) -> Pushed {
        // Sequence numbers wrap; a window is smaller than half of their range (RFC 9293, 3.4).
        let known = self.next.wrapping_sub(seq);
        let is_ahead = known > i32::MAX.unsigned_abs();
        let repeats = known > 0 && !is_ahead && !bytes.is_empty();
        if bytes.is_empty() || self.has_ended() {
            return Pushed { repeats, ..Pushed::default() };
        }
        if is_ahead {
            self.state = State::Ended;
            return Pushed { ended: Some(StreamEnd::Gap), ..Pushed::default() };
        }
        let fresh = usize::try_from(known).ok().and_then(|known| bytes.get(known..)).unwrap_or_default();
        #[expect(clippy::cast_possible_truncation, reason = "sequence numbers count modulo 2³²")]
        let length = fresh.len() as u32;
        self.next = self.next.wrapping_add(length);
        Pushed { repeats, ..self.take(fresh) }
    }

    /// Takes the next bytes in order.
    fn take(&mut self, mut bytes: &[u8]) -> Pushed {
        let mut pushed = Pushed::default();
        while let (State::Open { length, message }, Some((first, rest))) = (&mut self.state, bytes.split_first()) {
            match *length {
                Length::Unknown => (*length, bytes) = (Length::Half(*first), rest),
                Length::Half(high) => {
                    let known = u16::from_be_bytes([high, *first]);
                    if usize::from(known) < HEADER {
                        self.state = State::Ended;
                        pushed.ended = Some(StreamEnd::Short(known));
                        break;
                    }
                    (*length, bytes) = (Length::Known(known), rest);
                }
                Length::Known(known) => {
                    let missing = usize::from(known) - message.len();
                    let (part, rest) = bytes.split_at(missing.min(bytes.len()));
                    if message.capacity() - message.len() < part.len() {
                        // Twice the bytes so far, as usual, but never more than the message needs.
                        message.reserve_exact(missing.min(part.len().max(message.len())));
                    }
                    message.extend_from_slice(part);
                    bytes = rest;
                    if message.len() == usize::from(known) {
                        pushed.messages.push(std::mem::take(message));
                        *length = Length::Unknown;
                    }
                }
            }
        }
        pushed
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn framed(messages: &[Vec<u8>]) -> Vec<u8> {
        let length = |message: &Vec<u8>| u16::try_from(message.len()).unwrap().to_be_bytes();
        messages.iter().flat_map(|message| length(message).into_iter().chain(message.iter().copied())).collect()
    }

    #[test]
    fn a_message_in_five_segments_and_three_in_one() {
        let messages: Vec<Vec<u8>> = (1..=4).map(|n| vec![n; 40]).collect();
        let bytes = framed(&messages);
        let mut stream = Stream::new(u32::MAX - 20);
        let (mut seq, mut got) = (u32::MAX - 20, Vec::new());
        for (from, to) in [(0, 1), (1, 2), (2, 10), (10, 41), (41, 42), (42, bytes.len())] {
            let pushed = stream.push(seq, &bytes[from..to]);
            assert_eq!(pushed.ended, None);
            assert_eq!(pushed.messages.len(), [0, 1, 3][usize::from(to >= 42) + usize::from(to > 42)], "{to}");
            got.extend(pushed.messages);
            seq = seq.wrapping_add(u32::try_from(to - from).unwrap());
        }
        assert_eq!(got, messages);
    }

    #[test]
    fn repeated_and_overlapping_segments_count_once_and_the_first_copy_counts() {
        let bytes = framed(&[vec![9; 20]]);
        let mut stream = Stream::new(100);
        let repeated = Pushed { repeats: true, ..Pushed::default() };
        assert_eq!(stream.push(100, &bytes[..10]), Pushed::default());
        assert_eq!(stream.push(100, &bytes[..10]), repeated);
        assert_eq!(stream.push(109, &bytes[9..10]), repeated, "a keepalive");
        assert_eq!(stream.push(95, &[1; 5]), repeated, "bytes before the first one");
        let mut altered = bytes.clone();
        altered[5] = 77;
        let pushed = stream.push(100, &altered);
        assert_eq!((pushed.messages, pushed.repeats), (vec![vec![9; 20]], true));
        assert_eq!(stream.push(100, &bytes), repeated, "the message again, while it may be held");
        let last = stream.push(122, &framed(&[vec![1; 12]]));
        assert_eq!((last.messages.len(), last.repeats), (1, false));
        assert_eq!(stream.push(500, &[1]).ended, Some(StreamEnd::Gap));
        assert_eq!(stream.push(122, &[1]), repeated, "after the end, too");
    }

    #[test]
    fn a_gap_or_a_length_below_a_header_ends_the_stream() {
        let bytes = framed(&[vec![9; 20]]);
        let mut stream = Stream::new(0);
        assert_eq!(stream.push(5, &[]), Pushed::default(), "no byte, no gap");
        assert_eq!(stream.push(1, &bytes[1..]).ended, Some(StreamEnd::Gap));
        assert!(stream.has_ended());
        assert_eq!(stream.push(0, &bytes), Pushed::default());

        let mut stream = Stream::new(0);
        let pushed = stream.push(0, &[framed(&[vec![1; 12]]), vec![0, 11], framed(&[vec![1; 12]])].concat());
        let ended = Some(StreamEnd::Short(11));
        assert_eq!(pushed, Pushed { messages: vec![vec![1; 12]], ended, repeats: false });
        assert!(stream.has_ended());
    }

    #[test]
    fn memory_grows_with_the_bytes_and_not_beyond_the_message() {
        let bytes = framed(&[vec![3; 65_535]]);
        let mut stream = Stream::new(0);
        for (at, segment) in (0u32..).step_by(1_000).zip(bytes[..65_000].chunks(1_000)) {
            assert_eq!(stream.push(at, segment), Pushed::default());
            let State::Open { message, .. } = &stream.state else { panic!("the stream has ended") };
            let most = (2 * (at as usize + 1_000)).min(65_535);
            assert!(message.capacity() <= most, "{} bytes for {}", message.capacity(), message.len());
        }
    }

    #[test]
    fn the_longest_message_is_held() {
        let messages = [vec![3; 65_535], vec![4; 12]];
        let mut stream = Stream::new(7);
        let pushed = framed(&messages).chunks(1_400).fold((7, Vec::new()), |(seq, mut got), segment| {
            got.extend(stream.push(seq, segment).messages);
            (seq + u32::try_from(segment.len()).unwrap(), got)
        });
        assert_eq!(pushed.1, messages);
    }

    proptest! {
        #[test]
        fn any_segments_without_a_gap_give_the_messages(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 12..60), 0..6),
            cuts in prop::collection::vec((0usize..40, 0usize..30), 0..60),
            first in any::<u32>(),
            gap in prop::option::of(1u32..9),
        ) {
            let bytes = framed(&messages);
            let (mut stream, mut at, mut got) = (Stream::new(first), 0, Vec::new());
            let seq = |at: usize| first.wrapping_add(u32::try_from(at).unwrap());
            // Each segment begins at or before the next byte, and may repeat old ones only.
            for (back, length) in cuts.into_iter().chain([(0, bytes.len())]) {
                let from = at - back.min(at);
                let to = (from + length).min(bytes.len());
                let pushed = stream.push(seq(from), &bytes[from..to]);
                prop_assert_eq!(pushed.ended, None);
                prop_assert_eq!(pushed.repeats, from < at && from < to);
                got.extend(pushed.messages);
                at = at.max(to);
            }
            prop_assert_eq!(&got, &messages);
            if let Some(gap) = gap {
                prop_assert_eq!(stream.push(seq(at).wrapping_add(gap), &[1]).ended, Some(StreamEnd::Gap));
            }
        }
    }
}
