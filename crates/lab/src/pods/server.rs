//! The server of a place: a thread that answers on all its ports.

use std::{
    collections::{HashMap, HashSet},
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::{AsFd, OwnedFd},
    thread::JoinHandle,
};

use rustix::{
    event::{EventfdFlags, epoll, eventfd},
    net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, socket_with},
};

use super::{Pod, Protocol, sctp};
use crate::netns::{Namespace, NetnsError};

/// Answers until dropped.
#[derive(Debug)]
pub(super) struct Server {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens on every port of `pod` at every address of it.
    pub(super) fn start(namespace: &Namespace, pod: &Pod) -> Result<Self, NetnsError> {
        let failed = |source| NetnsError::Socket { description: format!("serving {}", pod.place), source };
        let sockets = namespace.run(|| open_when_free(pod))?.map_err(failed)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?;
        let signal = stop.try_clone().map_err(failed)?;
        sockets.watch(&signal, STOP).map_err(failed)?;
        let identity = pod.place.to_string();
        let thread = std::thread::Builder::new()
            .name(format!("serve {identity}"))
            .spawn(move || sockets.serve(&identity))
            .map_err(failed)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

/// Opens the sockets once the previous ones are closed: a child process that another thread is just
/// starting holds copies of them until it executes its program.
fn open_when_free(pod: &Pod) -> std::io::Result<Sockets> {
    let mut tries = 100;
    loop {
        match Sockets::open(pod) {
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && tries > 0 => tries -= 1,
            opened => return opened,
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let signalled = rustix::io::write(&self.stop, &1u64.to_ne_bytes()).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| signalled) {
            let _ = thread.join();
        }
    }
}

/// A raw socket that receives and sends SCTP packets.
pub(super) fn raw_sctp(family: AddressFamily) -> std::io::Result<OwnedFd> {
    let socket =
        socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, Some(ipproto::SCTP))?;
    // The default buffer holds fewer packets than a large cluster sends at once.
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 1 << 20);
    Ok(socket)
}

/// Sends an SCTP packet to an address. An error shows as a missing answer.
pub(super) fn send_sctp(socket: &OwnedFd, packet: &[u8], to: IpAddr) {
    let _ = rustix::net::sendto(socket, packet, SendFlags::empty(), &SocketAddr::new(to, 0));
}

/// Receives the next SCTP packet and its source; `None` when there are no more.
pub(super) fn receive_sctp(socket: &OwnedFd, buffer: &mut [u8]) -> Option<(Option<sctp::Packet>, IpAddr)> {
    let (length, _, from) = rustix::net::recvfrom(socket, &mut *buffer, RecvFlags::empty()).ok()?;
    let from = SocketAddr::try_from(from?).ok()?.ip();
    let packet = &buffer[..length];
    Some((sctp::parse(if from.is_ipv4() { sctp::strip_ipv4_header(packet) } else { packet }), from))
}

/// Token of the descriptor that stops the thread; no other socket has it.
const STOP: u64 = u64::MAX;

#[derive(Debug)]
struct Sockets {
    epoll: OwnedFd,
    listeners: HashMap<u64, TcpListener>,
    connections: HashMap<u64, TcpStream>,
    datagrams: HashMap<u64, UdpSocket>,
    raw: HashMap<u64, OwnedFd>,
    sctp_ports: HashSet<u16>,
    next_token: u64,
}

impl Sockets {
    fn open(pod: &Pod) -> std::io::Result<Self> {
        let mut sockets = Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            listeners: HashMap::new(),
            connections: HashMap::new(),
            datagrams: HashMap::new(),
            raw: HashMap::new(),
            sctp_ports: HashSet::new(),
            next_token: 0,
        };
        for &address in &pod.addresses {
            for port in &pod.ports {
                let at = SocketAddr::new(address, port.number);
                match port.protocol {
                    Protocol::Tcp => {
                        let listener = TcpListener::bind(at)?;
                        listener.set_nonblocking(true)?;
                        let token = sockets.watch_next(&listener)?;
                        sockets.listeners.insert(token, listener);
                    }
                    Protocol::Udp => {
                        let socket = UdpSocket::bind(at)?;
                        socket.set_nonblocking(true)?;
                        let token = sockets.watch_next(&socket)?;
                        sockets.datagrams.insert(token, socket);
                    }
                    Protocol::Sctp => {
                        sockets.sctp_ports.insert(port.number);
                    }
                }
            }
            // Also for a pod without SCTP ports: otherwise its kernel would answer the prober's
            // packets with ICMP errors.
            let raw = raw_sctp(if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 })?;
            let token = sockets.watch_next(&raw)?;
            sockets.raw.insert(token, raw);
        }
        Ok(sockets)
    }

    fn watch(&self, socket: &impl AsFd, token: u64) -> std::io::Result<()> {
        epoll::add(&self.epoll, socket, epoll::EventData::new_u64(token), epoll::EventFlags::IN).map_err(Into::into)
    }

    fn watch_next(&mut self, socket: &impl AsFd) -> std::io::Result<u64> {
        let token = self.next_token;
        self.next_token += 1;
        self.watch(socket, token).map(|()| token)
    }

    fn serve(mut self, identity: &str) {
        let mut events = Vec::with_capacity(64);
        let mut buffer = [0; 2048];
        loop {
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
            for event in events.drain(..) {
                let token = event.data.u64();
                if token == STOP {
                    return;
                }
                self.accept(token, identity);
                self.echo_stream(token, &mut buffer);
                self.echo_datagrams(token, identity, &mut buffer);
                self.answer_init(token, &mut buffer);
            }
        }
    }

    fn accept(&mut self, token: u64, identity: &str) {
        let mut accepted = Vec::new();
        if let Some(listener) = self.listeners.get(&token) {
            while let Ok((stream, _)) = listener.accept() {
                accepted.push(stream);
            }
        }
        for mut stream in accepted {
            let ready = stream.set_nonblocking(true).and_then(|()| stream.write_all(identity.as_bytes()));
            if ready.is_ok()
                && let Ok(token) = self.watch_next(&stream)
            {
                self.connections.insert(token, stream);
            }
        }
    }

    fn echo_stream(&mut self, token: u64, buffer: &mut [u8]) {
        let Some(stream) = self.connections.get_mut(&token) else {
            return;
        };
        let over = match stream.read(buffer) {
            Ok(0) => true,
            Ok(length) => stream.write_all(&buffer[..length]).is_err(),
            Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
        };
        if over {
            self.connections.remove(&token);
        }
    }

    fn echo_datagrams(&self, token: u64, identity: &str, buffer: &mut [u8]) {
        let Some(socket) = self.datagrams.get(&token) else {
            return;
        };
        while let Ok((length, from)) = socket.recv_from(buffer) {
            let _ = socket.send_to(&[&buffer[..length], identity.as_bytes()].concat(), from);
        }
    }

    fn answer_init(&self, token: u64, buffer: &mut [u8]) {
        let Some(socket) = self.raw.get(&token) else {
            return;
        };
        while let Some((packet, from)) = receive_sctp(socket, buffer) {
            if let Some(sctp::Packet::Init { source, destination, tag }) = packet
                && self.sctp_ports.contains(&destination)
            {
                send_sctp(socket, &sctp::init_ack(destination, source, tag), from);
            }
        }
    }
}
