//! Packets that rules hand to a program with `NFQUEUE` (`linux/netfilter/nfnetlink_queue.h`).

mod message;
mod packet;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netdevice;
use tortie_model::InterfaceName;

use super::error::NetlinkError;
use super::socket::Socket;
use super::waiting::{Read, read_waiting};
use super::wire::attribute;

pub use message::{QueueHook, Queued};
pub use packet::{Segment, Transport, TransportPacket};

/// `NFNL_SUBSYS_QUEUE`, in the upper byte of a message type.
const SUBSYSTEM: u16 = 3 << 8;
const NFQNL_MSG_PACKET: u16 = SUBSYSTEM;
const NFQNL_MSG_VERDICT: u16 = SUBSYSTEM | 1;
const NFQNL_MSG_CONFIG: u16 = SUBSYSTEM | 2;

const NFQA_CFG_CMD: u16 = 1;
const NFQA_CFG_PARAMS: u16 = 2;
const NFQA_CFG_QUEUE_MAXLEN: u16 = 3;
const NFQA_CFG_MASK: u16 = 4;
const NFQA_CFG_FLAGS: u16 = 5;
const NFQNL_CFG_CMD_BIND: u8 = 1;
const NFQNL_CFG_CMD_UNBIND: u8 = 2;
const NFQNL_COPY_PACKET: u8 = 2;
const NFQA_CFG_F_FAIL_OPEN: u32 = 1;
const NFQA_CFG_F_CONNTRACK: u32 = 1 << 1;
/// Not requested: without it the kernel splits aggregated packets before it queues them.
const NFQA_CFG_F_GSO: u32 = 1 << 2;

const NFQA_VERDICT_HDR: u16 = 2;
const NF_ACCEPT: u32 = 1;

/// Number of bytes of a packet that are copied: all of the longest one.
const COPIED: u32 = 0xffff;
/// Packets in one read: the first one waits for its verdict until the last one has been read.
const PACKETS: usize = 32;
/// Verdicts in one call of the kernel.
const VERDICTS: usize = 1_024;
/// Timeout for answers of the kernel.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A queue of packets that rules of this network namespace hold back until their verdict. No other
/// process can have the same number meanwhile.
///
/// A packet that does not fit into the queue or the socket is accepted (`FAIL_OPEN`), never
/// dropped. The kernel drops the held packets when the socket is closed: a caller accepts them
/// before, and calls [`Nfqueue::close`].
///
/// ```no_run
/// use tortie_linux::netlink::Nfqueue;
///
/// let mut queue = Nfqueue::open(101, 1_024)?;
/// // When its descriptor is readable:
/// let mut ids = Vec::new();
/// let read = queue.read(|queued| ids.push(queued.id))?;
/// println!("{} packets, {} lost", read.messages, read.lost);
/// queue.accept(&ids)?;
/// queue.close()?;
/// # Ok::<(), tortie_linux::netlink::NetlinkError>(())
/// ```
#[derive(Debug)]
pub struct Nfqueue {
    socket: Socket,
    number: u16,
    provides_connections: bool,
}

impl Nfqueue {
    /// Begins to receive the packets of a queue. `length` is the largest number of held packets;
    /// the kernel accepts further ones. Packets that come before the kernel has confirmed the
    /// request are accepted unread.
    ///
    /// # Errors
    /// [`NetlinkError::QueueTaken`] if another process has the queue, or if the kernel refuses.
    pub fn open(number: u16, length: u32) -> Result<Self, NetlinkError> {
        let mut socket = Socket::open_netfilter(TIMEOUT)?;
        let mut provides_connections = true;
        let mut outcome = bind(&mut socket, number, length, provides_connections);
        if outcome.as_ref().is_err_and(lacks_connections) {
            provides_connections = false;
            outcome = bind(&mut socket, number, length, provides_connections);
        }
        let early = match outcome {
            Err(error) if error.errno() == Some(Errno::PERM) && is_privileged(&mut socket, number)? => {
                return Err(NetlinkError::QueueTaken { queue: number });
            }
            outcome => outcome?,
        };
        let mut queue = Self { socket, number, provides_connections };
        queue.accept(&early)?;
        Ok(queue)
    }

    /// Reports whether the kernel provides the direction of a packet in its connection. A kernel
    /// without `NETFILTER_NETLINK_GLUE_CT` does not.
    #[must_use]
    pub const fn provides_connections(&self) -> bool {
        self.provides_connections
    }

    /// Passes the waiting packets to `each`, at most 32. Does not wait for any.
    ///
    /// A lost message ([`Read::lost`]) means that the kernel has accepted at least one packet that
    /// did not fit into the socket.
    ///
    /// # Errors
    /// If the socket cannot be read any more.
    pub fn read(&mut self, mut each: impl FnMut(Queued<'_>)) -> Result<Read, NetlinkError> {
        read_waiting(&mut self.socket, "queued packets", PACKETS, |frame| {
            // Others are errors of verdicts about packets that the kernel no longer holds, for
            // example because their interface is gone.
            if frame.kind != NFQNL_MSG_PACKET {
                return Ok(false);
            }
            each(Queued::parse(frame.payload)?);
            Ok(true)
        })
    }

    /// Accepts packets. Ids that the kernel no longer holds are ignored.
    ///
    /// # Errors
    /// If the socket cannot be written. Some packets may have been accepted.
    pub fn accept(&mut self, ids: &[u32]) -> Result<(), NetlinkError> {
        let header = header(self.number);
        for some in ids.chunks(VERDICTS) {
            let verdicts = some.iter().map(|id| {
                let verdict = [NF_ACCEPT.to_be_bytes(), id.to_be_bytes()].concat();
                [header.to_vec(), attribute(NFQA_VERDICT_HDR, &verdict)].concat()
            });
            self.socket.send_without_answer(NFQNL_MSG_VERDICT, verdicts)?;
        }
        Ok(())
    }

    /// Gives the queue back. Packets that were not accepted are dropped.
    ///
    /// # Errors
    /// If the kernel refuses; the end of the socket has the same effect a little later.
    pub fn close(mut self) -> Result<(), NetlinkError> {
        let payload = [header(self.number).to_vec(), command(NFQNL_CFG_CMD_UNBIND)].concat();
        self.socket.request_raw(NFQNL_MSG_CONFIG, 0, &payload, "end of a queue of packets")
    }
}

impl AsFd for Nfqueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The kernel's names of interfaces by their indexes, at this moment.
#[derive(Debug, Default)]
pub struct InterfaceNames(BTreeMap<u32, Option<InterfaceName>>);

impl InterfaceNames {
    /// Returns the name of an interface of the network namespace in which `socket` was made; `None`
    /// if there is none, or if it is not a valid one. The kernel answers once for each index until
    /// [`InterfaceNames::forget`].
    pub fn get(&mut self, socket: impl AsFd, index: u32) -> Option<InterfaceName> {
        let name = || netdevice::index_to_name(socket, index).ok()?.parse().ok();
        *self.0.entry(index).or_insert_with(name)
    }

    /// Forgets all names, since interfaces can be renamed.
    pub fn forget(&mut self) {
        self.0.clear();
    }
}

/// Requests the queue. Returns the ids of packets that came before the answer.
fn bind(socket: &mut Socket, number: u16, length: u32, with_connections: bool) -> Result<Vec<u32>, NetlinkError> {
    let flags = NFQA_CFG_F_FAIL_OPEN | if with_connections { NFQA_CFG_F_CONNTRACK } else { 0 };
    let mask = flags | NFQA_CFG_F_GSO;
    let [c0, c1, c2, c3] = COPIED.to_be_bytes();
    let attributes = [
        command(NFQNL_CFG_CMD_BIND),
        attribute(NFQA_CFG_PARAMS, &[c0, c1, c2, c3, NFQNL_COPY_PACKET]),
        attribute(NFQA_CFG_QUEUE_MAXLEN, &length.to_be_bytes()),
        attribute(NFQA_CFG_FLAGS, &flags.to_be_bytes()),
        attribute(NFQA_CFG_MASK, &mask.to_be_bytes()),
    ];
    configure(socket, number, &attributes.concat())
}

/// Changes the configuration of a queue. Returns the ids of packets that came before the answer.
fn configure(socket: &mut Socket, number: u16, attributes: &[u8]) -> Result<Vec<u32>, NetlinkError> {
    let payload = [&header(number)[..], attributes].concat();
    let mut early = Vec::new();
    socket.request_raw_beside(NFQNL_MSG_CONFIG, 0, &payload, "queue of packets", |frame| {
        // A malformed packet has no id to accept.
        let packet = (frame.kind == NFQNL_MSG_PACKET).then(|| Queued::parse(frame.payload));
        early.extend(packet.and_then(Result::ok).map(|queued| queued.id));
    })?;
    Ok(early)
}

/// Encodes `struct nfqnl_msg_config_cmd` without a protocol family.
fn command(command: u8) -> Vec<u8> {
    attribute(NFQA_CFG_CMD, &[command, 0, 0, 0])
}

/// Reports whether the kernel refuses because it cannot tell the connection of a packet.
fn lacks_connections(error: &NetlinkError) -> bool {
    error.is_unsupported() || error.errno() == Some(Errno::AGAIN)
}

/// Reports whether this process may change netfilter at all. The kernel checks this first, also for
/// a request that does not exist. It reports a taken queue with the same error.
fn is_privileged(socket: &mut Socket, number: u16) -> Result<bool, NetlinkError> {
    match socket.request_raw(NFQNL_MSG_PACKET, 0, &header(number), "queue of packets") {
        Ok(()) => Ok(true),
        Err(error) => match error.errno() {
            Some(errno) => Ok(errno != Errno::PERM),
            None => Err(error),
        },
    }
}

/// Encodes `struct nfgenmsg`: no family, version 0, the queue.
fn header(number: u16) -> [u8; 4] {
    let [high, low] = number.to_be_bytes();
    [0, 0, high, low]
}

#[cfg(test)]
mod tests;
