//! What a packet socket receives: where from, and whether it is an announcement.

use std::hash::{Hash, Hasher};

use rustix::net::SocketAddrAny;

/// Incoming and outgoing packets are told apart by this value of `sll_pkttype` (`packet(7)`).
const OUTGOING: u8 = 4;

/// Where a frame is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    /// The index of the interface.
    pub(super) interface: u32,
    /// This machine has sent it.
    pub(super) is_own: bool,
}

impl Origin {
    /// Reads the address that a packet socket gives with a frame; `None` if it is none.
    pub(super) fn of(address: &SocketAddrAny) -> Option<Self> {
        // Of an address of this kind nothing else is to be had but what is hashed: its bytes.
        let mut bytes = Bytes::default();
        address.hash(&mut bytes);
        let sockaddr = bytes.0.get(bytes.0.len().checked_sub(usize::try_from(address.addr_len()).ok()?)?..)?;
        Self::parse(sockaddr)
    }

    /// `struct sockaddr_ll`: family, protocol, index, kind of hardware, kind of packet.
    fn parse(sockaddr: &[u8]) -> Option<Self> {
        let interface = u32::from_ne_bytes(sockaddr.get(4..8)?.try_into().ok()?);
        Some(Self { interface, is_own: *sockaddr.get(10)? == OUTGOING })
    }
}

/// Keeps what it is given.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Hasher for Bytes {
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn finish(&self) -> u64 {
        0
    }
}

/// Whether an ARP packet, without the header of its frame, is gratuitous: who sends it asks or answers for its own address.
pub(super) fn is_gratuitous(packet: &[u8]) -> bool {
    let address = || {
        let [hardware, protocol] = [4, 5].map(|at| packet.get(at).copied().map(usize::from));
        let (hardware, protocol) = (hardware?, protocol?);
        let sender = 8 + hardware;
        let target = sender + protocol + hardware;
        Some(packet.get(sender..sender + protocol)? == packet.get(target..target + protocol)?)
    };
    address().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::{Origin, is_gratuitous};

    const WHO_HAS: &str = "0001 0800 0604 0001 020000000001 0a410001 000000000000";

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: String = hex.split_whitespace().collect();
        (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hex")).collect()
    }

    #[test]
    fn who_speaks_of_its_own_address_announces_itself() {
        for (packet, expected) in [
            (format!("{WHO_HAS} 0a410001"), true),
            (format!("{WHO_HAS} 0a410001 {}", "00".repeat(18)), true),
            (format!("{WHO_HAS} 0a410002"), false),
            (WHO_HAS.replace("0604 0001", "0604 0002") + " 0a410001", true),
            // A probe, before an address is taken.
            ("0001 0800 0604 0001 020000000001 00000000 000000000000 0a410001".to_owned(), false),
            (format!("{WHO_HAS} 0a4100"), false),
            (WHO_HAS[..14].to_owned(), false),
            (String::new(), false),
            // Other hardware has longer addresses.
            (format!("0020 0800 1404 0001 {0} 0a410001 {0} 0a410001", "02".repeat(20)), true),
            (format!("0001 0800 ffff 0001 {}", "00".repeat(300)), false),
        ] {
            assert_eq!(is_gratuitous(&bytes(&packet)), expected, "{packet}");
        }
    }

    #[test]
    fn an_address_tells_interface_and_direction() {
        let mut sockaddr = [0; 18];
        sockaddr[4..8].copy_from_slice(&7_u32.to_ne_bytes());
        assert_eq!(Origin::parse(&sockaddr), Some(Origin { interface: 7, is_own: false }));
        sockaddr[10] = 4;
        assert_eq!(Origin::parse(&sockaddr), Some(Origin { interface: 7, is_own: true }));
        assert_eq!(Origin::parse(&sockaddr[..8]), None);
    }
}
