//! Events of the kernel: logged packets, and connections.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use tortie_flows::{ConnectionReport, FlowId, Hit};
use tortie_linux::bpf::{DecidedPacket, PacketLog};
use tortie_linux::netlink::{ConnectionEvents, Conntrack, NetlinkError, Nflog, Read};
use tortie_model::with_causes;
use tortie_rules::{NFLOG_GROUP_EGRESS, NFLOG_GROUP_INGRESS};

use super::edge;

const RETRY: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Logged {
    pub(super) id: FlowId,
    pub(super) length: u32,
    pub(super) by: LoggedBy,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LoggedBy {
    Rule(Box<str>),
    Program(Option<Arc<Hit>>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionEvent {
    Began(ConnectionReport),
    Ended(ConnectionReport),
}

#[derive(Debug, Default)]
pub(super) struct KernelEvents {
    pub(super) packets: Vec<Logged>,
    pub(super) connections: Vec<ConnectionEvent>,
    /// Number of messages that the kernel dropped, as far as it is known.
    pub(super) lost: u64,
    pub(super) unreadable: u64,
    pub(super) more: bool,
}

pub(super) trait Source {
    /// Waits for an event, at most for this time; returns false if the thread is to end.
    fn wait(&mut self, longest: Duration) -> bool;
    fn receive(&mut self, received: &mut KernelEvents);
    fn list(&mut self, each: &mut dyn FnMut(&ConnectionReport)) -> bool;
}

/// The kernel behind the network namespace of the thread that uses it.
#[derive(Debug)]
pub(super) struct Kernel {
    stopped: OwnedFd,
    log: PacketLog,
    /// Whether packets that rules log and connection events are read, and not only the log of eBPF
    /// programs.
    reads_all: bool,
    timeout: Duration,
    nflog: Opened<Nflog>,
    events: Opened<ConnectionEvents>,
    conntrack: Opened<Conntrack>,
}

/// A socket that is opened when it is needed, and again some time after a failure.
#[derive(Debug)]
struct Opened<T> {
    description: &'static str,
    socket: Option<T>,
    failed: Option<Instant>,
    is_logged: bool,
}

impl<T> Opened<T> {
    fn new(description: &'static str) -> Self {
        Self { description, socket: None, failed: None, is_logged: false }
    }

    fn get(&mut self, open: impl FnOnce() -> Result<T, NetlinkError>) -> Option<&mut T> {
        if self.socket.is_none() && self.failed.is_none_or(|at| at.elapsed() >= RETRY) {
            match open() {
                Ok(socket) => {
                    if std::mem::take(&mut self.is_logged) {
                        tracing::info!(events = self.description, "events of the kernel can be read again");
                    }
                    self.socket = Some(socket);
                }
                Err(error) => self.fail(&error),
            }
        }
        self.socket.as_mut()
    }

    fn fail(&mut self, error: &NetlinkError) {
        self.socket = None;
        self.failed = Some(Instant::now());
        if !std::mem::replace(&mut self.is_logged, true) {
            tracing::error!(events = self.description, error = %with_causes(error), "events of the kernel cannot be read; trying again");
        }
    }

    fn read(
        &mut self,
        received: &mut KernelEvents,
        open: impl FnOnce() -> Result<T, NetlinkError>,
        read: impl FnOnce(&mut T, &mut KernelEvents) -> Result<Read, NetlinkError>,
    ) {
        let Some(socket) = self.get(open) else { return };
        match read(socket, received) {
            Ok(read) => {
                received.lost += read.lost;
                received.unreadable += read.unreadable;
                received.more |= read.more;
            }
            Err(error) => self.fail(&error),
        }
    }
}

impl Kernel {
    /// Opens nothing yet. The thread ends when the other end of `stopped` is closed.
    pub(super) fn new(stopped: OwnedFd, log: PacketLog, reads_all: bool, timeout: Duration) -> Self {
        Self {
            stopped,
            log,
            reads_all,
            timeout,
            nflog: Opened::new("packets that rules log"),
            events: Opened::new("news of connections"),
            conntrack: Opened::new("tracked connections"),
        }
    }

    fn open_nflog() -> Result<Nflog, NetlinkError> {
        Nflog::open(&[NFLOG_GROUP_INGRESS, NFLOG_GROUP_EGRESS])
    }
}

impl Source for Kernel {
    fn wait(&mut self, longest: Duration) -> bool {
        if self.reads_all {
            // Opened before the wait, so that it covers them.
            self.nflog.get(Self::open_nflog);
            self.events.get(ConnectionEvents::open);
        }
        let mut fds = vec![PollFd::new(&self.stopped, PollFlags::IN)];
        let nflog = self.nflog.socket.as_ref().map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN));
        let events = self.events.socket.as_ref().map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN));
        // Without this descriptor the log is read all the same, whenever the wait ends.
        let log = self.log.readable().ok().flatten();
        let log = log.as_ref().map(|log| PollFd::new(log, PollFlags::IN));
        fds.extend(nflog.into_iter().chain(events).chain(log));
        let timeout = longest.try_into().ok();
        // An interrupted wait is a short one.
        let _ = poll(&mut fds, timeout.as_ref());
        fds.first().is_none_or(|stopped| stopped.revents().is_empty())
    }

    fn receive(&mut self, received: &mut KernelEvents) {
        // Packets first: the end of a connection that ended before one was logged is then read
        // below.
        let decided = self.log.take();
        received.lost += decided.lost;
        received.unreadable += decided.unreadable;
        received.packets.extend(decided.packets.into_iter().map(|DecidedPacket { id, length, by }| Logged {
            id,
            length,
            by: LoggedBy::Program(by),
        }));
        if !self.reads_all {
            return;
        }
        self.nflog.read(received, Self::open_nflog, |nflog, received| {
            nflog.read(|logged| {
                let prefix = std::str::from_utf8(logged.prefix).ok();
                if let (Some(prefix), Some(id)) = (prefix, edge::of_packet(&logged.packet.tuple)) {
                    received.packets.push(Logged {
                        id,
                        length: logged.packet.length,
                        by: LoggedBy::Rule(prefix.into()),
                    });
                } else {
                    received.unreadable += 1;
                }
            })
        });
        self.events.read(received, ConnectionEvents::open, |events, received| {
            events.read(|event| {
                let Some(connection) = edge::of_connection(&event.connection, event.traffic) else { return };
                received.connections.push(if event.ended {
                    ConnectionEvent::Ended(connection)
                } else {
                    ConnectionEvent::Began(connection)
                });
            })
        });
    }

    fn list(&mut self, each: &mut dyn FnMut(&ConnectionReport)) -> bool {
        let timeout = self.timeout;
        let Some(conntrack) = self.conntrack.get(|| Conntrack::open(timeout)) else { return false };
        let listed = conntrack.traffic(|tracked, traffic| {
            if let Some(connection) = edge::of_connection(tracked, traffic) {
                each(&connection);
            }
        });
        match listed {
            Ok(()) => true,
            Err(error) => {
                self.conntrack.fail(&error);
                false
            }
        }
    }
}
