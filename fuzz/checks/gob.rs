//! Any bytes are a gob stream or rejected, independent of the sizes in which they arrive. Both
//! sides of a Typha connection survive them.

use std::time::Instant;

use tortie_fanout::gob::{Decoder, Limits};
use tortie_fanout::typha::messages::{ClientMessage, ServerMessage};
use tortie_fanout::typha::{ClientHello, ClientSession, ServerAction, ServerSession, ServerSettings};

/// The first byte is the size of the pieces in which the rest arrives.
pub(crate) fn check(data: &[u8]) {
    let Some((step, stream)) = data.split_first() else { return };
    let step = usize::from(*step).max(1);
    assert_eq!(read(stream, step), read(stream, stream.len().max(1)));

    let now = Instant::now();
    let mut server = ServerSession::new(1, ServerSettings::default(), now);
    let mut closed = false;
    for part in stream.chunks(step) {
        let mut actions = server.received(part, now);
        assert!(!closed || actions.is_empty(), "nothing is done after the end");
        if matches!(actions.last(), Some(ServerAction::Snapshot { .. })) {
            actions.extend(server.snapshot_sent(now));
        }
        closed |= actions.iter().any(|action| matches!(action, ServerAction::Close(_)));
    }

    let (mut client, _) = ClientSession::new(ClientHello::default(), ClientSession::limits());
    for part in stream.chunks(step) {
        if client.received(part, &mut Vec::new()).is_err() {
            break;
        }
    }
}

/// Returns the contents of a stream as text.
fn read(stream: &[u8], step: usize) -> Vec<String> {
    let mut decoder = Decoder::new(Limits { value_bytes: 1 << 16, ..Limits::default() });
    let mut output = Vec::new();
    for part in stream.chunks(step) {
        decoder.push(part);
        loop {
            match decoder.read() {
                Ok(Some(value)) => {
                    let (client, server) = (ClientMessage::decode(&value), ServerMessage::decode(&value));
                    assert!(client.is_err() || server.is_err(), "a message is of one side");
                    output.push(format!("{value:?}"));
                }
                Ok(None) => break,
                Err(error) => {
                    output.push(error.to_string());
                    return output;
                }
            }
        }
    }
    output
}
