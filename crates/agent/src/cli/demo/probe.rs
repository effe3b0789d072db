//! The pods' servers, and attempts to talk to them.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, getpeername, socket_with};
use tortie_model::Family;

use super::manifests::{Pod, Port, Transport};
use super::matrix::{Cell, Column, Matrix, Reach};
use super::node::Node;
use crate::cli::Failure;

/// How long an attempt waits for its answer: long enough for the kernel to repeat a packet that was lost, after a
/// second, rather than denied.
const PATIENCE: Duration = Duration::from_millis(1200);
/// How often a datagram is sent before nobody is believed to answer.
const DATAGRAMS: u32 = 3;
/// While waiting for a change, new attempts are made this often …
const RETRY: Duration = Duration::from_millis(4);
/// … each of which may be answered for this long, and looked at this often.
const LIFETIME: Duration = Duration::from_millis(100);
const LOOK: Duration = Duration::from_millis(1);
/// How long a change may take to show.
const CHANGE_PATIENCE: Duration = Duration::from_secs(5);

/// Lets every pod answer with its name on every port that it serves, until this program ends.
pub(super) fn serve(node: &Node) -> Result<(), Failure> {
    for (pod, network) in &node.pods {
        for (address, port) in pod.addresses.iter().flat_map(|address| pod.ports.iter().map(move |p| (address, p))) {
            let at = SocketAddr::new(*address, port.number);
            let failed = |error| Failure::io(format!("serving {at} in {}", pod.name))(error);
            let name = pod.name.clone().into_bytes();
            match port.transport {
                Transport::Tcp => {
                    let listener = network.run(|| TcpListener::bind(at)).map_err(failed)?;
                    let answer = move || {
                        for stream in listener.incoming() {
                            // A client that does not want its answer any more is no concern of the others.
                            let _ = stream.and_then(|mut stream| stream.write_all(&name));
                        }
                    };
                    thread::Builder::new().spawn(answer).map_err(failed)?;
                }
                Transport::Udp => {
                    let socket = network.run(|| UdpSocket::bind(at)).map_err(failed)?;
                    let answer = move || {
                        // Errors belong to datagrams that came before; the socket goes on.
                        loop {
                            if let Ok((_, client)) = socket.recv_from(&mut [0; 16]) {
                                let _ = socket.send_to(&name, client);
                            }
                        }
                    };
                    thread::Builder::new().spawn(answer).map_err(failed)?;
                }
            }
        }
    }
    Ok(())
}

/// An attempt of a pod to talk to a port of another.
#[derive(Clone, Copy)]
struct Attempt<'a> {
    column: usize,
    to: SocketAddr,
    transport: Transport,
    name: &'a str,
}

/// The ports that there are to talk to, in the order of the matrix.
fn targets(node: &Node) -> impl Iterator<Item = (&Pod, &Port)> {
    node.pods.iter().flat_map(|(pod, _)| pod.ports.iter().map(move |port| (pod, port)))
}

fn attempts<'a>(node: &'a Node, from: &Pod) -> Vec<Attempt<'a>> {
    let mut attempts = Vec::new();
    for (column, (to, port)) in targets(node).enumerate() {
        if to.name == from.name {
            continue;
        }
        for address in &to.addresses {
            let shared = from.addresses.iter().any(|own| own.is_ipv4() == address.is_ipv4());
            if shared {
                let to_port = SocketAddr::new(*address, port.number);
                attempts.push(Attempt { column, to: to_port, transport: port.transport, name: &to.name });
            }
        }
    }
    attempts
}

fn family(address: IpAddr) -> Family {
    if address.is_ipv4() { Family::V4 } else { Family::V6 }
}

/// Lets every pod try every port, all at once.
pub(super) fn probe(node: &Node) -> Result<Matrix, Failure> {
    let columns: Vec<Column> = targets(node)
        .map(|(pod, port)| Column { pod: pod.name.clone(), port: format!("{}/{}", port.number, port.transport.word()) })
        .collect();
    let rows = thread::scope(|scope| {
        let trying: Vec<_> = node
            .pods
            .iter()
            .map(|(pod, network)| {
                let body = move || network.run(|| try_all(&attempts(node, pod)));
                thread::Builder::new().spawn_scoped(scope, body)
            })
            .collect();
        node.pods
            .iter()
            .zip(trying)
            .map(|((pod, _), thread)| {
                let outcomes = thread?.join().unwrap_or_else(|_| Err(io::Error::other("a probe panicked")))?;
                let mut cells: Vec<_> =
                    columns.iter().map(|column| (column.pod != pod.name).then(Cell::default)).collect();
                for (attempt, reach) in attempts(node, pod).iter().zip(outcomes) {
                    if let Some(Some(cell)) = cells.get_mut(attempt.column) {
                        *cell.of(family(attempt.to.ip())) = Some(reach);
                    }
                }
                Ok((pod.name.clone(), cells))
            })
            .collect::<io::Result<Vec<_>>>()
    });
    Ok(Matrix { rows: rows.map_err(Failure::io("probing"))?, columns })
}

fn try_all(attempts: &[Attempt<'_>]) -> io::Result<Vec<Reach>> {
    thread::scope(|scope| {
        let trying: Vec<_> = attempts
            .iter()
            .map(|attempt| {
                let body = move || match attempt.transport {
                    Transport::Tcp => try_tcp(attempt),
                    Transport::Udp => try_udp(attempt),
                };
                thread::Builder::new().spawn_scoped(scope, body)
            })
            .collect();
        trying
            .into_iter()
            .map(|thread| thread?.join().unwrap_or_else(|_| Err(io::Error::other("a probe panicked"))))
            .collect()
    })
}

fn try_tcp(attempt: &Attempt<'_>) -> io::Result<Reach> {
    let mut answer = String::new();
    let tried = TcpStream::connect_timeout(&attempt.to, PATIENCE).and_then(|mut stream| {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.read_to_string(&mut answer)
    });
    judge(attempt, tried.map(|_| answer))
}

fn try_udp(attempt: &Attempt<'_>) -> io::Result<Reach> {
    let any: SocketAddr = if attempt.to.is_ipv4() { ([0; 4], 0).into() } else { ([0; 16], 0).into() };
    let socket = UdpSocket::bind(any)?;
    socket.set_read_timeout(Some(PATIENCE / DATAGRAMS))?;
    let mut buffer = [0; 512];
    let mut tried = Err(io::ErrorKind::TimedOut.into());
    for _ in 0..DATAGRAMS {
        tried = socket.connect(attempt.to).and_then(|()| socket.send(b"?")).and_then(|_| socket.recv(&mut buffer));
        if tried.is_ok() {
            break;
        }
    }
    judge(attempt, tried.map(|length| String::from_utf8_lossy(buffer.get(..length).unwrap_or_default()).into_owned()))
}

fn judge(attempt: &Attempt<'_>, tried: io::Result<String>) -> io::Result<Reach> {
    use io::ErrorKind as Kind;
    let (to, name) = (attempt.to, attempt.name);
    match tried {
        Ok(answer) if answer == name => Ok(Reach::Answered),
        Ok(answer) => Err(io::Error::other(format!("`{answer}` answered at {to}, which is the address of {name}"))),
        Err(error) => match error.kind() {
            Kind::TimedOut | Kind::WouldBlock => Ok(Reach::Silent),
            Kind::ConnectionRefused
            | Kind::ConnectionReset
            | Kind::HostUnreachable
            | Kind::NetworkUnreachable
            | Kind::PermissionDenied => Ok(Reach::Refused),
            _ => Err(error),
        },
    }
}

/// Does `act` while every pod goes on trying the TCP ports that are silent in `now`. Returns when the first one
/// answered; `None` if none does in time.
pub(super) fn first_answer(
    node: &Node,
    now: &Matrix,
    act: impl FnOnce() -> Result<(), Failure>,
) -> Result<Option<Instant>, Failure> {
    let stop = AtomicBool::new(false);
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        for ((pod, network), (_, cells)) in node.pods.iter().zip(&now.rows) {
            let silent = move |attempt: &Attempt<'_>| {
                let mut cell = cells.get(attempt.column).copied().flatten().unwrap_or_default();
                attempt.transport == Transport::Tcp && *cell.of(family(attempt.to.ip())) == Some(Reach::Silent)
            };
            let targets: Vec<SocketAddr> = attempts(node, pod).into_iter().filter(silent).map(|a| a.to).collect();
            let (tell, stop) = (tell.clone(), &stop);
            let body = move || {
                // A watcher that fails sees nothing, as one for which nothing changes.
                if let Ok(Some(seen)) = network.run(|| watch(&targets, stop)) {
                    let _ = tell.send(seen);
                }
            };
            if let Err(error) = thread::Builder::new().spawn_scoped(scope, body) {
                stop.store(true, Ordering::Relaxed);
                return Err(Failure::io("a thread that watches")(error));
            }
        }
        let done = act();
        let seen = done.map(|()| told.recv_timeout(CHANGE_PATIENCE).ok());
        stop.store(true, Ordering::Relaxed);
        seen
    })
}

fn watch(targets: &[SocketAddr], stop: &AtomicBool) -> io::Result<Option<Instant>> {
    let mut open: VecDeque<(Instant, OwnedFd)> = VecDeque::new();
    let mut next = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        while open.front().is_some_and(|(since, _)| now.duration_since(*since) > LIFETIME) {
            open.pop_front();
        }
        if now >= next {
            for to in targets {
                let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
                let socket =
                    socket_with(family, SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)?;
                // That it is under way is reported as an error; how it ends shows later.
                let _ = connect(&socket, to);
                open.push_back((now, socket));
            }
            next = now + RETRY;
        }
        if open.iter().any(|(_, socket)| getpeername(socket).is_ok()) {
            return Ok(Some(Instant::now()));
        }
        thread::sleep(LOOK);
    }
    Ok(None)
}
