//! A probe: the first packet of a connection, and its answer. No data are sent.

mod namespace;
mod packet;

pub use namespace::{NamespaceError, inside, of_pod};

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::stop::{Stop, poll_for};
use packet::{echo, is_echo_reply, is_sctp_answer, sctp_init, without_ipv4_header};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, bind, connect, ipproto, recv, send,
    socket_with, sockopt,
};

/// Time limit of the answer. A lost SYN is sent again after a second.
const PATIENCE: Duration = Duration::from_secs(3);
const UDPLITE: u8 = 136;

/// The fields of a flow behind its addresses and protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowFields {
    /// Ports of a protocol with ports.
    Ports {
        /// Source port; `None` if any, or if the kernel chooses it.
        source: Option<u16>,
        /// Destination port.
        destination: u16,
    },
    /// An ICMP message of either family.
    Icmp {
        /// Its type.
        icmp_type: u8,
        /// Its code.
        code: u8,
        /// The identifier of an echo; `None` if any, 0 in a probe.
        id: Option<u16>,
    },
    /// Another protocol.
    Other,
}

/// A probe of a flow.
///
/// ```
/// use tortie_linux::probe::{FlowFields, Probe};
///
/// let fields = FlowFields::Ports { source: None, destination: 53 };
/// assert!(Probe::is_possible(17, fields));
/// assert!(!Probe::is_possible(47, FlowFields::Other));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    /// Address and port from which it is sent; port 0 lets the kernel choose one.
    pub source: SocketAddr,
    /// Address and port to which it is sent.
    pub target: SocketAddr,
    /// Number of the IP protocol.
    pub protocol: u8,
    /// Its other fields.
    pub fields: FlowFields,
}

/// Answer to a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeAnswer {
    /// A packet of the target.
    Answered,
    /// An error, such as a reset or an ICMP message, by its text.
    Refused(String),
    /// Nothing within 3 s.
    Silent,
}

impl Probe {
    /// Reports whether such a probe can be made: TCP, UDP, `UDPLite`, SCTP, or an ICMP echo
    /// request.
    #[must_use]
    pub fn is_possible(protocol: u8, fields: FlowFields) -> bool {
        match fields {
            FlowFields::Ports { .. } => matches!(protocol, 6 | 17 | 132 | UDPLITE),
            FlowFields::Icmp { icmp_type, .. } => matches!(icmp_type, 8 | 128),
            FlowFields::Other => false,
        }
    }

    /// Sends in the network namespace of this thread. Waits for the answer, or until it is stopped.
    ///
    /// # Errors
    /// If nothing could be sent, such as from an address that the namespace lacks.
    pub fn send(&self, stop: &Stop) -> io::Result<ProbeAnswer> {
        let end = Instant::now() + PATIENCE;
        match (self.protocol, self.fields) {
            (6, _) => self.tcp(stop, end),
            (protocol @ (17 | UDPLITE), _) => {
                let protocol = if protocol == 17 { ipproto::UDP } else { ipproto::UDPLITE };
                let socket = self.open(SocketType::DGRAM, protocol, true)?;
                connect(&socket, &self.target)?;
                self.exchange(&socket, &[], stop, end, |_| true)
            }
            (132, _) => {
                let socket = self.open(SocketType::RAW, ipproto::SCTP, false)?;
                connect(&socket, &self.portless(self.target))?;
                let (from, to) = (self.source.port(), self.target.port());
                self.exchange(&socket, &sctp_init(from, to), stop, end, |packet| is_sctp_answer(packet, from, to))
            }
            (_, FlowFields::Icmp { icmp_type, code, id }) => {
                let id = id.unwrap_or_default();
                let protocol = if self.source.is_ipv4() { ipproto::ICMP } else { ipproto::ICMPV6 };
                let socket = self.open(SocketType::RAW, protocol, false)?;
                connect(&socket, &self.portless(self.target))?;
                self.exchange(&socket, &echo(icmp_type, code, id), stop, end, |packet| is_echo_reply(packet, id))
            }
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn portless(&self, end: SocketAddr) -> SocketAddr {
        SocketAddr::new(end.ip(), 0)
    }

    fn open(&self, kind: SocketType, protocol: Protocol, with_port: bool) -> io::Result<OwnedFd> {
        let family = if self.source.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, Some(protocol))?;
        bind(&socket, &if with_port { self.source } else { self.portless(self.source) })?;
        Ok(socket)
    }

    fn tcp(&self, stop: &Stop, end: Instant) -> io::Result<ProbeAnswer> {
        let socket = self.open(SocketType::STREAM, ipproto::TCP, true)?;
        // A reset closes the connection at both ends without a state that lingers.
        sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
        match connect(&socket, &self.target) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return refused(error),
        }
        while wait(&socket, PollFlags::OUT, stop, end)? {
            match sockopt::socket_error(&socket)? {
                Err(error) => return refused(error),
                // After a spurious event the socket is not connected.
                Ok(()) if rustix::net::getpeername(&socket).is_ok() => return Ok(ProbeAnswer::Answered),
                Ok(()) => {}
            }
        }
        Ok(ProbeAnswer::Silent)
    }

    fn exchange(
        &self,
        socket: &OwnedFd,
        packet: &[u8],
        stop: &Stop,
        end: Instant,
        is_answer: impl Fn(&[u8]) -> bool,
    ) -> io::Result<ProbeAnswer> {
        if let Err(error) = send(socket, packet, SendFlags::empty()) {
            return refused(error);
        }
        let mut buffer = [0; 2048];
        while wait(socket, PollFlags::IN, stop, end)? {
            match recv(socket, &mut buffer, RecvFlags::empty()) {
                Ok((length, _)) => {
                    let packet = buffer.get(..length).unwrap_or_default();
                    let is_raw_v4 = self.source.is_ipv4() && !matches!(self.protocol, 17 | UDPLITE);
                    if is_answer(if is_raw_v4 { without_ipv4_header(packet) } else { packet }) {
                        return Ok(ProbeAnswer::Answered);
                    }
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return refused(error),
            }
        }
        Ok(ProbeAnswer::Silent)
    }
}

/// Converts an error into an answer if the packet was refused or lost; any other error means that
/// none was sent.
fn refused(error: Errno) -> io::Result<ProbeAnswer> {
    match error {
        Errno::CONNREFUSED
        | Errno::CONNRESET
        | Errno::HOSTUNREACH
        | Errno::NETUNREACH
        | Errno::PERM
        | Errno::ACCESS => Ok(ProbeAnswer::Refused(io::Error::from(error).to_string())),
        Errno::TIMEDOUT => Ok(ProbeAnswer::Silent),
        error => Err(error.into()),
    }
}

/// Waits for an event of the socket; returns false at the end or when stopped.
fn wait(socket: &OwnedFd, flags: PollFlags, stop: &Stop, end: Instant) -> io::Result<bool> {
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || stop.is_set() {
            return Ok(false);
        }
        let mut waited = vec![PollFd::from_borrowed_fd(socket.as_fd(), flags)];
        waited.extend(stop.descriptor().map(|stop| PollFd::from_borrowed_fd(stop, PollFlags::IN)));
        poll_for(&mut waited, left)?;
        if waited.first().is_some_and(|socket| !socket.revents().is_empty()) {
            return Ok(true);
        }
    }
}
