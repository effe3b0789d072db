use bytes::{Bytes, BytesMut};

use super::{Compression, FrameError, MAX_TO_CLIENT, encode, take};
use crate::protocol::{Batch, Settled, ToClient, WireEntry, server};

fn batch(value: &str) -> ToClient {
    let entry = WireEntry {
        path: "/calico/v1/config/A".into(),
        value: Some(Bytes::copy_from_slice(value.as_bytes())),
        ..WireEntry::default()
    };
    let settled = Some(Settled { sequence: 3, status: 2 });
    ToClient { message: Some(server::Message::Batch(Batch { entries: vec![entry], own: true, settled })) }
}

#[test]
fn a_message_comes_out_as_it_went_in_however_it_is_cut() {
    for (value, compression) in [
        ("1".to_owned(), Compression::None),
        ("x".repeat(5000), Compression::Fast),
        ("y".repeat(5000), Compression::Good),
    ] {
        let message = batch(&value);
        let bytes = encode(&message, compression);
        assert_eq!(value.len() > 1, bytes.len() < 1000 && value.len() > bytes.len());
        let mut buffer = BytesMut::new();
        for (at, byte) in bytes.iter().enumerate() {
            assert_eq!(take::<ToClient>(&mut buffer, MAX_TO_CLIENT).unwrap(), None, "{at}");
            buffer.extend_from_slice(&[*byte]);
        }
        buffer.extend_from_slice(&bytes);
        for _ in 0..2 {
            assert_eq!(take(&mut buffer, MAX_TO_CLIENT).unwrap().as_ref(), Some(&message));
        }
        assert_eq!(take::<ToClient>(&mut buffer, MAX_TO_CLIENT).unwrap(), None);
    }
}

#[test]
fn invalid_frames_are_refused_before_any_allocation() {
    let error = |bytes: &[u8], limit| take::<ToClient>(&mut BytesMut::from(bytes), limit).unwrap_err();
    // Refused by its length alone.
    assert_eq!(error(&[0xff, 0xff, 0xff, 0x7f], 100), FrameError::TooLong { length: 0x7fff_ffff, limit: 100 });
    assert_eq!(error(&[0; 4], 100), FrameError::Empty);
    assert_eq!(error(&[1, 0, 0, 0, 9], 100), FrameError::UnknownKind(9));
    assert_eq!(error(&[3, 0, 0, 0, 1, 0, 0], 100), FrameError::BadCompression);
    assert_eq!(error(&[6, 0, 0, 0, 1, 5, 0, 0, 0, 7], 100), FrameError::BadCompression);
    assert!(matches!(error(&[2, 0, 0, 0, 0, 0xff], 100), FrameError::BadMessage(_)));
    // A small frame that would become a large message.
    let bomb = encode(&batch(&"x".repeat(100_000)), Compression::Good);
    assert!(bomb.len() < 1000);
    assert!(matches!(error(&bomb, 1000), FrameError::TooLong { limit: 1000, .. }));
    // A frame that declares a wrong uncompressed length.
    let mut lie = bomb.to_vec();
    lie[5..9].copy_from_slice(&10u32.to_le_bytes());
    assert_eq!(error(&lie, 1000), FrameError::BadCompression);
}
