//! Reading of the kernel's notifications without waiting.

use super::error::NetlinkError;
use super::socket::Socket;
use super::wire::{self, Frame};

/// Usual number of datagrams read in sequence.
pub(super) const DATAGRAMS: usize = 256;

/// Result of a call of `read`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Read {
    /// Number of packets or events that were passed on.
    pub messages: usize,
    /// Number of messages that the kernel has dropped because they were not read in time, as far as
    /// it is known.
    pub lost: u64,
    /// Number of malformed messages.
    pub unreadable: u64,
    /// Whether more may wait.
    pub more: bool,
}

/// Reads the waiting messages, in at most `datagrams` datagrams. `each` returns whether it has
/// passed a message on; a message for which it returns an error is unreadable. Every overrun counts
/// as one lost message.
pub(super) fn read_waiting(
    socket: &mut Socket,
    subject: &'static str,
    datagrams: usize,
    mut each: impl FnMut(&Frame<'_>) -> Result<bool, NetlinkError>,
) -> Result<Read, NetlinkError> {
    let mut read = Read::default();
    for _ in 0..datagrams {
        let datagram = match socket.receive_now(subject) {
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
