//! A byte stream is split into messages of the driver protocol or rejected, and so is each message
//! in either direction. Accepted messages are encoded and read back unchanged.

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
        // Not compared by value: the uptime of a process may be NaN.
        drop(again);
    }
    let Ok(received) = receive(message) else { return };
    if let Received::Update(update) | Received::Denied { update, .. } = received {
        let bytes = encode(&update, 0).expect("every received update can be encoded");
        let Ok(Received::Update(again)) = receive(&bytes) else { panic!("{update:?} cannot be read back") };
        // A protocol by name implies a family, which is written explicitly.
        assert_eq!(encode(&again, 0), Some(bytes), "{update:?}");
    }
}
