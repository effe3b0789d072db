//! nftables transactions on a real kernel, and the kernel's contents of a table, by netlink.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, sendto, socket_with};
use tortie_nftables::wire::{Snapshot, SnapshotReader, encode};
use tortie_nftables::{CommitError, Plan, Table, TableError, TableId, Transaction};

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
/// `struct nfgenmsg` for `NFNL_SUBSYS_NFTABLES`.
const BATCH: [u8; 4] = [0, 0, 0, 10];
const REQUEST: u16 = 1;
const ACK: u16 = 4;
const DUMP: u16 = 0x300;
const HEADER_LEN: usize = 16;
const BUFFER: usize = 64 << 20;

/// A netlink socket in the network namespace of the thread that opens it.
#[derive(Debug)]
pub struct Nft {
    socket: OwnedFd,
    sequence: u32,
}

/// Commands that the kernel refuses: position in the transaction, and error.
pub type Refused = Vec<(usize, Errno)>;

impl Nft {
    /// Opens a socket.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn open() -> Result<Self, Errno> {
        let socket =
            socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(netlink::NETFILTER))?;
        bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_secs(20)))?;
        sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER)?;
        sockopt::set_socket_send_buffer_size_force(&socket, BUFFER)?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Applies all changes of a transaction, or none.
    ///
    /// # Errors
    /// The commands that the kernel refuses.
    ///
    /// # Panics
    /// If the kernel does not answer.
    pub fn commit(&mut self, transaction: &Transaction) -> Result<(), Refused> {
        let messages = encode(transaction);
        let begin = self.sequence + 1;
        let mut bytes = self.message(BATCH_BEGIN, REQUEST, &BATCH);
        for message in &messages {
            bytes.extend(self.message(message.kind, message.flags | REQUEST, &message.payload));
        }
        // The kernel acknowledges the end after all commands.
        bytes.extend(self.message(BATCH_END, REQUEST | ACK, &BATCH));
        let end = self.sequence;
        sendto(&self.socket, &bytes, SendFlags::empty(), &SocketAddrNetlink::new(0, 0)).expect("the batch is sent");
        let mut refused = Refused::new();
        loop {
            for (kind, sequence, payload) in frames(&self.receive()) {
                if kind != NLMSG_ERROR || sequence < begin {
                    continue;
                }
                let code = i32::from_ne_bytes(payload[..4].try_into().expect("four bytes"));
                let command = |sequence: u32| {
                    let at = (sequence - begin) as usize;
                    messages.get(at.wrapping_sub(1)).map_or(transaction.commands.len(), |message| message.command)
                };
                if code != 0 {
                    refused.push((command(sequence), Errno::from_raw_os_error(-code)));
                }
                if sequence == end || (sequence == begin && code != 0) {
                    return if refused.is_empty() { Ok(()) } else { Err(refused) };
                }
            }
            if !refused.is_empty() {
                // After a refusal, the end is not acknowledged.
                return Err(refused);
            }
        }
    }

    /// Returns the kernel's contents of a table; `None` if the table does not exist.
    ///
    /// # Panics
    /// If the kernel does not answer.
    pub fn read(&mut self, table: TableId) -> Option<Snapshot> {
        let mut reader = SnapshotReader::new(table);
        while let Some(request) = reader.next_request() {
            let bytes = self.message(request.kind, REQUEST | DUMP, &request.payload);
            sendto(&self.socket, &bytes, SendFlags::empty(), &SocketAddrNetlink::new(0, 0)).expect("a request is sent");
            'listing: loop {
                for (kind, sequence, payload) in frames(&self.receive()) {
                    if sequence != self.sequence {
                        continue;
                    }
                    match kind {
                        // The table does not exist.
                        NLMSG_DONE | NLMSG_ERROR => break 'listing,
                        _ => reader.on_message(kind, payload).expect("the kernel's messages are complete"),
                    }
                }
            }
        }
        reader.finish()
    }

    /// Brings the kernel to the desired state of a table, and returns the transactions. Waiting
    /// times of the table elapse immediately.
    ///
    /// # Errors
    /// If the table cannot be brought to this state.
    ///
    /// # Panics
    /// If the kernel does not answer.
    pub fn apply(&mut self, table: &mut Table) -> Result<Vec<Transaction>, TableError> {
        let (id, mut now, mut committed) = (table.config().id, Duration::ZERO, Vec::new());
        loop {
            match table.plan(now) {
                Plan::Read => table.on_read(now, Ok(self.read(id))),
                Plan::Commit(transaction) => {
                    let result = self.commit(&transaction).map_err(|refused| {
                        let answer = |(at, errno): (usize, Errno)| (at, errno.raw_os_error(), errno.to_string());
                        CommitError::answered(refused.into_iter().map(answer))
                    });
                    committed.extend(result.is_ok().then_some(transaction));
                    table.on_committed(now, result);
                }
                Plan::Sleep { until } => now = until,
                Plan::Done { .. } => return Ok(committed),
                Plan::Failed(error) => return Err(error),
            }
        }
    }

    fn message(&mut self, kind: u16, flags: u16, payload: &[u8]) -> Vec<u8> {
        self.sequence += 1;
        let len = u32::try_from(HEADER_LEN + payload.len()).expect("short");
        let mut bytes = Vec::with_capacity(HEADER_LEN + payload.len());
        bytes.extend(len.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(self.sequence.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(payload);
        bytes
    }

    fn receive(&self) -> Vec<u8> {
        let mut buffer = vec![0; 256 << 10];
        let (len, _) = recv(&self.socket, &mut buffer[..], RecvFlags::empty()).expect("the kernel answers");
        buffer.truncate(len);
        buffer
    }
}

/// Returns type, sequence number and payload of each message of a datagram.
fn frames(mut rest: &[u8]) -> Vec<(u16, u32, &[u8])> {
    let mut frames = Vec::new();
    while rest.len() >= HEADER_LEN {
        let number = |at: usize| u32::from_ne_bytes(rest[at..at + 4].try_into().expect("four bytes"));
        let len = number(0) as usize;
        let kind = u16::from_ne_bytes([rest[4], rest[5]]);
        frames.push((kind, number(8), &rest[HEADER_LEN..len]));
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    frames
}
