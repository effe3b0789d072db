//! Notifications of connections that begin and end.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::connection::{Connection, Traffic};
use super::message::{IPCTNL_MSG_CT_DELETE, IPCTNL_MSG_CT_NEW, parse_with_traffic};
use crate::netlink::error::NetlinkError;
use crate::netlink::socket::Socket;
use crate::netlink::waiting::{DATAGRAMS, Read, read_waiting};

const NFNLGRP_CONNTRACK_NEW: u32 = 1;
const NFNLGRP_CONNTRACK_DESTROY: u32 = 3;
/// Unused: no request is sent, so no answer is waited for.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Begin or end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionEvent {
    /// Whether it has ended.
    pub ended: bool,
    /// The connection.
    pub connection: Connection,
    /// Counters of an ended connection, if the kernel counted (`net.netfilter.nf_conntrack_acct` at
    /// its begin). `None` for one that begins.
    pub traffic: Option<Traffic>,
}

impl ConnectionEvent {
    /// Decodes a message of this type (`NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_*`), without its
    /// netlink header; `None` if it is about something else.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn parse(kind: u16, message: &[u8]) -> Result<Option<Self>, NetlinkError> {
        let ended = match kind {
            IPCTNL_MSG_CT_NEW => false,
            IPCTNL_MSG_CT_DELETE => true,
            _ => return Ok(None),
        };
        let event = parse_with_traffic(message)?;
        Ok(event.map(|(connection, traffic)| Self { ended, connection, traffic }))
    }
}

/// Receiver of notifications of connections in this network namespace that begin and end. The begin
/// is reported when the first packet has passed all chains, so never for a connection whose first
/// packet is dropped.
///
/// Unless `net.netfilter.nf_conntrack_events` is 1, the kernel reports only the ends of connections
/// that began while some process was listening.
///
/// ```no_run
/// use tortie_linux::netlink::ConnectionEvents;
///
/// let mut events = ConnectionEvents::open()?;
/// // When its descriptor is readable:
/// let read = events.read(|event| println!("{} {:?}", if event.ended { "ended" } else { "new" }, event.connection))?;
/// if read.lost > 0 {
///     println!("some were lost");
/// }
/// # Ok::<(), tortie_linux::netlink::NetlinkError>(())
/// ```
#[derive(Debug)]
pub struct ConnectionEvents {
    socket: Socket,
}

impl ConnectionEvents {
    /// Subscribes.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn open() -> Result<Self, NetlinkError> {
        let mut socket = Socket::open_netfilter(TIMEOUT)?;
        for group in [NFNLGRP_CONNTRACK_NEW, NFNLGRP_CONNTRACK_DESTROY] {
            socket.subscribe(group)?;
        }
        Ok(Self { socket })
    }

    /// Passes the waiting events to `each`, up to a limit. Does not wait for any.
    ///
    /// The kernel does not report the number of lost events. [`Read::lost`] counts each overrun of
    /// the socket, after which it accepts no more events until all waiting ones are read.
    ///
    /// # Errors
    /// If the socket cannot be read any more.
    pub fn read(&mut self, mut each: impl FnMut(ConnectionEvent)) -> Result<Read, NetlinkError> {
        read_waiting(&mut self.socket, "connection events", DATAGRAMS, |frame| {
            let event = ConnectionEvent::parse(frame.kind, frame.payload)?;
            Ok(event.map(&mut each).is_some())
        })
    }
}

impl AsFd for ConnectionEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests;
