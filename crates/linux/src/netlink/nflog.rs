//! Packets that rules log with `NFLOG` (`linux/netfilter/nfnetlink_log.h`).

mod headers;
mod message;
mod sequence;

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::io::Errno;

use super::error::NetlinkError;
use super::socket::Socket;
use super::waiting::{DATAGRAMS, Read, read_waiting};
use super::wire::attribute;

pub use headers::LoggedHeaders;
pub(super) use headers::behind_extensions;
pub use message::LoggedPacket;
use message::Message;
use sequence::Sequence;

/// `NFNL_SUBSYS_ULOG`, in the upper byte of a message type.
const SUBSYSTEM: u16 = 4 << 8;
const NFULNL_MSG_PACKET: u16 = SUBSYSTEM;
const NFULNL_MSG_CONFIG: u16 = SUBSYSTEM | 1;

const NFULA_CFG_CMD: u16 = 1;
const NFULA_CFG_MODE: u16 = 2;
const NFULA_CFG_NLBUFSIZ: u16 = 3;
const NFULA_CFG_TIMEOUT: u16 = 4;
const NFULA_CFG_QTHRESH: u16 = 5;
const NFULA_CFG_FLAGS: u16 = 6;
const NFULNL_CFG_CMD_BIND: u8 = 1;
const NFULNL_COPY_PACKET: u8 = 2;
const NFULNL_CFG_F_SEQ: u16 = 1;
const NFULNL_CFG_F_CONNTRACK: u16 = 4;

/// Number of bytes of a packet that are copied: enough for the longest IPv4 header, or that of IPv6
/// with some extension headers, and ports.
const COPIED: u32 = 128;
/// Numbers of packets and bytes at which a datagram is sent: four pages including the kernel's
/// overhead, which the kernel can allocate at any time.
const PACKETS_PER_DATAGRAM: u32 = 64;
const BYTES_PER_DATAGRAM: u32 = 4 * 4096 - 512;
/// Maximum delay of a datagram that is not full, in hundredths of a second.
const HELD_BACK: u32 = 5;
/// Timeout for answers of the kernel.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Receiver of the packets that rules of this network namespace log to some groups. No other
/// process can read these groups meanwhile.
///
/// A packet arrives at most a tenth of a second after it was logged. A packet that is not read in
/// time is lost, and never blocks the kernel.
///
/// ```no_run
/// use tortie_linux::netlink::Nflog;
///
/// let mut nflog = Nflog::open(&[1, 2])?;
/// // When its descriptor is readable:
/// let read = nflog.read(|packet| {
///     println!("{} {:?}", String::from_utf8_lossy(packet.prefix), packet.packet.tuple);
/// })?;
/// println!("{} packets, {} lost", read.messages, read.lost);
/// # Ok::<(), tortie_linux::netlink::NetlinkError>(())
/// ```
#[derive(Debug)]
pub struct Nflog {
    socket: Socket,
    sequence: Sequence,
    provides_connections: bool,
}

impl Nflog {
    /// Begins to receive the packets of these groups.
    ///
    /// # Errors
    /// [`NetlinkError::GroupTaken`] if another process reads one of them, another error if the
    /// kernel refuses.
    pub fn open(groups: &[u16]) -> Result<Self, NetlinkError> {
        let mut socket = Socket::open_netfilter(TIMEOUT)?;
        let groups: Vec<u16> = groups.iter().copied().collect::<BTreeSet<u16>>().into_iter().collect();
        let mut provides_connections = true;
        for &group in &groups {
            let mut outcome = bind(&mut socket, group, provides_connections);
            if provides_connections && outcome.as_ref().is_err_and(NetlinkError::is_unsupported) {
                provides_connections = false;
                outcome = bind(&mut socket, group, provides_connections);
            }
            match outcome {
                Err(error) if error.errno() == Some(Errno::PERM) && is_privileged(&mut socket)? => {
                    return Err(NetlinkError::GroupTaken { group });
                }
                outcome => outcome?,
            }
        }
        Ok(Self { socket, sequence: Sequence::new(&groups), provides_connections })
    }

    /// Reports whether the kernel provides the connection of a packet. A kernel without
    /// `NETFILTER_NETLINK_GLUE_CT` does not.
    #[must_use]
    pub const fn provides_connections(&self) -> bool {
        self.provides_connections
    }

    /// Passes the waiting packets to `each`, up to a limit. Does not wait for any.
    ///
    /// [`Read::lost`] is exact in the long run. The number of packets lost by an overrun is known
    /// when the group's next packet arrives; until then the overrun counts as one.
    ///
    /// # Errors
    /// If the socket cannot be read any more.
    pub fn read(&mut self, mut each: impl FnMut(LoggedPacket<'_>)) -> Result<Read, NetlinkError> {
        let sequence = &mut self.sequence;
        let mut read = read_waiting(&mut self.socket, "logged packets", DATAGRAMS, |frame| {
            if frame.kind != NFULNL_MSG_PACKET {
                return Ok(false);
            }
            let message = Message::parse(frame.payload)?;
            if let Some(number) = message.sequence {
                sequence.note(message.group, number);
            }
            let packet = message.packet.ok_or(NetlinkError::Malformed { subject: "logged packet" })?;
            each(packet);
            Ok(true)
        })?;
        read.lost = self.sequence.lost(read.lost);
        Ok(read)
    }
}

impl AsFd for Nflog {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn bind(socket: &mut Socket, group: u16, with_connections: bool) -> Result<(), NetlinkError> {
    let flags = NFULNL_CFG_F_SEQ | if with_connections { NFULNL_CFG_F_CONNTRACK } else { 0 };
    let [c0, c1, c2, c3] = COPIED.to_be_bytes();
    let payload = [
        header(group).to_vec(),
        attribute(NFULA_CFG_CMD, &[NFULNL_CFG_CMD_BIND]),
        attribute(NFULA_CFG_MODE, &[c0, c1, c2, c3, NFULNL_COPY_PACKET, 0]),
        attribute(NFULA_CFG_NLBUFSIZ, &BYTES_PER_DATAGRAM.to_be_bytes()),
        attribute(NFULA_CFG_TIMEOUT, &HELD_BACK.to_be_bytes()),
        attribute(NFULA_CFG_QTHRESH, &PACKETS_PER_DATAGRAM.to_be_bytes()),
        attribute(NFULA_CFG_FLAGS, &flags.to_be_bytes()),
    ];
    socket.request_raw(NFULNL_MSG_CONFIG, 0, &payload.concat(), "NFLOG group")
}

/// Reports whether this process may change netfilter at all. The kernel checks this first, also for
/// a request that does not exist. It reports a taken group with the same error.
fn is_privileged(socket: &mut Socket) -> Result<bool, NetlinkError> {
    match socket.request_raw(NFULNL_MSG_PACKET, 0, &header(0), "NFLOG") {
        Ok(()) => Ok(true),
        Err(error) => match error.errno() {
            Some(errno) => Ok(errno != Errno::PERM),
            None => Err(error),
        },
    }
}

/// Encodes `struct nfgenmsg`: no family, version 0, the group.
fn header(group: u16) -> [u8; 4] {
    let [high, low] = group.to_be_bytes();
    [0, 0, high, low]
}

#[cfg(test)]
mod tests;
