//! Addresses of packet sockets, `struct sockaddr_ll` of `packet(7)`, without unsafe code.

use std::hash::{Hash as _, Hasher};
use std::net::{Ipv6Addr, SocketAddrV6};

use rustix::net::{AddressFamily, SocketAddrAny};
use tortie_model::Mac;

/// The `EtherType` of ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;

const INTERFACE: usize = 4;
const PACKET_TYPE: usize = 10;
/// The packet was for another machine.
const OTHER_HOST: u8 = 3;
/// The packet is one that this machine sent.
const OUTGOING: u8 = 4;

/// Where a packet of ARP goes.
///
/// When it sends, the kernel looks at everything of such an address but its family, so that one of IPv6 with the same bytes
/// stands for it: protocol, index of the interface, and behind two words that do not count the Ethernet address and its length.
#[must_use]
pub fn to(interface: u32, mac: Mac) -> SocketAddrV6 {
    let mut rest = [0; 16];
    rest.iter_mut().zip([0, 1, 0, 6].into_iter().chain(mac.0)).for_each(|(byte, value)| *byte = value);
    // Ports and flow labels are in network order, and the index in the machine's.
    SocketAddrV6::new(Ipv6Addr::from(rest), ETHERTYPE_ARP, u32::from_be(interface), 0)
}

/// Where a packet comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The index of the interface.
    pub interface: u32,
    /// This machine has sent it.
    pub is_own: bool,
    /// It was for another machine.
    pub is_foreign: bool,
}

impl Origin {
    /// Reads the address that a packet socket gives with a packet; `None` if it is none.
    #[must_use]
    pub fn of(address: &SocketAddrAny) -> Option<Self> {
        if address.address_family() != AddressFamily::PACKET {
            return None;
        }
        let mut bytes = Bytes::default();
        address.hash(&mut bytes);
        Self::parse(&bytes.0)
    }

    fn parse(sockaddr: &[u8]) -> Option<Self> {
        let interface = sockaddr.get(INTERFACE..)?.first_chunk().map(|index| u32::from_ne_bytes(*index))?;
        let packet_type = *sockaddr.get(PACKET_TYPE)?;
        let origin = Self { interface, is_own: packet_type == OUTGOING, is_foreign: packet_type == OTHER_HOST };
        (interface != 0).then_some(origin)
    }
}

/// Keeps what is hashed: of an address all its bytes, which are not to be had otherwise.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Hasher for Bytes {
    fn finish(&self) -> u64 {
        0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The length that comes before.
    fn write_usize(&mut self, _: usize) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_the_bytes_that_the_kernel_reads() {
        let mut bytes = Bytes::default();
        SocketAddrAny::from(to(0x0102_0304, Mac([10, 11, 12, 13, 14, 15]))).hash(&mut bytes);
        let bytes = bytes.0;
        assert!(bytes.len() >= 20, "{bytes:?}");
        assert_eq!(bytes[2..4], ETHERTYPE_ARP.to_be_bytes());
        assert_eq!(bytes[4..8], 0x0102_0304_u32.to_ne_bytes());
        assert_eq!(bytes[11..18], [6, 10, 11, 12, 13, 14, 15]);
        assert_eq!(Origin::of(&to(1, Mac([0; 6])).into()), None, "an address of IPv6");
    }

    #[test]
    fn an_address_tells_interface_and_direction() {
        let mut sockaddr = [0; 18];
        assert_eq!(Origin::parse(&sockaddr), None);
        sockaddr[4..8].copy_from_slice(&7_u32.to_ne_bytes());
        for (packet_type, is_own, is_foreign) in
            [(0, false, false), (1, false, false), (3, false, true), (4, true, false)]
        {
            sockaddr[10] = packet_type;
            assert_eq!(Origin::parse(&sockaddr), Some(Origin { interface: 7, is_own, is_foreign }));
        }
        assert_eq!(Origin::parse(&sockaddr[..8]), None);
    }
}
