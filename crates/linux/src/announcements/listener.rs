//! A thread that listens for announcements, until all that are expected have come or nobody expects any.

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

/// Room for what comes while nobody reads: some thousand packets.
const RECEIVE_BUFFER: usize = 4 * 1024 * 1024;
/// How many packets of a kind are read in a row.
const BATCH: usize = 1024;
/// How long the thread rests when there are more, so that whoever floods the node with them does not keep it busy.
const REST: Duration = Duration::from_millis(5);
/// An ARP packet with the longest addresses is longer, and none that matters is.
const PACKET: usize = 256;
/// How long the thread sleeps at most.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// A running thread. It stops when this is dropped.
#[derive(Debug)]
pub(super) struct Listener {
    /// When it is closed the other end becomes readable.
    _stop: OwnedFd,
}

/// A socket for one kind of packet from all interfaces of this network namespace; one for all kinds would be given every
/// packet of the node.
struct Ear {
    socket: OwnedFd,
    /// Whether any packet is an announcement.
    any: bool,
}

impl Ear {
    fn open(protocol: Protocol, any: bool) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::PACKET, SocketType::DGRAM, flags, Some(protocol))?;
        if sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER).is_err() {
            sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER)?;
        }
        Ok(Self { socket, any })
    }

    /// Reads what has come, and takes out of `awaited` whoever has announced itself. Returns whether that may not be all.
    fn hear(&self, awaited: &mut BTreeMap<u32, Vec<u64>>, report: &Report) -> io::Result<bool> {
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
    /// Announcements of all that come after this returns are reported.
    pub(super) fn start<'a>(
        watches: impl Iterator<Item = &'a AnnouncementWatch>,
        report: Arc<Report>,
    ) -> io::Result<Self> {
        let ears = [Ear::open(eth::RARP, true)?, Ear::open(eth::ARP, false)?];
        let (stopped, stop) = pipe_with(PipeFlags::CLOEXEC)?;
        let mut awaited: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for watch in watches {
            awaited.entry(watch.index).or_default().push(watch.number);
        }
        let listen = move || {
            if let Err(error) = listen(&ears, &stopped, awaited, &*report) {
                tracing::warn!(%error, "Cannot listen for announcements of virtual machines any more");
            }
        };
        thread::Builder::new().name("announcements".to_owned()).spawn(listen)?;
        Ok(Self { _stop: stop })
    }
}

fn listen(ears: &[Ear; 2], stopped: &OwnedFd, mut awaited: BTreeMap<u32, Vec<u64>>, report: &Report) -> io::Result<()> {
    while !awaited.is_empty() {
        let [rarp, arp] = ears.each_ref().map(|ear| PollFd::new(&ear.socket, PollFlags::IN));
        let mut descriptors = [rarp, arp, PollFd::from_borrowed_fd(stopped.as_fd(), PollFlags::IN)];
        poll_for(&mut descriptors, LONGEST_WAIT)?;
        if descriptors.last().is_some_and(|stopped| !stopped.revents().is_empty()) {
            return Ok(());
        }
        let mut is_busy = false;
        for ear in ears {
            is_busy |= ear.hear(&mut awaited, report)?;
        }
        if is_busy {
            thread::sleep(REST);
        }
    }
    Ok(())
}
