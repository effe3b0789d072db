//! Members of IP sets.

use tortie_model::Cidr;
use tortie_model::desired::{IpPortMember, PortProtocol};

/// A protocol and port.
type Port = (PortProtocol, u16);

/// A member of an IP set: a network, or an address with protocol and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Member {
    net: Cidr,
    port: Option<Port>,
}

impl Member {
    pub(super) fn of_net(net: Cidr) -> Self {
        Self { net, port: None }
    }

    pub(super) fn of_port(address: Cidr, port: Port) -> Self {
        Self { net: address, port: Some(port) }
    }

    /// Returns the network, or the address of a port member.
    pub(super) fn net(self) -> Cidr {
        self.net
    }

    pub(super) fn has_port(self, port: Port) -> bool {
        self.port == Some(port)
    }

    pub(super) fn with_port(self) -> Option<IpPortMember> {
        let (protocol, port) = self.port?;
        Some(IpPortMember::new(self.net.address(), protocol, port))
    }
}
