//! A stream of bytes is cut into messages of the driver protocol or refused, and so is each message in either direction.
//! What is understood is encoded and read back the same.

use tortie_protocol::frame::FrameReader;
use tortie_protocol::{Received, Report, encode, receive};

pub(crate) fn check(data: &[u8]) {
    let mut frames = FrameReader::with_limit(data, 1 << 16);
    while let Ok(Some(message)) = frames.next_frame() {
        check_message(message);
    }
    check_message(data);
}

fn check_message(message: &[u8]) {
    if let Ok(report) = Report::decode(message) {
        let again = Report::decode(&report.encode(0)).expect("a report that was just written");
        // Not compared by value: the time that a process has been running may be no number.
        drop(again);
    }
    let Ok(received) = receive(message) else { return };
    if let Received::Update(update) | Received::Denied { update, .. } = received {
        let bytes = encode(&update, 0).expect("there is a message for whatever a message can say");
        let Ok(Received::Update(again)) = receive(&bytes) else { panic!("{update:?} cannot be read back") };
        // A protocol by name implies a family, which is spelt out when it is written.
        assert_eq!(encode(&again, 0), Some(bytes), "{update:?}");
    }
}
