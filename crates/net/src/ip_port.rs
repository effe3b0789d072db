//! Addresses with a port.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::{Cidr, PortProtocol, parse_address};

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

    /// Returns the address.
    #[must_use]
    pub fn address(self) -> IpAddr {
        self.address.address()
    }

    /// Returns the protocol.
    #[must_use]
    pub fn protocol(self) -> PortProtocol {
        self.protocol
    }

    /// Returns the port.
    #[must_use]
    pub fn port(self) -> u16 {
        u16::from_be_bytes(self.port)
    }
}

impl fmt::Display for IpPortMember {
    /// Writes the member as in messages and sets: `10.0.0.1,tcp:80`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}:{}", self.address(), self.protocol, self.port())
    }
}

impl fmt::Debug for IpPortMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Text that is no address with a protocol and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an address, a protocol and a port, such as 10.0.0.1,tcp:80")]
pub struct IpPortParseError;

impl FromStr for IpPortMember {
    type Err = IpPortParseError;

    /// Reads `10.0.0.1,tcp:80`, the protocol in any case; an IPv4-mapped address is IPv4.
    fn from_str(text: &str) -> Result<Self, IpPortParseError> {
        let member = || {
            let (address, rest) = text.split_once(',')?;
            let (protocol, port) = rest.split_once(':')?;
            let protocol = PortProtocol::ALL.into_iter().find(|known| known.as_str().eq_ignore_ascii_case(protocol))?;
            Some(Self::new(parse_address(address)?, protocol, port.parse().ok()?))
        };
        member().ok_or(IpPortParseError)
    }
}

crate::serde_text!(IpPortMember, crate::de_text);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formatted_members_are_parsed_back() {
        for text in ["10.0.0.1,tcp:80", "fd00::1,sctp:0"] {
            assert_eq!(text.parse::<IpPortMember>().unwrap().to_string(), text);
        }
        let mapped: IpPortMember = "::ffff:10.0.0.1,TCP:80".parse().unwrap();
        assert_eq!(mapped.to_string(), "10.0.0.1,tcp:80");
        for bad in ["", "10.0.0.1", "10.0.0.1,tcp", "10.0.0.1,icmp:1", "10.0.0.0/8,tcp:80", "10.0.0.1,tcp:65536"] {
            assert_eq!(bad.parse::<IpPortMember>(), Err(IpPortParseError), "{bad}");
        }
    }
}
