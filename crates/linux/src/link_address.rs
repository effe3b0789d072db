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

/// Returns the destination address of an ARP packet.
///
/// When it sends, the kernel evaluates all of such an address but its family. An IPv6 address with
/// the same bytes therefore stands for it: protocol, interface index, two ignored fields, and the
/// length of the Ethernet address with the address itself.
#[must_use]
pub fn to(interface: u32, mac: Mac) -> SocketAddrV6 {
    let mut rest = [0; 16];
    rest.iter_mut().zip([0, 1, 0, 6].into_iter().chain(mac.0)).for_each(|(byte, value)| *byte = value);
    // The port is stored in network byte order, the index in the machine's.
    SocketAddrV6::new(Ipv6Addr::from(rest), ETHERTYPE_ARP, u32::from_be(interface), 0)
}

/// Origin of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Index of the interface.
    pub interface: u32,
    /// Whether this machine has sent it.
    pub is_own: bool,
    /// Whether it was for another machine.
    pub is_foreign: bool,
}

impl Origin {
    /// Decodes the address that a packet socket returns with a packet; `None` if it is of another
    /// kind.
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

/// Hasher that keeps the hashed bytes. The bytes of an address are not accessible otherwise.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Hasher for Bytes {
    fn finish(&self) -> u64 {
        0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Ignores the length that precedes the bytes.
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
    fn an_address_holds_interface_and_direction() {
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
