//! Thread that sends all packets of a place.

use std::{
    collections::{HashMap, hash_map::Entry},
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    os::fd::OwnedFd,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread::JoinHandle,
    time::Duration,
};

use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with, sockopt},
};

use super::{Kind, ProbeLog, Task, raise_priority};
use tortie_lab::netns::{Namespace, NetnsError};

/// Source ports are used in turn, so that no packet matches the conntrack entry of an earlier one,
/// which has expired long before its port is reused.
const FIRST_PORT: u16 = 2_000;
const PORTS: usize = 30_000;
/// Connects use separate ports.
const FIRST_TCP_PORT: u16 = 33_000;

/// Timeout of a connect. Less than the kernel's first retransmission, which would be another
/// attempt.
const CONNECT: Duration = Duration::from_millis(400);

/// Maximum pause of the thread.
const REST: Duration = Duration::from_millis(20);

/// Starts the thread inside the namespace. It receives tasks, and ends when the channel is closed.
pub(super) fn start(log: &Arc<ProbeLog>, namespace: &Namespace) -> Result<(Sender<Task>, JoinHandle<()>), NetnsError> {
    let (tasks, taken) = channel();
    let log = Arc::clone(log);
    // A new thread inherits the namespace of its creator.
    let thread = namespace.run(move || {
        std::thread::spawn(move || {
            raise_priority();
            Loop { log, due: Vec::new(), connecting: Vec::new(), next_port: 0, steady: HashMap::new() }.run(&taken);
        })
    })?;
    Ok((tasks, thread))
}

#[derive(Debug)]
struct Connecting {
    id: usize,
    number: usize,
    socket: OwnedFd,
    begun: Duration,
}

struct Loop {
    log: Arc<ProbeLog>,
    /// Next sending time of each channel.
    due: Vec<(Duration, Task)>,
    connecting: Vec<Connecting>,
    next_port: usize,
    /// Sockets of channels with one connection.
    steady: HashMap<usize, UdpSocket>,
}

impl Loop {
    fn run(mut self, tasks: &Receiver<Task>) {
        loop {
            let now = self.log.now();
            let next = self.due.iter().map(|(at, _)| *at).min();
            let pause = next.map_or(REST, |at| at.saturating_sub(now)).min(REST);
            if pause.is_zero() {
                match tasks.try_recv() {
                    Ok(task) => self.due.push((now, task)),
                    Err(std::sync::mpsc::TryRecvError::Empty) => {}
                    Err(std::sync::mpsc::TryRecvError::Disconnected) => return,
                }
            } else {
                match tasks.recv_timeout(pause) {
                    Ok(task) => self.due.push((now, task)),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
            self.send();
            self.look_at_connects();
        }
    }

    fn send(&mut self) {
        let now = self.log.now();
        for index in 0..self.due.len() {
            let (at, task) = &mut self.due[index];
            if *at > now {
                continue;
            }
            // Packets that are overdue on a busy machine are skipped: a burst gives no more
            // information than one packet.
            *at = (*at + task.pace).max(now);
            let task = task.clone();
            let port = u16::try_from(self.next_port % PORTS).unwrap_or(0);
            self.next_port += 1;
            let number = self.log.sending(task.id);
            let sent = match task.kind {
                Kind::Connects => self.connect(&task, number, FIRST_TCP_PORT + port),
                Kind::Datagrams => datagram(&task, number, FIRST_PORT + port),
                Kind::OneConnection => self.one_more(&task, number, FIRST_PORT + port),
            };
            if sent.is_err() {
                self.log.unsent(task.id);
            }
        }
    }

    fn connect(&mut self, task: &Task, number: usize, port: u16) -> io::Result<()> {
        let family = if task.target.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        // A close by reset leaves no state.
        sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        rustix::net::bind(&socket, &anywhere(task.target, port))?;
        match rustix::net::connect(&socket, &task.target) {
            Ok(()) | Err(Errno::INPROGRESS) => {
                self.connecting.push(Connecting { id: task.id, number, socket, begun: self.log.now() });
                Ok(())
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// Sends one more packet of the same connection, from its first source port.
    fn one_more(&mut self, task: &Task, number: usize, port: u16) -> io::Result<()> {
        let socket = match self.steady.entry(task.id) {
            Entry::Occupied(socket) => socket.into_mut(),
            Entry::Vacant(none) => none.insert(UdpSocket::bind(anywhere(task.target, port))?),
        };
        let sent = socket.send_to(&packet(task, number, true), task.target);
        socket.set_nonblocking(true)?;
        // Answers serve conntrack only.
        while socket.recv(&mut [0; 64]).is_ok() {}
        sent.map(drop)
    }

    fn look_at_connects(&mut self) {
        let now = self.log.now();
        let log = &self.log;
        self.connecting.retain(|one| {
            match sockopt::socket_error(&one.socket) {
                Ok(Ok(())) if rustix::net::getpeername(&one.socket).is_ok() => {
                    log.arrived(one.id, one.number);
                    false
                }
                Ok(Ok(())) => now < one.begun + CONNECT,
                // Refused, so it did not arrive.
                Ok(Err(_)) | Err(_) => false,
            }
        });
    }
}

fn datagram(task: &Task, number: usize, port: u16) -> io::Result<()> {
    let socket = UdpSocket::bind(anywhere(task.target, port))?;
    socket.send_to(&packet(task, number, false), task.target).map(drop)
}

/// Encodes channel, number of the packet, and whether an answer is requested.
fn packet(task: &Task, number: usize, answer: bool) -> Vec<u8> {
    let (id, number) = (task.id as u64, number as u64);
    let mut packet = [id.to_be_bytes(), number.to_be_bytes()].concat();
    packet.push(answer.into());
    packet
}

/// Returns the wildcard address of the family of `target`, with this port.
fn anywhere(target: SocketAddr, port: u16) -> SocketAddr {
    if target.is_ipv4() { (Ipv4Addr::UNSPECIFIED, port).into() } else { (Ipv6Addr::UNSPECIFIED, port).into() }
}
