//! Thread that records the packets received at a place.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket},
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};

use rustix::{
    event::{Timespec, epoll},
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with, sockopt},
};

use super::{PORT, ProbeLog, raise_priority};
use tortie_lab::netns::{Namespace, NetnsError};

/// Maximum time until the thread notices the end.
const REST: Duration = Duration::from_millis(50);

/// Starts the thread, with sockets inside the namespace.
pub(super) fn start(log: &Arc<ProbeLog>, namespace: &Namespace) -> Result<JoinHandle<()>, NetnsError> {
    let failed = |source| NetnsError::Socket { description: "receiving probes".to_owned(), source };
    let sockets = namespace.run(Sockets::open)?.map_err(failed)?;
    let log = Arc::clone(log);
    Ok(std::thread::spawn(move || {
        raise_priority();
        sockets.run(&log);
    }))
}

struct Sockets {
    epoll: OwnedFd,
    datagrams: Vec<UdpSocket>,
    listeners: Vec<TcpListener>,
}

impl Sockets {
    fn open() -> io::Result<Self> {
        let mut sockets =
            Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?, datagrams: Vec::new(), listeners: Vec::new() };
        for any in [SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT)), (Ipv6Addr::UNSPECIFIED, PORT).into()] {
            let datagrams = UdpSocket::from(bound(any, SocketType::DGRAM)?);
            // No packet may be lost here on a busy machine.
            let _ = sockopt::set_socket_recv_buffer_size_force(&datagrams, 16 << 20);
            sockets.watch(&datagrams)?;
            sockets.datagrams.push(datagrams);
            let listener = bound(any, SocketType::STREAM)?;
            rustix::net::listen(&listener, 1024)?;
            sockets.watch(&listener)?;
            sockets.listeners.push(listener.into());
        }
        Ok(sockets)
    }

    fn watch(&self, socket: &impl AsFd) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?)
    }

    fn run(&self, log: &ProbeLog) {
        let mut events = Vec::with_capacity(8);
        let mut packet = [0; 64];
        let rest = Timespec::try_from(REST).unwrap_or_default();
        while !log.is_over() {
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&rest)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
            events.clear();
            for socket in &self.datagrams {
                while let Ok((length, from)) = socket.recv_from(&mut packet) {
                    if let Some((id, number, answer)) = parse(&packet[..length]) {
                        log.arrived(id, number);
                        if answer {
                            // A single lost answer does not matter.
                            let _ = socket.send_to(b"here", from);
                        }
                    }
                }
            }
            for listener in &self.listeners {
                // The connecting side records the success.
                while listener.accept().is_ok() {}
            }
        }
    }
}

fn bound(address: SocketAddr, kind: SocketType) -> io::Result<OwnedFd> {
    let (family, protocol) = match (address.is_ipv4(), kind == SocketType::DGRAM) {
        (true, true) => (AddressFamily::INET, ipproto::UDP),
        (true, false) => (AddressFamily::INET, ipproto::TCP),
        (false, true) => (AddressFamily::INET6, ipproto::UDP),
        (false, false) => (AddressFamily::INET6, ipproto::TCP),
    };
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, Some(protocol))?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if family == AddressFamily::INET6 {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    rustix::net::bind(&socket, &address)?;
    Ok(socket)
}

/// Returns channel, number, and whether an answer is requested.
fn parse(packet: &[u8]) -> Option<(usize, usize, bool)> {
    let (id, rest) = packet.split_first_chunk::<8>()?;
    let (number, rest) = rest.split_first_chunk::<8>()?;
    let [id, number] = [id, number].map(|bytes| usize::try_from(u64::from_be_bytes(*bytes)).ok());
    Some((id?, number?, rest == [1]))
}
