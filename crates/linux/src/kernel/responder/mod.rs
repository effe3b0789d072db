//! Answers requests for addresses of others on the networks of this node, by ARP and neighbour discovery
//! (`felix/dataplane/linux/proxy_neigh_mgr.go`).
//!
//! The kernel's own proxy entries would not do: it answers ARP only for what leaves by another interface, which addresses
//! of load balancers do not. So sockets hear what is asked, and a thread answers. What is answered for ends with them.

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

use crate::link_address::Origin;
use crate::placed::placed;

/// How many messages of one socket are answered before it is another's turn.
const BURST: usize = 64;
/// How long nothing is done when the system cannot say what there is to read.
const PAUSE: Duration = Duration::from_secs(1);

/// What is answered for, and the thread that answers.
#[derive(Debug)]
pub(super) struct Responder {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Has the thread look at the state again.
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
    /// `None` if it is none of Ethernet, where nobody asks.
    mac: Option<Mac>,
    v4: BTreeSet<Ipv4Addr>,
    v6: Option<ndp::Listener>,
}

/// Where a message comes from.
#[derive(Clone, Copy, Debug)]
enum Source {
    Arp,
    /// The interface with this index.
    Ndp(u32),
}

impl Responder {
    /// Begins to answer, in the network namespace of this thread; for nothing yet.
    pub(super) fn spawn() -> Result<Self, KernelError> {
        let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(kernel_error("eventfd"))?;
        let shared = Arc::new(Shared { state: Mutex::default(), wake });
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new().name("proxy-arp".to_owned()).spawn(move || serve(&of_thread));
        let thread = thread.map_err(|error| failed("thread", error))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// All that is answered for in a family.
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

    /// Answers for an address from now on, with the Ethernet address of its interface.
    pub(super) fn add(&self, neighbour: ProxyNeighbour, mac: Option<Mac>) -> Result<(), KernelError> {
        let mut state = self.shared.lock();
        let result = state.add(neighbour, mac);
        state.close_unused(neighbour.interface);
        drop(state);
        self.shared.wake();
        result
    }

    /// Answers for an address no more.
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

    /// Tells everybody behind the interface that the address has this Ethernet address, which is answered from now on.
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
            // An interface that has just come up has no address to send from yet.
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

fn kernel_error(what: &'static str) -> impl FnOnce(Errno) -> KernelError {
    move |errno| match errno {
        Errno::NODEV | Errno::NXIO => KernelError::NotFound,
        Errno::NETDOWN => KernelError::LinkDown,
        Errno::AFNOSUPPORT | Errno::OPNOTSUPP => KernelError::Unsupported,
        _ => failed(what, errno.into()),
    }
}

fn failed(what: &'static str, error: io::Error) -> KernelError {
    KernelError::Failed(Cause::new(placed(what)(error)))
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // What fails is a counter that is full, and so is seen.
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

    /// Closes what nothing is answered by any more.
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

    /// Forgets a socket that cannot be read, and what was answered by it, unless there is another one by now.
    fn forget(&mut self, source: Source, socket: &Arc<OwnedFd>) {
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

/// Answers until it is to stop.
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
                tracing::error!(%error, "it cannot be waited for requests for addresses; trying again");
                thread::sleep(PAUSE);
                continue;
            }
        }
        let mut counter = [0; 8];
        // It is empty if nobody has changed anything.
        let _ = rustix::io::read(&shared.wake, &mut counter);
        let readable: Vec<bool> = polled.iter().skip(1).map(|fd| !fd.revents().is_empty()).collect();
        for ((source, socket), _) in sockets.iter().zip(readable).filter(|(_, is_readable)| *is_readable) {
            if let Err(error) = answer(shared, *source, socket) {
                tracing::warn!(%error, ?source, "requests for addresses cannot be read; the socket will be opened again");
                shared.lock().forget(*source, socket);
            }
        }
    }
}

/// Answers what has come in, but not too much at once.
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
