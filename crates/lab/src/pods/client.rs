//! The prober: a thread that tries all flows concurrently.

use std::{
    collections::{HashMap, VecDeque},
    net::{IpAddr, SocketAddr, UdpSocket},
    os::fd::OwnedFd,
    sync::atomic::{AtomicU16, Ordering},
    time::{Duration, Instant},
};

use rustix::{
    event::{Timespec, epoll},
    io::Errno,
    net::{AddressFamily, RecvFlags, SocketFlags, SocketType, ipproto, socket_with},
};

use super::{
    Flow, FlowOutcome, Protocol, Reachability, Timing, sctp,
    server::{raw_sctp, receive_sctp, send_sctp},
};
use crate::netns::{Namespace, NetnsError, on_own_thread};

/// A flow with resolved addresses.
#[derive(Debug)]
pub(super) struct Attempt<'a> {
    pub(super) flow: &'a Flow,
    pub(super) namespace: &'a Namespace,
    pub(super) source: IpAddr,
    pub(super) target: SocketAddr,
}

/// Source ports are used in turn, so that no probe matches the conntrack entry of an earlier one.
static NEXT_PORT: AtomicU16 = AtomicU16::new(0);
const FIRST_PORT: u16 = 10_000;
const PORTS: u16 = 50_000;

fn next_port() -> u16 {
    FIRST_PORT + NEXT_PORT.fetch_add(1, Ordering::Relaxed) % PORTS
}

pub(super) fn probe(attempts: &[Attempt<'_>], timing: &Timing) -> Result<Reachability, NetnsError> {
    let (outcomes, ports) = on_own_thread(|| {
        let mut round = ProbeRound::open(attempts)?;
        round.run(timing).map_err(failed)?;
        Ok((round.outcomes, round.source_ports))
    })?;
    let outcome = |outcome: Option<FlowOutcome>| outcome.unwrap_or(FlowOutcome::Silent);
    let measured: Reachability =
        attempts.iter().zip(outcomes).map(|(one, answer)| (one.flow.clone(), outcome(answer))).collect();
    let ports = attempts.iter().zip(ports).filter_map(|(one, port)| Some((one.flow.clone(), port?)));
    Ok(measured.with_source_ports(ports.collect()))
}

/// Interval between new attempts of [`first_reached`].
const RETRY: Duration = Duration::from_millis(4);
/// Maximum wait for the answer of an attempt, and interval between checks for answers.
const LIFETIME: Duration = Duration::from_millis(100);
const LOOK: Duration = Duration::from_millis(1);

/// Tries repeatedly until the first answer arrives or `patience` has elapsed.
pub(super) fn first_reached(attempts: &[Attempt<'_>], patience: Duration) -> Result<Option<Instant>, NetnsError> {
    on_own_thread(|| {
        let begun = Instant::now();
        let mut rounds: VecDeque<(Instant, ProbeRound<'_>)> = VecDeque::new();
        while begun.elapsed() < patience {
            let now = Instant::now();
            while rounds.front().is_some_and(|(since, _)| now.duration_since(*since) > LIFETIME) {
                rounds.pop_front();
            }
            if rounds.back().is_none_or(|(since, _)| now.duration_since(*since) >= RETRY) {
                let round = ProbeRound::open(attempts)?;
                round.send();
                rounds.push_back((now, round));
            }
            for (_, round) in &mut rounds {
                round.poll(Duration::ZERO).map_err(failed)?;
                if round.outcomes.contains(&Some(FlowOutcome::Reached)) {
                    return Ok(Some(Instant::now()));
                }
            }
            std::thread::sleep(LOOK);
        }
        Ok(None)
    })
}

fn failed(source: std::io::Error) -> NetnsError {
    NetnsError::Socket { description: "probing".to_owned(), source }
}

/// A socket that waits for answers.
#[derive(Debug)]
enum Waiting {
    /// A connection; the answer is the server's name.
    Tcp { index: usize, socket: OwnedFd },
    /// All datagrams from one address; an answer repeats the index, followed by the server's name.
    Udp { socket: UdpSocket, indices: Vec<usize> },
    /// All associations from one address.
    Sctp { socket: OwnedFd, port: u16, indices: HashMap<SocketAddr, usize> },
}

struct ProbeRound<'a> {
    attempts: &'a [Attempt<'a>],
    outcomes: Vec<Option<FlowOutcome>>,
    source_ports: Vec<Option<u16>>,
    answered: usize,
    epoll: OwnedFd,
    /// Sockets by token.
    waiting: Vec<Option<Waiting>>,
}

impl<'a> ProbeRound<'a> {
    /// Creates all sockets, each inside the namespace of its source, and starts the connections.
    fn open(attempts: &'a [Attempt<'a>]) -> Result<Self, NetnsError> {
        let mut round = Self {
            attempts,
            outcomes: vec![None; attempts.len()],
            source_ports: vec![None; attempts.len()],
            answered: 0,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?,
            waiting: Vec::new(),
        };
        let mut by_source: Vec<(IpAddr, &Namespace, Vec<usize>)> = Vec::new();
        let mut slots = HashMap::new();
        for (index, one) in attempts.iter().enumerate() {
            let at = *slots.entry((&one.flow.from, one.source)).or_insert_with(|| {
                by_source.push((one.source, one.namespace, Vec::new()));
                by_source.len() - 1
            });
            by_source[at].2.push(index);
        }
        for (source, namespace, indices) in by_source {
            namespace.enter()?;
            round.open_from(source, &indices).map_err(failed)?;
        }
        Ok(round)
    }

    fn open_from(&mut self, source: IpAddr, indices: &[usize]) -> std::io::Result<()> {
        let attempts = self.attempts;
        let (mut tcp, mut udp, mut sctp) = (Vec::new(), Vec::new(), HashMap::new());
        for &index in indices {
            match attempts[index].flow.port.protocol {
                Protocol::Tcp => tcp.push(index),
                Protocol::Udp => udp.push(index),
                Protocol::Sctp => drop(sctp.insert(attempts[index].target, index)),
            }
        }
        let family = if source.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        if !udp.is_empty() {
            let socket = bind_next(|port| UdpSocket::bind((source, port)))?;
            let port = socket.local_addr()?.port();
            self.set_source_ports(port, udp.iter());
            socket.set_nonblocking(true)?;
            let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 1 << 20);
            self.watch(Waiting::Udp { socket, indices: udp })?;
        }
        if !sctp.is_empty() {
            let (socket, port) = (raw_sctp(family)?, next_port());
            self.set_source_ports(port, sctp.values());
            self.watch(Waiting::Sctp { socket, port, indices: sctp })?;
        }
        for index in tcp {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
            // A close by reset leaves no state in either pod.
            rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
            // The kernel would reuse some ports while it still tracks their last connection.
            let port = bind_next(|port| {
                rustix::net::bind(&socket, &SocketAddr::new(source, port))?;
                Ok(port)
            })?;
            self.set_source_ports(port, [&index]);
            match rustix::net::connect(&socket, &attempts[index].target) {
                Ok(()) | Err(Errno::INPROGRESS) => self.watch(Waiting::Tcp { index, socket })?,
                Err(errno) => self.record(index, FlowOutcome::Refused(errno.to_string())),
            }
        }
        Ok(())
    }

    fn set_source_ports<'i>(&mut self, port: u16, indices: impl IntoIterator<Item = &'i usize>) {
        for &index in indices {
            self.source_ports[index] = Some(port);
        }
    }

    fn watch(&mut self, waiting: Waiting) -> std::io::Result<()> {
        let token = epoll::EventData::new_u64(self.waiting.len() as u64);
        match &waiting {
            Waiting::Tcp { socket, .. } | Waiting::Sctp { socket, .. } => {
                epoll::add(&self.epoll, socket, token, epoll::EventFlags::IN)?;
            }
            Waiting::Udp { socket, .. } => {
                epoll::add(&self.epoll, socket, token, epoll::EventFlags::IN)?;
            }
        }
        self.waiting.push(Some(waiting));
        Ok(())
    }

    /// Sends, receives and resends until all have answered, no answer has come for `quiet`, or time
    /// is up.
    fn run(&mut self, timing: &Timing) -> std::io::Result<()> {
        let start = Instant::now();
        let deadline = start + timing.timeout;
        let mut last_answer = start;
        let mut sends = [Duration::ZERO, timing.quiet / 3, timing.quiet * 2 / 3].into_iter().map(|after| start + after);
        let mut next_send = sends.next();
        while self.answered < self.attempts.len() {
            let now = Instant::now();
            let end = deadline.min(last_answer + timing.quiet);
            if now >= end {
                break;
            }
            if next_send.is_some_and(|at| now >= at) {
                self.send();
                next_send = sends.next();
            }
            let wake = next_send.map_or(end, |at| at.min(end));
            let before = self.answered;
            self.poll(wake.saturating_duration_since(now))?;
            if self.answered > before {
                last_answer = Instant::now();
            }
        }
        Ok(())
    }

    /// Processes the answers that are available, or arrive within `wait`.
    fn poll(&mut self, wait: Duration) -> std::io::Result<()> {
        let mut events = Vec::with_capacity(256);
        let wait = Timespec::try_from(wait).unwrap_or_default();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&wait)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        for event in events {
            self.receive(usize::try_from(event.data.u64()).unwrap_or(usize::MAX));
        }
        Ok(())
    }

    /// Sends all datagrams that are still unanswered.
    fn send(&self) {
        for waiting in self.waiting.iter().flatten() {
            match waiting {
                Waiting::Tcp { .. } => {}
                Waiting::Udp { socket, indices } => {
                    for &index in indices.iter().filter(|&&index| self.outcomes[index].is_none()) {
                        // An error here is the ICMP error of an earlier datagram, or shows as a
                        // missing answer.
                        let _ = socket.send_to(&(index as u64).to_be_bytes(), self.attempts[index].target);
                    }
                }
                Waiting::Sctp { socket, port, indices } => {
                    for (target, &index) in indices.iter().filter(|(_, index)| self.outcomes[**index].is_none()) {
                        let tag = 0x1000 + u32::try_from(index).unwrap_or(0);
                        send_sctp(socket, &sctp::init(*port, target.port(), tag), target.ip());
                    }
                }
            }
        }
    }

    fn receive(&mut self, token: usize) {
        let mut buffer = [0; 2048];
        let Some(slot) = self.waiting.get_mut(token) else {
            return;
        };
        let Some(waiting) = slot.take() else { return };
        match &waiting {
            Waiting::Tcp { index, socket } => {
                let answer = match rustix::net::recv(socket, &mut buffer, RecvFlags::empty()) {
                    Ok((0, _)) => FlowOutcome::Refused("closed without an answer".to_owned()),
                    Ok((length, _)) => self.identify(*index, &buffer[..length]),
                    Err(Errno::AGAIN | Errno::INTR) => {
                        self.waiting[token] = Some(waiting);
                        return;
                    }
                    Err(errno) => FlowOutcome::Refused(errno.to_string()),
                };
                self.record(*index, answer);
                return;
            }
            Waiting::Udp { socket, .. } => {
                while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                    if let Some((head, name)) = buffer[..length].split_first_chunk::<8>()
                        && let Ok(index) = usize::try_from(u64::from_be_bytes(*head))
                        && self.attempts.get(index).is_some_and(|one| one.target == from)
                    {
                        let answer = self.identify(index, name);
                        self.record(index, answer);
                    }
                }
            }
            Waiting::Sctp { socket, port, indices } => {
                while let Some((packet, from)) = receive_sctp(socket, &mut buffer) {
                    if let Some(sctp::Packet::InitAck { source, destination }) = packet
                        && destination == *port
                        && let Some(&index) = indices.get(&SocketAddr::new(from, source))
                    {
                        self.record(index, FlowOutcome::Reached);
                    }
                }
            }
        }
        self.waiting[token] = Some(waiting);
    }

    fn identify(&self, index: usize, name: &[u8]) -> FlowOutcome {
        let name = String::from_utf8_lossy(name);
        if name == self.attempts[index].flow.to.to_string() {
            FlowOutcome::Reached
        } else {
            FlowOutcome::WrongServer(name.into_owned())
        }
    }

    fn record(&mut self, index: usize, outcome: FlowOutcome) {
        if self.outcomes[index].is_none() {
            self.outcomes[index] = Some(outcome);
            self.answered += 1;
        }
    }
}

/// Binds to the next free port.
fn bind_next<T>(bind: impl Fn(u16) -> std::io::Result<T>) -> std::io::Result<T> {
    let mut last = std::io::ErrorKind::AddrInUse.into();
    for _ in 0..100 {
        match bind(next_port()) {
            Ok(bound) => return Ok(bound),
            Err(error) => last = error,
        }
    }
    Err(last)
}
