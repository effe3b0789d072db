//! Packets to the pod.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use tortie_lab::ethernet::FrameSender;

use crate::Result;
use crate::node::Node;
use crate::policy::{POD, Policy, STRANGER};

/// Nanoseconds per packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost(pub(crate) f64);

/// Kind of measured packets; each packet opens a connection, except in [`Case::Established`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Case {
    /// No policy.
    Open,
    /// Allowed by the first rule.
    First(Policy),
    /// Allowed by the last rule.
    Last(Policy),
    /// Allowed by no rule.
    NoMatch,
    /// Further packets of one answered connection that the last rule allows.
    Established(Policy),
}

const FIRST_SOURCE_PORT: u16 = 1024;
/// Bytes of a packet without its Ethernet header.
const LENGTH: u16 = 64;

/// Sender of packets to the pod, and receiver of those that are allowed.
pub(crate) struct Traffic<'n> {
    node: &'n Node,
    sender: FrameSender,
    to: [u8; 6],
}

impl<'n> Traffic<'n> {
    pub(crate) fn new(node: &'n Node) -> Result<Self> {
        Ok(Self { node, sender: FrameSender::open(node.client(), "eth0")?, to: node.address_of("eth0")? })
    }

    /// Returns the least cost of several measurements with this many packets each.
    pub(crate) fn measure(&self, case: Case, packets: u32, times: u32) -> Result<Cost> {
        let (source, port) = match case {
            Case::Open | Case::NoMatch => (STRANGER, 9),
            Case::First(policy) => policy.admitted(0),
            Case::Last(policy) | Case::Established(policy) => policy.admitted(policy.rules - 1),
        };
        let is_admitted = !matches!(case, Case::NoMatch);
        let mut best = f64::INFINITY;
        for _ in 0..times {
            self.node.delete_connections()?;
            // The socket is not read: packets beyond its buffer are dropped after policy
            // evaluation.
            let receiver = self.node.pod().run(|| UdpSocket::bind((POD, port)))??;
            receiver.set_nonblocking(true)?;
            let mut frame = self.frame(source, port);
            let is_one_connection = matches!(case, Case::Established(_));
            if is_one_connection {
                set_source_port(&mut frame, FIRST_SOURCE_PORT);
                self.sender.send(&frame)?;
                self.answer(&receiver)?;
            }
            let begin = Instant::now();
            for number in 0..packets {
                // A different source port. Once all have been used, a denied packet still opens a
                // new connection.
                if !is_one_connection {
                    let source_port = FIRST_SOURCE_PORT + u16::try_from(number % 60_000)?;
                    set_source_port(&mut frame, source_port);
                }
                self.sender.send(&frame)?;
            }
            let took = begin.elapsed();
            if receiver.recv(&mut [0; 64]).is_ok() != is_admitted {
                return Err(format!("wrong verdict in {case:?}: {source} to port {port}").into());
            }
            best = best.min(took.as_secs_f64() * 1e9 / f64::from(packets));
        }
        Ok(Cost(best))
    }

    /// Answers one packet from the pod.
    fn answer(&self, receiver: &UdpSocket) -> Result<()> {
        let begin = Instant::now();
        loop {
            match receiver.recv_from(&mut [0; 64]) {
                Ok((_, from)) => {
                    receiver.send_to(&[0], from)?;
                    return Ok(());
                }
                Err(_) if begin.elapsed() < Duration::from_secs(5) => std::thread::sleep(Duration::from_millis(1)),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Returns a UDP frame without checksum.
    fn frame(&self, source: Ipv4Addr, port: u16) -> Vec<u8> {
        let mut frame = [&self.to[..], &[2, 0, 0, 0, 0, 1], &[8, 0]].concat();
        let mut header = vec![0x45, 0];
        header.extend(LENGTH.to_be_bytes());
        header.extend([0, 0, 0, 0, 64, 17, 0, 0]);
        header.extend(source.octets());
        header.extend(POD.octets());
        let sum: u32 = header.chunks(2).map(|pair| pair.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte))).sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        let checksum = !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap_or_default();
        header.splice(10..12, checksum.to_be_bytes());
        frame.extend(header);
        frame.extend([0, 0]);
        frame.extend(port.to_be_bytes());
        frame.extend((LENGTH - 20).to_be_bytes());
        frame.resize(14 + usize::from(LENGTH), 0);
        frame
    }
}

fn set_source_port(frame: &mut [u8], port: u16) {
    if let Some(bytes) = frame.get_mut(34..36) {
        bytes.copy_from_slice(&port.to_be_bytes());
    }
}
