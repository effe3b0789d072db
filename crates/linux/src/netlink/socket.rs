//! Netlink sockets: one for requests, one for notifications.

use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST};
use netlink_sys::protocols::{NETLINK_GENERIC, NETLINK_NETFILTER, NETLINK_ROUTE, NETLINK_SOCK_DIAG};
use netlink_sys::{Socket as RawSocket, SocketAddr};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::net::sockopt::{self, Timeout};

use super::error::NetlinkError;
use super::listing::Listing;
use super::notice::Notice;
use super::wire::{self, Frame, NLMSG_ERROR, Request};

/// Buffer size for a datagram in bytes. The kernel sends larger ones only for a single large
/// message.
const DATAGRAM: usize = 256 * 1024;
/// Size of the receive buffer in bytes, for messages between two reads.
const RECEIVE_BUFFER: usize = 4 * 1024 * 1024;
/// Size of the send buffer in bytes, for an nftables transaction.
const SEND_BUFFER: usize = 256 * 1024 * 1024;
const DUMP_ATTEMPTS: usize = 4;

const NFNL_MSG_BATCH_BEGIN: u16 = 16;
const NFNL_MSG_BATCH_END: u16 = 17;
/// `struct nfgenmsg` of a batch for `NFNL_SUBSYS_NFTABLES`.
const NFTABLES_BATCH: [u8; 4] = [0, 0, 0, 10];

const RTNLGRP_LINK: u32 = 1;
const RTNLGRP_IPV4_ROUTE: u32 = 7;
const RTNLGRP_IPV6_ROUTE: u32 = 11;

/// Socket for requests.
pub(super) struct Socket {
    raw: RawSocket,
    sequence: u32,
    datagram: Vec<u8>,
}

impl std::fmt::Debug for Socket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Socket").field("sequence", &self.sequence).finish_non_exhaustive()
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.raw.as_fd()
    }
}

fn socket_error(subject: &'static str) -> impl Fn(io::Error) -> NetlinkError {
    move |source| NetlinkError::from_io(subject, source)
}

fn open(protocol: isize) -> Result<RawSocket, NetlinkError> {
    let mut raw = RawSocket::new(protocol).map_err(socket_error("open"))?;
    raw.bind_auto().map_err(socket_error("bind"))?;
    // Forcing the size needs a privilege; without it, the limit of the system applies.
    if sockopt::set_socket_recv_buffer_size_force(&raw, RECEIVE_BUFFER).is_err() {
        sockopt::set_socket_recv_buffer_size(&raw, RECEIVE_BUFFER)
            .map_err(|errno| NetlinkError::from_io("set the size of the receive buffer", errno.into()))?;
    }
    Ok(raw)
}

fn set_timeout(raw: &RawSocket, timeout: Duration) -> Result<(), NetlinkError> {
    // Zero would mean no timeout.
    let timeout = timeout.max(Duration::from_millis(1));
    sockopt::set_socket_timeout(raw, Timeout::Recv, Some(timeout))
        .map_err(|errno| NetlinkError::from_io("set the timeout", errno.into()))
}

/// Waits for a datagram from the kernel.
fn receive(raw: &RawSocket, datagram: &mut Vec<u8>, subject: &'static str) -> Result<(), NetlinkError> {
    receive_with(RecvFlags::empty(), raw, datagram, subject)
}

fn receive_with(
    flags: RecvFlags,
    raw: &RawSocket,
    datagram: &mut Vec<u8>,
    subject: &'static str,
) -> Result<(), NetlinkError> {
    #[allow(clippy::cast_possible_wrap, reason = "flags, far from the sign bit")]
    let flags = (flags | RecvFlags::TRUNC).bits() as i32;
    loop {
        datagram.clear();
        datagram.reserve(DATAGRAM);
        match raw.recv_from(datagram, flags) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(NetlinkError::from_io(subject, error)),
            // Other processes can send as well; only the kernel has port 0.
            Ok((_, sender)) if sender.port_number() != 0 => {}
            Ok((length, _)) if length > datagram.len() => {
                return Err(NetlinkError::Malformed { subject: "long datagram" });
            }
            Ok(_) => return Ok(()),
        }
    }
}

impl Socket {
    pub(super) fn open(timeout: Duration) -> Result<Self, NetlinkError> {
        let raw = open(NETLINK_ROUTE)?;
        set_timeout(&raw, timeout)?;
        // Old kernels lack these options, which only make answers shorter or clearer.
        let _ = raw.set_ext_ack(true);
        let _ = raw.set_cap_ack(true);
        let _ = raw.set_netlink_get_strict_chk(true);
        Ok(Self { raw, sequence: 0, datagram: Vec::new() })
    }

    /// Opens a socket for netfilter's subsystems.
    pub(super) fn open_netfilter(timeout: Duration) -> Result<Self, NetlinkError> {
        let raw = open(NETLINK_NETFILTER)?;
        set_timeout(&raw, timeout)?;
        // A transaction is one message. Without the privilege, the limit of the system applies.
        let _ = sockopt::set_socket_send_buffer_size_force(&raw, SEND_BUFFER);
        let _ = raw.set_ext_ack(true);
        let _ = raw.set_cap_ack(true);
        Ok(Self { raw, sequence: 0, datagram: Vec::new() })
    }

    /// Opens a socket for netfilter's subsystems; `None` if the kernel has no netfilter.
    pub(super) fn open_netfilter_if_there(timeout: Duration) -> Result<Option<Self>, NetlinkError> {
        match Self::open_netfilter(timeout) {
            Err(NetlinkError::Socket { error, .. })
                if error.raw_os_error() == Some(Errno::PROTONOSUPPORT.raw_os_error()) =>
            {
                Ok(None)
            }
            socket => socket.map(Some),
        }
    }

    /// Opens a socket for the families of generic netlink.
    pub(super) fn open_generic(timeout: Duration) -> Result<Self, NetlinkError> {
        let raw = open(NETLINK_GENERIC)?;
        set_timeout(&raw, timeout)?;
        let _ = raw.set_ext_ack(true);
        Ok(Self { raw, sequence: 0, datagram: Vec::new() })
    }

    /// Opens a socket for lists of sockets.
    pub(super) fn open_diag(timeout: Duration) -> Result<Self, NetlinkError> {
        let raw = open(NETLINK_SOCK_DIAG)?;
        set_timeout(&raw, timeout)?;
        Ok(Self { raw, sequence: 0, datagram: Vec::new() })
    }

    /// Subscribes to a group of notifications.
    pub(super) fn subscribe(&mut self, group: u32) -> Result<(), NetlinkError> {
        self.raw.add_membership(group).map_err(socket_error("subscribe"))
    }

    /// Waits for the next datagram and returns it.
    pub(super) fn receive(&mut self, subject: &'static str) -> Result<&[u8], NetlinkError> {
        receive(&self.raw, &mut self.datagram, subject)?;
        Ok(&self.datagram)
    }

    /// Returns the next datagram without waiting; `None` if there is none.
    pub(super) fn receive_now(&mut self, subject: &'static str) -> Result<Option<&[u8]>, NetlinkError> {
        match receive_with(RecvFlags::DONTWAIT, &self.raw, &mut self.datagram, subject) {
            Ok(()) => Ok(Some(&self.datagram)),
            Err(NetlinkError::Timeout { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends a message and returns its answer, decoded by `parse`.
    pub(super) fn query<T>(
        &mut self,
        kind: u16,
        payload: &[u8],
        subject: &'static str,
        parse: impl Fn(u16, &[u8]) -> Result<Option<T>, NetlinkError>,
    ) -> Result<T, NetlinkError> {
        self.send_raw(kind, NLM_F_REQUEST, payload)?;
        self.answer(subject, parse)
    }

    fn answer<T>(
        &mut self,
        subject: &'static str,
        parse: impl Fn(u16, &[u8]) -> Result<Option<T>, NetlinkError>,
    ) -> Result<T, NetlinkError> {
        loop {
            receive(&self.raw, &mut self.datagram, subject)?;
            for frame in wire::frames(&self.datagram) {
                let frame = frame?;
                if frame.sequence != self.sequence {
                    continue;
                }
                if frame.kind == NLMSG_ERROR {
                    wire::parse_ack(subject, &frame)?;
                } else if let Some(answer) = parse(frame.kind, frame.payload)? {
                    return Ok(answer);
                }
            }
        }
    }

    fn send(&mut self, request: Request, flags: u16) -> Result<(), NetlinkError> {
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = request.encode(flags, self.sequence);
        self.raw.send_to(&bytes, &SocketAddr::new(0, 0), 0).map_err(socket_error("send"))?;
        Ok(())
    }

    /// Sends a request and waits for its acknowledgement.
    pub(super) fn request(&mut self, request: Request, subject: &'static str) -> Result<(), NetlinkError> {
        self.send(request, NLM_F_REQUEST | NLM_F_ACK)?;
        self.acknowledgement(subject)
    }

    /// Sends an encoded request and waits for its acknowledgement.
    pub(super) fn request_raw(
        &mut self,
        kind: u16,
        flags: u16,
        payload: &[u8],
        subject: &'static str,
    ) -> Result<(), NetlinkError> {
        self.request_raw_beside(kind, flags, payload, subject, |_| {})
    }

    /// Like [`Socket::request_raw`], on a socket that receives other messages as well: passes those
    /// that come before the acknowledgement to `other`.
    pub(super) fn request_raw_beside(
        &mut self,
        kind: u16,
        flags: u16,
        payload: &[u8],
        subject: &'static str,
        other: impl FnMut(&Frame<'_>),
    ) -> Result<(), NetlinkError> {
        self.send_raw(kind, flags | NLM_F_REQUEST | NLM_F_ACK, payload)?;
        self.acknowledgement_beside(subject, other)
    }

    /// Sends encoded requests together. The kernel answers only those that fail, with messages that
    /// the caller may ignore.
    pub(super) fn send_without_answer(
        &mut self,
        kind: u16,
        payloads: impl Iterator<Item = Vec<u8>>,
    ) -> Result<(), NetlinkError> {
        let mut bytes = Vec::new();
        for payload in payloads {
            self.sequence = self.sequence.wrapping_add(1);
            bytes.extend(wire::encode(kind, NLM_F_REQUEST, self.sequence, &payload));
        }
        if !bytes.is_empty() {
            self.raw.send_to(&bytes, &SocketAddr::new(0, 0), 0).map_err(socket_error("send"))?;
        }
        Ok(())
    }

    fn send_raw(&mut self, kind: u16, flags: u16, payload: &[u8]) -> Result<(), NetlinkError> {
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = wire::encode(kind, flags, self.sequence, payload);
        self.raw.send_to(&bytes, &SocketAddr::new(0, 0), 0).map_err(socket_error("send"))?;
        Ok(())
    }

    fn acknowledgement(&mut self, subject: &'static str) -> Result<(), NetlinkError> {
        self.acknowledgement_beside(subject, |_| {})
    }

    fn acknowledgement_beside(
        &mut self,
        subject: &'static str,
        mut other: impl FnMut(&Frame<'_>),
    ) -> Result<(), NetlinkError> {
        loop {
            receive(&self.raw, &mut self.datagram, subject)?;
            let mut acknowledged = None;
            for frame in wire::frames(&self.datagram) {
                let frame = frame?;
                if frame.sequence == self.sequence && frame.kind == NLMSG_ERROR {
                    acknowledged.get_or_insert(wire::parse_ack(subject, &frame));
                } else {
                    other(&frame);
                }
            }
            if let Some(acknowledged) = acknowledged {
                return acknowledged;
            }
        }
    }

    /// Sends requests together, and returns the outcome of each in their order. A failing request
    /// does not stop the others.
    ///
    /// # Errors
    /// If some outcomes are unknown.
    pub(super) fn batch(
        &mut self,
        requests: Vec<Request>,
        subject: &'static str,
    ) -> Result<Vec<Result<(), NetlinkError>>, NetlinkError> {
        let encode = |request: Request, sequence| request.encode(NLM_F_REQUEST | NLM_F_ACK, sequence);
        self.batch_of(requests, encode, subject)
    }

    /// Sends encoded requests together, and returns the outcome of each in their order.
    pub(super) fn batch_raw(
        &mut self,
        kind: u16,
        flags: u16,
        payloads: &[Vec<u8>],
        subject: &'static str,
    ) -> Result<Vec<Result<(), NetlinkError>>, NetlinkError> {
        let encode = |payload, sequence| wire::encode(kind, flags | NLM_F_REQUEST | NLM_F_ACK, sequence, payload);
        self.batch_of(payloads.iter().map(Vec::as_slice), encode, subject)
    }

    fn batch_of<R>(
        &mut self,
        requests: impl IntoIterator<Item = R>,
        encode: impl Fn(R, u32) -> Vec<u8>,
        subject: &'static str,
    ) -> Result<Vec<Result<(), NetlinkError>>, NetlinkError> {
        let first = self.sequence.wrapping_add(1);
        let mut bytes = Vec::new();
        let mut outcomes: Vec<Option<Result<(), NetlinkError>>> = Vec::new();
        for request in requests {
            self.sequence = self.sequence.wrapping_add(1);
            bytes.extend(encode(request, self.sequence));
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            outcomes.push(None);
        }
        let mut missing = outcomes.len();
        if missing > 0 {
            self.raw.send_to(&bytes, &SocketAddr::new(0, 0), 0).map_err(socket_error("send"))?;
        }
        while missing > 0 {
            receive(&self.raw, &mut self.datagram, subject)?;
            for frame in wire::frames(&self.datagram) {
                let frame = frame?;
                let at = frame.sequence.wrapping_sub(first) as usize;
                if let Some(outcome @ None) = outcomes.get_mut(at)
                    && frame.kind == NLMSG_ERROR
                {
                    *outcome = Some(wire::parse_ack(subject, &frame));
                    missing -= 1;
                }
            }
        }
        Ok(outcomes.into_iter().flatten().collect())
    }

    /// Sends nftables messages, each with its type and flags, as a transaction: all of them take
    /// effect, or none.
    pub(super) fn transaction(
        &mut self,
        messages: &[(u16, u16, Vec<u8>)],
        subject: &'static str,
    ) -> Result<(), NetlinkError> {
        let begin = self.sequence.wrapping_add(1);
        let mut next = || {
            self.sequence = self.sequence.wrapping_add(1);
            self.sequence
        };
        let mut bytes = wire::encode(NFNL_MSG_BATCH_BEGIN, NLM_F_REQUEST, next(), &NFTABLES_BATCH);
        for (kind, flags, payload) in messages {
            bytes.extend(wire::encode(*kind, flags | NLM_F_REQUEST | NLM_F_ACK, next(), payload));
        }
        bytes.extend(wire::encode(NFNL_MSG_BATCH_END, NLM_F_REQUEST, next(), &NFTABLES_BATCH));
        self.raw.send_to(&bytes, &SocketAddr::new(0, 0), 0).map_err(socket_error("send"))?;
        let mut missing = messages.len();
        while missing > 0 {
            receive(&self.raw, &mut self.datagram, subject)?;
            for frame in wire::frames(&self.datagram) {
                let frame = frame?;
                let is_ours = (frame.sequence.wrapping_sub(begin) as usize) < messages.len() + 2;
                if is_ours && frame.kind == NLMSG_ERROR {
                    wire::parse_ack(subject, &frame)?;
                    missing = missing.saturating_sub(1);
                }
            }
        }
        Ok(())
    }

    /// Sends nftables messages, each with its type, flags and payload, as a transaction: all of
    /// them take effect, or none. Returns the positions of the refused messages, with the reasons.
    ///
    /// # Errors
    /// If the outcome is unknown.
    pub(super) fn transaction_with_outcomes(
        &mut self,
        messages: &[tortie_nftables::wire::Message],
        subject: &'static str,
    ) -> Result<Vec<(usize, NetlinkError)>, NetlinkError> {
        let begin = self.sequence.wrapping_add(1);
        let Some((bytes, last)) = encode_batch(messages, begin) else { return Ok(Vec::new()) };
        self.sequence = last.wrapping_add(1);
        self.raw.send_to(&bytes, &SocketAddr::new(0, 0), 0).map_err(socket_error("send"))?;
        let mut refused = Vec::new();
        let mut is_answered = false;
        // The kernel has answered before the call returns: after a refusal no more answers follow.
        while !is_answered {
            if refused.is_empty() {
                receive(&self.raw, &mut self.datagram, subject)?;
            } else if self.receive_now(subject)?.is_none() {
                break;
            }
            for frame in wire::frames(&self.datagram) {
                let frame = frame?;
                let at = frame.sequence.wrapping_sub(begin) as usize;
                if frame.kind != NLMSG_ERROR || at > messages.len() + 1 {
                    continue;
                }
                is_answered |= frame.sequence == last;
                if let Err(error) = wire::parse_ack(subject, &frame) {
                    if at == 0 {
                        return Err(error);
                    }
                    refused.push((at - 1, error));
                }
            }
        }
        Ok(refused)
    }

    /// Sends a request and returns its answer, decoded by `parse`.
    pub(super) fn get<T>(
        &mut self,
        request: Request,
        subject: &'static str,
        parse: impl Fn(u16, &[u8]) -> Result<Option<T>, NetlinkError>,
    ) -> Result<T, NetlinkError> {
        self.send(request, NLM_F_REQUEST)?;
        self.answer(subject, parse)
    }

    /// Lists the answers to a request, decoded by `parse`. Retries if the listed objects change
    /// meanwhile.
    pub(super) fn dump<T>(
        &mut self,
        request: Request,
        subject: &'static str,
        parse: impl Fn(u16, &[u8]) -> Result<Option<T>, NetlinkError>,
    ) -> Result<Vec<T>, NetlinkError> {
        let message = request.message;
        let mut attempt = 1;
        loop {
            let request = Request { message: message.clone(), flags: request.flags };
            match self.dump_once(request, subject, &parse) {
                Err(error) if error.is_worth_another_dump() && attempt < DUMP_ATTEMPTS => attempt += 1,
                result => return result,
            }
        }
    }

    fn dump_once<T>(
        &mut self,
        request: Request,
        subject: &'static str,
        parse: impl Fn(u16, &[u8]) -> Result<Option<T>, NetlinkError>,
    ) -> Result<Vec<T>, NetlinkError> {
        self.send(request, NLM_F_REQUEST | NLM_F_DUMP)?;
        self.listing(subject, parse)
    }

    /// Lists the answers to an encoded message, decoded by `parse`. Retries if the listed objects
    /// change meanwhile.
    pub(super) fn dump_raw<T>(
        &mut self,
        kind: u16,
        payload: &[u8],
        subject: &'static str,
        parse: impl Fn(u16, &[u8]) -> Result<Option<T>, NetlinkError>,
    ) -> Result<Vec<T>, NetlinkError> {
        let mut attempt = 1;
        loop {
            self.send_raw(kind, NLM_F_REQUEST | NLM_F_DUMP, payload)?;
            match self.listing(subject, &parse) {
                Err(error) if error.is_worth_another_dump() && attempt < DUMP_ATTEMPTS => attempt += 1,
                result => return result,
            }
        }
    }

    /// Passes the answers to an encoded message to `each` as they arrive. It may have received some
    /// before an error.
    pub(super) fn visit_raw<E: From<NetlinkError>>(
        &mut self,
        kind: u16,
        payload: &[u8],
        subject: &'static str,
        mut each: impl FnMut(u16, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.send_raw(kind, NLM_F_REQUEST | NLM_F_DUMP, payload)?;
        self.listing(subject, |kind, payload| each(kind, payload).map(|()| None::<Infallible>)).map(drop)
    }

    fn listing<T, E: From<NetlinkError>>(
        &mut self,
        subject: &'static str,
        mut parse: impl FnMut(u16, &[u8]) -> Result<Option<T>, E>,
    ) -> Result<Vec<T>, E> {
        let mut listing = Listing::new(self.sequence, subject);
        loop {
            receive(&self.raw, &mut self.datagram, subject)?;
            if listing.take(&self.datagram, &mut parse)? {
                return Ok(listing.into_found());
            }
        }
    }
}

/// Encodes a batch of nftables messages, beginning with this sequence number. Also returns the
/// sequence number of the message whose answer means that all earlier ones are done; `None` if
/// there are no messages. It is the last one that changes something, since kernels before 6.10 do
/// not answer to the end of a batch.
fn encode_batch(messages: &[tortie_nftables::wire::Message], begin: u32) -> Option<(Vec<u8>, u32)> {
    let (last, others) = messages.split_last()?;
    let mut bytes = wire::encode(NFNL_MSG_BATCH_BEGIN, NLM_F_REQUEST, begin, &NFTABLES_BATCH);
    let mut sequence = begin;
    for (message, flags) in others.iter().map(|message| (message, 0)).chain([(last, NLM_F_ACK)]) {
        sequence = sequence.wrapping_add(1);
        bytes.extend(wire::encode(message.kind, message.flags | NLM_F_REQUEST | flags, sequence, &message.payload));
    }
    bytes.extend(wire::encode(NFNL_MSG_BATCH_END, NLM_F_REQUEST, sequence.wrapping_add(1), &NFTABLES_BATCH));
    Some((bytes, sequence))
}

/// Socket that receives changes of links and local addresses, in the order in which the kernel
/// makes them.
pub struct Subscription {
    raw: RawSocket,
    datagram: Vec<u8>,
    timeout: Option<Duration>,
}

impl std::fmt::Debug for Subscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subscription").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl Subscription {
    /// Subscribes to links and to the routes of both families.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn open() -> Result<Self, NetlinkError> {
        let raw = open(NETLINK_ROUTE)?;
        for group in [RTNLGRP_LINK, RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_ROUTE] {
            raw.add_membership(group).map_err(socket_error("subscribe"))?;
        }
        Ok(Self { raw, datagram: Vec::new(), timeout: None })
    }

    /// Waits for changes; returns none if there are none within `timeout`.
    ///
    /// # Errors
    /// [`NetlinkError::Overflow`] if changes were lost. After any error, the caller has to list
    /// everything again.
    pub fn receive(&mut self, timeout: Duration) -> Result<Vec<Notice>, NetlinkError> {
        if self.timeout != Some(timeout) {
            set_timeout(&self.raw, timeout)?;
            self.timeout = Some(timeout);
        }
        match receive(&self.raw, &mut self.datagram, "changes of links") {
            Ok(()) => wire::frames(&self.datagram)
                .filter_map(|frame| frame.and_then(|frame: Frame<'_>| Notice::parse(&frame)).transpose())
                .collect(),
            Err(NetlinkError::Timeout { .. }) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use tortie_nftables::wire::Message;

    use super::*;

    #[test]
    fn a_batch_asks_its_last_change_for_an_answer_as_old_kernels_answer_to_no_end() {
        let message = |kind, flags| Message { kind, flags, payload: vec![7; 4], command: 0 };
        let (bytes, last) = encode_batch(&[message(0xa00, 0x400), message(0xa03, 0x800)], u32::MAX).unwrap();
        let frames: Vec<_> = wire::frames(&bytes).map(Result::unwrap).collect();
        let sent: Vec<_> = frames.iter().map(|frame| (frame.kind, frame.flags, frame.sequence)).collect();
        let expected = [
            (NFNL_MSG_BATCH_BEGIN, NLM_F_REQUEST, u32::MAX),
            (0xa00, NLM_F_REQUEST | 0x400, 0),
            (0xa03, NLM_F_REQUEST | NLM_F_ACK | 0x800, 1),
            (NFNL_MSG_BATCH_END, NLM_F_REQUEST, 2),
        ];
        assert_eq!(sent, expected);
        assert_eq!(last, 1);
        assert_eq!(encode_batch(&[], 1), None);
    }
}
