//! What the kernel has sent by itself, read without waiting.

use super::error::NetlinkError;
use super::socket::Socket;
use super::wire::{self, Frame};

/// How many datagrams are read in a row.
pub(super) const DATAGRAMS: usize = 256;

/// What a call of `read` has brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Read {
    /// How many packets or events were given out.
    pub messages: usize,
    /// How many the kernel has dropped because they were not read in time, as far as that is known.
    pub lost: u64,
    /// How many messages were not understood.
    pub unreadable: u64,
    /// Whether more may wait.
    pub more: bool,
}

/// Reads what waits, up to a bound. `each` says whether it has given a message out; one that it answers with an error is
/// unreadable. Every overrun counts as one that is lost.
pub(super) fn read_waiting(
    socket: &mut Socket,
    what: &'static str,
    mut each: impl FnMut(&Frame<'_>) -> Result<bool, NetlinkError>,
) -> Result<Read, NetlinkError> {
    let mut read = Read::default();
    for _ in 0..DATAGRAMS {
        let datagram = match socket.receive_now(what) {
            Ok(Some(datagram)) => datagram,
            Ok(None) => return Ok(read),
            Err(NetlinkError::Overflow) => {
                read.lost += 1;
                continue;
            }
            Err(NetlinkError::Malformed { .. }) => {
                read.unreadable += 1;
                continue;
            }
            Err(error) => return Err(error),
        };
        for frame in wire::frames(datagram) {
            match frame.and_then(|frame| each(&frame)) {
                Ok(given_out) => read.messages += usize::from(given_out),
                Err(_) => read.unreadable += 1,
            }
        }
    }
    read.more = true;
    Ok(read)
}
