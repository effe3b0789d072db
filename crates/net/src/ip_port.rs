//! Addresses with a port.

use std::fmt;
use std::net::IpAddr;

use crate::{Cidr, PortProtocol};

/// An address, protocol and port as the member of an IP set, packed into 20 bytes.
///
/// ```
/// use tortie_net::{IpPortMember, PortProtocol};
/// let member = IpPortMember::new("10.0.0.1".parse()?, PortProtocol::Tcp, 80);
/// assert_eq!(member.to_string(), "10.0.0.1,tcp:80");
/// assert_eq!(std::mem::size_of::<IpPortMember>(), 20);
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IpPortMember {
    address: Cidr,
    port: [u8; 2],
    protocol: PortProtocol,
}

impl IpPortMember {
    /// Joins address, protocol and port.
    #[must_use]
    pub fn new(address: IpAddr, protocol: PortProtocol, port: u16) -> Self {
        Self { address: Cidr::host(address), port: port.to_be_bytes(), protocol }
    }

    /// The address.
    #[must_use]
    pub fn address(self) -> IpAddr {
        self.address.address()
    }

    /// The protocol.
    #[must_use]
    pub fn protocol(self) -> PortProtocol {
        self.protocol
    }

    /// The port.
    #[must_use]
    pub fn port(self) -> u16 {
        u16::from_be_bytes(self.port)
    }
}

impl fmt::Display for IpPortMember {
    /// As in messages and sets: `10.0.0.1,tcp:80`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}:{}", self.address(), self.protocol, self.port())
    }
}

impl fmt::Debug for IpPortMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
