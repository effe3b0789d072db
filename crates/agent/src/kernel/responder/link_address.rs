//! Addresses of packet sockets, `sockaddr_ll` of `packet(7)`, without unsafe code.

use std::hash::{Hash as _, Hasher};
use std::net::{Ipv6Addr, SocketAddrV6};

use rustix::net::{AddressFamily, SocketAddrAny};
use tortie_model::Mac;

pub(super) const ETHERTYPE_ARP: u16 = 0x0806;

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
pub(super) fn to(interface: u32, mac: Mac) -> SocketAddrV6 {
    let mut rest = [0; 16];
    rest.iter_mut().zip([0, 1, 0, 6].into_iter().chain(mac.0)).for_each(|(byte, value)| *byte = value);
    // Ports and flow labels are in network order, and the index in the machine's.
    SocketAddrV6::new(Ipv6Addr::from(rest), ETHERTYPE_ARP, u32::from_be(interface), 0)
}

/// The interface by which a packet came in; `None` for one that was not meant for this machine, or left it.
pub(super) fn interface_of(from: &SocketAddrAny) -> Option<u32> {
    if from.address_family() != AddressFamily::PACKET {
        return None;
    }
    let mut bytes = Bytes::default();
    from.hash(&mut bytes);
    let interface = bytes.0.get(INTERFACE..)?.first_chunk().map(|index| u32::from_ne_bytes(*index))?;
    let is_for_us = !matches!(*bytes.0.get(PACKET_TYPE)?, OTHER_HOST | OUTGOING);
    (is_for_us && interface != 0).then_some(interface)
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
        assert_eq!(interface_of(&to(1, Mac([0; 6])).into()), None, "an address of IPv6");
    }
}
