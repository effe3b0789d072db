//! Thread that listens for announcements, until all have come or none is expected any more.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, eth, recvfrom, socket_with, sockopt};
use rustix::pipe::{PipeFlags, pipe_with};
use tortie_dataplane::AnnouncementWatch;

use super::Report;
use super::packet::is_gratuitous;
use crate::link_address::Origin;
use crate::stop::poll_for;

/// Size of the receive buffer in bytes: room for some thousand packets between two reads.
const RECEIVE_BUFFER: usize = 4 * 1024 * 1024;
/// Maximum number of packets of a kind that are read in sequence.
const BATCH: usize = 1024;
/// Pause of the thread when more packets wait, so that a flood of packets does not keep it busy.
const REST: Duration = Duration::from_millis(5);
/// Buffer size in bytes. ARP packets with the longest addresses are longer, but all relevant ones
/// fit.
const PACKET: usize = 256;
/// Maximum wait of the thread.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// Running thread. It stops when this is dropped.
#[derive(Debug)]
pub(super) struct Listener {
    /// Closing it makes the other end readable.
    _stop: OwnedFd,
}

/// Socket for one kind of packet from all interfaces of this network namespace. A socket for all
/// kinds would receive every packet of the node.
struct PacketReceiver {
    socket: OwnedFd,
    /// Whether any packet is an announcement.
    any: bool,
}

impl PacketReceiver {
    fn open(protocol: Protocol, any: bool) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::PACKET, SocketType::DGRAM, flags, Some(protocol))?;
        if sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER).is_err() {
            sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER)?;
        }
        Ok(Self { socket, any })
    }

    /// Reads the received packets, reports the machines that have announced themselves, and removes
    /// them from `awaited`. Returns true if more packets may wait.
    fn receive(&self, awaited: &mut BTreeMap<u32, Vec<u64>>, report: &Report) -> io::Result<bool> {
        for _ in 0..BATCH {
            let mut packet = [0; PACKET];
            let (length, origin) = match recvfrom(&self.socket, &mut packet[..], RecvFlags::empty()) {
                Ok((length, _, origin)) => (length, origin),
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let origin = origin.as_ref().and_then(Origin::of).filter(|origin| !origin.is_own);
            if self.any || is_gratuitous(packet.get(..length).unwrap_or_default()) {
                let numbers = origin.and_then(|origin| awaited.remove(&origin.interface));
                numbers.into_iter().flatten().for_each(report);
            }
        }
        Ok(true)
    }
}

impl Listener {
    /// Starts to listen. Announcements after the return are reported.
    pub(super) fn start<'a>(
        watches: impl Iterator<Item = &'a AnnouncementWatch>,
        report: Arc<Report>,
    ) -> io::Result<Self> {
        let receivers = [PacketReceiver::open(eth::RARP, true)?, PacketReceiver::open(eth::ARP, false)?];
        let (stopped, stop) = pipe_with(PipeFlags::CLOEXEC)?;
        let mut awaited: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for watch in watches {
            awaited.entry(watch.index).or_default().push(watch.number);
        }
        let listen = move || {
            if let Err(error) = listen(&receivers, &stopped, awaited, &*report) {
                tracing::warn!(%error, "the listener for announcements of virtual machines has ended");
            }
        };
        thread::Builder::new().name("announcements".to_owned()).spawn(listen)?;
        Ok(Self { _stop: stop })
    }
}

fn listen(
    receivers: &[PacketReceiver; 2],
    stopped: &OwnedFd,
    mut awaited: BTreeMap<u32, Vec<u64>>,
    report: &Report,
) -> io::Result<()> {
    while !awaited.is_empty() {
        let [rarp, arp] = receivers.each_ref().map(|receiver| PollFd::new(&receiver.socket, PollFlags::IN));
        let mut descriptors = [rarp, arp, PollFd::from_borrowed_fd(stopped.as_fd(), PollFlags::IN)];
        poll_for(&mut descriptors, LONGEST_WAIT)?;
        if descriptors.last().is_some_and(|stopped| !stopped.revents().is_empty()) {
            return Ok(());
        }
        let mut is_busy = false;
        for receiver in receivers {
            is_busy |= receiver.receive(&mut awaited, report)?;
        }
        if is_busy {
            thread::sleep(REST);
        }
    }
    Ok(())
}
