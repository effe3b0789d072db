//! Decoding of a dump, message by message.

use netlink_packet_core::NLM_F_DUMP_INTR;

use super::error::NetlinkError;
use super::wire::{self, NLMSG_DONE, NLMSG_ERROR, NLMSG_OVERRUN};

/// Objects of a dump received so far.
#[derive(Debug)]
pub(super) struct Listing<T> {
    sequence: u32,
    subject: &'static str,
    found: Vec<T>,
    /// Whether the objects have not changed since the dump began, according to the kernel.
    is_consistent: bool,
}

impl<T> Listing<T> {
    /// Begins the dump that was requested with this sequence number.
    pub(super) const fn new(sequence: u32, subject: &'static str) -> Self {
        Self { sequence, subject, found: Vec::new(), is_consistent: true }
    }

    /// Processes a datagram. Messages with other sequence numbers belong to abandoned dumps.
    /// Reports whether it was the last one.
    pub(super) fn take<E: From<NetlinkError>>(
        &mut self,
        datagram: &[u8],
        parse: &mut impl FnMut(u16, &[u8]) -> Result<Option<T>, E>,
    ) -> Result<bool, E> {
        for frame in wire::frames(datagram) {
            let frame = frame?;
            if frame.sequence != self.sequence {
                continue;
            }
            self.is_consistent &= frame.flags & NLM_F_DUMP_INTR == 0;
            match frame.kind {
                NLMSG_DONE => {
                    wire::parse_done(self.subject, &frame)?;
                    return if self.is_consistent { Ok(true) } else { Err(self.interrupted().into()) };
                }
                NLMSG_ERROR => {
                    wire::parse_ack(self.subject, &frame)?;
                    return Err(NetlinkError::Malformed { subject: "end of a listing" }.into());
                }
                NLMSG_OVERRUN => return Err(NetlinkError::Overflow.into()),
                kind => self.found.extend(parse(kind, frame.payload)?),
            }
        }
        Ok(false)
    }

    const fn interrupted(&self) -> NetlinkError {
        NetlinkError::Interrupted { subject: self.subject }
    }

    pub(super) fn into_found(self) -> Vec<T> {
        self.found
    }
}
