//! Proxy ARP and proxy neighbour discovery: answers for addresses of other hosts on the networks of
//! this node (`felix/dataplane/linux/proxy_neigh_mgr.go`).
//!
//! The kernel's proxy entries are not sufficient: it answers ARP only for destinations behind
//! another interface, unlike addresses of load balancers. So sockets receive the requests, and a
//! thread answers them. The entries end with the sockets.

mod arp;
mod ndp;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketAddrAny, recvfrom};
use tortie_dataplane::{KernelError, ProxyNeighbour};
use tortie_model::{Cause, Family, Mac};

use crate::error_context::with_context;
use crate::link_address::Origin;

/// Maximum number of messages of one socket that are answered before the next socket's turn.
const BURST: usize = 64;
/// Pause after waiting for messages failed.
const PAUSE: Duration = Duration::from_secs(1);

/// Addresses to answer for, and the thread that answers.
#[derive(Debug)]
pub(super) struct Responder {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Makes the thread read the state again.
    wake: OwnedFd,
}

#[derive(Debug, Default)]
struct State {
    is_stopping: bool,
    arp: Option<Arc<OwnedFd>>,
    interfaces: BTreeMap<u32, Interface>,
}

#[derive(Debug, Default)]
struct Interface {
    /// `None` for interfaces other than Ethernet, where no requests arrive.
    mac: Option<Mac>,
    v4: BTreeSet<Ipv4Addr>,
    v6: Option<ndp::Listener>,
}

/// Socket from which a message comes.
#[derive(Clone, Copy, Debug)]
enum Source {
    Arp,
    /// Socket of the interface with this index.
    Ndp(u32),
}

impl Responder {
    /// Starts the thread in the caller's network namespace; it answers for no address yet.
    pub(super) fn spawn() -> Result<Self, KernelError> {
        let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(kernel_error("eventfd"))?;
        let shared = Arc::new(Shared { state: Mutex::default(), wake });
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new().name("proxy-arp".to_owned()).spawn(move || serve(&of_thread));
        let thread = thread.map_err(|error| failed("thread", error))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Returns all entries of a family.
    pub(super) fn entries(&self, family: Family) -> Vec<ProxyNeighbour> {
        let state = self.shared.lock();
        let mut entries = Vec::new();
        for (index, interface) in &state.interfaces {
            let entry = |address: IpAddr| ProxyNeighbour { interface: *index, address };
            match family {
                Family::V4 => entries.extend(interface.v4.iter().map(|address| entry((*address).into()))),
                Family::V6 => {
                    let addresses = interface.v6.iter().flat_map(|listener| &listener.addresses);
                    entries.extend(addresses.map(|address| entry((*address).into())));
                }
            }
        }
        entries
    }

    /// Begins to answer for an address, with the Ethernet address of its interface.
    pub(super) fn add(&self, neighbour: ProxyNeighbour, mac: Option<Mac>) -> Result<(), KernelError> {
        let mut state = self.shared.lock();
        let result = state.add(neighbour, mac);
        state.close_unused(neighbour.interface);
        drop(state);
        self.shared.wake();
        result
    }

    /// Stops answering for an address.
    pub(super) fn remove(&self, neighbour: ProxyNeighbour) -> Result<(), KernelError> {
        let mut state = self.shared.lock();
        let interface = state.interfaces.get_mut(&neighbour.interface).ok_or(KernelError::NotFound)?;
        let was_there = match neighbour.address {
            IpAddr::V4(address) => interface.v4.remove(&address),
            IpAddr::V6(address) => interface.v6.as_mut().is_some_and(|listener| listener.remove(address)),
        };
        state.close_unused(neighbour.interface);
        drop(state);
        self.shared.wake();
        was_there.then_some(()).ok_or(KernelError::NotFound)
    }

    /// Announces to all hosts behind the interface that the address has this Ethernet address,
    /// which later answers also use.
    pub(super) fn announce(&self, neighbour: ProxyNeighbour, mac: Option<Mac>) -> Result<(), KernelError> {
        let mut state = self.shared.lock();
        let State { arp, interfaces, .. } = &mut *state;
        let interface = interfaces.get_mut(&neighbour.interface).ok_or(KernelError::NotFound)?;
        interface.mac = mac;
        let Some(mac) = mac else { return Ok(()) };
        let sent = match (neighbour.address, arp, &interface.v6) {
            (IpAddr::V4(address), Some(socket), _) => arp::announce(socket, neighbour.interface, mac, address),
            (IpAddr::V6(address), _, Some(listener)) => listener.announce(mac, address),
            _ => return Err(KernelError::NotFound),
        };
        match sent {
            // An interface that has just come up has no source address yet.
            Err(Errno::ADDRNOTAVAIL) => Err(KernelError::LinkDown),
            sent => sent.map_err(kernel_error("announcement")),
        }
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.shared.lock().is_stopping = true;
        self.shared.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that answers requests for addresses has panicked");
        }
    }
}

fn kernel_error(operation: &'static str) -> impl FnOnce(Errno) -> KernelError {
    move |errno| match errno {
        Errno::NODEV | Errno::NXIO => KernelError::NotFound,
        Errno::NETDOWN => KernelError::LinkDown,
        Errno::AFNOSUPPORT | Errno::OPNOTSUPP => KernelError::Unsupported,
        _ => failed(operation, errno.into()),
    }
}

fn failed(operation: &'static str, error: io::Error) -> KernelError {
    KernelError::Failed(Cause::new(with_context(operation)(error)))
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // The write fails only if the counter is full; the thread then wakes up anyway.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

impl State {
    fn add(&mut self, neighbour: ProxyNeighbour, mac: Option<Mac>) -> Result<(), KernelError> {
        let interface = self.interfaces.entry(neighbour.interface).or_default();
        interface.mac = mac;
        match neighbour.address {
            IpAddr::V4(address) => {
                if self.arp.is_none() {
                    self.arp = Some(Arc::new(arp::open().map_err(kernel_error("packet socket"))?));
                }
                interface.v4.insert(address);
                Ok(())
            }
            IpAddr::V6(address) => {
                let listener = match interface.v6.take() {
                    Some(listener) => listener,
                    None => ndp::Listener::open(neighbour.interface).map_err(kernel_error("raw socket"))?,
                };
                interface.v6.insert(listener).add(address).map_err(kernel_error("multicast group"))
            }
        }
    }

    /// Closes sockets that no longer answer for any address.
    fn close_unused(&mut self, index: u32) {
        if let Some(interface) = self.interfaces.get_mut(&index) {
            interface.v6.take_if(|listener| listener.addresses.is_empty());
            if interface.v4.is_empty() && interface.v6.is_none() {
                self.interfaces.remove(&index);
            }
        }
        if self.interfaces.values().all(|interface| interface.v4.is_empty()) {
            self.arp = None;
        }
    }

    fn sockets(&self) -> Vec<(Source, Arc<OwnedFd>)> {
        let arp = self.arp.iter().map(|socket| (Source::Arp, Arc::clone(socket)));
        let listeners = self.interfaces.iter().filter_map(|(index, interface)| {
            interface.v6.as_ref().map(|listener| (Source::Ndp(*index), Arc::clone(&listener.socket)))
        });
        arp.chain(listeners).collect()
    }

    /// Drops a socket that cannot be read, with its entries, unless it has been replaced.
    fn drop_socket(&mut self, source: Source, socket: &Arc<OwnedFd>) {
        match source {
            Source::Arp => {
                if self.arp.take_if(|arp| Arc::ptr_eq(arp, socket)).is_some() {
                    self.interfaces.values_mut().for_each(|interface| interface.v4.clear());
                }
            }
            Source::Ndp(index) => {
                if let Some(interface) = self.interfaces.get_mut(&index) {
                    interface.v6.take_if(|listener| Arc::ptr_eq(&listener.socket, socket));
                }
            }
        }
        self.interfaces.retain(|_, interface| !interface.v4.is_empty() || interface.v6.is_some());
    }
}

/// Answers until it has to stop.
fn serve(shared: &Shared) {
    loop {
        let sockets = {
            let state = shared.lock();
            if state.is_stopping {
                return;
            }
            state.sockets()
        };
        let mut polled: Vec<PollFd<'_>> = std::iter::once(&shared.wake)
            .chain(sockets.iter().map(|(_, socket)| &**socket))
            .map(|socket| PollFd::new(socket, PollFlags::IN))
            .collect();
        match poll(&mut polled, None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => {
                tracing::error!(%error, "cannot wait for requests for addresses; trying again");
                thread::sleep(PAUSE);
                continue;
            }
        }
        let mut counter = [0; 8];
        // The read fails if the state has not changed.
        let _ = rustix::io::read(&shared.wake, &mut counter);
        let readable: Vec<bool> = polled.iter().skip(1).map(|fd| !fd.revents().is_empty()).collect();
        for ((source, socket), _) in sockets.iter().zip(readable).filter(|(_, is_readable)| *is_readable) {
            if let Err(error) = answer(shared, *source, socket) {
                tracing::warn!(%error, ?source, "requests for addresses cannot be read; the socket will be opened again");
                shared.lock().drop_socket(*source, socket);
            }
        }
    }
}

/// Answers the received requests, up to a limit.
fn answer(shared: &Shared, source: Source, socket: &OwnedFd) -> Result<(), Errno> {
    const LEN: usize = if arp::PACKET_LEN > ndp::SOLICITATION_LEN { arp::PACKET_LEN } else { ndp::SOLICITATION_LEN };
    let mut buffer = [0; LEN];
    for _ in 0..BURST {
        let (length, from) = match recvfrom(socket, &mut buffer, RecvFlags::empty()) {
            Ok((length, _, from)) => (length, from),
            Err(Errno::INTR | Errno::NETDOWN) => continue,
            Err(Errno::AGAIN) => break,
            Err(error) => return Err(error),
        };
        let (Some(message), Some(from)) = (buffer.get(..length), from) else { continue };
        let replied = match source {
            Source::Arp => answer_arp(&shared.lock(), socket, message, &from),
            Source::Ndp(index) => answer_ndp(&shared.lock(), socket, index, message, from),
        };
        if let Err(error) = replied {
            tracing::debug!(%error, ?source, "a request for an address was not answered");
        }
    }
    Ok(())
}

fn answer_arp(state: &State, socket: &OwnedFd, message: &[u8], from: &SocketAddrAny) -> Result<(), Errno> {
    let Some(request) = arp::Request::parse(message) else { return Ok(()) };
    let Some((index, interface)) = Origin::of(from)
        .filter(|origin| !origin.is_own && !origin.is_foreign)
        .and_then(|origin| Some((origin.interface, state.interfaces.get(&origin.interface)?)))
    else {
        return Ok(());
    };
    match interface.mac {
        Some(mac) if mac != request.sender_mac && interface.v4.contains(&request.target) => {
            arp::reply(socket, index, mac, &request)
        }
        _ => Ok(()),
    }
}

fn answer_ndp(state: &State, socket: &OwnedFd, index: u32, message: &[u8], from: SocketAddrAny) -> Result<(), Errno> {
    let Some(target) = ndp::target(message) else { return Ok(()) };
    let Some(interface) = state.interfaces.get(&index) else { return Ok(()) };
    let is_answered = interface.v6.as_ref().is_some_and(|listener| listener.addresses.contains(&target));
    match interface.mac {
        Some(mac) if is_answered => {
            let asking = std::net::SocketAddrV6::try_from(from)?.ip().to_owned();
            ndp::reply(socket, index, mac, target, asking.into())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
