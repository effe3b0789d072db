//! ARP for IPv4 over Ethernet (RFC 826).

use std::net::Ipv4Addr;

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, Protocol, SendFlags, SocketFlags, SocketType, sendto, socket_with};
use tortie_model::Mac;

use crate::link_address::{self, ETHERTYPE_ARP};

pub(super) const PACKET_LEN: usize = 28;
/// Ethernet and IPv4, with the lengths of their addresses.
const HEADER: [u8; 6] = [0, 1, 8, 0, 6, 4];
const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const BROADCAST: Mac = Mac([0xff; 6]);

/// Request for the Ethernet address of an IPv4 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) sender_mac: Mac,
    pub(super) sender: Ipv4Addr,
    pub(super) target: Ipv4Addr,
}

impl Request {
    /// Decodes a request; `None` for any other packet.
    pub(super) fn parse(packet: &[u8]) -> Option<Self> {
        let (header, rest) = packet.split_first_chunk::<6>()?;
        let (operation, rest) = rest.split_first_chunk::<2>()?;
        let (sender_mac, rest) = rest.split_first_chunk::<6>()?;
        let (sender, rest) = rest.split_first_chunk::<4>()?;
        let (_, rest) = rest.split_first_chunk::<6>()?;
        let target = rest.first_chunk::<4>()?;
        let is_request = *header == HEADER && *operation == [0, REQUEST];
        is_request.then(|| Self {
            sender_mac: Mac(*sender_mac),
            sender: Ipv4Addr::from(*sender),
            target: Ipv4Addr::from(*target),
        })
    }
}

fn packet(operation: u8, from: (Mac, Ipv4Addr), to: (Mac, Ipv4Addr)) -> Vec<u8> {
    let mut packet = Vec::with_capacity(PACKET_LEN);
    packet.extend(HEADER);
    packet.extend([0, operation]);
    for (mac, address) in [from, to] {
        packet.extend(mac.0);
        packet.extend(address.octets());
    }
    packet
}

/// Opens a socket that receives the ARP packets of all interfaces.
pub(super) fn open() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let protocol = std::num::NonZeroU32::new(u32::from(ETHERTYPE_ARP.to_be())).map(Protocol::from_raw);
    socket_with(AddressFamily::PACKET, SocketType::DGRAM, flags, protocol)
}

/// Answers that the target of a request has this Ethernet address.
pub(super) fn reply(socket: &OwnedFd, interface: u32, mac: Mac, request: &Request) -> Result<(), Errno> {
    let packet = packet(REPLY, (mac, request.target), (request.sender_mac, request.sender));
    send(socket, interface, request.sender_mac, &packet)
}

/// Announces to all hosts behind an interface that an address has this Ethernet address.
pub(super) fn announce(socket: &OwnedFd, interface: u32, mac: Mac, address: Ipv4Addr) -> Result<(), Errno> {
    send(socket, interface, BROADCAST, &packet(REQUEST, (mac, address), (BROADCAST, address)))
}

fn send(socket: &OwnedFd, interface: u32, to: Mac, packet: &[u8]) -> Result<(), Errno> {
    sendto(socket, packet, SendFlags::NOSIGNAL, &link_address::to(interface, to)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const OTHER: Mac = Mac([2, 0, 0, 0, 0, 2]);

    #[test]
    fn only_requests_are_parsed() {
        let (asking, asked) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 9));
        let request = packet(REQUEST, (OTHER, asking), (Mac([0; 6]), asked));
        assert_eq!(request.len(), PACKET_LEN);
        let wanted = Request { sender_mac: OTHER, sender: asking, target: asked };
        assert_eq!(Request::parse(&request), Some(wanted));
        // Short frames are padded.
        assert_eq!(Request::parse(&[&request[..], &[0; 18]].concat()), Some(wanted));
        assert_eq!(Request::parse(&packet(REPLY, (MAC, asked), (OTHER, asking))), None);
        for length in 0..PACKET_LEN {
            assert_eq!(Request::parse(&request[..length]), None, "{length}");
        }
        for at in 0..8 {
            let mut changed = request.clone();
            changed[at] ^= 0x10;
            assert_eq!(Request::parse(&changed), None, "byte {at}");
        }
    }
}
