use std::io::{self, Read};

use proptest::prelude::*;

use super::{FrameError, FrameReader, MAX_FRAME, write_frame};

/// A reader that, like a pipe, returns a few bytes at a time and is interrupted now and then.
struct Pipe<'a> {
    bytes: &'a [u8],
    chunk: usize,
    reads: usize,
}

impl Read for Pipe<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.reads += 1;
        if self.reads.is_multiple_of(3) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let limit = self.chunk.min(buffer.len());
        self.bytes.read(&mut buffer[..limit])
    }
}

fn written(messages: &[Vec<u8>]) -> Vec<u8> {
    let mut stream = Vec::new();
    for message in messages {
        write_frame(&mut stream, message).unwrap();
    }
    stream
}

#[test]
fn lengths_are_little_endian() {
    assert_eq!(written(&[b"ab".to_vec()]), b"\x02\0\0\0\0\0\0\0ab");
}

#[test]
fn an_end_between_messages_is_no_error_and_one_inside_is() {
    let stream = written(&[b"abc".to_vec(), Vec::new()]);
    for end in 0..=stream.len() {
        let mut reader = FrameReader::new(&stream[..end]);
        let mut read = 0;
        let result = loop {
            match reader.next_frame() {
                Ok(Some(_)) => read += 1,
                Ok(None) => break Ok(read),
                Err(error) => break Err(error),
            }
        };
        match (end, result) {
            (0, Ok(0)) | (11, Ok(1)) | (19, Ok(2)) => {}
            (1..8, Err(FrameError::Truncated { got, expected: 8, .. })) => assert_eq!(got, end as u64),
            (8..11, Err(FrameError::Truncated { got, expected: 3, .. })) => assert_eq!(got, end as u64 - 8),
            (12..19, Err(FrameError::Truncated { got, expected: 8, .. })) => assert_eq!(got, end as u64 - 11),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn announced_lengths_are_not_allocated() {
    let mut stream = MAX_FRAME.to_le_bytes().to_vec();
    stream.extend([7; 100]);
    let mut reader = FrameReader::new(stream.as_slice());
    assert!(matches!(reader.next_frame(), Err(FrameError::Truncated { got: 100, expected: MAX_FRAME, .. })));
    assert!(reader.buffer.capacity() < 10_000, "{}", reader.buffer.capacity());
}

#[test]
fn an_oversized_message_is_refused_before_it_is_read() {
    for length in [11, MAX_FRAME, u64::MAX] {
        let stream = length.to_le_bytes();
        let mut reader = FrameReader::with_limit(stream.as_slice(), 10);
        assert!(matches!(reader.next_frame(), Err(FrameError::TooLong { limit: 10, .. })));
    }
}

#[test]
fn memory_of_a_large_message_is_released() {
    let stream = written(&[vec![1; 3 << 20], vec![2; 10]]);
    let mut reader = FrameReader::new(stream.as_slice());
    assert_eq!(reader.next_frame().unwrap().unwrap().len(), 3 << 20);
    assert_eq!(reader.next_frame().unwrap().unwrap(), [2; 10]);
    assert!(reader.buffer.capacity() < 1 << 20);
}

proptest! {
    #[test]
    fn written_frames_are_read_back(
        messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..50), 0..10),
        chunk in 1usize..20,
    ) {
        let stream = written(&messages);
        let mut reader = FrameReader::new(Pipe { bytes: &stream, chunk, reads: 0 });
        let mut read = Vec::new();
        while let Some(message) = reader.next_frame().unwrap() {
            read.push(message.to_vec());
        }
        prop_assert_eq!(read, messages);
    }
}
