//! Packets with the names by which an endpoint knows their destination.

use tortie_model::DomainName;

use crate::packet::Packet;

/// Names of a packet's destination, as known to the endpoint that sends it. They decide about rules
/// by domain name in egress policy of [`Layer::Normal`](crate::Layer::Normal), and about nothing
/// else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "there are no others")]
pub enum Names<'a> {
    /// Nothing is known of them. The answer holds if no rule matches one of them, and has the
    /// alternative ([`Answer::alternative`](crate::Answer::alternative)).
    #[default]
    Unknown,
    /// The endpoint has resolved these names to the destination, and no other.
    Known(&'a [DomainName]),
}

/// A packet with the names of its destination.
///
/// ```
/// use tortie_evaluate::{NamedPacket, Names, Packet};
/// let (pod, server) = ("10.0.0.1".parse()?, "192.0.2.7".parse()?);
/// let packet = Packet::tcp((pod, 40000), (server, 443))?;
/// let names = ["www.example.com".parse()?];
/// assert_eq!(NamedPacket::new(&packet, Names::Known(&names)).packet(), &packet);
/// assert_eq!(NamedPacket::from(&packet), NamedPacket::new(&packet, Names::Unknown));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedPacket<'a> {
    packet: &'a Packet,
    pub(crate) names: Names<'a>,
    pub(crate) has_address: bool,
}

impl<'a> NamedPacket<'a> {
    /// Returns a packet whose destination has these names.
    #[must_use]
    pub fn new(packet: &'a Packet, names: Names<'a>) -> Self {
        Self { packet, names, has_address: true }
    }

    /// Returns the packet to an unknown address, of which only the family counts. A rule that
    /// matches the destination by address then matches nothing, and is the alternative
    /// ([`Answer::alternative`](crate::Answer::alternative)) if it would change the verdict.
    #[must_use]
    pub fn without_address(self) -> Self {
        Self { has_address: false, ..self }
    }

    /// Returns the packet.
    #[must_use]
    pub fn packet(&self) -> &'a Packet {
        self.packet
    }
}

impl<'a> From<&'a Packet> for NamedPacket<'a> {
    /// Returns a packet whose destination's names are unknown.
    fn from(packet: &'a Packet) -> Self {
        Self::new(packet, Names::Unknown)
    }
}
